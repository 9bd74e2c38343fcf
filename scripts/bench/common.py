"""What the benchmarks share: prompts, turns, median ratios, and the report."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.bench.results import Result, Table, command_line, machine

ROOT = Path(__file__).resolve().parents[2]


def sample_text() -> str:
    """A few thousand tokens of English that every checkout has."""
    return (ROOT / "LICENSE").read_text(encoding="utf-8")


def prompts(encode: Callable[[str], list[int]], count: int, length: int) -> list[list[int]]:
    """`count` prompts of `length` tokens, no two with a common first token run worth caching."""
    ids = encode(sample_text())
    while len(ids) < length + 37 * count:
        ids = ids + ids
    return [ids[37 * i : 37 * i + length] for i in range(count)]


def seconds(f: Callable[[], Any]) -> float:
    """Wall-clock time of one call."""
    start = time.perf_counter()
    f()
    return time.perf_counter() - start


def interleave(
    contestants: dict[str, Callable[[], float]], rounds: int, warmups: int = 1
) -> dict[str, list[float]]:
    """Each contestant once a round, in turn, so that a slow minute of the machine hits them all."""
    results: dict[str, list[float]] = {name: [] for name in contestants}
    for i in range(warmups + rounds):
        for name, run in contestants.items():
            value = run()
            if i >= warmups:
                results[name].append(value)
    return results


def median_ratio(ours: Sequence[float], theirs: Sequence[float]) -> float:
    """The median over rounds of ours / theirs."""
    return statistics.median(a / b for a, b in zip(ours, theirs, strict=True))


def report(
    *tables: Table,
    out: Path | None = None,
    notes: Sequence[str] = (),
    pictures: Mapping[str, str] | None = None,
) -> None:
    """Print the result of the script that runs, named by its first table, and save it in `out`."""
    script = sys.modules["__main__"].__spec__
    result = Result(
        tables=list(tables),
        notes=list(notes),
        pictures=dict(pictures or {}),
        title=tables[0].title,
        command=command_line(script.name if script else sys.argv[0], without_json(sys.argv[1:])),
        machine=machine(),
    )
    print(result.show())
    if out is not None:
        result.save(out)


def without_json(arguments: Sequence[str]) -> list[str]:
    """The arguments but where to save.

    >>> without_json(["--rounds", "3", "--json", "out.json", "--batch", "8"])
    ['--rounds', '3', '--batch', '8']
    """
    kept = iter(arguments)
    return [each for each in kept if each != "--json" or not next(kept)]

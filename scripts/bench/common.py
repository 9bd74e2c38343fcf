"""What the benchmarks share: prompts, medians, and a table with the baseline beside us."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

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


def machine() -> dict[str, str]:
    """Enough of the machine to read a figure by."""
    import torch

    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":")[1].strip()
                break
    return {
        "cpu": model,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"),
    }


def report(title: str, rows: list[dict[str, Any]], out: Path | None = None) -> None:
    """Print `rows` as a Markdown table, and write them as JSON where asked."""
    where = machine()
    print(f"{title}\n{', '.join(f'{k} {v}' for k, v in where.items())}\n")
    columns = list(rows[0])
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for row in rows:
        cells = [f"{v:.2f}" if isinstance(v, float) else str(v) for v in row.values()]
        print("| " + " | ".join(cells) + " |")
    if out is not None:
        out.write_text(json.dumps({"title": title, "machine": where, "rows": rows}, indent=2))

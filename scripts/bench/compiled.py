"""What a program costs beside its model: run as a function, and as a graph.

    python -m scripts.bench.compiled
    python -m scripts.bench.compiled --runs 500 --rounds 9

The backend answers at once, so the time is the language's own: that of the process on its
processors, all threads together, which a busy machine does not stretch as it does the clock's.
Each program is run as a batch by the interpreter and as a compiled program, in turn, and every
round's two times make one ratio.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import minisgl.lang as sgl
from minisgl.lang.backends.base import Answer, Backend
from scripts.bench.common import interleave, median_ratio, report
from scripts.bench.results import Table


class Instant(Backend):
    """Answers at once."""

    name = "nobody"

    @property
    def chat(self) -> Any:
        return self

    def before(self, roles: tuple[str, ...]) -> str:
        return f"<{roles[-1]}>"

    def after(self, roles: tuple[str, ...]) -> str:
        return "</>"

    async def generate(self, context: Any, params: Any) -> list[Answer]:
        return [Answer(" yes")] * params.n

    async def stream(self, context: Any, params: Any) -> AsyncIterator[Answer]:
        yield Answer(" yes")


@sgl.function
def question(s: sgl.ProgramState, item: str) -> None:
    """A chat turn."""
    s += sgl.system("Be brief.")
    s += sgl.user("Q: " + item)
    s += sgl.assistant(sgl.gen("answer"))


@sgl.function
def chain(s: sgl.ProgramState, item: str) -> None:
    """Twenty answers, one after another."""
    s += "About " + item + ".\n"
    for i in range(20):
        s += f"{i}:" + sgl.gen(f"answer_{i}") + "\n"


@sgl.function
def branches(s: sgl.ProgramState, item: str) -> None:
    """Eight branches, a join, a summary (the essay judge's form)."""
    s += "Essay: " + item + "\n"
    forks = s.fork(8)
    forks += lambda i: f"Dimension {i}:" + sgl.gen("judgment")
    forks.join()
    for i in range(8):
        s += f"{i}: " + s["judgment"][i] + "\n"
    s += "In sum:" + sgl.gen("summary")


PROGRAMS = {"a chat turn": question, "a chain of 20": chain, "8 branches": branches}


def contestants(
    program: sgl.Function[..., Any], items: list[tuple[str]]
) -> dict[str, Callable[[], float]]:
    """Processor seconds of a batch, run one way or the other."""
    backend = Instant()
    compiled = program.compile(backend)
    one, other = program.run(*items[0], backend=backend), compiled.run(*items[0])
    assert one.text() == other.text()
    return {
        "function": lambda: cpu_seconds(lambda: program.run_batch(items, backend=backend)),
        "graph": lambda: cpu_seconds(lambda: compiled.run_batch(items)),
    }


def cpu_seconds(f: Callable[[], Any]) -> float:
    """What one call takes of the processors."""
    start = time.process_time()
    f()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200, help="programs in a batch")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    if min(args.runs, args.rounds) < 1:
        parser.error("every number must be at least 1")
    items = [(f"item {i}",) for i in range(args.runs)]
    rows = []
    for name, program in PROGRAMS.items():
        times = interleave(contestants(program, items), args.rounds)
        per_run = {k: 1e6 * statistics.median(v) / args.runs for k, v in times.items()}
        rows.append(
            {
                "program": name,
                "as a function, µs": per_run["function"],
                "as a graph, µs": per_run["graph"],
                "function / graph": median_ratio(times["function"], times["graph"]),
            }
        )
    title = f"One program of a batch of {args.runs}, beside its model"
    report(Table.of(rows, title), out=args.json)


if __name__ == "__main__":
    main()

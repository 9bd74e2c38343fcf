"""Where a decode step's time goes, and how much of it is Python's.

    python -m scripts.bench.step_profile                 # batches 1, 8 and 32
    python -m scripts.bench.step_profile --batch 8 --steps 50 --operators 12

Python's share is a step's wall-clock time less what it spends inside torch operators (their C++,
dispatch included, is not Python).  The operators' time comes from torch.profiler: the durations of
those that no other operator called.  Recording costs time too, so the share lies between two
figures; both are shown, and one between them:

    at least   1 - operators (recorded) / step (not recorded)      recording makes operators longer
    at most    1 - operators (recorded) / step (recorded)          recording makes Python longer
    about      what recording adds to a step is taken off: as if each event cost the same, half of
               it outside of the event itself

Blocks of recorded and of plain steps take turns, on the engine thread, between two of its own.
The parts (schedule, forward, sample, detokenize) are those of plain steps.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler announces each of its starts

from torch.profiler import ProfilerActivity, profile

from minisgl import Engine, SamplingParams
from minisgl.engine.loop import EngineLoop
from minisgl.engine.trace import Times
from scripts.bench.common import prompts, report
from scripts.bench.results import Table

GOAL, AT_BATCH = 0.15, 8
PROMPT = 256
PARTS = ("schedule", "forward", "sample", "detokenize")


class Parts:
    """Stands where an engine's `Trace` would, and keeps each step's times."""

    def __init__(self) -> None:
        self.times: list[Times] = []

    def step(self, step: object, times: Times, scheduler: object) -> None:
        self.times.append(times)

    def medians(self) -> dict[str, float]:
        """Milliseconds of each part."""
        return {
            part: 1000 * statistics.median(t[i + 1] - t[i] for t in self.times)
            for i, part in enumerate(PARTS)
        }


def plain_steps(loop: EngineLoop, steps: int, parts: Parts | None) -> list[float]:
    """Seconds of each of so many steps.  On the engine thread."""
    result = []
    loop.trace = parts  # type: ignore[assignment]  # it is all that a step asks of a trace
    for _ in range(steps):
        start = time.perf_counter()
        loop._step()
        result.append(time.perf_counter() - start)
    loop.trace = None
    return result


@dataclass
class Recorded:
    """Of all recorded steps together."""

    walls: list[float] = field(default_factory=list)  # seconds of each step
    spent: Counter[str] = field(default_factory=Counter)  # seconds in each operator
    calls: Counter[str] = field(default_factory=Counter)
    events: int = 0  # operators that others called included

    def steps(self, loop: EngineLoop, steps: int) -> None:
        """Record so many more.  On the engine thread."""
        with profile(activities=[ProfilerActivity.CPU]) as recording:
            self.walls += plain_steps(loop, steps, None)
        for event in recording.events():
            self.events += 1
            if event.cpu_parent is None:  # nobody's part
                self.spent[event.name] += event.cpu_time_total / 1e6
                self.calls[event.name] += 1


def measure(
    engine: Engine, batch: int, steps: int, rounds: int
) -> tuple[dict[str, Any], dict[str, float]]:
    """One row of the table, and milliseconds a step of each operator."""
    loop = engine.loop
    ids = prompts(lambda text: engine.tokenizer.encode(text), batch, PROMPT)
    params = SamplingParams(max_tokens=None, temperature=0.0, ignore_eos=True)
    streams = [engine.stream(prompt, params) for prompt in ids]
    for stream in streams:
        next(stream)  # its prompt is done: from here on it decodes
    engine.call(lambda: plain_steps(loop, 3, None))
    plain: list[float] = []
    recorded, parts = Recorded(), Parts()
    for _ in range(rounds):
        plain += engine.call(lambda: plain_steps(loop, steps, parts))
        engine.call(lambda: recorded.steps(loop, steps))
    for stream in streams:
        stream.close()
    n = rounds * steps
    operators = sum(recorded.spent.values()) / n
    step, step_recorded = statistics.mean(plain), statistics.mean(recorded.walls)
    outermost = sum(recorded.calls.values())
    added = max(0.0, step_recorded - step) * outermost / recorded.events / 2
    row = {
        "batch": batch,
        "step, ms": 1000 * step,
        "operators, ms": 1000 * operators,
        "operators called": outermost // n,
        "Python, at least": f"{max(0.0, 1 - operators / step):.1%}",
        "Python, about": f"{(step_recorded - operators - added) / step:.1%}",
        "Python, at most": f"{1 - operators / step_recorded:.1%}",
    } | {f"{part}, ms": ms for part, ms in parts.medians().items()}
    spent = {
        f"{name} x{recorded.calls[name] // n}": 1000 * seconds / n
        for name, seconds in recorded.spent.most_common()
    }
    return row, spent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--steps", type=int, default=20, help="in a block")
    parser.add_argument("--rounds", type=int, default=4, help="blocks of each kind")
    parser.add_argument("--operators", type=int, default=8, help="of these, how many to list")
    parser.add_argument("--model", default=None)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    if min(args.steps, args.rounds, *args.batch) < 1:
        parser.error("--batch, --steps and --rounds must be at least 1")

    with profile(activities=[ProfilerActivity.CPU]):
        pass  # it complains if its first start is not in the main thread
    rows, operators = [], {}
    with Engine(args.model, max_running=max(args.batch)) as engine:
        for batch in args.batch:
            row, operators[batch] = measure(engine, batch, args.steps, args.rounds)
            rows.append(row)
    notes = []
    for batch, spent in operators.items():
        listed = ", ".join(f"{n} {ms:.2f}" for n, ms in list(spent.items())[: args.operators])
        notes.append(
            f"Milliseconds in operators, those they call included, batch {batch}: {listed}"
        )
    for row in rows:
        if row["batch"] == AT_BATCH:
            share = float(row["Python, about"].rstrip("%")) / 100
            verdict = "within" if share < GOAL else "MISSES"
            notes.append(
                f"Python has about {share:.1%}: {verdict} the goal of {GOAL:.0%} at batch 8."
            )
    title = f"A decode step of {args.model or 'the default model'}"
    report(Table.of(rows, title), out=args.json, notes=notes)


if __name__ == "__main__":
    main()

"""Figures 8a and 8b: what a hit is worth.

The paper runs tree of thought, and uses only a part of the tokens that are found in the cache, to
see what the hit rate does to the batch size and the throughput (8a), and to the latencies (8b).
Here `max_hit_rate` bounds the share of each prompt that may come from the cache; what is found
beyond it is computed and kept a second time, as it would be if it had not been found.

    hit rate      that a bound led to: cached over all prompt tokens
    batch size    requests that compute at the same time, the mean over steps
    throughput    programs per second
    first token   from a request's submission to its first token, the mean over requests
    latency       from a program's start to its end, the mean over programs

The pool holds what the whole run leaves behind with a bound of 1, and a quarter more, so that at
lower hit rates memory is short, as it is in the paper.

How to read it: from left to right the same programs give the same answers, with more of them found.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import minisgl.lang as sgl
from minisgl import Engine
from scripts.bench.figures import Options
from scripts.bench.figures.ablations import answers
from scripts.bench.optimum import part_of_tree, recorded
from scripts.bench.results import Chart, Result, Table
from scripts.bench.workloads import WORKLOADS
from scripts.bench.workloads.base import Job, Run, Size
from scripts.bench.workloads.systems import has_gpu

TITLE = "Figures 8a, 8b: batch size, throughput and latency at a hit rate"
WORKLOAD = WORKLOADS["tree_of_thought"]
BOUNDS, FEW = (0.0, 0.25, 0.5, 0.75, 0.9, 1.0), (0.0, 0.5, 1.0)
ROOM = 1.25
PAPER, CPU, QUICK = Size(32, 0), Size(4, 0, 0.06), Size(1, 0, 0.01)


@dataclass(frozen=True)
class Point:
    """One run with one bound; seconds."""

    run: Run
    batch_size: float
    first_token: float

    @property
    def values(self) -> dict[str, float]:
        """Of each column."""
        return {
            "hit rate %": 100 * (self.run.hit_rate or 0.0),
            "batch size": self.batch_size,
            "programs/s": len(self.run.states) / self.run.seconds,
            "first token s": self.first_token,
            "latency s": statistics.mean(self.run.latencies),
        }


@contextmanager
def batch_sizes(engine: Engine) -> Iterator[list[int]]:
    """How many requests compute in each step of the block."""
    scheduler, sizes = engine.loop.scheduler, list[int]()
    next_step = scheduler.next_step

    def note() -> Any:
        step = next_step()
        if step:
            sizes.append(len(step.decodes) + len(step.extends))
        return step

    engine.call(lambda: setattr(scheduler, "next_step", note))
    try:
        yield sizes
    finally:
        engine.call(lambda: delattr(scheduler, "next_step"))


def measure(runtime: sgl.Runtime, jobs: Sequence[Job]) -> Point:
    """From an empty cache."""
    engine = runtime.engine
    runtime.flush_cache()
    before = engine.stats().first_token
    with batch_sizes(engine) as sizes:
        run = WORKLOAD.run(runtime, jobs)
    after = engine.stats().first_token
    waited = (after.sum - before.sum) / (sum(after.counts) - sum(before.counts))
    return Point(run, statistics.mean(sizes), waited)


def size_of(options: Options) -> Size:
    """On a GPU the paper's, or with --quick a CPU's."""
    if has_gpu(options):
        return CPU if options.quick else PAPER
    return QUICK if options.quick else CPU


def run(options: Options, bounds: Sequence[float] = ()) -> Result:
    bounds = bounds or (FEW if options.quick else BOUNDS)
    size = size_of(options)
    jobs = WORKLOAD.jobs(options.data, size.batch, size.scale)
    dtype = "auto" if has_gpu(options) else "float32"  # so that answers can be compared
    settings: dict[str, Any] = {"device": options.device, "dtype": dtype}
    with sgl.Runtime(options.model, **settings) as roomy, recorded(roomy.engine) as requests:
        expected = answers(WORKLOAD, WORKLOAD.run(roomy, jobs))
    settings["kv_tokens"] = part_of_tree(requests, ROOM)
    points: dict[float, list[Point]] = {bound: [] for bound in bounds}
    with ExitStack() as stack:
        runtimes = {
            bound: stack.enter_context(sgl.Runtime(options.model, **settings, max_hit_rate=bound))
            for bound in bounds
        }
        if has_gpu(options):  # the first run compiles kernels for the shapes
            for runtime in runtimes.values():
                measure(runtime, jobs)
        for _ in range(options.rounds):
            for bound, runtime in runtimes.items():
                points[bound].append(measure(runtime, jobs))
    said = [a for bound in bounds for a in answers(WORKLOAD, points[bound][0].run)]
    equal = sum(a == b for a, b in zip(said, expected * len(bounds), strict=True))
    rows: list[dict[str, Any]] = [
        {
            "bound %": 100 * bound,
            **{
                name: statistics.median(point.values[name] for point in points[bound])
                for name in points[bound][0].values
            },
        }
        for bound in bounds
    ]
    x = [round(row["hit rate %"], 1) for row in rows]
    return Result(
        tables=[Table.of(rows, f"{WORKLOAD.title}: {WORKLOAD.settings(size.scale)}")],
        charts=[
            Chart("lines", title, "hit rate, %", name, x, {WORKLOAD.title: [r[name] for r in rows]})
            for title, name in (
                ("8a: batch size", "batch size"),
                ("8a: throughput", "programs/s"),
                ("8b: first token", "first token s"),
                ("8b: latency of a program", "latency s"),
            )
        ],
        notes=[
            f"{len(jobs)} programs, {len(requests)} requests, in {settings['kv_tokens']:,} slots.",
            f"{equal} of {len(said)} answers are those that there were with memory for everything.",
        ],
        raw={str(bound): [point.values for point in points[bound]] for bound in bounds},
    )

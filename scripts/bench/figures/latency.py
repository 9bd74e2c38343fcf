"""Figure 6: latency of eleven workloads, ours beside other systems.

As figure 5, but a single program at a time, as somebody waits for it: the mean time of a program.
The paper's system takes up to 3.7 times less.  Programs still find what those before them had in
common with them, branches still run in parallel, and forced text is still computed at once; what a
batch adds is missing.  So workloads gain little here that neither share nor fork.

How to read it: a bar is a system's mean latency relative to ours; shorter is better.
"""

from __future__ import annotations

from collections.abc import Sequence

from scripts.bench.figures import Options
from scripts.bench.results import Result
from scripts.bench.workloads import WORKLOADS
from scripts.bench.workloads.compare import compare_all
from scripts.bench.workloads.report import Measure, result_of

TITLE = "Figure 6: latency"
MEASURE = Measure(
    "Mean latency of a program, seconds",
    lambda run: sum(run.latencies) / len(run.latencies),
    is_time=True,
)


def run(options: Options, names: Sequence[str] = tuple(WORKLOADS)) -> Result:
    return result_of(compare_all(options, names, lambda size: size.single, parallel=1), MEASURE)

"""Figure 5: throughput of eleven workloads, ours beside other systems.

The paper runs the same programs on its own system, vLLM, Guidance and LMQL, and draws programs per
second relative to the best; its system is up to 6.4 times faster.  Here each workload is a batch of
programs (scripts/bench/workloads), run in turn by

    ours            radix cache, cache-aware scheduling, branches in parallel, hints, jump-forward
    ours, all off   the same engine and language without any of these
    transformers    `generate` on padded batches of all requests that wait; and other peers

with one model, one number type, greedily, everybody's caches emptied before each batch.  On a CPU
that type is float32, so that answers are equal and can be counted; on a GPU each system chooses.

How to read it: a bar is a system's programs per second relative to ours.  "Hit rate" is the share
of our prompt tokens that were not computed.  "Settings" are those of the run: on a CPU examples,
lengths and answers are shorter than the paper's by one factor for each workload, which leaves the
ratio of what is shared to what is not.
"""

from __future__ import annotations

from collections.abc import Sequence

from scripts.bench.figures import Options
from scripts.bench.results import Result
from scripts.bench.workloads import WORKLOADS
from scripts.bench.workloads.compare import compare_all
from scripts.bench.workloads.report import Measure, result_of

TITLE = "Figure 5: throughput"
MEASURE = Measure("Programs per second", lambda run: len(run.states) / run.seconds, is_time=False)


def run(options: Options, names: Sequence[str] = tuple(WORKLOADS)) -> Result:
    return result_of(compare_all(options, names, lambda size: size.batch), MEASURE)

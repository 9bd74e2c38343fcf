"""The paper's workloads (section 6.1): programs of `minisgl.lang`, with their data.

workload = WORKLOADS["mmlu"]
jobs = workload.jobs(options.data, 16, 1.0)     # 16 programs, at the paper's lengths
run = workload.run(backend, jobs)               # seconds, latencies, hit rate, states
workload.answers(run.states[0])
"""

from __future__ import annotations

from scripts.bench.workloads import hellaswag, mmlu, tree_of_thought
from scripts.bench.workloads.base import Job, Run, Size, Workload

__all__ = ["WORKLOADS", "Job", "Run", "Size", "Workload"]

WORKLOADS: dict[str, Workload] = {
    module.WORKLOAD.name: module.WORKLOAD for module in (mmlu, hellaswag, tree_of_thought)
}

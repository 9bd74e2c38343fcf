"""The paper's workloads (section 6.1): programs of `minisgl.lang`, with their data.

    workload = WORKLOADS["mmlu"]
    jobs = workload.jobs(options.data, 16, 1.0)     # 16 programs, at the paper's lengths
    run = workload.run(backend, jobs)               # seconds, latencies, hit rate, states
    workload.answers(run.states[0])

base.py says what these are; each workload is a file, and samples.py a world for those without data.
"""

from __future__ import annotations

from scripts.bench.workloads import (
    chat,
    generative_agents,
    hellaswag,
    json_decoding,
    llm_judge,
    mmlu,
    rag,
    react,
    skeleton_of_thought,
    tree_of_thought,
)
from scripts.bench.workloads.base import Job, Run, Size, Workload

__all__ = ["WORKLOADS", "Job", "Run", "Size", "Workload"]

WORKLOADS: dict[str, Workload] = {
    workload.name: workload
    for workload in (
        mmlu.WORKLOAD,
        hellaswag.WORKLOAD,
        react.WORKLOAD,
        generative_agents.WORKLOAD,
        tree_of_thought.WORKLOAD,
        skeleton_of_thought.WORKLOAD,
        llm_judge.WORKLOAD,
        json_decoding.WORKLOAD,
        chat.SHORT_ANSWERS,
        chat.LONG_ANSWERS,
        rag.WORKLOAD,
    )
}

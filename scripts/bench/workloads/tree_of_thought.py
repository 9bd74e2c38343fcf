"""Tree of thought (Yao et al. 2023, arXiv 2305.10601) on problems of GSM8K: 3 + 9 + 27 calls.

Three plans, three solutions by each, and three checks of each solution.  The paper samples at
temperature 0.3; here decoding is greedy, so that systems can be compared answer by answer, and
attempts are numbered, or all three would say the same.  Data: `gsm8k/test.jsonl`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import minisgl.lang as sgl
from scripts.bench.workloads.base import Job, Size, Workload, file_of, share
from scripts.bench.workloads.samples import TOWNS
from scripts.examples.common import read_jsonl
from scripts.examples.tree_of_thought import LEVELS

BRANCHES = 3
TOKENS = 256


@sgl.function
def tree_of_thought(s, question: str):
    s += sgl.user(question) + sgl.assistant("I will plan, solve and check.")
    return [node[name] for node, name in explore(s, LEVELS)]


def explore(
    s: sgl.ProgramState, levels: Sequence[tuple[str, str]]
) -> list[tuple[sgl.ProgramState, str]]:
    """All nodes below `s`, each with its variable's name.  No branch waits for another."""
    if not levels:
        return []
    (name, request), *deeper = levels
    forks = s.fork(BRANCHES)
    forks += lambda i: sgl.user(f"{request} This is your attempt number {i + 1}.")
    forks += sgl.assistant(sgl.gen(name))
    below = [node for fork in forks for node in explore(fork, deeper)]
    return [*((fork, name) for fork in forks), *below]


def jobs(data: Path | None, count: int, scale: float) -> list[Job]:
    if data is None:
        problems = [
            f"A boat on the {t.river} carries {t.people % 37 + 4} people at a time. How often must "
            f"it go to carry all {t.people} people of {t.name}, and how many are in the last boat?"
            for t in TOWNS
        ]
    else:
        problems = [item["question"] for item in read_jsonl(file_of(data, "gsm8k/test.jsonl"))]
    tokens = share(TOKENS, scale)
    return [Job(tree_of_thought, {"question": p, "max_tokens": tokens}) for p in problems[:count]]


WORKLOAD = Workload(
    "tree_of_thought",
    "Tree of thought",
    lambda scale: f"3 + 9 + 27 calls, {share(TOKENS, scale)} tokens at most",
    jobs,
    lambda state: state.ret_value,
    paper=Size(32, 10),
    cpu=Size(3, 1, 0.125),
    quick=Size(1, 1, 0.016),
    parallel=16,
)

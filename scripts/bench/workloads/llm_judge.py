"""LLM judge, by branch, solve and merge (Saha et al. 2023, arXiv 2310.15123).

Six branches judge an essay in a respect each; then their judgments are put together, and the model
gives a score.  Branches share the essay, programs the task.  Data: `llm_judge/articles.jsonl`.
"""

from __future__ import annotations

from pathlib import Path

import minisgl.lang as sgl
from scripts.bench.workloads.base import Job, Size, Workload, file_of, share
from scripts.bench.workloads.samples import TOWNS, Town, paragraphs
from scripts.examples.common import read_jsonl
from scripts.examples.essay_judge import DIMENSIONS

TOKENS = 256
LONGEST = 6000  # characters of an essay: more than any of them has
TASK = """Judge an essay, strictly and fairly: first in several respects, each for itself, and then
as a whole. Say what is good about it and what is not, and give reasons from its text.

"""


@sgl.function
def llm_judge(s, essay: str):
    s += TASK + "Essay: " + essay + "\n\n"
    branches = s.fork(len(DIMENSIONS))
    branches += [f"Respect: {dimension}\nJudgment:" for dimension in DIMENSIONS]
    branches += sgl.gen("judgment", stop="Respect:")
    branches.join()
    for dimension, judgment in zip(DIMENSIONS, s["judgment"], strict=True):
        s += f"Respect: {dimension}\nJudgment: {judgment.strip()}\n"
    s += "\nThe score of the essay as a whole, from 1 to 10:" + sgl.gen("score", max_tokens=2)


def jobs(data: Path | None, count: int, scale: float) -> list[Job]:
    if data is None:
        essays = [_essay(town) for town in TOWNS]
    else:
        essays = read_jsonl(file_of(data, "llm_judge/articles.jsonl"))
    longest, tokens = share(LONGEST, scale), share(TOKENS, scale)
    return [
        Job(llm_judge, {"essay": essay[:longest], "max_tokens": tokens}) for essay in essays[:count]
    ]


def _essay(town: Town) -> str:
    opinions = (
        f"Everybody should see {town.name} once. ",
        f"Some say that a town of {town.people} people has nothing to show. They are wrong, and "
        f"whoever has stood before {town.sight} knows it. ",
        f"If {town.mayor} listens to what visitors say, the next road will go around the gardens. ",
    )
    told = zip(opinions, paragraphs(town), strict=True)
    return "\n\n".join(opinion + paragraph for opinion, paragraph in told)


WORKLOAD = Workload(
    "llm_judge",
    "LLM judge",
    lambda scale: (
        f"{len(DIMENSIONS)} branches of {share(TOKENS, scale)} tokens at most, score of 2, "
        f"essays of {share(LONGEST, scale):,} characters at most"
    ),
    jobs,
    lambda state: [*state["judgment"], state["score"]],
    paper=Size(25, 16),
    cpu=Size(6, 3, 0.15),
    quick=Size(2, 1, 0.04),
    parallel=8,
)

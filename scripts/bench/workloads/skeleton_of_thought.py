"""Skeleton of thought (Ning et al. 2023, arXiv 2307.15337): five tips, then a paragraph about each.

The tips are said one after another, the paragraphs at the same time.  A paragraph is a task of its
own, with solved examples of its own, so its branch begins with nothing; the examples are what all
paragraphs of all programs share.  Data: `tip_suggestion/topic.jsonl`.
"""

from __future__ import annotations

from pathlib import Path

import minisgl.lang as sgl
from scripts.bench.workloads.base import Job, Size, Workload, file_of, share
from scripts.bench.workloads.samples import TOWNS
from scripts.examples.common import read_jsonl

TIPS, TIP_TOKENS, TOKENS = 5, 24, 128
ASK = """You give useful tips. Each is a few words, and they are numbered.

Question: Which tips are there for {}?
Answer: Here are five short tips.
"""
EXPAND = """Explain a tip in one paragraph.

Topic: keeping bees
Tip: Stand at the side of the hive
Paragraph: Bees fly in and out at the front, and whoever stands there is in their way. From the side
you see as much, the traffic goes on, and nobody needs to sting.

Topic: baking bread
Tip: Give the dough a night
Paragraph: A dough that rests in the cold overnight needs little yeast and no kneading. The flour
has time to take up the water, the taste has time to grow, and only the oven is left to do.

Topic: walking in the mountains
Tip: Turn back in time
Paragraph: Most accidents happen on the way down, late, and with tired legs. Decide at what hour you
will turn, wherever you are then, and the way back will be a walk and not a race.

"""


@sgl.function
def skeleton_of_thought(s, topic: str, tip_tokens: int, tokens: int):
    branches = s.fork(TIPS)
    s += ASK.format(topic)
    for i in range(TIPS):
        s += f"{i + 1}." + sgl.gen(f"tip_{i}", max_tokens=tip_tokens, stop=[".", "\n"]) + "\n"
    tips = [s[f"tip_{i}"].strip() for i in range(TIPS)]
    branches += [f"{EXPAND}Topic: {topic}\nTip: {tip}\nParagraph:" for tip in tips]
    branches += sgl.gen("paragraph", max_tokens=tokens, stop="\n\n")
    return tips + [branch["paragraph"] for branch in branches]


def jobs(data: Path | None, count: int, scale: float) -> list[Job]:
    if data is None:
        topics = [f"a first visit to {t.name}, a town known for its {t.trade}" for t in TOWNS]
    else:
        read = read_jsonl(file_of(data, "tip_suggestion/topic.jsonl"))
        topics = [item["topic"] for item in read]
    lengths = {"tip_tokens": share(TIP_TOKENS, scale), "tokens": share(TOKENS, scale)}
    return [Job(skeleton_of_thought, {"topic": topic, **lengths}) for topic in topics[:count]]


WORKLOAD = Workload(
    "skeleton_of_thought",
    "Skeleton of thought",
    lambda scale: (
        f"{TIPS} tips of {share(TIP_TOKENS, scale)} tokens at most, "
        f"paragraphs of {share(TOKENS, scale)}"
    ),
    jobs,
    lambda state: state.ret_value,
    paper=Size(64, 32),
    cpu=Size(8, 4, 0.25),
    quick=Size(2, 1, 0.1),
)

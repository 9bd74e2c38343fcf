"""Write an outline first, then all its points at once: skeleton of thought.

After Ning et al. 2023 (arXiv 2307.15337).  A text of five paragraphs takes as long as its
longest: each branch of the fork expands one tip.

    python -m scripts.examples.tip_suggestion [--data topic.jsonl]
"""

from __future__ import annotations

from collections.abc import Sequence

import minisgl.lang as sgl
from scripts.examples.common import options, read_jsonl, show

TOPICS = [{"topic": "keeping a small garden", "number": 3}]


@sgl.function
def suggest_tips(s, topic: str, number: int):
    s += sgl.user(f"Give {number} tips for {topic}, each in a few words.")
    with s.assistant():
        for i in range(number):
            s += f"{i + 1}." + sgl.gen(f"tip_{i}", stop="\n", max_tokens=24) + "\n"

    branches = s.fork(number)
    branches += lambda i: sgl.user(f"Now explain tip {i + 1} in one paragraph.")
    branches += sgl.assistant(sgl.gen("paragraph", stop="\n"))
    branches.join()


def main(argv: Sequence[str] | None = None) -> list[sgl.ProgramState]:
    args = options(__doc__, argv, max_tokens=64)
    topics = read_jsonl(args.data, args.limit) if args.data else TOPICS
    states = suggest_tips.run_batch(topics, temperature=0, max_tokens=args.max_tokens)
    for state, topic in zip(states, topics, strict=True):
        print(f"\n=== {topic['topic']}")
        for i, paragraph in enumerate(state["paragraph"]):
            show(f"{i + 1}. {state[f'tip_{i}'].strip()}", paragraph)
    return states


if __name__ == "__main__":
    main()

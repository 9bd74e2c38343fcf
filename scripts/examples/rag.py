"""Find the passages that a question needs, and answer from them: retrieval-augmented generation.

The retriever is BM25 (Robertson and Zaragoza 2009), by hand.  Passages stand before the question
and in the order of the corpus, not of their rank: questions that find the same ones then share a
prefix, and the engine computes it once.

    python -m scripts.examples.rag [--data wiki_docs.jsonl]
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import minisgl.lang as sgl
from scripts.examples.common import cached, options, read_jsonl

CORPUS = [
    "The tower of Brenn is 63 metres tall. It was built of red brick in 1904 as a water tower.",
    "The ferry from Brenn to the island of Tal leaves twice a day and takes forty minutes.",
    "The island of Tal has no cars. Its three hundred people live from fishing and from bees.",
    "Bee-keeping on Tal is known for a dark honey, which is sold at the harbour on Saturdays.",
]
QUESTIONS = ["How tall is the tower of Brenn?", "When was the tower of Brenn built?"]
ASIDE = "Answer from these passages, in a few words.\n\n"


class Retriever:
    """BM25 over `passages`."""

    def __init__(self, passages: Sequence[str], k1: float = 1.2, b: float = 0.75) -> None:
        self.passages, self.k1, self.b = passages, k1, b
        self.counts = [Counter(words(passage)) for passage in passages]
        self.mean_length = sum(c.total() for c in self.counts) / len(passages)
        self.holders = Counter(word for counts in self.counts for word in counts)

    def __call__(self, question: str, k: int) -> list[str]:
        """The `k` best passages, in the order of the corpus."""
        asked = set(words(question))
        ranked = sorted(range(len(self.passages)), key=lambda i: -self.score(asked, i))
        return [self.passages[i] for i in sorted(ranked[:k])]

    def score(self, asked: set[str], i: int) -> float:
        """How well passage `i` fits the words of a question."""
        counts, total = self.counts[i], len(self.passages)
        damping = self.k1 * (1 - self.b + self.b * counts.total() / self.mean_length)
        return sum(
            math.log(1 + (total - self.holders[word] + 0.5) / (self.holders[word] + 0.5))
            * counts[word] * (self.k1 + 1) / (counts[word] + damping)
            for word in asked & counts.keys()
        )  # fmt: skip


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


@sgl.function
def answer(s, question: str, retrieve: Retriever, k: int = 2):
    passages = "\n\n".join(retrieve(question, k))
    s += sgl.user(ASIDE + passages + "\n\nQuestion: " + question)
    s += sgl.assistant(sgl.gen("answer"))


def read(path: Path, limit: int) -> tuple[list[str], list[str]]:
    """The passages and at most `limit` questions of a file of articles."""
    articles = read_jsonl(path)
    questions = [qa["q"] for article in articles for qa in article["qas"]]
    return [p for article in articles for p in article["paragraphs"]], questions[:limit]


def main(argv: Sequence[str] | None = None) -> list[sgl.ProgramState]:
    args = options(__doc__, argv, max_tokens=32)
    corpus, questions = read(args.data, args.limit) if args.data else (CORPUS, QUESTIONS)
    retrieve = Retriever(corpus)
    states = []
    for question in questions:
        state = answer.run(question, retrieve, temperature=0, max_tokens=args.max_tokens)
        print(f"{question}\n  {state['answer'].strip()} ({cached(state, 'answer')})")
        states.append(state)
    return states


if __name__ == "__main__":
    main()

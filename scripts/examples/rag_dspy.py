"""Retrieval-augmented generation as DSPy's introduction has it, on an engine in this process.

The prompts are DSPy's, which could also tune them; the passages come from `rag.py`'s retriever.
Needs the extra `dspy`.

    python -m scripts.examples.rag_dspy [--data wiki_docs.jsonl]
"""

from __future__ import annotations

from collections.abc import Sequence

import dspy

from minisgl.lang.dspy import LM
from scripts.examples.common import options
from scripts.examples.rag import CORPUS, QUESTIONS, Retriever, read


class Rag(dspy.Module):
    """Passages for a question, and an answer from them."""

    def __init__(self, corpus: Sequence[str] = CORPUS, k: int = 2) -> None:
        super().__init__()
        self.retrieve, self.k = Retriever(corpus), k
        self.answer = dspy.ChainOfThought("context: list[str], question -> answer")

    def forward(self, question: str) -> dspy.Prediction:
        context = self.retrieve(question, self.k)
        found = self.answer(context=context, question=question)
        return dspy.Prediction(context=context, answer=found.answer, reasoning=found.reasoning)


def main(argv: Sequence[str] | None = None) -> list[dspy.Prediction]:
    args = options(__doc__, argv, max_tokens=128)
    corpus, questions = read(args.data, args.limit) if args.data else (CORPUS, QUESTIONS)
    # JSON by a schema: an engine that is held to it always gives what DSPy can read.
    dspy.configure(lm=LM(temperature=0, max_tokens=args.max_tokens), adapter=dspy.JSONAdapter())
    pipeline = Rag(corpus)
    found = [pipeline(question=question) for question in questions]
    for question, one in zip(questions, found, strict=True):
        print(f"{question}\n  {one.answer}")
    return found


if __name__ == "__main__":
    main()

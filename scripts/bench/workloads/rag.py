"""Retrieval-augmented generation, as DSPy's introduction has it (Khattab et al. 2023).

Solved questions come first, the same for all; then the three passages that fit a question best, and
the model reasons and answers.  DSPy is not needed: this is the prompt that its compiled pipeline
sends, in words of our own, and the retriever is BM25 over paragraphs of Wikipedia in place of a
server with all of it.  Data: `wiki/wiki_docs.jsonl`.
"""

from __future__ import annotations

from pathlib import Path

import minisgl.lang as sgl
from scripts.bench.workloads.base import Job, Size, Workload, file_of, share
from scripts.bench.workloads.samples import TOWNS, paragraphs
from scripts.bench.workloads.samples import questions as questions_of
from scripts.examples.common import read_jsonl
from scripts.examples.rag import Retriever

SHOTS, PASSAGES = 20, 3
TOKENS = 100  # of the reasoning
TASK = "Answer questions in a few words. Passages may help.\n\n---\n\n"


@sgl.function
def rag(s, shots: str, question: str, retrieve: Retriever):
    s += TASK + shots + "---\n\nPassages:\n"
    s += "\n".join(f"[{i}] {passage}" for i, passage in enumerate(retrieve(question, PASSAGES), 1))
    s += f"\n\nQuestion: {question}\n\nReasoning: Let's think step by step."
    s += sgl.gen("reasoning", stop="\n") + "\n\nAnswer:"
    s += sgl.gen("answer", max_tokens=16, stop="\n")


def jobs(data: Path | None, count: int, scale: float) -> list[Job]:
    if data is None:
        corpus = [paragraph for town in TOWNS for paragraph in paragraphs(town)]
        solved = [pair for town in TOWNS for pair in questions_of(town)]
    else:
        articles = read_jsonl(file_of(data, "wiki/wiki_docs.jsonl"))
        corpus = [paragraph for article in articles for paragraph in article["paragraphs"]]
        solved = [(qa["q"], qa["a"]) for article in articles for qa in article["qas"]]
    shots = "".join(f"Question: {q}\nAnswer: {a}\n\n" for q, a in solved[: share(SHOTS, scale)])
    program, tokens = rag.bind(shots=shots), share(TOKENS, scale)
    retrieve = Retriever(corpus)
    return [
        Job(program, {"question": question, "retrieve": retrieve, "max_tokens": tokens})
        for question, _ in solved[SHOTS : SHOTS + count]
    ]


WORKLOAD = Workload(
    "rag",
    "RAG, as in DSPy",
    lambda scale: (
        f"{share(SHOTS, scale)} solved questions, {PASSAGES} passages, reasoning of "
        f"{share(TOKENS, scale)} tokens at most, answers of 16"
    ),
    jobs,
    lambda state: [state["reasoning"], state["answer"]],
    paper=Size(150, 30),
    cpu=Size(16, 6, 0.3),
    quick=Size(4, 2, 0.1),
    parallel=32,
)

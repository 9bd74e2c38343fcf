"""Read several documents at the same time, then answer from the notes.

A fork reads each document in a branch of its own and notes what it says about the question; the
join in mode "concate_and_append" puts the branches' texts, one after another, behind what came
before the fork.  The program does not wait anywhere: the last `gen` begins as soon as the branches
are done.

    python -m scripts.examples.document_qa [--data multi_doc.jsonl]
"""

from __future__ import annotations

from collections.abc import Sequence

import minisgl.lang as sgl
from scripts.examples.common import cached, options, read_jsonl, show

DOCUMENTS = [
    "Minutes of March: the roof of the school leaks. The repair costs 1200 crowns.",
    "Minutes of April: the fair brought 900 crowns. They are kept for the roof.",
    "Minutes of May: the choir sang in the church. The weather was fine.",
]
QUESTION = "What is known about the roof of the school?"


@sgl.function
def document_qa(s, documents: Sequence[str], question: str):
    s += f"Documents, and what each says about the question: {question}\n"
    branches = s.fork(len(documents))
    branches += lambda i: f"\nDocument {i + 1}: {documents[i]}\nNote:"
    branches += sgl.gen("note", stop="\n") + "\n"
    branches.join("concate_and_append")
    s += f"\nQuestion: {question}\nAnswer, from the notes:" + sgl.gen("answer", stop="\n")


def main(argv: Sequence[str] | None = None) -> list[sgl.ProgramState]:
    args = options(__doc__, argv, max_tokens=48)
    jobs = [{"documents": DOCUMENTS, "question": QUESTION}]
    if args.data:
        (record,) = read_jsonl(args.data, 1)
        documents = [document[:1500] for document in record["documents"][:4]]
        jobs = [
            {"documents": documents, "question": question}
            for question in record["questions"][: args.limit]
        ]
    states = document_qa.run_batch(jobs, temperature=0, max_tokens=args.max_tokens)
    for state, job in zip(states, jobs, strict=True):
        show(job["question"], state["answer"])
        print(f"({cached(state, 'answer')})")
    return states


if __name__ == "__main__":
    main()

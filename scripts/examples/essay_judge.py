"""Judge an essay in several respects at once, then merge the judgments: branch, solve, merge.

The program of the paper's figure 2, after Saha et al. 2023 (arXiv 2310.15123).  The branches run
together, and what they share, the essay above all, is computed once.  A text that is no essay ends
the program early: control flow is Python's.

    python -m scripts.examples.essay_judge [--data articles.jsonl]
"""

from __future__ import annotations

from collections.abc import Sequence

import minisgl.lang as sgl
from scripts.examples.common import cached, options, read_jsonl, show

DIMENSIONS = ("clarity", "originality", "evidence", "structure", "tone", "grammar")
KINDS = ("an essay", "a recipe", "a letter")
REPORT = r'\{"summary": "[\w ,]{10,120}\.", "grade": "[ABCD][+-]?"\}'

ESSAY = """A park is not a luxury. On hot days its trees cool the streets around it, and a walk of
ten minutes there lowers the pulse. A car park of the same size serves two hundred people a day; a
park serves two thousand. Cities that sell their green land sell the health of those who can't leave
town in summer, and they will pay for it in their hospitals."""


@sgl.function
def essay_judge(s, essay: str, picture: object = None):
    s += sgl.system("You judge essays, strictly and fairly.")
    with s.user():
        s += "Essay: " + essay + "\n\nWhat kind of text is this?"
        if picture is not None:
            s += sgl.image(picture)
    s += sgl.assistant("It is " + sgl.select("kind", KINDS) + ".")
    if s["kind"] != "an essay":
        return

    branches = s.fork(len(DIMENSIONS))
    for branch, dimension in zip(branches, DIMENSIONS, strict=True):
        branch += sgl.user(f"Judge the {dimension} of the essay in two sentences.")
        branch += sgl.assistant(sgl.gen("judgment"))
    branches.join()  # s["judgment"] is a list now

    judgments = "\n".join(s["judgment"])
    s += sgl.user(f"{judgments}\n\nSum these up, and give a grade from A to D, as JSON.")
    s += sgl.assistant(sgl.gen("report", regex=REPORT, max_tokens=128))


def main(argv: Sequence[str] | None = None) -> list[sgl.ProgramState]:
    args = options(__doc__, argv, max_tokens=64)
    essays = read_jsonl(args.data, args.limit) if args.data else [ESSAY]
    jobs = [{"essay": essay} for essay in essays]
    states = essay_judge.run_batch(jobs, temperature=0, max_tokens=args.max_tokens)
    for state, essay in zip(states, essays, strict=True):
        show("essay", essay[:80] + "...")
        if state["kind"] != "an essay":
            print(f"This is {state['kind']}.")
            continue
        for dimension, judgment in zip(DIMENSIONS, state["judgment"], strict=True):
            show(dimension, judgment)
        show(f"report ({cached(state, 'report')})", state["report"])
    return states


if __name__ == "__main__":
    main()

"""Solve a problem along many ways and let their ends vote: tree of thought.

After Yao et al. 2023 (arXiv 2305.10601), in the paper's form: three plans, three solutions of
each, three checks of each.  No branch waits for another, so the whole tree is on its way at once;
a node shares all it has in common with the others, which is what a radix tree is for.

    python -m scripts.examples.tree_of_thought [--data gsm8k.jsonl]
"""

from __future__ import annotations

from collections.abc import Sequence

import minisgl.lang as sgl
from scripts.examples.common import last_number, majority, options, read_jsonl

LEVELS = (
    ("plan", "Make a plan for solving this problem. Don't solve it yet."),
    ("solution", "Follow the plan, step by step, and give the answer as a number."),
    ("check", "Check the solution. End with the right answer as a number."),
)
PROBLEMS = [
    {
        "question": "A ferry makes 6 trips a day with 45 people each. Tickets cost 4 dollars. How "
        "many dollars does it take in on two days?",
        "answer": "6 * 45 = 270 people a day, 270 * 4 = 1080 dollars.\n#### 2160",
    }
]


@sgl.function
def tree_of_thought(s, question: str, branches: int = 3):
    s += sgl.user(question) + sgl.assistant("I will plan, solve and check.")
    leaves = explore(s, LEVELS, branches)
    return majority(last_number(leaf["check"]) for leaf in leaves)


def explore(s: sgl.ProgramState, levels: Sequence[tuple[str, str]], branches: int):
    """The leaves of the tree below `s`."""
    if not levels:
        return [s]
    (name, request), *deeper = levels
    forks = s.fork(branches)
    forks += sgl.user(request) + sgl.assistant(sgl.gen(name))
    return [leaf for fork in forks for leaf in explore(fork, deeper, branches)]


def main(argv: Sequence[str] | None = None) -> list[sgl.ProgramState]:
    args = options(__doc__, argv, max_tokens=48)
    problems = read_jsonl(args.data, args.limit) if args.data else PROBLEMS
    jobs = [{"question": problem["question"]} for problem in problems]
    states = tree_of_thought.run_batch(jobs, temperature=0.3, max_tokens=args.max_tokens)
    for state, problem in zip(states, problems, strict=True):
        print(f"\n{problem['question']}")
        print(f"voted: {state.ret_value}, right: {last_number(problem['answer'])}")
    return states


if __name__ == "__main__":
    main()

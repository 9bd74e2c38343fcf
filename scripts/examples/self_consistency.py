"""Ask the same question many times and let the answers vote: self-consistency.

After Wang et al. 2022 (arXiv 2203.11171).  `n=8` is one call: the prompt is computed once, and
the answers, drawn at a temperature, go on from it side by side.

    python -m scripts.examples.self_consistency [--data gsm8k.jsonl]
"""

from __future__ import annotations

from collections.abc import Sequence

import minisgl.lang as sgl
from scripts.examples.common import last_number, majority, options, read_jsonl

SHOTS = """Question: A shelf has 3 rows of 4 cups. 2 cups break. How many are left?
Answer: There are 3 * 4 = 12 cups. 12 - 2 = 10 are left. The answer is 10.

Question: Ben reads 15 pages a day. How many does he read in a week?
Answer: A week has 7 days. 15 * 7 = 105. The answer is 105.

"""
PROBLEMS = [
    {
        "question": "A baker sells 5 boxes of 6 rolls and has 4 rolls left. How many did she bake?",
        "answer": "5 * 6 = 30, 30 + 4 = 34\n#### 34",
    }
]


@sgl.function
def self_consistency(s, question: str, n: int = 8):
    s += SHOTS + f"Question: {question}\nAnswer:"
    s += sgl.gen("answers", n=n, stop="\n\n", temperature=0.7)
    return majority(last_number(answer) for answer in s["answers"])


def main(argv: Sequence[str] | None = None) -> list[sgl.ProgramState]:
    args = options(__doc__, argv, max_tokens=48)
    problems = read_jsonl(args.data, args.limit) if args.data else PROBLEMS
    jobs = [{"question": problem["question"]} for problem in problems]
    states = self_consistency.run_batch(jobs, max_tokens=args.max_tokens)
    for state, problem in zip(states, problems, strict=True):
        print(f"\n{problem['question']}")
        for answer in state["answers"]:
            print(f"  {last_number(answer) or '-':>8}  {' '.join(answer.split())[:70]}")
        print(f"voted: {state.ret_value}, right: {last_number(problem['answer'])}")
    return states


if __name__ == "__main__":
    main()

"""Several conversations at once, each of several turns.

Every turn begins with all the turns before it.  An engine that forgets computes them again and
again; this one finds them in its tree, so a turn costs what is new in it.

    python -m scripts.examples.multi_turn_chat [--data mt_bench_questions.jsonl]
"""

from __future__ import annotations

from collections.abc import Sequence

import minisgl.lang as sgl
from scripts.examples.common import cached, options, read_jsonl

CHATS = [
    ["Name a fruit.", "And what colour is it?", "Where does it grow?"],
    ["What is the capital of France?", "And of Italy?", "Which of the two is larger?"],
]


@sgl.function
def chat(s, turns: Sequence[str]):
    s += sgl.system("You answer in one short sentence.")
    for i, turn in enumerate(turns):
        s += sgl.user(turn)
        s += sgl.assistant(sgl.gen(f"answer_{i}"))


def main(argv: Sequence[str] | None = None) -> list[sgl.ProgramState]:
    args = options(__doc__, argv, max_tokens=32)
    chats = [q["turns"] for q in read_jsonl(args.data, args.limit)] if args.data else CHATS
    jobs = [{"turns": turns} for turns in chats]
    states = chat.run_batch(jobs, temperature=0, max_tokens=args.max_tokens)
    for state, turns in zip(states, chats, strict=True):
        print()
        for i, turn in enumerate(turns):
            print(f"> {turn}\n{state[f'answer_{i}'].strip()} ({cached(state, f'answer_{i}')})")
    return states


if __name__ == "__main__":
    main()

"""Think, act, observe, and again: an agent with tools (ReAct).

After Yao et al. 2022 (arXiv 2210.03629).  Each turn goes on from the whole story so far, which is
in the cache; only the new observation is computed.  The tools here replay recorded observations,
so the example needs no network and always meets the same world.

    python -m scripts.examples.react [--data hotpotqa_100.jsonl]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import minisgl.lang as sgl
from scripts.examples.common import cached, options, read_jsonl

ACTIONS = ["Search", "Lookup", "Finish"]
INSTRUCTIONS = """Answer a question in turns of Thought, Action and Observation. The actions are
Search[page], Lookup[words on the page] and Finish[answer].

Question: Which river flows through the town where the clockmaker Anna Vell was born?
Thought 1: I need to find where Anna Vell was born, then the river of that town.
Action 1: Search[Anna Vell]
Observation 1: Anna Vell was a clockmaker, born in Ostra.
Thought 2: She was born in Ostra. I need its river.
Action 2: Search[Ostra]
Observation 2: Ostra is a town of two thousand people on the river Lim.
Thought 3: The river is the Lim.
Action 3: Finish[Lim]

"""
TRACES = [
    {
        "Question: In which town was the painter of The Grey Boat born?": [
            {"observation": "The Grey Boat is a picture that Lo Perrin painted in 1902."},
            {"observation": "Lo Perrin was a painter, born in Hale on the river Dun."},
        ]
    }
]


def actions(turn: int, turns: int) -> list[str]:
    """It looks before it answers, and answers in the end."""
    if turn == turns:
        return ["Finish"]
    return ACTIONS if turn > 1 else ["Search", "Lookup"]


@sgl.function
def react(s, question: str, observe: Callable[[str, str], str], turns: int = 4):
    s += INSTRUCTIONS + question + "\n"
    for turn in range(1, turns + 1):
        s += f"Thought {turn}:" + sgl.gen("thought", stop="\n") + f"\nAction {turn}: "
        s += sgl.select("action", actions(turn, turns))
        s += "[" + sgl.gen("argument", stop=["]", "\n"], max_tokens=24) + "]\n"
        if s["action"] == "Finish":
            break
        s += f"Observation {turn}: {observe(s['action'], s['argument'])}\n"
    return s["argument"]


def replay(observations: Iterable[str]) -> Callable[[str, str], str]:
    """A world in which the n-th action sees the n-th observation, whatever it asks for."""
    recorded = iter(observations)
    return lambda action, argument: next(recorded, f"No results for {action}[{argument}].")


def main(argv: Sequence[str] | None = None) -> list[sgl.ProgramState]:
    args = options(__doc__, argv, max_tokens=48)
    traces = read_jsonl(args.data, args.limit) if args.data else TRACES
    jobs = [
        {"question": question, "observe": replay(step["observation"] for step in steps)}
        for trace in traces
        for question, steps in trace.items()
    ]
    states = react.run_batch(jobs, temperature=0, max_tokens=args.max_tokens)
    for state in states:
        print("\n" + state.text().removeprefix(INSTRUCTIONS).strip())
        print(f"answer: {state.ret_value!r} ({cached(state, 'argument')})")
    return states


if __name__ == "__main__":
    main()

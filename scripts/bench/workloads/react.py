"""ReAct (Yao et al. 2022, arXiv 2210.03629): recorded runs of an agent, played again.

At each step the model says how it would go on, in a branch; then the story goes on as recorded, so
every system meets the same prompts.  Six solved questions come first.  Data: `react/`.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import minisgl.lang as sgl
from scripts.bench.workloads.base import Job, Size, Workload, file_of, share
from scripts.bench.workloads.samples import TOWNS, Town, paragraphs
from scripts.examples.common import read_jsonl

SHOTS = 6
TOKENS = 200
HEAD = """Answer a question in turns of Thought, Action and Observation. The actions are
Search[page], Lookup[words on the page] and Finish[answer]. Examples:
"""
Trace = tuple[str, list[dict[str, str]]]  # a question, and {"thought", "action", "observation"}s


@sgl.function
def react(s, shots: str, question: str, steps: Sequence[dict[str, str]]):
    s += shots + "\n" + question + "\n"
    said = []
    for number, step in enumerate(steps, 1):
        s += f"Thought {number}:"
        (branch,) = s.fork(1)
        branch += sgl.gen("turn", stop="Observation")
        said.append(branch["turn"])
        s += " " + told(number, step)
    return said


def told(number: int, step: dict[str, str]) -> str:
    """A step as the story has it, after its "Thought N:"."""
    return (
        f"{step['thought']}\nAction {number}: {step['action']}\n"
        f"Observation {number}: {step['observation'].strip()}\n"
    )


def jobs(data: Path | None, count: int, scale: float) -> list[Job]:
    shots, traces = _sample() if data is None else _read(file_of(data, "react"))
    program = react.bind(shots=HEAD + "".join(shots[: share(SHOTS, scale)]))
    tokens = share(TOKENS, scale)
    return [
        Job(program, {"question": question, "steps": steps, "max_tokens": tokens})
        for question, steps in traces[:count]
    ]


def _read(folder: Path) -> tuple[list[str], list[Trace]]:
    """Solved questions of the paper of ReAct, and recorded runs."""
    prompts = json.loads((folder / "prompts_naive.json").read_text(encoding="utf-8"))
    solved = prompts["webthink_simple6"].split("\nQuestion: ")[1:]
    traces = [
        (question, steps)
        for trace in read_jsonl(folder / "hotpotqa_100.jsonl")
        for question, steps in trace.items()
    ]
    return [f"\nQuestion: {text.strip()}\n" for text in solved], traces


def _sample() -> tuple[list[str], list[Trace]]:
    traces = [_trace(town) for town in TOWNS]
    shots = [
        f"\n{question}\n" + "".join(f"Thought {i}: {told(i, s)}" for i, s in enumerate(steps, 1))
        for question, steps in traces[:SHOTS]
    ]
    return shots, traces[SHOTS:]


def _trace(town: Town) -> Trace:
    steps = (
        ("I have to find out who this is.", f"Search[{town.mayor}]", paragraphs(town)[2]),
        ("I need the river of the town.", f"Search[{town.name}]", paragraphs(town)[0]),
        (f"The river is the {town.river}.", f"Finish[{town.river}]", "Right."),
    )
    names = ("thought", "action", "observation")
    return (
        f"Question: Which river flows through the town where {town.mayor} is mayor?",
        [dict(zip(names, step, strict=True)) for step in steps],
    )


WORKLOAD = Workload(
    "react",
    "ReAct",
    lambda scale: f"{share(SHOTS, scale)}-shot, {share(TOKENS, scale)} tokens at most a step",
    jobs,
    lambda state: state.ret_value,
    paper=Size(100, 20),
    cpu=Size(16, 4, 0.2),
    quick=Size(3, 1, 0.08),
)

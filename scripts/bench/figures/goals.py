"""Five everyday workloads against goals: ours beside every system that is asked for.

    python -m scripts.bench goals --peer transformers --peer vllm=PYTHON ...

The paper compares with Guidance, vLLM and LMQL of its time; these are the systems of today, each at
its best choice of numbers on this machine, and so is ours.  All run the same programs, greedily,
with nothing remembered from before, and take turns; a factor is the median over rounds of their
time by ours.  scripts/bench/peers says how each is used.

    character            the JSON of a character by a pattern, one at a time, and 16 together
    multiple choice      MMLU: five solved questions, then the letter of one
    select               HellaSwag: five solved items, then all four endings of one are scored
    chat                 four turns of 64 tokens, eight conversations together

How to read it: seconds per program in the first table, what was wanted and what it came to in the
second.  A system without patterns writes as many tokens of free text as our answers have; one with
a `select` of its own decides greedily and scores nothing; one without any does not run it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import minisgl.lang as sgl
from scripts.bench.common import median_ratio
from scripts.bench.figures import Options, constrained
from scripts.bench.fsm import HARRY_POTTER
from scripts.bench.peers import open_peer
from scripts.bench.peers.backend import PeerBackend
from scripts.bench.results import Cell, Chart, Result, Table
from scripts.bench.workloads import WORKLOADS, Job, Size, Workload
from scripts.bench.workloads.base import file_of, share
from scripts.bench.workloads.compare import Comparison, Outcome
from scripts.bench.workloads.samples import TOWNS, questions
from scripts.bench.workloads.systems import OURS, System
from scripts.examples.common import read_jsonl

TITLE = "Goals: everyday workloads, ours beside the systems of today"

BEST = "the best"
TURNS, TOKENS = 4, 64  # of a conversation, and of an answer
MOST_TOKENS = 400  # more than the longest text of the pattern has
LINGER = 0.02  # seconds: programs that go in step come within it


@dataclass(frozen=True)
class Goal:
    """Ours is to be `factor` times as fast as `against`: a system, or the best of all."""

    against: str
    factor: float

    def value(self, seconds: Mapping[str, Sequence[float]]) -> float | None:
        """What it came to; None: the system was not measured."""
        others = {name: each for name, each in seconds.items() if name != OURS and each}
        if not others or (self.against != BEST and self.against not in others):
            return None
        name = self.against
        if name == BEST:
            name = min(others, key=lambda each: statistics.median(others[each]))
        return median_ratio(others[name], seconds[OURS])

    def verdict(self, seconds: Mapping[str, Sequence[float]]) -> str:
        """
        >>> Goal("vllm", 4.0).verdict({"ours": [1.0, 1.0], "vllm": [5.0, 3.0]})
        '4.0x vllm: 4.00x, met'
        >>> Goal("the best", 1.7).verdict({"ours": [1.0], "vllm": [1.5], "outlines": [2.0]})
        '1.7x the best: 1.50x, missed'
        """
        wanted = f"{self.factor:.1f}x {self.against}"
        value = self.value(seconds)
        if value is None:
            return f"{wanted}: not measured"
        return f"{wanted}: {value:.2f}x, {'met' if value >= self.factor else 'missed'}"


@dataclass(frozen=True)
class Row:
    """A workload, how many of its programs run at a time, and what is wanted of it."""

    title: str
    workload: Workload
    parallel: int
    goals: tuple[Goal, ...]
    stretch: tuple[Goal, ...]


@sgl.function
def character(s, name: str):
    s += constrained.character(name)
    s += sgl.gen("json", regex=HARRY_POTTER, max_tokens=MOST_TOKENS)


@sgl.function
def chat(s, turns: Sequence[str]):
    for i, said in enumerate(turns):
        s += sgl.user(said)
        s += sgl.assistant(sgl.gen(f"answer_{i}", max_tokens=TOKENS, ignore_eos=True))


def characters(data: Path | None, count: int, scale: float) -> list[Job]:
    names: Sequence[str] = constrained.CHARACTERS
    if data is not None:
        names = file_of(data, "json/characters.txt").read_text(encoding="utf-8").split("\n")
    names = [name.strip() for name in names if name.strip()]
    return [Job(character, {"name": name}) for name in names[:count]]


def conversations(data: Path | None, count: int, scale: float) -> list[Job]:
    """Of MT-bench: the turns of two of its questions make one conversation."""
    if data is None:
        turns = [question for town in TOWNS for question, _ in questions(town)]
    else:
        asked = read_jsonl(file_of(data, "mt_bench/question.jsonl"))
        turns = [turn for question in asked for turn in question["turns"]]
    each = share(TURNS, scale)
    return [Job(chat, {"turns": turns[i * each : (i + 1) * each]}) for i in range(count)]


CHARACTER = Workload(
    "character",
    "Character as JSON, by a pattern",
    lambda scale: f"{len(HARRY_POTTER)} characters of pattern",
    characters,
    lambda state: [state["json"]],
    paper=Size(50, 50),
    cpu=Size(16, 16),
    quick=Size(16, 3),
)
CHAT = Workload(
    "chat",
    "Chat",
    lambda scale: f"{share(TURNS, scale)} turns of {TOKENS} tokens",
    conversations,
    lambda state: [state.text()],
    paper=Size(8, 8),
    cpu=Size(8, 8),
    quick=Size(8, 1, 0.25),
)
ROWS = (
    Row(
        "character as JSON by a pattern, one at a time",
        CHARACTER,
        1,
        (Goal("vllm", 4.0),),
        (Goal("guidance", 1.0),),
    ),
    Row("the same, together", CHARACTER, 64, (Goal(BEST, 1.7),), (Goal(BEST, 2.5),)),
    Row("multiple choice by letter", WORKLOADS["mmlu"], 64, (Goal(BEST, 1.3),), (Goal(BEST, 2.0),)),
    Row(
        "select among texts",
        WORKLOADS["hellaswag"],
        64,
        (Goal("transformers", 20.0), Goal("guidance", 1.4)),
        (Goal("guidance", 2.0),),
    ),
    Row(
        "chat",
        CHAT,
        64,
        (Goal("transformers", 2.2), Goal("vllm", 0.8)),
        (Goal("vllm", 1.0),),
    ),
)
PROGRAMS = {"mmlu": (16, 1.0), "hellaswag": (16, 0.25)}  # and their scale: five-shot both


def run(options: Options) -> Result:
    """See the module."""
    with ExitStack() as stack:
        ours = stack.enter_context(sgl.Runtime(options.model, device=options.device))
        systems = [System(OURS, ours)]
        for name, python in options.peers:
            peer = open_peer(name, options.model, python, device=options.device)
            systems.append(System(name, stack.enter_context(peer)))
        comparisons = [(row, measure(row, systems, options)) for row in ROWS]
        versions = {
            system.name: system.backend.version
            for system in systems
            if isinstance(system.backend, PeerBackend)
        }
    return result_of(comparisons, versions)


def measure(row: Row, systems: Sequence[System], options: Options) -> Comparison:
    """`options.rounds` runs of each system, in turn, after one program each to warm up."""
    for system in systems:
        if isinstance(system.backend, PeerBackend):
            system.backend.linger = 0.0 if row.parallel == 1 else LINGER
    count, scale = size_of(row, options)
    jobs = row.workload.jobs(options.data, count, scale)
    warm, measured = (
        Comparison(row.workload, scale, each, row.parallel, {s.name: Outcome() for s in systems})
        for each in (jobs[:1], jobs)
    )
    for comparison, rounds in ((warm, 1), (measured, options.rounds)):
        for _ in range(rounds):
            for system in systems:
                comparison.round(system)
    return measured


def size_of(row: Row, options: Options) -> tuple[int, float]:
    """(programs, scale)."""
    size = row.workload.quick if options.quick else row.workload.cpu
    if row.workload.name in PROGRAMS and not options.quick:
        return PROGRAMS[row.workload.name]
    return (size.single if row.parallel == 1 else size.batch), size.scale


def result_of(comparisons: Sequence[tuple[Row, Comparison]], versions: dict[str, str]) -> Result:
    """The tables, and what each answer was worth."""
    names = list(comparisons[0][1].outcomes)
    seconds = {
        row.title: {
            name: [run.seconds / len(each.jobs) for run in each.outcomes[name].runs]
            for name in names
        }
        for row, each in comparisons
    }
    medians = {
        title: {name: statistics.median(each) if each else None for name, each in of.items()}
        for title, of in seconds.items()
    }
    measured: list[dict[str, Cell]] = [
        {"workload": row.title, "programs": len(each.jobs), **medians[row.title]}
        for row, each in comparisons
    ]
    wanted: list[dict[str, Cell]] = [
        {
            "workload": row.title,
            "goal": "; ".join(goal.verdict(seconds[row.title]) for goal in row.goals),
            "stretch": "; ".join(goal.verdict(seconds[row.title]) for goal in row.stretch),
        }
        for row, _ in comparisons
    ]
    bars = {name: [medians[row.title][name] for row, _ in comparisons] for name in names}
    return Result(
        tables=[
            Table.of(measured, "Seconds per program", digits=3),
            Table.of(wanted, "How many times as fast as others ours is to be, and is"),
        ],
        charts=[
            Chart(
                "bars",
                "Seconds per program",
                "",
                "s",
                [row.title for row, _ in comparisons],
                bars,
                is_log=True,
            )
        ],
        notes=[note for row, each in comparisons for note in notes(row, each)],
        raw={"seconds": seconds, "versions": versions},
    )


def notes(row: Row, comparison: Comparison) -> list[str]:
    """Of each other system: how many answers are ours, or why it has none to compare."""
    told = []
    for name, outcome in comparison.outcomes.items():
        if name == OURS:
            continue
        equal = comparison.equal(name)
        if outcome.refusal:
            told.append(f"{row.title}: {name} does not run it: {outcome.refusal}.")
        elif equal is None:
            told.append(
                f"{row.title}: {name} has no patterns, and writes {outcome.free_tokens} tokens of "
                "free text."
            )
        else:
            told.append(f"{row.title}: {equal[0]} of {equal[1]} answers of {name} equal ours.")
    return told

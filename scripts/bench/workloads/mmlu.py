"""MMLU (Hendrycks et al. 2020, arXiv 2009.03300): exam questions with four choices.

Five solved questions of a subject stand before each of its questions, so a subject's programs share
nearly all of their prompt.  Data: `mmlu/dev/SUBJECT_dev.csv` and `mmlu/test/SUBJECT_test.csv`.
"""

from __future__ import annotations

from pathlib import Path

import minisgl.lang as sgl
from scripts.bench.workloads.base import Job, Size, Workload, file_of, share
from scripts.bench.workloads.samples import TOWNS, others
from scripts.examples.few_shot import Item, from_csv

SHOTS = 5
SUBJECTS = 10  # the first ones, by name
QUESTIONS_OF_A_SUBJECT = 8  # at least, or few programs would share anything
LONGEST = 4 * 1536  # characters of the solved questions: 1,536 tokens are the paper's bound


@sgl.function
def mmlu(s, shots: str, question: str):
    s += shots + question + sgl.gen("answer", max_tokens=1)


def jobs(data: Path | None, count: int, scale: float) -> list[Job]:
    subjects = _sample() if data is None else _read(file_of(data, "mmlu"))
    names = list(subjects)[: max(1, min(SUBJECTS, count // QUESTIONS_OF_A_SUBJECT))]
    made = []
    for i, name in enumerate(names):
        solved, asked = subjects[name]
        program = mmlu.bind(shots=_shots(name, solved[: share(SHOTS, scale)]))
        number = count // len(names) + (i < count % len(names))
        made += [Job(program, {"question": question}) for question, _, _ in asked[:number]]
    return made


def _shots(subject: str, solved: list[Item]) -> str:
    """The beginning of every prompt of a subject: as many solved questions as there is room for."""
    head = f"Questions about {subject.replace('_', ' ')}. One choice of each is right.\n\n"
    text = head + "".join(f"{text} {choices[right]}\n\n" for text, choices, right in solved)
    return text if len(text) <= LONGEST or len(solved) == 1 else _shots(subject, solved[:-1])


def _read(folder: Path) -> dict[str, tuple[list[Item], list[Item]]]:
    """Solved and open questions of each subject."""
    return {
        name: (from_csv(folder / "dev" / f"{name}_dev.csv"), from_csv(path))
        for path in sorted((folder / "test").glob("*_test.csv"))
        for name in [path.stem.removesuffix("_test")]
    }


def _sample() -> dict[str, tuple[list[Item], list[Item]]]:
    asked = {
        "rivers": ("On which river is the town of {}?", "river"),
        "trades": ("Which goods is the town of {} known for?", "trade"),
        "sights": ("What is there to be seen in the town of {}?", "sight"),
        "mayors": ("Who is the mayor of the town of {}?", "mayor"),
    }
    subjects = {}
    for subject, (question, fact) in asked.items():
        values = [getattr(town, fact) for town in TOWNS]
        items: list[Item] = []
        for seed, (town, value) in enumerate(zip(TOWNS, values, strict=True)):
            choices, place = others(values, value, 4, seed)
            listed = "".join(f"{a}. {b}\n" for a, b in zip("ABCD", choices, strict=True))
            items.append((f"{question.format(town.name)}\n{listed}Answer:", list("ABCD"), place))
        subjects[subject] = (items[:SHOTS], items[SHOTS:])
    return subjects


WORKLOAD = Workload(
    "mmlu",
    "MMLU",
    lambda scale: f"{share(SHOTS, scale)}-shot, 1 token",
    jobs,
    lambda state: [state["answer"]],
    paper=Size(1000, 100),
    cpu=Size(64, 16),
    quick=Size(12, 6, 0.6),
)

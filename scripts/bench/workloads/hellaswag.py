"""HellaSwag (Zellers et al. 2019, arXiv 1905.07830): which of four endings is the likeliest.

Twenty solved items stand before each one, and `select` scores all four endings: what one program's
endings share is most of its prompt, and what all programs share is most of that.
Data: `hellaswag/hellaswag_val_1000.jsonl`.
"""

from __future__ import annotations

from pathlib import Path

from scripts.bench.workloads.base import Job, Size, Workload, file_of, share
from scripts.bench.workloads.samples import TOWNS, others
from scripts.examples.few_shot import Item, complete, read

SHOTS = 20


def jobs(data: Path | None, count: int, scale: float) -> list[Job]:
    items = _sample() if data is None else read(file_of(data, "hellaswag/hellaswag_val_1000.jsonl"))
    shots = share(SHOTS, scale)
    program = complete.bind(shots=items[:shots])
    return [
        Job(program, {"beginning": text, "endings": endings})
        for text, endings, _ in items[shots : shots + count]
    ]


def _sample() -> list[Item]:
    beginnings = (
        ("Fishermen in {0.name} row out early in the morning, because they know that", "river"),
        ("A stranger comes to {0.name} and asks for the way to the market. There", "trade"),
    )
    endings = {
        "river": "the {0.river} is calm until the sun has reached the roofs of the town.",
        "trade": "people have been selling {0.trade} at long tables for as long as they remember.",
    }
    items: list[Item] = []
    for text, fact in beginnings:
        all_endings = [endings[fact].format(town) for town in TOWNS]
        for seed, (town, right) in enumerate(zip(TOWNS, all_endings, strict=True)):
            choices, place = others(all_endings, right, 4, seed)
            items.append((text.format(town), choices, place))
    return items


WORKLOAD = Workload(
    "hellaswag",
    "HellaSwag",
    lambda scale: f"{share(SHOTS, scale)}-shot, select of 4",
    jobs,
    lambda state: [state["answer"]],
    paper=Size(200, 40),
    cpu=Size(16, 4),
    quick=Size(4, 2, 0.25),
)

"""A made-up world, for those who have none of the real data: towns, and what can be said of them.

Everything is made from `TOWNS` by templates, so that there is as much of it as a run needs, no two
items are alike, and nothing of it is anybody's.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

_NAMES = (
    "Ostra", "Brenn", "Hale", "Vell", "Tarn", "Ilsa", "Corm", "Wend", "Perrin", "Lomas",
    "Aske", "Dorn", "Felt", "Garve", "Holm", "Inver", "Jarl", "Kestle", "Lund", "Morva",
    "Nield", "Orly", "Pell", "Quist", "Roan", "Selve", "Tove", "Ulm", "Varn", "Wick", "Yarrow",
    "Zell",
)  # fmt: skip
_RIVERS = ("Lim", "Dun", "Arve", "Sorn", "Kell", "Mira", "Tay")
_TRADES = ("clocks", "glass", "paper", "rope", "honey", "bells", "tiles", "boots", "lamps")
_SIGHTS = ("a brick tower", "a covered bridge", "an old mill", "a stone market hall", "a windmill")
_PEOPLE = (
    "Anna", "Otto", "Ines", "Mara", "Lo", "Ben", "Sofia", "Emil", "Karin", "Jon", "Petra",
    "Nils", "Vera",
)  # fmt: skip


@dataclass(frozen=True)
class Town:
    """One town of the world."""

    name: str
    river: str
    trade: str
    sight: str
    mayor: str
    founded: int
    people: int


TOWNS = [
    Town(
        name,
        _RIVERS[i % len(_RIVERS)],
        _TRADES[i % len(_TRADES)],
        _SIGHTS[i % len(_SIGHTS)],
        f"{_PEOPLE[i % len(_PEOPLE)]} {_NAMES[(7 * i + 3) % len(_NAMES)]}son",
        1200 + 17 * i,
        900 + 350 * (i % 11),
    )
    for i, name in enumerate(_NAMES)
]


def paragraphs(town: Town) -> list[str]:
    """An article about a town, as an encyclopedia would have it."""
    t = town
    return [
        f"{t.name} is a town of {t.people} people on the river {t.river}. It was founded in "
        f"{t.founded}, when the river could be crossed there at low water, and it has been known "
        f"for its {t.trade} since the first workshops opened beside the ford.",
        f"The best known building of {t.name} is {t.sight} near the river, which was built in "
        f"{t.founded + 140} and repaired after a fire in {t.founded + 300}. Every summer the "
        f"makers of {t.trade} hold a fair around it, and visitors come from all the towns on the "
        f"{t.river}.",
        f"The mayor of {t.name} is {t.mayor}, who was a teacher before. In the last election the "
        f"town argued about a new road: half of the {t.people} people wanted it, and the other "
        f"half feared for the gardens along the {t.river}.",
    ]


def questions(town: Town) -> list[tuple[str, str]]:
    """What an article answers: (question, answer)."""
    return [
        (f"On which river is {town.name}?", town.river),
        (f"What is {town.name} known for?", town.trade),
        (f"When was {town.name} founded?", str(town.founded)),
        (f"Who is the mayor of {town.name}?", town.mayor),
    ]


def others(values: list[str], right: str, count: int, seed: int) -> tuple[list[str], int]:
    """`right` among `count - 1` others of `values`, and where it stands."""
    rng = random.Random(seed)
    chosen = rng.sample(sorted(set(values) - {right}), count - 1)
    place = rng.randrange(count)
    return [*chosen[:place], right, *chosen[place:]], place

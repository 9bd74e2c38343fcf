"""Multi-turn chat, with short and with long answers: four turns of random words and lengths.

Conversations have nothing in common, and a turn begins with all the turns before it.  Ends of text
are ignored, so lengths are what they were drawn to be.  As in the paper there is no data: words
are drawn with a fixed seed, most of them a token each.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import minisgl.lang as sgl
from scripts.bench.workloads.base import Job, Size, Workload, share

TURNS, SEED = 4, 42
INPUT = (256, 512)  # words
SHORT, LONG = (4, 8), (256, 512)  # tokens of an answer
WORDS = (
    "time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world",
    "school", "state", "family", "student", "group", "country", "problem", "hand", "part", "place",
    "case", "week", "company", "system", "program", "question", "work", "government", "number",
    "night", "point", "home", "water", "room", "mother", "area", "money", "story", "fact", "month",
    "lot", "right", "study", "book", "eye", "job", "word", "business", "issue", "side", "kind",
    "head", "house", "service", "friend", "father", "power", "hour", "game", "line", "end",
)  # fmt: skip


@sgl.function
def chat(s, turns: Sequence[tuple[str, int]]):
    for i, (said, tokens) in enumerate(turns):
        s += said + "\n" + sgl.gen(f"answer_{i}", max_tokens=tokens, ignore_eos=True) + "\n"


def lengths(bounds: tuple[int, int], scale: float) -> tuple[int, int]:
    """Both at a scale.  Short answers stay as they are, they are what the workload is about."""
    return bounds if bounds == SHORT else (share(bounds[0], scale), share(bounds[1], scale))


def jobs_with(output: tuple[int, int]) -> Callable[[Path | None, int, float], list[Job]]:
    """The workload's `jobs`, with answers of `output` tokens."""

    def jobs(data: Path | None, count: int, scale: float) -> list[Job]:
        rng = random.Random(SEED)
        conversations = [
            [
                (
                    " ".join(rng.choices(WORDS, k=rng.randint(*lengths(INPUT, scale)))),
                    rng.randint(*lengths(output, scale)),
                )
                for _ in range(TURNS)
            ]
            for _ in range(count)
        ]
        return [Job(chat, {"turns": turns}) for turns in conversations]

    return jobs


def _workload(name: str, output: tuple[int, int], cpu: Size, quick: Size) -> Workload:
    def settings(scale: float) -> str:
        words, tokens = lengths(INPUT, scale), lengths(output, scale)
        return f"{TURNS} turns, {words[0]} to {words[1]} words, {tokens[0]} to {tokens[1]} tokens"

    return Workload(
        f"chat_{name}",
        f"Multi-turn chat, {name}",
        settings,
        jobs_with(output),
        lambda state: [state[f"answer_{i}"] for i in range(TURNS)],
        paper=Size(20, 20),
        cpu=cpu,
        quick=quick,
    )


SHORT_ANSWERS = _workload("short", SHORT, cpu=Size(8, 4, 0.25), quick=Size(4, 1, 0.1))
LONG_ANSWERS = _workload("long", LONG, cpu=Size(8, 4, 0.125), quick=Size(4, 1, 0.03))

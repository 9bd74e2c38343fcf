"""Figure 11: the whole JSON of a character, by the plain and by the compressed FSM.

The paper shows the decoding of a long JSON object (a character of a novel, some twenty lines) in
forward passes: many tokens of it are punctuation, keys and the rest of a word once it is begun,
which a compressed FSM writes without asking.  Here the same pattern is followed for several
characters, one at a time, by an engine that takes a pass for each token and by one that jumps, in
turn, each from an empty cache.

How to read it: the picture has the first character's answer, both ways; what is blue was chosen by
the model, and the numbers count passes.  The table has the passes and the seconds of all of them.
`scripts.bench fsm` measures many characters at once, and what masks cost.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from minisgl import Completion, Engine, SamplingParams
from scripts.bench.common import interleave, median_ratio, seconds
from scripts.bench.figures import Options
from scripts.bench.figures.constrained import cases
from scripts.bench.results import Chart, Result, Table
from scripts.show.passes import draw, watch

TITLE = "Figure 11: decoding a JSON object by the plain and the compressed FSM"
PLAIN, COMPRESSED = "plain FSM", "compressed FSM"
SLOTS = 2048  # of each engine: one answer at a time


@dataclass(frozen=True)
class Way:
    """One character by one FSM: the answer, and its seconds in each round."""

    answer: Completion
    seconds: list[float]


def run(options: Options) -> Result:
    """Each character both ways, and the first as a picture."""
    characters = cases(options)[0]
    with (
        Engine(options.model, device=options.device, kv_tokens=SLOTS, jump_forward=False) as plain,
        Engine(options.model, device=options.device, kv_tokens=SLOTS) as jumps,
    ):
        engines = {PLAIN: plain, COMPRESSED: jumps}
        # Before anything is timed, so each engine is warm and has the masks.
        growths = {
            name: watch(engine, characters.prompts[0], characters.params)
            for name, engine in engines.items()
        }
        measured = [
            by_both(engines, prompt, characters.params, options.rounds)
            for prompt in characters.prompts
        ]
    names = [prompt.partition(" is ")[0] for prompt in characters.prompts]
    rows = [row(name, ways) for name, ways in zip(names, measured, strict=True)]
    same = sum(ways[PLAIN].answer.text == ways[COMPRESSED].answer.text for ways in measured)
    ratios = {c: statistics.median(r[c] for r in rows) for c in ("passes, x", "seconds, x")}
    return Result(
        tables=[Table.of(rows, "One character at a time")],
        charts=[Chart(
            "bars", "Forward passes to a character's JSON", "", "forward passes", list(names),
            {way: [float(w[way].answer.forward_passes) for w in measured] for way in engines},
        )],
        notes=[
            f"{same} of {len(rows)} answers are the same both ways",
            f"median over the characters: {ratios['passes, x']:.1f} times fewer passes, "
            f"{ratios['seconds, x']:.1f} times fewer seconds",
            *(f"{names[0]}: {note}" for note in growths[COMPRESSED].notes()),
        ],
        pictures={"tokens": draw(growths, f"{names[0]}, token by token", beside=True)},
        raw={
            "characters": [
                {"name": name, "text": ways[COMPRESSED].answer.text}
                | {way: {"forward passes": w.answer.forward_passes, "seconds": w.seconds}
                   for way, w in ways.items()}
                for name, ways in zip(names, measured, strict=True)
            ],
        },
    )  # fmt: skip


def by_both(
    engines: Mapping[str, Engine], prompt: str, params: SamplingParams, rounds: int
) -> dict[str, Way]:
    """One prompt on each engine in turn, from an empty cache each time."""
    answers: dict[str, Completion] = {}

    def timed(name: str) -> float:
        engines[name].flush_cache()
        return seconds(partial(ask, name))

    def ask(name: str) -> None:
        done = engines[name].generate(prompt, params)
        assert isinstance(done, Completion)
        answers[name] = done

    times = interleave({name: partial(timed, name) for name in engines}, rounds, warmups=0)
    return {name: Way(answers[name], times[name]) for name in engines}


def row(name: str, ways: Mapping[str, Way]) -> dict[str, str | int | float]:
    """Of the table."""
    plain, jumps = ways[PLAIN], ways[COMPRESSED]
    return {
        "character": name,
        "tokens": jumps.answer.completion_tokens,
        "passes, plain": plain.answer.forward_passes,
        "compressed": jumps.answer.forward_passes,
        "passes, x": plain.answer.forward_passes / jumps.answer.forward_passes,
        "seconds, plain": statistics.median(plain.seconds),
        "seconds, compressed": statistics.median(jumps.seconds),
        "seconds, x": median_ratio(plain.seconds, jumps.seconds),
    }

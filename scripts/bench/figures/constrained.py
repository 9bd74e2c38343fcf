"""Constrained decoding: what the compressed FSM saves, and what reuse of its preprocessing saves.

The paper (section 6.3), on JSON decoding: with the compressed FSM 1.6 times the throughput, and
2.4 times less of it if the FSM is preprocessed anew for each request.  Here two patterns: the
characters of the paper's example (figure 11), many fields and short prompts; and pages of an
encyclopedia with five fields each, the JSON decoding of figure 5.  From an empty cache, in turn:

    jump            forced text costs no forward pass
    walk            one pass for each token, the same masks: jump_forward=False
    free            as many passes for each answer as with "walk", without a pattern
    masked          the same, with a pattern that forces nothing
    jump, no reuse  each request compiles the pattern and finds its masks for itself

Read answers/s of jump / walk, passes of walk / jump, and processor time of masked / free (what
masks cost a pass) and of "no reuse" / jump; other programs on the machine disturb processor time
less than the clock.  Both ways must give the same answers.
"""

from __future__ import annotations

import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from minisgl import Completion, Engine, SamplingParams
from minisgl.fsm import compile_regex
from minisgl.fsm.masks import masks_of
from scripts.bench.common import interleave, median_ratio, seconds
from scripts.bench.figures import Options
from scripts.bench.fsm import HARRY_POTTER
from scripts.bench.results import Chart, Result, Table
from scripts.bench.workloads import json_decoding
from scripts.bench.workloads.base import file_of
from scripts.bench.workloads.compare import size_of

TITLE = "Constrained decoding: jump-forward, masks, and what is kept of a pattern"
CHARACTERS = (
    "Ada Thornwick", "Bram Ottery", "Clea Marsh", "Dorian Pike", "Elsbeth Crane", "Fenn Hollow",
    "Gwen Sallow", "Hugo Brindle", "Isolde Fray", "Jasper Quill", "Kit Larkspur", "Leda Moss",
    "Milo Tarn", "Nell Harrow", "Orrin Vale", "Petra Winslow",
)  # fmt: skip
COUNT, QUICK_COUNT = 16, 3  # of characters
OPEN = r"[\w\s.,:;!?'\"(){}-]*"  # any usual text
JUMP, WALK, FREE, MASKED, NO_REUSE = "jump", "walk", "free", "masked", "jump, no reuse"
SHARE = 0.25  # of the memory that is free, for an engine's keys and values: there are two
PASSES, THROUGHPUT, OVERHEAD = 4.0, 1.6, 0.03  # goals

Answers = list[Completion]


@dataclass(frozen=True)
class Case:
    """Prompts whose answers follow one pattern."""

    name: str
    prompts: list[str]
    params: SamplingParams


def cases(options: Options) -> list[Case]:
    """The characters, and the pages."""
    names: Sequence[str] = CHARACTERS
    if options.data is not None:
        names = file_of(options.data, "json/characters.txt").read_text(encoding="utf-8").split("\n")
    names = [name.strip() for name in names if name.strip()]
    size = size_of(json_decoding.WORKLOAD, options)
    jobs = json_decoding.jobs(options.data, size.batch, size.scale)
    pages = [str(job.arguments["page"]) for job in jobs]
    greedy = SamplingParams(temperature=0.0)
    return [
        Case(
            "characters",
            [character(name) for name in names[: QUICK_COUNT if options.quick else COUNT]],
            replace(greedy, max_tokens=400, regex=HARRY_POTTER),
        ),
        Case(
            "pages",
            [f"{json_decoding.TASK}Page: {page}\n\nJSON:\n" for page in pages],
            replace(greedy, max_tokens=json_decoding.TOKENS, regex=json_decoding.FACTS),
        ),
    ]


def character(name: str) -> str:
    """What each character is asked."""
    return f"{name} is a wizard at a school of magic. All there is to know about {name}, as JSON:\n"


def together(engine: Engine, prompts: Sequence[str], params: Sequence[SamplingParams]) -> Answers:
    """All at once, from an empty cache."""
    engine.flush_cache()
    answers: Answers = engine.generate(prompts, params)  # type: ignore[assignment]  # one each
    return answers


def without_reuse(engine: Engine, prompts: Sequence[str], params: SamplingParams) -> Answers:
    """As `together`, but nothing that is known of the pattern outlives a request's arrival."""
    engine.flush_cache()
    handles = []
    for each in prompts:
        compile_regex.cache_clear()
        masks_of.cache_clear()
        handles.append(engine.submit(each, params))
    return [handle.result() for handle in handles]


@dataclass
class Measured:
    """Of one case.  `wall` and `processor`: seconds of each round, by way."""

    case: Case
    jumped: Answers
    walked: Answers
    wall: dict[str, list[float]]
    processor: dict[str, list[float]]

    @property
    def equal(self) -> int:
        """How many answers are the same with jumps and without."""
        return sum(a.text == b.text for a, b in zip(self.jumped, self.walked, strict=True))

    def passes(self, way: str) -> float:
        """Forward passes per answer."""
        return statistics.mean(answer.forward_passes for answer in self.answers(way))

    def answers(self, way: str) -> Answers:
        """Of the ways that follow the pattern; the others compute as many tokens as WALK."""
        return self.jumped if way in (JUMP, NO_REUSE) else self.walked

    def rows(self) -> list[dict[str, Any]]:
        """One for each way."""
        return [
            {
                "answers": f"{len(self.jumped)} {self.case.name}",
                "way": way,
                "passes per answer": self.passes(way),
                "tokens per answer": statistics.mean(
                    answer.completion_tokens for answer in self.answers(way)
                ),
                "seconds": statistics.median(each),
                "answers/s": len(self.jumped) / statistics.median(each),
                "to walk": median_ratio(self.wall[WALK], each),
                "processor, s": statistics.median(self.processor[way]),
            }
            for way, each in self.wall.items()
        ]

    def notes(self) -> list[str]:
        """The ratios, and whether they are as wanted."""
        faster = median_ratio(self.wall[WALK], self.wall[JUMP])
        masks = median_ratio(self.processor[MASKED], self.processor[FREE]) - 1
        anew = median_ratio(self.processor[NO_REUSE], self.processor[JUMP])
        lines = [
            f"the same answer with jumps and without: {self.equal} of {len(self.jumped)}",
            f"answers/s, jump / walk: {faster:.2f}; {met(faster >= THROUGHPUT)} of {THROUGHPUT}",
            f"what masks add to a pass: {masks:.1%}; {met(masks <= OVERHEAD)} of {OVERHEAD:.0%}",
            f"processor time, no reuse / jump: {anew:.2f} (the paper's throughput: 2.4 times less)",
        ]
        fewer = self.passes(WALK) / self.passes(JUMP)
        goal = f"; {met(fewer >= PASSES)} of {PASSES:g}" if self.case.name == "characters" else ""
        lines.insert(1, f"passes, walk / jump: {fewer:.2f}{goal}")
        return [f"{self.case.name}: {line}" for line in lines]


def met(is_met: bool) -> str:
    """The verdict on a goal."""
    return "meets the goal" if is_met else "MISSES the goal"


def measure(case: Case, jumps: Engine, walks: Engine, rounds: int) -> Measured:
    """All ways in turn."""
    same = [case.params] * len(case.prompts)
    jumped, walked = (together(engine, case.prompts, same) for engine in (jumps, walks))
    assert all(re.fullmatch(str(case.params.regex), answer.text) for answer in jumped + walked)
    free = [
        replace(case.params, regex=None, ignore_eos=True, max_tokens=answer.forward_passes)
        for answer in walked
    ]
    masked = [replace(each, regex=OPEN) for each in free]
    lengths = [len(answer.token_ids) for answer in together(walks, case.prompts, masked)]
    assert lengths == [each.max_tokens for each in masked]  # nothing of it was forced to end
    ways: dict[str, Callable[[], object]] = {
        JUMP: lambda: together(jumps, case.prompts, same),
        WALK: lambda: together(walks, case.prompts, same),
        FREE: lambda: together(walks, case.prompts, free),
        MASKED: lambda: together(walks, case.prompts, masked),
        NO_REUSE: lambda: without_reuse(jumps, case.prompts, case.params),
    }
    processor: dict[str, list[float]] = {way: [] for way in ways}

    def timed(way: str) -> float:
        start = time.process_time()
        wall = seconds(ways[way])
        processor[way].append(time.process_time() - start)
        return wall

    # Both engines are warm: they have just answered.
    wall = interleave({way: partial(timed, way) for way in ways}, rounds, warmups=0)
    return Measured(case, jumped, walked, wall, processor)


def run(options: Options) -> Result:
    """Both patterns, on one engine with jump-forward and one without."""
    settings = {"model": options.model, "device": options.device, "kv_memory_fraction": SHARE}
    with Engine(**settings) as jumps, Engine(**settings, jump_forward=False) as walks:
        found = [measure(case, jumps, walks, options.rounds) for case in cases(options)]
    names = [each.case.name for each in found]
    return Result(
        tables=[Table.of([row for each in found for row in each.rows()], "Each way, medians")],
        charts=[
            Chart(
                "bars", "Throughput, to one pass for each token", "", "times that of walk", names,
                {
                    way: [median_ratio(each.wall[WALK], each.wall[way]) for each in found]
                    for way in (WALK, JUMP, NO_REUSE)
                },
            ),
            Chart(
                "bars", "Forward passes per answer", "", "passes", names,
                {way: [each.passes(way) for each in found] for way in (WALK, JUMP)},
            ),
        ],
        notes=[note for each in found for note in each.notes()],
        raw={
            each.case.name: {
                "seconds": each.wall,
                "processor seconds": each.processor,
                "passes": {
                    way: [a.forward_passes for a in each.answers(way)] for way in (JUMP, WALK)
                },
                "equal": each.equal,
                "answers": [answer.text for answer in each.jumped],
            }
            for each in found
        },
    )  # fmt: skip

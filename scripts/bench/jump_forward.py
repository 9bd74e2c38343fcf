"""Jump-forward on the paper's example: the JSON of sixteen characters at once, in one run.

    python -m scripts.bench.jump_forward                                # characters made up here
    python -m scripts.bench.jump_forward --data FILE --rounds 5         # a name on each line

Five ways take turns, from an empty cache each time; ratios are medians over the rounds:

    jump            forced text costs no forward pass
    walk            one pass for each token, the same masks: jump_forward=False
    free            as many passes for each answer as with "walk", without a pattern
    masked          the same, with a pattern that forces nothing
    jump, no reuse  each request compiles the pattern and finds its masks for itself

What is compared: passes of walk / jump; answers/s of jump / walk; processor time of masked / free,
which is what masks cost a pass, and of "no reuse" / jump (the paper, section 6.3: its throughput is
2.4 times lower then).  Other programs on the machine disturb processor time less than the clock.
"""

from __future__ import annotations

import argparse
import re
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from minisgl import Completion, Engine, SamplingParams
from minisgl.fsm import compile_regex
from minisgl.fsm.masks import masks_of
from scripts.bench.common import interleave, median_ratio, report, seconds
from scripts.bench.fsm import HARRY_POTTER

CHARACTERS = (
    "Ada Thornwick", "Bram Ottery", "Clea Marsh", "Dorian Pike", "Elsbeth Crane", "Fenn Hollow",
    "Gwen Sallow", "Hugo Brindle", "Isolde Fray", "Jasper Quill", "Kit Larkspur", "Leda Moss",
    "Milo Tarn", "Nell Harrow", "Orrin Vale", "Petra Winslow",
)  # fmt: skip
OPEN = r"[\w\s.,:;!?'\"(){}-]*"  # any usual text
PASSES, THROUGHPUT, OVERHEAD = 4.0, 1.6, 0.03  # goals

Answers = list[Completion]


def prompt(name: str) -> str:
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


def passes(answers: Answers) -> float:
    """Forward passes per answer."""
    return statistics.mean(answer.forward_passes for answer in answers)


def tokens(answers: Answers) -> float:
    """Tokens per answer."""
    return statistics.mean(answer.completion_tokens for answer in answers)


def verdict(what: str, value: float, goal: float, *, is_most: bool, form: str) -> str:
    """One line: what was measured, and whether that is as wanted."""
    is_met = value <= goal if is_most else value >= goal
    bound = "at most" if is_most else "at least"
    said = "met" if is_met else "MISSED"
    return f"{what}: {form.format(value)}; goal {bound} {form.format(goal)}: {said}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="names, one on each line")
    parser.add_argument("--count", type=int, default=16, help="how many of them at once")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--model", default=None)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    names: Sequence[str] = CHARACTERS
    if args.data is not None:
        names = args.data.read_text(encoding="utf-8").split("\n")
    names = [name.strip() for name in names if name.strip()][: args.count]
    if args.rounds < 1 or not names:
        parser.error("--rounds and the number of names must be at least 1")

    prompts = list(map(prompt, names))
    follow = SamplingParams(temperature=0.0, max_tokens=400, regex=HARRY_POTTER)
    with (
        Engine(args.model, dtype=args.dtype) as jumps,
        Engine(args.model, dtype=args.dtype, jump_forward=False) as walks,
    ):
        same = [follow] * len(prompts)
        jumped, walked = together(jumps, prompts, same), together(walks, prompts, same)
        assert all(re.fullmatch(HARRY_POTTER, answer.text) for answer in jumped + walked)
        equal = sum(a.text == b.text for a, b in zip(jumped, walked, strict=True))
        free = [
            replace(follow, regex=None, ignore_eos=True, max_tokens=answer.forward_passes)
            for answer in walked
        ]
        masked = [replace(each, regex=OPEN) for each in free]
        assert all(len(a.token_ids) == b.max_tokens for a, b in zip(
            together(walks, prompts, masked), masked, strict=True
        ))  # fmt: skip
        ways: dict[str, Callable[[], object]] = {
            "jump": lambda: together(jumps, prompts, same),
            "walk": lambda: together(walks, prompts, same),
            "free": lambda: together(walks, prompts, free),
            "masked": lambda: together(walks, prompts, masked),
            "jump, no reuse": lambda: without_reuse(jumps, prompts, follow),
        }
        work: dict[str, list[float]] = {way: [] for way in ways}  # seconds of the processor

        def timed(way: str) -> float:
            start = time.process_time()
            wall = seconds(ways[way])
            work[way].append(time.process_time() - start)
            return wall

        # Both engines are warm: they have just answered.
        times = interleave({way: lambda way=way: timed(way) for way in ways}, args.rounds, 0)
    rows = [
        {
            "way": way,
            "passes per answer": passes(jumped if way.startswith("jump") else walked),
            "tokens per answer": tokens(jumped if way.startswith("jump") else walked),
            "seconds": statistics.median(each),
            "answers/s": len(prompts) / statistics.median(each),
            "processor, s": statistics.median(work[way]),
        }
        for way, each in times.items()
    ]
    report(f"{len(prompts)} answers that follow one pattern, at once", rows, args.json)
    fewer = passes(walked) / passes(jumped)
    faster = median_ratio(times["walk"], times["jump"])
    overhead = median_ratio(work["masked"], work["free"]) - 1
    print(f"\nThe same answer with jumps and without: {equal} of {len(prompts)}.")
    print(verdict("Passes, walk / jump", fewer, PASSES, is_most=False, form="{:.1f}x"))
    print(verdict("Answers/s, jump / walk", faster, THROUGHPUT, is_most=False, form="{:.2f}x"))
    print(verdict("What masks add to a pass", overhead, OVERHEAD, is_most=True, form="{:.1%}"))
    reuse = median_ratio(work["jump, no reuse"], work["jump"])
    print(f"Processor time, no reuse / jump: {reuse:.2f}x (the paper's engine: 2.4x)")


if __name__ == "__main__":
    main()

"""Draw a trace as SVG: the engine's steps, each request's life, and who owns the slots.

    python -m minisgl.chat --trace trace.json
    python -m scripts.show.trace trace.json trace.svg --first 1 --last 12
    python -m scripts.show.trace trace.json trace.svg --by step

Perfetto (https://ui.perfetto.dev) shows the same file with everything in it; this is for a page.
By time, a step is as wide as it took long; by step, all are equally wide, which shows what the
scheduler did and is the same on every machine.
"""

from __future__ import annotations

import argparse
import json
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from minisgl import svg

Event = dict[str, Any]

STEP = {"prefill": "#c8f0cd", "decode": "#cfe4ff", "mixed": "#d9e8c9"}
PART = {"schedule": "#e0b040", "forward": "#6aa3e8", "sample": "#b48ad6", "detokenize": "#7dbf87"}
PHASE = {"waiting": "#e6e8eb", "prefill": "#8fd39a", "decode": "#8fb8ee"}
OWNER = {"of requests": "#e0935c", "locked": "#3a7bd5", "cached": "#a9c8f2", "free": "#f0f2f4"}
LEFT, WIDTH, ROW, POOL = 130, 860, 20, 70


@dataclass(frozen=True)
class Bar:
    """A phase of a request, in microseconds."""

    phase: str
    start: float
    stop: float


def load(file: Path) -> list[Event]:
    """The events of a trace, also of one that was cut off."""
    text = file.read_text(encoding="utf-8")
    events: list[Event] = json.loads(text if text.rstrip().endswith("]") else text + "]")
    return events


def draw(
    events: Sequence[Event], *, first: int = 1, last: int | None = None, by: Literal["time", "step"]
) -> str:
    """Steps `first` to `last` of a trace as an SVG file.

    Args:
        by: "time" or "step": what the horizontal axis shows.

    Raises:
        ValueError: there are no such steps.
    """
    steps = [e for e in events if e["ph"] == "X" and "args" in e][first - 1 : last]
    if not steps:
        raise ValueError(f"no steps from {first} to {last or 'the end'} in this trace")
    begin, end = steps[0]["ts"], steps[-1]["ts"] + steps[-1]["dur"]
    starts = [e["ts"] for e in steps]

    def x(ts: float) -> float:
        ts = min(max(ts, begin), end)
        # subtle: what happens within a step counts as happening at its end
        share = (
            bisect_left(starts, ts) / len(starts) if by == "step" else (ts - begin) / (end - begin)
        )
        return LEFT + share * WIDTH

    parts = [svg.text(12, 26, "steps", bold=True)]
    for n, step in enumerate(steps):
        stop = starts[n + 1] if by == "step" and n + 1 < len(steps) else step["ts"] + step["dur"]
        parts.append(_step(step, x(step["ts"]), x(stop)))
    top = 66
    if by == "time":
        parts += [svg.text(12, top + 10, "parts", bold=True), *_parts(events, begin, end, x, top)]
        top += 26
    for request, (bars, cached) in sorted(_lives(events, end).items()):
        if any(bar.stop > begin and bar.start < end for bar in bars):
            words = f"request {request}" + (f", {cached} cached" if cached else "")
            parts.append(svg.text(12, top + 13, words))
            parts += _life(bars, x, top)
            top += ROW
    counters = [e for e in events if e["ph"] == "C" and e["name"] == "slots"][first - 1 : last]
    parts += _pool(counters, [*(x(ts) for ts in starts), LEFT + WIDTH], top + 12)
    top += 12 + POOL + 24
    parts += _legend(PHASE, LEFT, top, "request:")
    parts += _legend(OWNER, LEFT + 330, top, "slots:")
    if by == "time":
        parts += _legend(PART, LEFT, top + 18, "parts of a step:")
        parts.append(
            svg.text(LEFT + WIDTH, top + 18, f"{(end - begin) / 1000:.1f} ms", anchor="end")
        )
        top += 18
    return svg.document(LEFT + WIDTH + 12, top + 14, parts, f"{len(steps)} steps of an engine")


def _step(step: Event, left: float, right: float) -> str:
    decode, prefill = len(step["args"]["decode"]), step["args"]["extended_tokens"]
    lines = [f"{decode} d"] * bool(decode) + [f"{prefill} p"] * bool(prefill)
    box = svg.rect(left, 10, right - left, 46, STEP[step["name"]], stroke=svg.FAINT)
    numbers = [
        svg.text((left + right) / 2, 24 + 13 * n, line, anchor="middle", size=10)
        for n, line in enumerate([f"{step['args']['step']}", *lines])
        if right - left > 6 * len(line)
    ]
    tip = f"step {step['args']['step']}: {decode} tokens decoded, {prefill} prefilled"
    return svg.group(f"step {step['name']}", [box, *numbers], tip)


def _parts(
    events: Sequence[Event], begin: float, end: float, x: Callable[[float], float], top: float
) -> list[str]:
    return [
        svg.rect(x(e["ts"]), top, x(e["ts"] + e["dur"]) - x(e["ts"]), 14, PART[e["name"]])
        for e in events
        if e["ph"] == "X" and e["name"] in PART and begin <= e["ts"] <= end
    ]


def _lives(events: Sequence[Event], end: float) -> dict[int, tuple[list[Bar], int]]:
    """request id -> its phases, and the tokens that it found cached."""
    lives: dict[int, tuple[list[Bar], int]] = {}
    open_phase: dict[int, tuple[str, float]] = {}
    for e in sorted((e for e in events if e["ph"] in "be"), key=lambda e: e["ts"]):
        bars, cached = lives.setdefault(e["id"], ([], 0))
        if e["name"] not in PHASE:
            lives[e["id"]] = bars, e.get("args", {}).get("cached_tokens", cached)
        elif e["ph"] == "b":
            open_phase[e["id"]] = e["name"], e["ts"]
        else:
            bars.append(Bar(*open_phase.pop(e["id"]), e["ts"]))
    for request, (phase, start) in open_phase.items():  # the trace ends before they do
        lives[request][0].append(Bar(phase, start, end))
    return lives


def _life(bars: Sequence[Bar], x: Callable[[float], float], top: float) -> list[str]:
    parts = []
    for bar in bars:
        left, right = x(bar.start), x(bar.stop)
        if right > left:
            box = svg.rect(left, top + 2, right - left, ROW - 6, PHASE[bar.phase], radius=2)
            parts.append(svg.group(f"phase {bar.phase}", [box], bar.phase))
    return parts


def _pool(counters: Sequence[Event], edges: Sequence[float], top: float) -> list[str]:
    """Who owns the slots after each step, stacked; step n is drawn between edges n and n + 1."""
    total = sum(counters[0]["args"].values())
    parts = [svg.text(12, top + 12, "slots", bold=True), svg.text(12, top + 27, f"of {total}")]
    for counter, (left, right) in zip(counters, pairwise(edges), strict=True):
        bottom = top + POOL
        for owner, colour in OWNER.items():
            height = POOL * counter["args"][owner] / total
            bottom -= height
            parts.append(svg.rect(left, round(bottom, 2), right - left, round(height, 2), colour))
    return parts


def _legend(colours: dict[str, str], x: float, y: float, title: str) -> list[str]:
    parts = [svg.text(x, y, title, fill=svg.FAINT)]
    x += 6 * len(title) + 8
    for name, colour in colours.items():
        parts += [svg.rect(x, y - 9, 12, 11, colour), svg.text(x + 16, y, name)]
        x += 32 + 6 * len(name)
    return parts


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("trace", type=Path)
    parser.add_argument("file", type=Path, help="the SVG file to write")
    parser.add_argument("--first", type=int, default=1, help="step to begin with")
    parser.add_argument("--last", type=int, help="step to end with")
    parser.add_argument("--by", choices=["time", "step"], default="time")
    args = parser.parse_args(argv)
    picture = draw(load(args.trace), first=args.first, last=args.last, by=args.by)
    args.file.write_text(picture, encoding="utf-8")
    print(f"written: {args.file}")


if __name__ == "__main__":
    main()

"""Watch a program run, and draw its streams: who says what, who goes on from whom, who waits.

    python -m scripts.show.program essay_judge docs/pictures/program.svg
    python -m scripts.show.program document_qa picture.svg --model     (the embedded model answers)

Time is counted in steps of the model: an answer is as wide as it has tokens, a select takes one
step, what the program itself says takes none, and branches go on side by side.  So a picture is
the same on every machine.  Without --model nobody thinks: answers come at once, of a length that
depends on the text before them.
"""

from __future__ import annotations

import argparse
import zlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import minisgl.lang as sgl
from minisgl import svg
from minisgl.lang import ir
from minisgl.lang.backends.base import Answer, Backend
from minisgl.lang.background import background
from minisgl.lang.interpreter import StreamExecutor
from minisgl.lang.program import Program
from scripts.examples import document_qa, essay_judge, tip_suggestion, tree_of_thought

STORIES: dict[str, tuple[sgl.Function, dict[str, Any]]] = {
    "essay_judge": (essay_judge.essay_judge, {"essay": essay_judge.ESSAY}),
    "tip_suggestion": (tip_suggestion.suggest_tips, tip_suggestion.TOPICS[0]),
    "document_qa": (
        document_qa.document_qa,
        {"documents": document_qa.DOCUMENTS, "question": document_qa.QUESTION},
    ),
    "tree_of_thought": (
        tree_of_thought.tree_of_thought,
        {"question": tree_of_thought.PROBLEMS[0]["question"], "branches": 2},
    ),
}
GEN, SELECT, SAID, WAITS = "#8fb8ee", "#e0b040", "#57606a", "#e6e8eb"
LEFT, WIDTH, ROW, TOP = 100, 760, 24, 44


class Rehearsal(Backend):
    """Answers at once, and always the same; of choices, it takes the first."""

    name = "a rehearsal"

    @property
    def chat(self) -> Any:
        return self

    def before(self, roles: tuple[str, ...]) -> str:
        return f"{roles[-1]}: "

    def after(self, roles: tuple[str, ...]) -> str:
        return "\n"

    async def generate(self, context: Any, params: Any) -> list[Answer]:
        tokens = min(12 + zlib.crc32(context.text.encode()) % 20, params.max_tokens)
        return [Answer(" la" * tokens, {"completion_tokens": tokens})] * params.n

    async def stream(self, context: Any, params: Any) -> AsyncIterator[Answer]:
        for answer in await self.generate(context, params):
            yield answer

    async def select(self, context: Any, node: ir.Select) -> Any:
        return sgl.ChoicesDecision(node.choices[0])


@dataclass(frozen=True)
class Event:
    """Something the function did to a stream.

    what: "say", "gen", "select", "fork", "join", "wait".
    variable: that was set, or waited for.
    streams: that were forked off, or joined.
    """

    what: str
    stream: Watched
    words: str = ""
    variable: Any = None
    streams: tuple[Watched, ...] = ()


class Watched:
    """A stream that notes what is done to it, and does it."""

    def __init__(self, stream: StreamExecutor, events: list[Event], name: str = "s") -> None:
        self.stream, self.events, self.name = stream, events, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def submit(self, value: object) -> None:
        for node in ir.nodes(value):
            self.stream.submit(node)
            if isinstance(node, ir.Gen | ir.Select):
                variables = self.stream.outline.variables
                name = node.name or list(variables)[-1]
                what = "gen" if isinstance(node, ir.Gen) else "select"
                self.events.append(Event(what, self, name, variables[name]))
            elif isinstance(node, ir.Text):
                self.events.append(Event("say", self, node.text))

    def fork(self, size: int) -> list[Watched]:
        prefix = "" if self.name == "s" else f"{self.name}."
        branches = [
            Watched(branch, self.events, f"{prefix}{i}")
            for i, branch in enumerate(self.stream.fork(size))
        ]
        self.events.append(Event("fork", self, streams=tuple(branches)))
        return branches

    def join(self, branches: list[Watched]) -> None:
        self.stream.join([branch.stream for branch in branches])
        self.events.append(Event("join", self, streams=tuple(branches)))

    def variable(self, name: str) -> Any:
        variable = self.stream.variable(name)
        self.events.append(Event("wait", self, variable=variable))
        return variable

    def sync(self) -> None:
        self.stream.sync()
        self.events.append(Event("wait", self))


def watch(
    program: sgl.Function, arguments: Mapping[str, Any], backend: Backend, **settings: Any
) -> list[Event]:
    """Run `program`, and tell what it did, in the order in which it did it."""
    events: list[Event] = []
    state = sgl.ProgramState(Watched(StreamExecutor(Program(backend, settings)), events))
    with background.hold():
        program.func(state, **arguments)
        state.sync()
    return events


@dataclass
class Times:
    """When things happen, in steps of the model.

    bars: (event, first step, step after the last) of each gen and select.
    ticks: (stream, step) -> what the program says there.
    waits: (first, after the last) step in which the function waits.
    lines: (step, from, to) between streams; None is the function.
    """

    bars: list[tuple[Event, int, int]] = field(default_factory=list)
    ticks: dict[tuple[Watched, int], str] = field(default_factory=dict)
    waits: list[tuple[int, int]] = field(default_factory=list)
    lines: list[tuple[int, Watched | None, Watched]] = field(default_factory=list)
    end: int = 0


def times(events: list[Event]) -> Times:
    """A stream does one thing after another; the function is held up by nothing but its waits."""
    told, now = Times(), 0
    idle: dict[Watched, int] = {}  # since when
    ends: dict[int, int] = {}  # of a variable
    for event in events:
        begin = max(idle.get(event.stream, 0), now)
        match event.what:
            case "say":
                before = told.ticks.get((event.stream, begin), "")
                told.ticks[event.stream, begin] = before + event.words
                idle[event.stream] = begin
            case "gen" | "select":
                end = begin + steps(event)
                told.bars.append((event, begin, end))
                idle[event.stream] = ends[id(event.variable)] = end
            case "fork":
                idle.update(dict.fromkeys(event.streams, begin))
                told.lines += [(begin, event.stream, branch) for branch in event.streams]
            case "join":
                end = max(begin, *(idle[branch] for branch in event.streams))
                told.lines += [(end, branch, event.stream) for branch in event.streams]
                idle[event.stream] = end
            case "wait":
                end = idle.get(event.stream, 0)
                if event.variable is not None:
                    end = ends.get(id(event.variable), 0)
                if end > now:
                    told.waits.append((now, end))
                    told.lines.append((end, None, event.stream))
                    now = end
    told.end = max([now, *idle.values()])
    return told


def steps(event: Event) -> int:
    """How many the answer took."""
    meta = event.variable.meta()
    answers = meta if isinstance(meta, list) else [meta]
    return (
        max(answer.get("completion_tokens", 1) for answer in answers) if event.what == "gen" else 1
    )


def draw(events: list[Event], title: str) -> str:
    """The streams of a program that has run, as an SVG file."""
    told = times(events)
    streams = list(dict.fromkeys(s for e in events for s in (e.stream, *e.streams)))
    y = {stream: TOP + ROW * i for i, stream in enumerate([None, *streams])}

    def x(step: int) -> float:
        return round(LEFT + WIDTH * step / max(told.end, 1), 1)

    parts = [
        svg.text(8, 18, title, bold=True),
        svg.text(LEFT, 34, f"{told.end} steps, left to right", fill=svg.FAINT),
        svg.text(8, y[None] + 14, "function"),
        *(svg.text(8, y[stream] + 14, stream.name) for stream in streams),
        svg.path(f"M {LEFT} {y[None] + 10} H {LEFT + WIDTH}"),
    ]
    for begin, end in told.waits:
        box = svg.rect(x(begin), y[None] + 2, x(end) - x(begin), 16, WAITS)
        label = fitting("waits", x(end) - x(begin))
        parts.append(svg.group("wait", [box, svg.text(x(begin) + 4, y[None] + 14, label)]))
    for step, one, other in told.lines:
        parts.append(svg.path(f"M {x(step)} {y[one] + 10} V {y[other] + 10}"))
    for event, begin, end in told.bars:
        width = max(x(end) - x(begin), 4)
        fill = GEN if event.what == "gen" else SELECT
        box = svg.rect(x(begin), y[event.stream] + 2, width, 16, fill, radius=2)
        label = svg.text(x(begin) + 4, y[event.stream] + 14, fitting(event.words, width))
        parts.append(svg.group(event.what, [box, label], title=tip(event.variable.text)))
    for (stream, step), words in told.ticks.items():
        tick = svg.rect(x(step) - 1, y[stream] + 2, 2, 16, SAID)
        parts.append(svg.group("said", [tick], title=tip(words)))
    height = TOP + ROW * len(y) + 8
    return svg.document(LEFT + WIDTH + 12, height, parts, title)


def tip(words: str) -> str:
    """What shows under the mouse: a model may write what XML can't hold."""
    return svg.printable(words, 400)


def fitting(words: str, width: float) -> str:
    """As much of `words` as has room."""
    most = int((width - 6) / 6.5)
    return svg.printable(words, most) if most > 1 else ""


def main(argv: list[str] | None = None) -> None:
    p = argparse.ArgumentParser(description="Draw the streams of a program.")
    p.add_argument("story", choices=sorted(STORIES))
    p.add_argument("file", type=Path)
    p.add_argument("--model", nargs="?", const="", help="who answers; alone: the embedded model")
    p.add_argument("--max-tokens", type=int, default=32, help="of an answer (default: %(default)s)")
    args = p.parse_args(argv)
    program, arguments = STORIES[args.story]
    asked = {"temperature": 0.0, "max_tokens": args.max_tokens}
    if args.model is None:
        events = watch(program, arguments, Rehearsal(), **asked)
    else:
        with sgl.Runtime(args.model or None) as runtime:
            events = watch(program, arguments, runtime, **asked)
    args.file.write_text(draw(events, args.story), encoding="utf-8")
    print(f"written: {args.file}")


if __name__ == "__main__":
    main()

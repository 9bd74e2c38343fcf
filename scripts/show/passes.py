"""Watch an answer that follows a pattern grow: what each forward pass wrote, what was forced.

    growth = watch(engine, prompt, SamplingParams(regex=...))
    draw({"jump-forward": growth}, "An answer")

Each token of the answer is the model's choice, or forced: written since nothing else could come.
Or it is rewritten: the model had begun a word with another token than the one that the word, as a
whole, is made of (paper, appendix B); then the choice was the model's, and the token is not.
`scripts.bench.figures` 10 and 11 are drawn so.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, cast
from unittest.mock import patch

from minisgl import Completion, Engine, SamplingParams, svg
from minisgl.cache.tree_node import common_prefix_len
from minisgl.engine.constrained import Constraint, Jump
from minisgl.engine.req import Req

Origin = Literal["model", "forced", "rewritten"]
COLOURS: dict[Origin, tuple[str, str, str]] = {
    "model": ("#cfe4ff", "#3a7bd5", "chosen by the model"),
    "forced": ("#c8f0cd", "#2da44e", "forced"),
    "rewritten": ("#ffe3b3", "#c98a1b", "chosen, then tokenized anew with what was forced"),
}
CHARACTER, BOX, LINE = 11.0, 18, 34  # a character's width; a token's height; from line to line


@dataclass(frozen=True)
class Written:
    """A token of an answer.

    after: the number of forward passes until it was there.
    """

    id: int
    text: str
    origin: Origin
    after: int


@dataclass
class Growth:
    """How an answer came about.

    tokens: as they stand in the end.
    passes: forward passes that gave a token.
    rewrites: (tokens that the model had chosen, what they became, with forced text in it).
    done: what the caller of the engine gets.
    """

    tokens: list[Written] = field(default_factory=list)
    passes: int = 0
    rewrites: list[tuple[list[str], list[str]]] = field(default_factory=list)
    done: Completion | None = None

    def count(self, origin: Origin) -> int:
        """Tokens of that origin."""
        return sum(token.origin == origin for token in self.tokens)

    def notes(self) -> list[str]:
        """A sentence for each of `rewrites`."""
        return [
            f"the model chose {' | '.join(map(repr, was))}, "
            f"which was tokenized anew as {' | '.join(map(repr, became))}"
            for was, became in self.rewrites
        ]


def watch(engine: Engine, prompt: str | Sequence[int], params: SamplingParams) -> Growth:
    """Run one prompt, and tell how its answer grew.

    It looks over the engine's shoulder, so nobody else may be asking.

    Raises:
        ValueError: `params` have no pattern, or one that can't be used.
    """
    if params.regex is None and params.json_schema is None:
        raise ValueError("give a regex or a json_schema: without one nothing is forced")
    growth, answers, jump = Growth(), engine.loop.answers, Constraint.jump

    def text_of(token: int) -> bytes:
        return engine.door.constrainer.table.vocab.text_of(token)

    def write(token: int, added: bytes | None) -> None:
        """`added`: what it adds to the text, if it is forced."""
        text, origin = text_of(token), cast(Origin, "model" if added is None else "forced")
        if added is not None and len(added) < len(text):  # the rest was there before
            origin = "rewritten"
        growth.tokens.append(Written(token, text.decode(errors="replace"), origin, growth.passes))

    def watched_take(req: Req, token: int, logprob: Any) -> None:
        assert req.constraint is not None
        growth.passes += 1
        write(token, req.constraint.pending[0][1] if req.constraint.pending else None)
        take(req, token, logprob)

    def watched_jump(constraint: Constraint, ids: Sequence[int], max_tokens: int) -> Jump | None:
        found = jump(constraint, ids, max_tokens)
        if found is not None:
            same = found.start + common_prefix_len(tuple(ids[found.start :]), tuple(found.ids))
            gone = [token.text for token in growth.tokens[same:]]
            del growth.tokens[same:]
            new = list(zip(found.ids, found.added, strict=True))[same - found.start :]
            if gone:
                anew = [text_of(i) for i, added in new if len(added) < len(text_of(i))]
                became = [text.decode(errors="replace") for text in anew]
                growth.rewrites.append((gone, became))
            if constraint.jumps:  # otherwise each comes with a pass of its own
                for token, added in new:
                    write(token, added)
        return found

    take = answers.take
    with (
        patch.object(answers, "take", watched_take),
        patch.object(Constraint, "jump", watched_jump),
    ):
        done = engine.generate(prompt, params)
    assert isinstance(done, Completion)
    growth.done = done
    return growth


# ---------------------------------------------------------------------- drawing


def draw(growths: Mapping[str, Growth], title: str, *, beside: bool = False) -> str:
    """Answers as an SVG file, token by token, one below the other or beside one another.

    The number above a token is that of the pass which chose it, or of the last one before it was
    written: what one number stands above was there after one pass.
    """
    parts = [svg.text(12, 24, title, size=14, bold=True), *svg.legend(12, 46, COLOURS.values())]
    left, top, width, height = 12.0, 64.0, 12.0 + 560, 64.0
    for name, growth in growths.items():
        head = f"{name}: {len(growth.tokens)} tokens, {growth.passes} forward passes"
        lane = [svg.text(left, top + 14, head, bold=True)]
        lines = list(_lines(growth.tokens))
        for n, line in enumerate(lines):
            lane += _line(line, left, top + 36 + LINE * n)
        parts.append(svg.group("lane", lane))
        across = CHARACTER * max(sum(len(words) for _, words in line) for line in lines)
        right = left + max(across, 6.5 * len(head))
        bottom = top + 36 + LINE * len(lines)
        width, height = max(width, right + 12), max(height, bottom)
        left, top = (right + 40, top) if beside else (left, bottom + 10)
    return svg.document(round(width), round(height), parts, title)


Fragment = tuple[Written, str]  # a token, and what of its text stands in one line


def _lines(tokens: Sequence[Written]) -> Iterator[list[Fragment]]:
    """The answer's lines; a token with a newline in it stands in two."""
    line: list[Fragment] = []
    for token in tokens:
        for words in token.text.splitlines(keepends=True) or [""]:
            line.append((token, shown(words)))
            if words.endswith("\n"):
                yield line
                line = []
    if line:
        yield line


def shown(words: str) -> str:
    """
    >>> shown("a b\\n")
    'a␣b↵'
    """
    return svg.printable(words.replace("\n", "↵").replace(" ", "␣"), 60)


def _line(line: Sequence[Fragment], x: float, y: float) -> list[str]:
    parts, last, free = [], None, x  # what stands above so far, and where there is room again
    for token, words in line:
        width = CHARACTER * max(1, len(words))
        fill, stroke, what = COLOURS[token.origin]
        drawn = [
            svg.rect(x + 0.5, y, width - 1, BOX, fill, stroke=stroke, radius=2),
            svg.text(x + width / 2, y + 13, words, anchor="middle"),
        ]
        if token.after != last and x >= free:
            drawn.append(svg.text(x + 1, y - 3, f"{token.after}", size=9, fill=svg.FAINT))
            last, free = token.after, x + 6 * len(f"{token.after}") + 4
        tip = f"{token.text!r}, {what}, pass {token.after}"
        parts.append(svg.group(f"token {token.origin}", drawn, tip))
        x += width
    return parts

"""Figure 4: a pattern, its FSM, the compressed FSM, and how tokens walk them.

The paper shows how a regular expression becomes a finite state machine, how chains of states with
one way on become single edges, and which steps of decoding that saves.  Here the pattern is
compiled as for any request, both automata are drawn whole (`scripts.show.automata`), and a text
that matches is walked with the tokens of the model's vocabulary, by the same constraint that the
engine asks: where it forces text, that is written at once; where it does not, the text's next
token is taken, the longest that is allowed.

How to read it: in the first picture an edge is what leads from one state to the next, double
circles may end.  In the second, characters go from state to state above; below, a box is one token
(plain) or everything that one jump writes (compressed), and blue ones cost a forward pass.  The
table says how many tokens of the vocabulary a mask leaves, before each token of the plain walk.

Only the model's tokenizer is read.  Nothing is timed, so `--quick`, `--rounds`, `--device` and
`--data` change nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from minisgl import SamplingParams, svg
from minisgl.engine.constrained import Constrainer
from minisgl.fsm import compile_regex
from minisgl.fsm.charset import contains
from minisgl.fsm.dfa import Dfa, compressed, minimised, whole
from minisgl.models.hub import resolve_model
from minisgl.tokenizer import Tokenizer
from scripts.bench.figures import Options
from scripts.bench.results import Result, Table
from scripts.show import automata
from scripts.show.passes import COLOURS, shown

TITLE = "Figure 4: a pattern, its FSM, the compressed FSM, and how tokens walk them"

PATTERN, TEXT = automata.PATTERN, '{"age": 42}'
LEFT, ACROSS, RADIUS = 120, 56, 12


@dataclass(frozen=True)
class Move:
    """From one place in the text to another: a token that a pass chose, or forced text.

    tokens: that it consists of, as texts.
    allowed: how many tokens of the vocabulary the mask left; None where nobody was asked.
    """

    start: int
    stop: int
    tokens: tuple[str, ...]
    allowed: int | None


def run(options: Options) -> Result:
    """Both automata and both walks, drawn and counted."""
    tokenizer = Tokenizer(resolve_model(options.model))
    constrainer = Constrainer(tokenizer, tokenizer.vocab_size, torch.device("cpu"), jumps=True)
    plain, jumps = (walk(constrainer, TEXT, jumps=jumps) for jumps in (False, True))
    dfa = minimised(whole(compile_regex(PATTERN).chars))
    small = compressed(dfa)
    asked = [move for move in jumps if move.allowed is not None]
    rows = [
        {
            "written": f"`{TEXT[: move.start]}`" if move.start else "",
            "tokens allowed": move.allowed,
            "taken": f"`{move.tokens[0]}`",
            "asked by the compressed FSM": any(move.start == m.start for m in asked),
        }
        for move in plain
    ]
    return Result(
        tables=[Table.of(rows, f"`{TEXT}` by `{PATTERN}`")],
        notes=[
            f"{len(dfa.edges)} states, {len(small.edges)} when compressed",
            f"{len(plain)} passes by the plain FSM, {len(asked)} by the compressed one",
            f"the vocabulary has {tokenizer.vocab_size:,} tokens",
        ],
        pictures={
            "automata": automata.draw(PATTERN),
            "walk": draw(dfa, {"plain FSM": plain, "compressed FSM": jumps}),
        },
        raw={
            "pattern": PATTERN,
            "states": len(dfa.edges),
            "states, compressed": len(small.edges),
            "plain": [vars(move) for move in plain],
            "compressed": [vars(move) for move in jumps],
        },
    )


def walk(constrainer: Constrainer, text: str, *, jumps: bool) -> list[Move]:
    """How tokens get from the beginning of `text`, which matches, to its end.

    Args:
        jumps: whether forced text is written without being asked for.
    """
    constraint = constrainer.make(SamplingParams(regex=PATTERN), stop_ids=())
    assert constraint is not None
    vocab, left, ids, moves = constrainer.table.vocab, text.encode(), list[int](), list[Move]()
    while left:
        jump = constraint.jump(ids, len(text)) if jumps else None
        if jump is not None:
            ids[jump.start :] = jump.ids
            taken, allowed = [added for added in jump.added if added], None
        else:
            choice = vocab.ids(constraint.guide.allowed())
            token = max(
                (i for i in choice if left.startswith(vocab.text_of(i))),
                key=lambda i: len(vocab.text_of(i)),
            )
            constraint.guide.advance(token)
            ids.append(token)
            taken, allowed = [vocab.text_of(token)], len(choice)
        start = len(text) - len(left)
        left = left[sum(map(len, taken)) :]
        tokens = tuple(each.decode() for each in taken)
        moves.append(Move(start, len(text) - len(left), tokens, allowed))
    return moves


def states_of(dfa: Dfa, text: str) -> list[int]:
    """The states that a text leads through, the first included."""
    states = [0]
    for char in text:
        states.append(next(
            target for label, target in dfa.edges[states[-1]]
            if not isinstance(label, str) and contains(label, ord(char))
        ))  # fmt: skip
    return states


# ---------------------------------------------------------------------- drawing


def draw(dfa: Dfa, walks: Mapping[str, Sequence[Move]]) -> str:
    """A text from state to state, and below it what each way takes at once, as an SVG file."""

    def x(place: int) -> float:
        return LEFT + ACROSS * place

    states = states_of(dfa, TEXT)
    parts = [svg.text(12, 24, f"{TEXT} by {PATTERN}", size=14, bold=True)]
    kinds = (
        (*COLOURS["model"][:2], "a token that a pass chooses, of so many that are allowed"),
        (*COLOURS["forced"][:2], "written without a pass"),
    )
    parts += svg.legend(12, 46, kinds)
    y = 84.0
    parts.append(svg.text(12, y + 4, "characters"))
    for place, char in enumerate(TEXT):
        parts.append(svg.path(f"M {x(place) + RADIUS} {y} H {x(place + 1) - RADIUS}"))
        middle = (x(place) + x(place + 1)) / 2
        parts.append(svg.text(middle, y - 6, shown(char), anchor="middle"))
    for place, state in enumerate(states):
        parts.append(_state(x(place), y, state, is_end=dfa.accepting[state]))
    for name, moves in walks.items():
        y += 44
        asked = sum(move.allowed is not None for move in moves)
        parts.append(svg.text(12, y + 12, name))
        parts.append(svg.text(12, y + 26, f"{asked} passes", fill=svg.FAINT, size=10))
        lane = [_move(move, x(move.start), x(move.stop), y) for move in moves]
        parts.append(svg.group("walk", lane))
    return svg.document(x(len(TEXT)) + 30, y + 44, parts, TITLE)


def _state(x: float, y: float, state: int, *, is_end: bool) -> str:
    rings = [RADIUS, RADIUS - 3] if is_end else [RADIUS]
    circles = [
        f'<circle cx="{x:g}" cy="{y:g}" r="{r}" fill="{svg.PAPER}" stroke="{svg.FAINT}"/>'
        for r in rings
    ]
    number = svg.text(x, y + 4, f"{state}", anchor="middle", size=10)
    return svg.group("state", [*circles, number])


def _move(move: Move, left: float, right: float, y: float) -> str:
    is_forced = move.allowed is None
    fill, stroke, what = COLOURS["forced" if is_forced else "model"]
    middle = (left + right) / 2
    words = " | ".join(map(shown, move.tokens))
    below = "1 token" if len(move.tokens) == 1 else f"{len(move.tokens)} tokens"
    if move.allowed is not None:
        below = f"of {move.allowed:,}"
    return svg.group(
        f"move {'forced' if is_forced else 'model'}",
        [
            svg.rect(left + 3, y, right - left - 6, 18, fill, stroke=stroke, radius=3),
            svg.text(middle, y + 13, words, anchor="middle"),
            svg.text(middle, y + 30, below, anchor="middle", size=9, fill=svg.FAINT),
        ],
        f"{what}: {' | '.join(move.tokens)}",
    )

"""The intermediate representation: what a program can put into its stream, as frozen values.

    s += "Q: " + question + "\\nA:" + gen("answer", stop="\\n")
         Chain((Text("Q: ..."), Text("\\nA:"), Gen("answer", {"stop": ("\\n",)})))

A node says what is to happen and does nothing; `interpreter.py` makes it happen.  Nodes add up to a
`Chain`, from either side and with plain strings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from minisgl.lang.choices import ChoicesSamplingMethod
    from minisgl.lang.state import ProgramState

# Bounded, so that a model which never stops is stopped: all fit in the default `max_tokens`, since
# a token has at least one character.  The blanks let a model end a number the way it ends a word.
REGEX_INT = r"[-+]?[0-9]{1,18}[ \n]{0,2}"
REGEX_FLOAT = r"[-+]?[0-9]{0,18}\.?[0-9]{1,18}[ \n]{0,2}"
REGEX_BOOL = r"(True|False)"
REGEX_STR = r'"([^"\\\x00-\x1f]|\\["\\/bfnrt]){0,100}"'  # a JSON string
REGEX_STRING = REGEX_STR  # its name in SGLang's first versions


class Expr:
    """Whatever can be added to a state: a node, or a chain of nodes."""

    def __add__(self, other: object) -> Chain:
        return Chain(nodes(self) + nodes(other))

    def __radd__(self, other: object) -> Chain:
        return Chain(nodes(other) + nodes(self))


@dataclass(frozen=True)
class Text(Expr):
    """A constant."""

    text: str


@dataclass(frozen=True)
class Gen(Expr):
    """The model goes on from here; the answer joins the text and becomes the variable `name`.

    settings: fields of `SamplingParams` that this call sets, over those of the run.
    parse: what makes the variable's value of the answer's text; None: it is the text.
    """

    name: str | None = None
    settings: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    parse: Callable[[str], Any] | None = None


@dataclass(frozen=True)
class Select(Expr):
    """The choice that the model finds likeliest; it joins the text and becomes `name`.

    temperature: 0 takes the best; above it, choices are drawn by their scores.
    """

    name: str | None
    choices: tuple[str, ...]
    method: ChoicesSamplingMethod
    temperature: float = 0.0
    seed: int | None = None


@dataclass(frozen=True)
class Image(Expr):
    """A picture, in any form that `minisgl.media.load_image` reads."""

    source: Any


@dataclass(frozen=True)
class Video(Expr):
    """Frames of a video, as `minisgl.media.Video` chooses them."""

    source: Any
    num_frames: int | None = None
    fps: float | None = None
    indices: tuple[int, ...] | None = None


@dataclass(frozen=True)
class RoleBegin(Expr):
    """`role` begins to speak."""

    role: str


@dataclass(frozen=True)
class RoleEnd(Expr):
    """`role` has spoken: what it said is a message."""

    role: str


@dataclass(frozen=True)
class ScopeBegin(Expr):
    """The variable `name` is the text from here ..."""

    name: str


@dataclass(frozen=True)
class ScopeEnd(Expr):
    """... to here."""

    name: str


@dataclass(frozen=True)
class When(Expr):
    """`then` if `condition` is true, else `otherwise`: each can be added, or adds to the state."""

    condition: Any
    then: Part
    otherwise: Part


@dataclass(frozen=True)
class Repeat(Expr):
    """`body`, until `until(state)` is true after it, at most so many times."""

    body: Part
    at_most: int
    until: Callable[[ProgramState], Any] | None = None


class Unknown(Expr):
    """A value that only a run has, in a program that is traced: see `values.py`."""


Node: TypeAlias = (
    Text | Gen | Select | Image | Video | RoleBegin | RoleEnd | ScopeBegin | ScopeEnd | When
    | Repeat | Unknown
)  # fmt: skip
Part: TypeAlias = "str | Expr | Callable[[ProgramState], Any]"  # of a program


@dataclass(frozen=True)
class Chain(Expr):
    """Nodes, one after another."""

    nodes: tuple[Node, ...]


def nodes(value: object) -> tuple[Node, ...]:
    """What can be added to a state, as its nodes.

    >>> nodes("a" + Gen("x") + "b")
    (Text(text='a'), Gen(name='x', settings=mappingproxy({}), parse=None), Text(text='b'))

    Raises:
        ValueError: None, which is what a function without `return` gives.
        TypeError: anything else that is no text and no expression.
    """
    match value:
        case str():
            return (Text(str(value)),)
        case Chain():
            return value.nodes
        case Expr():
            return (value,)  # type: ignore[return-value]  # every other Expr is a Node
        case None:
            raise ValueError("None can't be added to a program's text: give text, gen(...), ...")
        case _:
            raise TypeError(
                f"{value!r} can't be added to a program's text: give a string (str(...) makes one) "
                "or gen(...), select(...), image(...), user(...) and the like"
            )

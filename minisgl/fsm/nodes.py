"""What a pattern says, as a tree: the one language that regexes and JSON schemas compile to.

A node is compared by identity, so that using one as a key costs nothing however large it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from minisgl.fsm.charset import Ranges


@dataclass(frozen=True, eq=False)
class Chars:
    """One character of the set; of the empty set: nothing can match."""

    ranges: Ranges


@dataclass(frozen=True, eq=False)
class Sequence:
    """The parts, one after the other; no parts: the empty text."""

    parts: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class Choice:
    """Any one of the options."""

    options: tuple[Node, ...]


@dataclass(frozen=True, eq=False)
class Repeat:
    """The body at least `low` and at most `high` times; None: without end."""

    body: Node
    low: int
    high: int | None


@dataclass(frozen=True, eq=False)
class Look:
    """Matches no text, but asks that the body matches right after this place, or before it."""

    body: Node
    behind: bool
    negative: bool


@dataclass(eq=False)
class Rule:
    """A node with a name that is filled in later, so that it can hold itself: recursion."""

    name: str
    body: Node | None = field(default=None, repr=False)


Node = Chars | Sequence | Choice | Repeat | Look | Rule

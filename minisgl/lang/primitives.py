"""What stands in a stream's queue: the nodes of the IR, and what streams tell one another.

A stream tells others its context by a future, at the place in its queue where it was asked.  So a
fork needs no waiting: the branches queue up their own primitives behind an `Adopt`.

    s:        ... gen  HandOver(f)  ...
    branch:                         Adopt(f)  gen  HandOver(g)  ...
    s:        ...                                               Join(((f, g),))
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeAlias

from minisgl.lang import ir
from minisgl.lang.context import Context
from minisgl.lang.variables import Failure, Variable


@dataclass(frozen=True)
class HandOver:
    """Tell `receiver` the context that the stream has here."""

    receiver: Future[Context]


@dataclass(frozen=True)
class Adopt:
    """Begin with the context that another stream hands over."""

    source: Future[Context]


@dataclass(frozen=True)
class Join:
    """Append what branches have said since they began."""

    sources: tuple[tuple[Future[Context], Future[Context]], ...]  # (at its begin, now) of each


Primitive: TypeAlias = ir.Node | HandOver | Adopt | Join


@dataclass(frozen=True)
class Item:
    """In the queue: a primitive, the variable it sets, and where in the program it was written."""

    node: Primitive
    variable: Variable | None
    line: str

    def fail(self, failure: Failure) -> None:
        """It will never run, or went wrong."""
        if self.variable is not None:
            self.variable.fail(failure)
        if isinstance(self.node, HandOver) and not self.node.receiver.done():
            self.node.receiver.set_exception(failure.error)

    @property
    def waits(self) -> bool:
        """Whether it needs something that comes from elsewhere."""
        match self.node:
            case ir.Gen() | ir.Select() | Join():
                return True
            case Adopt(source):
                return not source.done()
            case _:
                return False


async def value_of(context: Future[Context]) -> Context:
    """What another stream has handed over, or will."""
    # Shielded, since others wait for it too: who is cancelled leaves it as it is.
    return await asyncio.shield(asyncio.wrap_future(context))

"""What is done to a graph before it runs: `Passes`, each a file here, and each a switch.

A pass is a function from graph to graph, or one that reads something off a graph.  None of them
changes what a program says or which values it has; `code_motion`, which moves a prompt's sentences,
is the exception, and is off.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from minisgl.lang.backends.base import Backend


@dataclass(frozen=True)
class Passes:
    """Which optimisations are made.

    Raises:
        ValueError: a value that is not allowed.
    """

    fold_text: bool = True
    """Texts that follow one another are one."""

    dead_code: bool = True
    """What nobody reads is not said: branches that are never joined, and the rest of a branch after
    the last value that is read."""

    batch_gens: bool = True
    """Gens that become ready at the same moment are sent to the model together."""

    cache_prefix: bool = True
    """A batch sends what all its runs begin with before them."""

    order_runs: bool = True
    """A batch begins its runs in an order in which neighbours share what they begin with."""

    code_motion: Literal["rules"] | Backend | None = None
    """Move what is constant in a prompt to its front, by rules or as a model proposes."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "code_motion" and not isinstance(value, bool):
                raise ValueError(f"{field.name}={value!r}: give True or False")
        if isinstance(self.code_motion, str) and self.code_motion != "rules":
            raise ValueError(f'code_motion={self.code_motion!r}: give "rules", a backend, or None')


NO_PASSES = Passes(
    fold_text=False, dead_code=False, batch_gens=False, cache_prefix=False, order_runs=False
)

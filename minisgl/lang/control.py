"""`when` and `repeat`: control flow that depends on what is generated, and can be traced.

    s += sgl.when(s["kind"] == "question", answer, "No answer is needed.")
    s += sgl.repeat(attempt, at_most=5, until=lambda s: s["verdict"] == "good")

An `if` and a `while` of Python do the same when a program runs, and are all it takes there.  A
graph can't hold them: a trace sees one way through the function, and which way depends on values
that only a run has.  These two say both ways, so they are nodes of a graph like any other.

A part of a program is what can be added to a state, or a function that adds to the state that it is
given, as a program's own function does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from minisgl.lang import ir
from minisgl.lang.tracer import Tracer
from minisgl.lang.values import Value

if TYPE_CHECKING:
    from minisgl.lang.state import ProgramState


def when(condition: Any, then: ir.Part, otherwise: ir.Part = "") -> ir.When:
    """`then` if `condition` is true, else `otherwise`.

    Args:
        condition: read from variables or arguments: `s["x"] == "yes"`, `s["x"].startswith("y")`,
            joined by `&` and `|`.
        then, otherwise: parts of the program: text, gen(...), ..., or functions of the state.
            What they generate has names, and a role that begins in one ends there.

    Raises:
        ValueError: something else as a part.
    """
    return ir.When(condition, _part(then), _part(otherwise))


def repeat(
    body: ir.Part, at_most: int, until: Callable[[ProgramState], Any] | None = None
) -> ir.Repeat:
    """`body`, until `until(state)` is true after it, and `at_most` times in any case.

    Args:
        body: as the parts of `when`.  A variable that it sets anew is, at its beginning, what it
            was after the round before.  (A trace calls it twice, to find out which ones.)
        until: None: `at_most` rounds.

    Raises:
        ValueError: `at_most` is no number of rounds, or something else as a part.
    """
    if isinstance(at_most, bool) or not isinstance(at_most, int) or at_most < 1:
        raise ValueError(f"at_most={at_most!r}: give a whole number of at least 1")
    if until is not None and not callable(until):
        raise ValueError(f"until={until!r}: give a function of the state, or None")
    return ir.Repeat(_part(body), at_most, until)


def add(state: ProgramState, value: object) -> None:
    """`state += value`, whatever is in it."""
    nodes = ir.nodes(value)
    if not any(isinstance(node, ir.When | ir.Repeat) for node in nodes):
        state.stream_executor.submit(value)
        return
    for node in nodes:
        match node:
            case ir.When():
                _choose(state, node)
            case ir.Repeat():
                _repeat(state, node)
            case _:
                state.stream_executor.submit(node)


def _choose(state: ProgramState, node: ir.When) -> None:
    stream: object = state.stream_executor
    if isinstance(node.condition, Value):  # which only a tracer hands out
        assert isinstance(stream, Tracer)
        stream.when(
            node.condition,
            lambda: _add_part(state, node.then),
            lambda: _add_part(state, node.otherwise),
        )
    else:
        _add_part(state, node.then if node.condition else node.otherwise)


def _repeat(state: ProgramState, node: ir.Repeat) -> None:
    stream: object = state.stream_executor
    until = node.until
    if isinstance(stream, Tracer):
        stream.repeat(
            lambda: _add_part(state, node.body),
            node.at_most,
            None if until is None else lambda: until(state),
        )
        return
    for _ in range(node.at_most):
        _add_part(state, node.body)
        if until is not None and until(state):
            return


def _add_part(state: ProgramState, part: ir.Part) -> None:
    if isinstance(part, str | ir.Expr):
        add(state, part)
    else:
        part(state)


def _part(value: ir.Part) -> ir.Part:
    if isinstance(value, str | ir.Expr) or callable(value):
        return value
    raise ValueError(
        f"{value!r} is no part of a program: give a text, gen(...) and the like, or a function of "
        "the state"
    )

"""`trace`: a program's function, run once on values that nobody knows."""

from __future__ import annotations

import contextlib
import inspect
import re
import traceback
from collections.abc import Callable, Iterator, Mapping
from typing import Any, cast

from minisgl.lang.graph import Graph, faults
from minisgl.lang.group import ProgramStateGroup
from minisgl.lang.interpreter import StreamExecutor
from minisgl.lang.program import Program
from minisgl.lang.source_line import is_ours
from minisgl.lang.state import ProgramState
from minisgl.lang.tracer import Sheet, Tracer, traced_by
from minisgl.lang.values import (
    Argument,
    Call,
    Constant,
    DataDependence,
    Expression,
    TraceError,
    Value,
    expression_of,
)


def trace(
    func: Callable[..., Any],
    signature: inspect.Signature,
    given: Mapping[str, Any],
    program: Program,
    *,
    until_model: bool = False,
) -> Tracer:
    """What `func` does, as far as that is known before it runs.

    Args:
        signature: of `func` without its state.
        given: arguments that are known; the others become `Value`s.
        until_model: end where it needs a model, or a value that only a run has.

    Raises:
        TraceError: what it does depends on such a value; not with `until_model`.
    """
    tracer = Tracer(Sheet(program, until_model), 0)
    arguments = signature.bind_partial(**given)
    missing = open_arguments(signature, given)
    arguments.arguments |= {name: Value(Argument(name)) for name in missing}
    # What it can't do with an argument that has no value, it will do in the real runs.
    ends = contextlib.suppress(Exception, DataDependence) if until_model else _explained()
    with traced_by(tracer), ends:
        returned = func(state_of(tracer), *arguments.args, **arguments.kwargs)
        tracer.returns = expression_of(returned)
        if any(map(_is_state, _constants(tracer.returns))):
            raise TraceError("the program returns a state: return the values that it has, s[...]")
        for fault in faults(Graph("", dict.fromkeys(missing), tracer.block(), tracer.returns)):
            raise TraceError(f"{fault}: outside of a when or repeat, read s[name] after it")
    return tracer


def graph_of(
    name: str, signature: inspect.Signature, given: Mapping[str, Any], tracer: Tracer
) -> Graph:
    """The graph of a program that has been traced."""
    parameters: dict[str, Expression | None] = {}
    for argument in open_arguments(signature, given):
        default = signature.parameters[argument].default
        required = default is inspect.Parameter.empty
        parameters[argument] = None if required else expression_of(default)
    return Graph(name, parameters, tracer.block(), tracer.returns)


def open_arguments(signature: inspect.Signature, given: Mapping[str, Any]) -> list[str]:
    """The arguments that are not given."""
    return [
        name
        for name, parameter in signature.parameters.items()
        if name not in given
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]


def state_of(tracer: Tracer) -> ProgramState:
    """What the program holds of a stream that is traced."""
    return ProgramState(cast(StreamExecutor, tracer))  # it does what a state asks of one


@contextlib.contextmanager
def _explained() -> Iterator[None]:
    """What stops a trace, as an error that the program's author understands."""
    try:
        yield
    except DataDependence as stop:
        raise TraceError(str(stop)) from None
    except (TypeError, ValueError) as error:
        if not re.search(r"\bValue\b", str(error)):
            raise
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            if not is_ours(frame.filename) and frame.name != "__init__"  # of a frozen value
        ]
        where = f"{frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}"
        raise TraceError(
            f"{where}: {error}: a Value stands for what only a run has; put texts together with +, "
            "or give the argument for the trace"
        ) from error


def _constants(expression: Expression) -> Iterator[Any]:
    match expression:
        case Constant(value):
            yield value
        case Call(_, operands):
            for operand in operands:
                yield from _constants(operand)


def _is_state(value: Any) -> bool:
    return isinstance(value, (ProgramState, ProgramStateGroup))

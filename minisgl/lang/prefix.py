"""The constant beginning of a program: what it says before it needs an argument or a model.

The function is run once on `ir.Argument`s, which stand for its arguments and have no value.  As
soon as it needs one, or something generated, it is stopped: all that it has said until then it will
say in every run.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from minisgl.lang import ir
from minisgl.lang.context import Context
from minisgl.lang.interpreter import StreamExecutor
from minisgl.lang.program import Program
from minisgl.lang.state import ProgramState
from minisgl.lang.variables import Variable


def constant_prefix(
    func: Callable[..., Any],
    signature: inspect.Signature,
    bound: Mapping[str, Any],
    program: Program,
) -> Context:
    """What `func` says before it depends on anything but its `bound` arguments.

    Args:
        program: a run that knows its backend and its settings.
    """
    recorder = _Recorder(program)
    arguments = signature.bind_partial(**bound)
    arguments.arguments |= {
        name: ir.Argument(name)
        for name, parameter in signature.parameters.items()
        if name not in bound
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    }
    # What the function can't do with an argument that is none, it will do in the real runs.
    with contextlib.suppress(Exception, ir.DataDependence):
        func(ProgramState(recorder), *arguments.args, **arguments.kwargs)
    return recorder.context


class _Recorder(StreamExecutor):
    """A stream that keeps what is constant, and stops its program at anything else."""

    def submit(self, value: object) -> None:
        for node in ir.nodes(value):
            match node:
                case ir.Text() | ir.RoleBegin() | ir.RoleEnd() | ir.ScopeBegin() | ir.ScopeEnd():
                    super().submit(node)
                case _:
                    self._stop(node)

    def fork(self, size: int) -> list[StreamExecutor]:
        self._stop(f"fork({size})")

    def variable(self, name: str) -> Variable:
        self._stop(f"variable {name!r}")

    def _stop(self, what: object) -> NoReturn:
        raise ir.DataDependence(f"{what} depends on a run")

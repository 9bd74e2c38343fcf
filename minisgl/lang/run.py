"""`Run`: one program with its arguments, ready to go."""

from __future__ import annotations

import contextlib
import inspect
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minisgl.lang.background import background
from minisgl.lang.program import Program
from minisgl.lang.state import ProgramState


@dataclass(frozen=True)
class Run:
    """A program's function, its state, and its arguments."""

    func: Callable[..., Any]
    state: ProgramState  # as whoever started it holds it
    arguments: inspect.BoundArguments

    @property
    def program(self) -> Program:
        """What the streams of this run share."""
        return self.state.stream_executor.program

    def execute(self) -> None:
        """Run the function, in this thread.  What it raises ends its streams, too."""
        inside = ProgramState(self.state.stream_executor)
        try:
            with background.hold():
                self.state.ret_value = self.func(
                    inside, *self.arguments.args, **self.arguments.kwargs
                )
        except BaseException as error:
            self.program.cancel(error)
            raise
        finally:
            self.program.end()

    def wait(self) -> None:
        """Until its stream has ended; raises what went wrong, and then nothing of it goes on."""
        try:
            self.state.sync()
        except BaseException as error:  # Ctrl-C, too
            self.program.cancel(error)
            raise

    def start(self) -> None:
        """Run the function in a thread of its own; whoever reads the state gets what it raises."""

        def work() -> None:
            with contextlib.suppress(BaseException):  # `execute` has told the readers
                self.execute()

        # A daemon: a program that nobody waits for keeps no process alive.
        threading.Thread(target=work, name="minisgl-program", daemon=True).start()

"""`ProgramState`: what a program holds of its stream, the `s` of `def program(s, ...)`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Literal, overload

from minisgl.lang import ir
from minisgl.lang.changes import Piece, async_pieces, pieces
from minisgl.lang.context import Message
from minisgl.lang.control import add
from minisgl.lang.group import ProgramStateGroup
from minisgl.lang.interpreter import StreamExecutor
from minisgl.lang.program import ProgramCancelledError
from minisgl.lang.usage import Usage
from minisgl.lang.variables import Variable

_A_BLOCK: Any = object()  # a `with` block says it; None would be a value that went missing


class ProgramState:
    """A stream, and the variables that have been generated in it.

        s += "Q: " + question + "\\nA:" + sgl.gen("answer")     returns at once
        s["answer"]                                             waits for it

    What goes wrong, here or in the background, is raised to whoever reads.

    Attributes:
        ret_value: what the program's function has returned.
    """

    def __init__(self, stream: StreamExecutor, *, until_return: bool = False) -> None:
        self.stream_executor = stream
        self.ret_value: Any = None
        # Held by somebody outside while the program runs: its own end is waited for as well.
        self._until_return = until_return

    # ------------------------------------------------------------------ saying

    def __iadd__(self, value: object) -> ProgramState:
        add(self, value)
        return self

    def extend(self, value: object) -> ProgramState:
        """`s += value`, by the paper's name."""
        add(self, value)
        return self

    def role(self, role: str, value: object = _A_BLOCK) -> AbstractContextManager[ProgramState]:
        """`s.role("tool", text)` says it in that role; `with s.role("tool"):` says the block so.

        What comes before and after is the model's own chat template's.
        """
        if value is _A_BLOCK:
            return self._between(ir.RoleBegin(role), ir.RoleEnd(role))
        add(self, ir.Chain((ir.RoleBegin(role), *ir.nodes(value), ir.RoleEnd(role))))
        return nullcontext(self)

    def system(self, value: object = _A_BLOCK) -> AbstractContextManager[ProgramState]:
        """`role("system", value)`."""
        return self.role("system", value)

    def user(self, value: object = _A_BLOCK) -> AbstractContextManager[ProgramState]:
        """`role("user", value)`."""
        return self.role("user", value)

    def assistant(self, value: object = _A_BLOCK) -> AbstractContextManager[ProgramState]:
        """`role("assistant", value)`."""
        return self.role("assistant", value)

    def var_scope(self, name: str) -> AbstractContextManager[ProgramState]:
        """`with s.var_scope("v"):` makes a variable of the text that the block adds."""
        return self._between(ir.ScopeBegin(name), ir.ScopeEnd(name))

    @contextmanager
    def _between(self, begin: ir.Node, end: ir.Node) -> Iterator[ProgramState]:
        self.stream_executor.submit(begin)
        try:
            yield self
        finally:
            self.stream_executor.submit(end)

    # ------------------------------------------------------------------ branches

    def fork(self, size: int = 1, *, number: int | None = None) -> ProgramStateGroup:
        """`size` states that go on from here, each for itself and all in parallel.

        Returns at once; `number` is the name of `size` in SGLang's first versions.
        """
        size = size if number is None else number
        if isinstance(size, bool) or not isinstance(size, int) or size < 1:
            raise ValueError(f"fork({size!r}): give a whole number of at least 1")
        branches = self.stream_executor.fork(size)
        return ProgramStateGroup([ProgramState(branch) for branch in branches], self)

    @contextmanager
    def copy(self) -> Iterator[ProgramState]:
        """`with s.copy() as t:` is a fork of one, joined at the end of the block."""
        with self.fork(1) as branches:
            yield branches[0]

    # ------------------------------------------------------------------ reading

    def __getitem__(self, name: str) -> Any:
        """The variable's value, as soon as it is there.

        Text for `gen` and `select`; a list for `gen` with n > 1 and for what `join` gathered; an
        object for a `dtype` that makes one.

        Raises:
            KeyError: the program has no such variable.
            BaseException: what went wrong before it was there.
        """
        return self._variable(name).value()

    def __setitem__(self, name: str, value: Any) -> None:
        """A variable of the program's own, which `join` gathers like the others."""
        self.stream_executor.set(name, value)

    def __contains__(self, name: object) -> bool:
        return name in self.stream_executor.outline.variables

    def get_var(self, name: str, timeout: float | None = None) -> Any:
        """`s[name]`; TimeoutError after `timeout` seconds."""
        return self._variable(name).value(timeout)

    set_var = __setitem__

    def get_meta_info(self, name: str, timeout: float | None = None) -> Any:
        """What the backend tells about a variable: tokens, cached tokens, finish reason, ...

        A list for `gen` with n > 1; None for a variable that no backend made.  Errors as `get_var`.
        """
        return self._variable(name).meta(timeout)

    def sync(self) -> None:
        """Wait until everything that was added has run; raises what went wrong."""
        self._wait_for_return()
        self.stream_executor.sync()

    async def async_sync(self) -> None:
        """`sync` for a coroutine."""
        await self.stream_executor.changes.await_for(self.is_done)
        self.sync()

    def text(self) -> str:
        """The whole text, when everything has run.  Errors as `sync`."""
        self.sync()
        return self.stream_executor.context.text

    def messages(self) -> list[Message]:
        """The roles that have ended, as {"role": ..., "content": ...}.  Errors as `sync`.

        Only what the program said: a system prompt that the template adds is not among them.
        """
        self.sync()
        return list(self.stream_executor.context.messages)

    def usage(self) -> Usage:
        """The calls and tokens of the run so far, its branches' too, when everything that was added
        here has run; and what speculation has saved.  Errors as `sync`."""
        self.sync()
        return self.stream_executor.program.usage()

    def error(self) -> BaseException | None:
        """What went wrong, when everything has run or will never run; None: nothing."""
        self._wait_for_return()
        stream = self.stream_executor
        stream.changes.wait_for(lambda: stream.is_idle)
        return stream.failure.error if stream.failure else None

    def is_done(self) -> bool:
        """Whether everything has run, or failed; never waits."""
        return self._is_complete() and self.stream_executor.is_idle

    def cancel(self) -> None:
        """End the program: its calls are aborted, and whoever reads gets the error.  Without effect
        on one that has ended."""
        program = self.stream_executor.program
        if not (program.has_returned and self.is_done()):
            program.cancel(ProgramCancelledError("the program was cancelled"))

    # ------------------------------------------------------------------ streams

    def text_iter(self, var_name: str | None = None) -> Iterator[str]:
        """The text as it comes, the program's own words included; or one variable's.

        The pieces join to `text()`, or to the variable's text.  A program that was not started
        with `stream=True` gives each answer whole.  Ends with what went wrong.
        """
        if var_name is None:
            found = pieces(self.stream_executor.changes, self._look)
        else:
            variable = self._variable(var_name)
            found = pieces(variable.changes, variable.look)
        return (piece.text for piece in found)

    @overload
    def text_async_iter(
        self,
        var_name: str | None = None,
        return_meta_data: Literal[False] = False,  # noqa: FBT002
    ) -> AsyncIterator[str]: ...
    @overload
    def text_async_iter(
        self, var_name: str, return_meta_data: Literal[True]
    ) -> AsyncIterator[tuple[str, Any]]: ...
    async def text_async_iter(
        self,
        var_name: str | None = None,
        return_meta_data: bool = False,  # noqa: FBT001, FBT002  # SGLang's signature
    ) -> AsyncIterator[Any]:
        """`text_iter` for a coroutine.

        Args:
            var_name: only this variable's text.
            return_meta_data: pairs (piece, meta) of a variable, meta as known with that piece.
        """
        stream = self.stream_executor
        if var_name is None:
            if return_meta_data:
                raise ValueError("return_meta_data=True: only a variable has meta data; name one")
            found = async_pieces(stream.changes, self._look)
        else:
            await stream.changes.await_for(lambda: self._is_declared(var_name))
            variable = stream.variable(var_name)
            found = async_pieces(variable.changes, variable.look)
        async for piece in found:
            yield (piece.text, piece.meta) if return_meta_data else piece.text

    def _look(self, seen: int) -> Piece | None:
        stream = self.stream_executor
        text = stream.context.text[seen:]
        if stream.failure is not None and not text:
            stream.failure.reraise()
        if not text and not self.is_done():
            return None
        return Piece(text, None, self.is_done() and stream.failure is None)

    # ------------------------------------------------------------------ waiting

    def _variable(self, name: str) -> Variable:
        stream = self.stream_executor
        stream.changes.wait_for(lambda: self._is_declared(name))
        return stream.variable(name)

    def _is_declared(self, name: str) -> bool:
        """Whether there is such a variable, or can't be one any more."""
        return name in self.stream_executor.outline.variables or self._is_complete()

    def _is_complete(self) -> bool:
        """Whether the program has said all it will say, as far as we have to wait for that."""
        stream = self.stream_executor
        return bool(stream.failure) or not self._until_return or stream.program.has_returned

    def _wait_for_return(self) -> None:
        self.stream_executor.changes.wait_for(self._is_complete)

    def __repr__(self) -> str:
        return f"ProgramState({self.stream_executor.context.text!r})"

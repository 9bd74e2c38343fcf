"""`Variable`: the place of a value that a stream will have, and who waits for it."""

from __future__ import annotations

from dataclasses import dataclass
from types import TracebackType
from typing import Any, NoReturn

from minisgl.lang.changes import Changes, Piece


@dataclass(frozen=True)
class Failure:
    """What went wrong, to be raised to everybody who reads."""

    error: BaseException
    traceback: TracebackType | None

    @staticmethod
    def of(error: BaseException) -> Failure:
        """The error, as it was caught."""
        return Failure(error, error.__traceback__)

    def reraise(self) -> NoReturn:
        """The error itself.  Its traceback begins anew, or it would grow with every reader."""
        raise self.error.with_traceback(self.traceback)


class Variable:
    """A value that comes when its primitive has run.  Each `gen("x")` has its own, so nobody sees
    half of the one or the other if the name is used twice.

    Attributes:
        text: of what has come so far, while it streams.
    """

    def __init__(self, name: str, changes: Changes) -> None:
        self.name = name
        self.text = ""
        self.changes = changes  # its stream's
        self._value: Any = None
        self._meta: Any = None
        self._is_done = False
        self._failure: Failure | None = None

    def set(self, value: Any, text: str, meta: Any = None) -> None:
        """The value is there, and whoever waits is told; without effect on one that has ended."""
        with self.changes:
            if not self._is_done:
                self._value, self._meta, self._is_done = value, meta, True
                self.text = text
                self.changes.tell()

    def add(self, text: str, meta: Any) -> None:
        """A piece of it has come."""
        with self.changes:
            self.text += text
            self._meta = meta
            self.changes.tell()

    def fail(self, failure: Failure) -> None:
        """There will be no value; without effect on one that is there."""
        with self.changes:
            if not self._is_done:
                self._failure, self._is_done = failure, True
                self.changes.tell()

    def value(self, timeout: float | None = None) -> Any:
        """Wait for it.

        Raises:
            TimeoutError: after `timeout` seconds without it.
            BaseException: what went wrong in its stream.
        """
        self._wait(timeout)
        return self._value

    def meta(self, timeout: float | None = None) -> Any:
        """Wait for what the backend tells about it; raises as `value`."""
        self._wait(timeout)
        return self._meta

    def _wait(self, timeout: float | None) -> None:
        if not self.changes.wait_for(lambda: self._is_done, timeout):
            raise TimeoutError(f"no value of {self.name!r} within {timeout} s")
        if self._failure is not None:
            self._failure.reraise()

    def look(self, seen: int) -> Piece | None:
        """What has come after the first `seen` characters, for `pieces`; the lock is held."""
        text = self.text[seen:]
        if self._failure is not None and not text:
            self._failure.reraise()
        if not text and not self._is_done:
            return None
        return Piece(text, self._meta, self._is_done and self._failure is None)

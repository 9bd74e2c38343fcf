"""`Program`: one run of a program, as its streams see it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from minisgl.lang import ir
from minisgl.lang.backends.base import Backend
from minisgl.lang.settings import DEFAULTS
from minisgl.lang.variables import Failure
from minisgl.sampling import SamplingParams

if TYPE_CHECKING:
    from minisgl.lang.interpreter import StreamExecutor


class ProgramCancelledError(RuntimeError):
    """The program was ended before it was done."""


@dataclass(eq=False)
class Program:
    """One run of a program: what its streams have in common.

    settings: fields of `SamplingParams` for its gens, where a gen does not say otherwise.
    """

    backend: Backend
    settings: Mapping[str, Any] = field(default_factory=dict)
    is_streaming: bool = False
    has_returned: bool = False  # its function
    _streams: weakref.WeakSet[StreamExecutor] = field(default_factory=weakref.WeakSet)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def params(self, node: ir.Gen) -> SamplingParams:
        """How `node` samples."""
        return SamplingParams(**{**DEFAULTS, **self.settings, **node.settings})

    def add(self, stream: StreamExecutor) -> None:
        """One more."""
        with self._lock:
            self._streams.add(stream)

    def streams(self) -> list[StreamExecutor]:
        """Those that anybody still holds."""
        with self._lock:
            return list(self._streams)

    def cancel(self, error: BaseException) -> None:
        """End it: what runs is aborted, and whoever reads gets `error`."""
        failure = Failure.of(error)
        for stream in self.streams():
            stream.cancel(failure)

    def end(self) -> None:
        """Its function has returned: nobody is about to add more to its streams."""
        self.has_returned = True
        for stream in self.streams():
            with stream.changes:
                stream.changes.tell()

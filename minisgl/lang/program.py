"""`Program`: one run of a program, as its streams see it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from minisgl.lang import ir
from minisgl.lang.backends.base import Backend
from minisgl.lang.settings import DEFAULTS
from minisgl.lang.speculative import Speculation
from minisgl.lang.usage import Tally, Usage
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
    num_api_spec_tokens: int | None = None  # see speculative.py
    has_returned: bool = False  # its function
    _usage: Usage = field(default_factory=Usage)
    _streams: weakref.WeakSet[StreamExecutor] = field(default_factory=weakref.WeakSet)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def speculation(self) -> Speculation | None:
        """How it asks for more than one gen at a time, if it does."""
        tokens = self.num_api_spec_tokens
        if tokens is None:
            return None
        return Speculation(self.backend, tokens, is_streaming=self.is_streaming)

    def params(self, node: ir.Gen) -> SamplingParams:
        """How `node` samples."""
        return SamplingParams(**{**DEFAULTS, **self.settings, **node.settings})

    def add(self, stream: StreamExecutor) -> None:
        """One more."""
        with self._lock:
            self._streams.add(stream)

    def count(self, spent: Tally, without: Tally | None = None) -> None:
        """A call was made; `without`: what it would have been without speculation."""
        with self._lock:
            self._usage += Usage("", spent, spent if without is None else without)

    def usage(self) -> Usage:
        """What all calls of it have taken up to now."""
        with self._lock:
            return replace(self._usage, model=self.backend.name)

    def streams(self) -> list[StreamExecutor]:
        """Those that anybody still holds."""
        with self._lock:
            return list(self._streams)

    def cancel(self, error: BaseException) -> None:
        """End it: what runs is aborted, and whoever reads gets `error`.

        Then nothing of it is under way any more.
        """
        failure = Failure.of(error)
        streams = self.streams()
        for stream in streams:
            stream.cancel(failure)
        for stream in streams:
            stream.wait_for_end()

    def end(self) -> None:
        """Its function has returned: nobody is about to add more to its streams."""
        self.has_returned = True
        for stream in self.streams():
            with stream.changes:
                stream.changes.tell()

"""The background: one event loop, in one thread, for the streams of all programs.

Streams wait most of their time, for a model.  A coroutine that waits costs a kilobyte and no
thread, so a thousand streams wait here, and a program takes a thread only for its own Python.

The thread begins with the first program and ends with the last: who needs it holds it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """The loop, as long as anybody holds it.  Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._holders = 0

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the thread alive for a block, which will start more than one coroutine."""
        self._take()
        try:
            yield
        finally:
            self._give_back()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `coroutine` beside everything else; `cancel` of the future cancels it."""
        loop = self._take()
        future = asyncio.run_coroutine_threadsafe(coroutine, loop)
        future.add_done_callback(lambda _: self._give_back())
        return future

    def _take(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                thread = threading.Thread(
                    target=_run, args=(self._loop,), name="minisgl-lang", daemon=True
                )
                thread.start()
            self._holders += 1
            return self._loop

    def _give_back(self) -> None:
        with self._lock:
            self._holders -= 1
            if self._holders == 0 and self._loop is not None:
                self._loop.call_soon_threadsafe(self._loop.stop)
                self._loop = None  # whoever comes next makes a new one


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
        # subtle: what was cancelled has told its future so, but not yet put its things away
        loop.run_until_complete(_finish_all())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


async def _finish_all() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)


background = Background()

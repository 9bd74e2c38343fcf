"""`Changes`: a condition that threads and coroutines can wait on, whatever their event loop.

And `pieces` of a text that grows, for either of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from minisgl.lang.waiting import SLICE

T = TypeVar("T")


class Changes:
    """A lock, and news of what it guards.

    with changes:
        value = 1
        changes.tell()                                    # who waits looks again

    changes.wait_for(lambda: value == 1)                  # in a thread
    await changes.await_for(lambda: value == 1)           # in a coroutine
    """

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._wakers: set[asyncio.Future[None]] = set()

    def __enter__(self) -> None:
        self._condition.acquire()

    def __exit__(self, *_: object) -> None:
        self._condition.release()

    def tell(self) -> None:
        """Wake everybody; the lock is held."""
        self._condition.notify_all()
        for waker in self._wakers:
            # A loop that was closed, perhaps a moment ago, has nobody to wake.
            with contextlib.suppress(RuntimeError):
                waker.get_loop().call_soon_threadsafe(_resolve, waker)
        self._wakers.clear()

    def wait_for(self, look: Callable[[], T], timeout: float | None = None) -> T:
        """Wait until `look()`, called with the lock held, gives something true, and return that;
        after `timeout` seconds, what it gives then."""
        with self._condition:
            while timeout is None:
                if found := self._condition.wait_for(look, SLICE):
                    return found
            return self._condition.wait_for(look, timeout)

    async def await_for(self, look: Callable[[], T]) -> T:
        """`wait_for` for a coroutine."""
        while True:
            with self._condition:
                if found := look():
                    return found
                news: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._wakers.add(news)
            try:
                await news
            finally:  # a cancelled wait leaves nothing behind
                with self._condition:
                    self._wakers.discard(news)


@dataclass(frozen=True)
class Piece:
    """What has come of a growing text since it was last looked at."""

    text: str
    meta: Any
    is_last: bool


def pieces(changes: Changes, look: Callable[[int], Piece | None]) -> Iterator[Piece]:
    """The pieces of a growing text, as they come.

    Args:
        look: what there is after so many characters; None: nothing yet.
    """
    seen, is_last = 0, False
    while not is_last:
        piece = changes.wait_for(partial(look, seen))
        assert piece is not None
        seen, is_last = seen + len(piece.text), piece.is_last
        if piece.text:
            yield piece


async def async_pieces(
    changes: Changes, look: Callable[[int], Piece | None]
) -> AsyncIterator[Piece]:
    """`pieces` for a coroutine."""
    seen, is_last = 0, False
    while not is_last:
        piece = await changes.await_for(partial(look, seen))
        assert piece is not None
        seen, is_last = seen + len(piece.text), piece.is_last
        if piece.text:
            yield piece


def _resolve(waker: asyncio.Future[None]) -> None:
    if not waker.done():
        waker.set_result(None)

"""How an answer travels from the engine thread to its caller: `Mailbox` and `Handle`.

    engine thread --add, add, ..., end--> Mailbox --result, iterate, await, async for--> caller

The engine never waits for a reader.  Pieces that nobody has read yet are joined into one, so a slow
reader costs the memory of its own answer and nobody's time.  A caller may be a thread, a notebook
cell, or a coroutine of any event loop: nothing here is bound to a loop before somebody awaits.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from typing import TYPE_CHECKING

from minisgl.engine.output import Chunk, Completion, TokenLogprob

if TYPE_CHECKING:
    from minisgl.engine.req import Req

Outcome = Completion | BaseException


class Mailbox:
    """One request's pieces, then exactly one end.  Any thread may call any method."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._text: list[str] = []
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprob] | None = None  # None: nobody asked
        self._outcome: Outcome | None = None
        self._end_was_read = False
        self._readers = 0  # threads that wait for a piece, not only for the end
        # Coroutines that wait, and whether for the end only.
        self._wakers: dict[asyncio.Future[None], bool] = {}

    @property
    def outcome(self) -> Outcome | None:
        """The end, once it has come."""
        return self._outcome

    def add(self, text: str, ids: list[int], logprobs: list[TokenLogprob] | None = None) -> None:
        """One more piece; never blocks."""
        with self._changed:
            self._put(text, ids, logprobs)
            if self._readers:
                self._changed.notify_all()
            self._wake(at_end=False)

    def end(self, outcome: Outcome, last: Chunk | None = None) -> bool:
        """The one end, together with a last piece, so that nobody reads that as one of many; False,
        and nothing changes, if it has come already."""
        with self._changed:
            if self._outcome is not None:
                return False
            if last is not None:
                self._put(last.text, last.token_ids, last.logprobs)
            self._outcome = outcome
            self._changed.notify_all()
            self._wake(at_end=True)
            return True

    def wait(self, timeout: float | None = None) -> Outcome:
        """The end.  Raises TimeoutError after `timeout` seconds without it."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._outcome is not None, timeout):
                raise TimeoutError(f"no answer within {timeout} s; the request goes on")
            assert self._outcome is not None
            return self._outcome

    def read(self) -> Chunk | None:
        """What came since the last read, waiting for it; None after the end.

        Raises:
            BaseException: the error that the request ended with, after the pieces before it.
        """
        with self._changed:
            self._readers += 1
            try:
                self._changed.wait_for(self._has_news)
            finally:
                self._readers -= 1
            return self._take()

    async def await_end(self) -> Outcome:
        """`wait` for a coroutine."""
        while True:
            with self._changed:
                if self._outcome is not None:
                    return self._outcome
                news = self._waker(at_end=True)
            await self._until(news)

    async def await_piece(self) -> Chunk | None:
        """`read` for a coroutine."""
        while True:
            with self._changed:
                if self._has_news():
                    return self._take()
                news = self._waker(at_end=False)
            await self._until(news)

    def _put(self, text: str, ids: list[int], logprobs: list[TokenLogprob] | None) -> None:
        self._text.append(text)
        self._ids += ids
        if logprobs is not None:
            self._logprobs = self._logprobs or []
            self._logprobs += logprobs

    def _has_news(self) -> bool:
        return bool(self._text) or self._outcome is not None

    def _take(self) -> Chunk | None:
        if self._end_was_read:
            return None
        text, ids, logprobs = "".join(self._text), self._ids, self._logprobs
        outcome = self._outcome
        self._text, self._ids, self._logprobs = [], [], None
        if isinstance(outcome, BaseException):
            if text or ids:
                return Chunk(text, ids, None, logprobs)  # the error comes with the next read
            self._end_was_read = True
            raise outcome
        self._end_was_read = outcome is not None
        return Chunk(text, ids, outcome, logprobs)

    def _waker(self, *, at_end: bool) -> asyncio.Future[None]:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wakers[future] = at_end
        return future

    async def _until(self, news: asyncio.Future[None]) -> None:
        try:
            await news
        finally:  # a cancelled wait leaves nothing behind
            with self._changed:
                self._wakers.pop(news, None)

    def _wake(self, *, at_end: bool) -> None:
        """Wake the coroutines that wait for this."""
        for future in [f for f, only_end in self._wakers.items() if at_end or not only_end]:
            del self._wakers[future]
            # A loop that was closed, perhaps a moment ago, has nobody to wake.
            with contextlib.suppress(RuntimeError):
                future.get_loop().call_soon_threadsafe(_resolve, future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class Handle(Iterator[Chunk], AsyncIterator[Chunk], Awaitable[Completion]):
    """One submitted request, as its caller holds it.

        handle.result()                     wait for the whole
        for chunk in handle: ...            pieces as they come
        await handle / async for            the same for coroutines
        handle.abort()                      leave; what is there so far is the result

    Whoever drops a handle that has not ended aborts the request: nobody could read it any more.

    Attributes:
        prompt_tokens: those of images included.
    """

    def __init__(self, req: Req, abort: Callable[[], None]) -> None:
        self.request_id = req.id
        self.prompt_tokens = len(req.prompt_ids)
        self._req = req
        self._mailbox = req.mailbox
        self._abort = abort

    @property
    def cached_tokens(self) -> int:
        """Of the prompt, found in the radix cache; 0 while the request waits."""
        return self._req.cached_tokens

    @property
    def is_done(self) -> bool:
        """Whether the request has ended, in whatever way."""
        return self._mailbox.outcome is not None

    def result(self, timeout: float | None = None) -> Completion:
        """Wait for the end.

        Raises:
            TimeoutError: after `timeout` seconds; the request goes on.
            EngineError: the request, or the engine, failed.
        """
        return self.value(self._mailbox.wait(timeout))

    @staticmethod
    def value(outcome: Outcome) -> Completion:
        """What an end means to the caller: its completion, or its error raised."""
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def abort(self) -> None:
        """End the request now, whatever it is doing; without effect once it has ended."""
        if not self.is_done:
            self._abort()

    close = abort

    def __next__(self) -> Chunk:
        chunk = self._mailbox.read()
        if chunk is None:
            raise StopIteration
        return chunk

    async def __anext__(self) -> Chunk:
        chunk = await self._mailbox.await_piece()
        if chunk is None:
            raise StopAsyncIteration
        return chunk

    async def aresult(self) -> Completion:
        """`result` for a coroutine.  Cancelling it does not abort the request."""
        return self.value(await self._mailbox.await_end())

    def __await__(self) -> Generator[object, None, Completion]:
        return self.aresult().__await__()

    def __del__(self) -> None:
        self.abort()

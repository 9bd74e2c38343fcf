"""The background: one event loop, in one thread, for the streams of all programs.

Streams wait most of their time, for a model.  A coroutine that waits costs a kilobyte and no
thread, so a thousand streams wait here, and a program takes a thread only for its own Python.

The thread begins with the first program and ends with the last: who needs it holds it.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, Generic, TypeVar

from minisgl.lang.waiting import until_done

T = TypeVar("T")


class Task(Generic[T]):
    """A coroutine in the background.  Any thread may call any method.

    A cancelled one is done when it has put its things away, and not before: unlike the future of
    `asyncio.run_coroutine_threadsafe`, which is done as soon as it is cancelled.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> None:
        self.done: Future[T] = Future()
        self._coroutine = coroutine
        self._loop = loop
        self._task: asyncio.Task[T] | None = None

    def begin(self) -> None:
        """Before, it only is there to be cancelled."""
        self._loop.call_soon_threadsafe(self._begin)

    def result(self, timeout: float | None = None) -> T:
        """Wait for what it returns or raises; CancelledError if it was cancelled."""
        if timeout is None:
            until_done(self.done)
        return self.done.result(timeout)

    def cancel(self) -> None:
        """Without effect on one that is done."""
        with contextlib.suppress(RuntimeError):  # the loop is closed, so it is done
            self._loop.call_soon_threadsafe(self._cancel)

    def wait(self) -> None:
        """Until it is done, one way or the other."""
        if asyncio._get_running_loop() is not self._loop:  # the background waits for nobody
            until_done(self.done)

    def _begin(self) -> None:
        self._task = self._loop.create_task(self._coroutine)
        self._task.add_done_callback(self._tell)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()
        else:  # Ctrl-C came before its begin
            self._coroutine.close()
            self._end_cancelled()

    def _end_cancelled(self) -> None:
        self.done.cancel()
        self.done.set_running_or_notify_cancel()

    def _tell(self, task: asyncio.Task[T]) -> None:
        if task.cancelled():
            self._end_cancelled()
        elif (error := task.exception()) is not None:
            self.done.set_exception(error)
        else:
            self.done.set_result(task.result())


class Background:
    """The loop, as long as anybody holds it.  Any thread may call any method."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._holders = 0

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Keep the thread alive for a block, which will start more than one coroutine."""
        self._take()
        try:
            yield
        finally:
            self._give_back()

    def start(self, coroutine: Coroutine[Any, Any, T]) -> Task[T]:
        """Run `coroutine` beside everything else."""
        task = self._task(coroutine)
        task.begin()
        return task

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run `coroutine`, and wait for what it returns or raises.  Who stops waiting ends it."""
        task = self._task(coroutine)
        try:  # Ctrl-C may come at any moment from here on
            task.begin()
            return task.result()
        except BaseException:
            task.cancel()
            task.wait()
            raise

    def _task(self, coroutine: Coroutine[Any, Any, T]) -> Task[T]:
        task = Task(coroutine, self._take())
        task.done.add_done_callback(lambda _: self._give_back())
        return task

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
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        asyncio.set_event_loop(None)
        loop.close()


background = Background()

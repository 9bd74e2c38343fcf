"""The background has a thread while somebody needs it, and not a moment longer."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import pytest

from minisgl.lang.background import Background
from minisgl.lang.changes import Changes, Piece, async_pieces, pieces
from minisgl.lang.context import Context
from minisgl.lang.primitives import value_of
from tests.engine.common import LONG, in_thread
from tests.lang.fake import language_threads, no_thread_stays


async def where() -> str:
    await asyncio.sleep(0)
    return threading.current_thread().name


class TestBackground:
    def test_runs_elsewhere_and_ends(self) -> None:
        with no_thread_stays():
            assert Background().start(where()).result(LONG) == "minisgl-lang"

    def test_has_one_thread_for_all(self) -> None:
        background = Background()
        with no_thread_stays(), background.hold(), background.hold():
            names = {background.start(where()).result(LONG) for _ in range(20)}
            assert names == {"minisgl-lang"}
            assert language_threads() == ["minisgl-lang"]

    def test_begins_anew_as_often_as_needed(self) -> None:
        background = Background()
        with no_thread_stays():
            for _ in range(50):
                assert background.start(where()).result(LONG)

    def test_errors_and_cancellation(self) -> None:
        background, put_away = Background(), []

        async def fail() -> None:
            raise ZeroDivisionError

        async def wait() -> None:
            try:
                await asyncio.sleep(LONG)
            finally:
                await asyncio.sleep(0)
                put_away.append(True)

        with no_thread_stays():
            with pytest.raises(ZeroDivisionError):
                background.start(fail()).result(LONG)
            future = background.start(wait())
            background.start(where()).result(LONG)  # so that the other one has begun
            future.cancel()
        assert put_away == [True]

    def test_many_threads_start_and_end_it(self) -> None:
        background = Background()
        said: list[str] = []

        def work() -> None:
            for _ in range(50):
                said.append(background.start(where()).result(LONG))

        with no_thread_stays(), in_thread(work), in_thread(work), in_thread(work):
            pass
        assert said == ["minisgl-lang"] * 150


def test_a_stream_that_stops_waiting_for_another_leaves_it_as_it_is() -> None:
    handed_over: Future[Context] = Future()

    async def main() -> None:
        waits = [asyncio.create_task(value_of(handed_over)) for _ in range(2)]
        await asyncio.sleep(0)
        waits[0].cancel()
        await asyncio.sleep(0)
        handed_over.set_result(Context("said"))
        assert (await waits[1]).text == "said"

    asyncio.run(main())


class TestChanges:
    def test_a_text_is_read_by_threads_and_coroutines(self) -> None:
        changes, text, is_done = Changes(), "", False

        def look(seen: int) -> Piece | None:
            new = text[seen:]
            return Piece(new, len(text), is_done) if new or is_done else None

        def write() -> None:
            nonlocal text, is_done
            for i in range(200):
                with changes:
                    text += str(i)
                    changes.tell()
            with changes:
                is_done = True
                changes.tell()

        async def read() -> str:
            return "".join([piece.text async for piece in async_pieces(changes, look)])

        with in_thread(write):
            assert asyncio.run(read()) == "".join(piece.text for piece in pieces(changes, look))
        assert text == "".join(map(str, range(200)))

    def test_a_cancelled_wait_leaves_nothing_behind(self) -> None:
        changes = Changes()

        async def main() -> None:
            task = asyncio.create_task(changes.await_for(lambda: False))
            await asyncio.sleep(0)
            assert len(changes._wakers) == 1
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        asyncio.run(main())
        assert not changes._wakers

    def test_a_loop_that_is_closed_stops_nobody(self) -> None:
        changes = Changes()

        async def leave() -> None:
            task = asyncio.create_task(changes.await_for(lambda: False))
            await asyncio.sleep(0)
            kept.append(task)

        kept: list[asyncio.Task[bool]] = []
        loop = asyncio.new_event_loop()
        loop.run_until_complete(leave())
        loop.close()
        with changes:
            changes.tell()
        kept[0].get_coro().close()  # type: ignore[union-attr]

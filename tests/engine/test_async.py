"""Coroutines: any number of event loops, in any threads, on one engine; none is bound to it."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from minisgl import Completion, Engine
from minisgl.engine.engine import EngineError
from minisgl.engine.handle import Mailbox
from minisgl.engine.output import Chunk
from minisgl.sampling import SamplingParams
from tests.engine.common import (
    LONG,
    assert_all_free,
    between_steps,
    fp32,
    greedy,
    in_thread,
    inside_a_step,
    one_step,
    post,
)

PROMPT = [5, 6, 7]
PROMPTS = [[i, i + 1, i + 2] for i in range(10, 18)]


@pytest.fixture(scope="module")
def engine(tiny_model_dir: Path) -> Iterator[Engine]:
    with fp32(str(tiny_model_dir)) as engine:
        yield engine


@pytest.fixture(scope="module")
def alone(engine: Engine) -> list[list[int]]:
    return [engine.generate(p, greedy()).token_ids for p in PROMPTS]


async def soon() -> None:
    """Let the other tasks of this loop run until they wait for something."""
    for _ in range(3):
        await asyncio.sleep(0)


class TestAnswers:
    def test_agenerate_is_generate(self, engine: Engine, alone: list[list[int]]) -> None:
        async def ask() -> None:
            one = await engine.agenerate(PROMPTS[0], greedy())
            assert isinstance(one, Completion)
            assert one.token_ids == alone[0]
            all_ = await engine.agenerate(PROMPTS, greedy())
            assert isinstance(all_, list)
            assert [c.token_ids for c in all_] == alone
            three = await engine.agenerate(PROMPT, SamplingParams(n=3, max_tokens=1))
            assert isinstance(three, list)
            assert [c.index for c in three] == [0, 1, 2]
            assert await engine.agenerate([], greedy()) == []

        asyncio.run(ask())

    def test_astream_is_stream(self, engine: Engine, alone: list[list[int]]) -> None:
        async def listen(i: int) -> tuple[list[int], list[Completion]]:
            ids: list[int] = []
            ends = []
            async for chunk in engine.astream(PROMPTS[i], greedy()):
                ids += chunk.token_ids
                ends += [chunk.completion] if chunk.completion else []
            return ids, ends

        async def listen_to_all() -> list[tuple[list[int], list[Completion]]]:
            return await asyncio.gather(*(listen(i) for i in range(len(PROMPTS))))

        heard = asyncio.run(listen_to_all())
        assert [ids for ids, _ in heard] == alone
        assert all(len(ends) == 1 for _, ends in heard)

    def test_a_handle_is_awaited_iterated_and_gathered(
        self, engine: Engine, alone: list[list[int]]
    ) -> None:
        async def ask() -> None:
            handle = engine.submit(PROMPTS[0], greedy())
            assert (await handle).token_ids == alone[0]
            assert await handle is await handle.aresult() is handle.result()
            pieces = [chunk async for chunk in handle]  # after its end, as one
            assert [c.token_ids for c in pieces] == [alone[0]]
            results = await asyncio.gather(*(engine.submit(p, greedy()) for p in PROMPTS))
            assert [r.token_ids for r in results] == alone

        asyncio.run(ask())

    def test_a_bad_request_raises_where_it_is_awaited(self, engine: Engine) -> None:
        async def ask() -> None:
            with pytest.raises(ValueError, match="empty"):
                await engine.agenerate("", greedy())
            with pytest.raises(ValueError, match="n=2"):
                await anext(engine.astream("a", SamplingParams(n=2)))

        asyncio.run(ask())

    def test_three_ways_in_on_one_engine(self, engine: Engine, alone: list[list[int]]) -> None:
        """E8: a plain call, `run_until_complete`, `asyncio.run`, and again."""
        for _ in range(2):
            assert engine.generate(PROMPTS[0], greedy()).token_ids == alone[0]
            loop = asyncio.new_event_loop()
            answer: Any = loop.run_until_complete(engine.agenerate(PROMPTS[1], greedy()))
            loop.close()
            assert answer.token_ids == alone[1]
            answer = asyncio.run(engine.agenerate(PROMPTS[2], greedy()))
            assert answer.token_ids == alone[2]

    def test_a_notebook_s_cell(self, tiny_model_dir: Path) -> None:
        """All of an engine's life, and plain calls, while a loop is running in this thread."""

        async def cell() -> None:
            with fp32(str(tiny_model_dir)) as engine:
                whole = engine.generate(PROMPT, greedy())
                assert "".join(c.text for c in engine.stream(PROMPT, greedy())) == whole.text
                assert (await engine.submit(PROMPT, greedy())).text == whole.text
                assert engine.submit(PROMPT, greedy()).result().text == whole.text

        asyncio.run(cell())

    def test_loops_in_many_threads(self, engine: Engine, alone: list[list[int]]) -> None:
        answers: list[list[list[int]]] = []

        async def ask() -> None:
            handles = [engine.submit(p, greedy()) for p in PROMPTS[:4]]
            both = await asyncio.gather(engine.agenerate(PROMPTS[4:], greedy()), *handles)
            assert isinstance(both[0], list)
            answers.append([c.token_ids for c in (*both[1:], *both[0])])

        threads = [threading.Thread(target=lambda: asyncio.run(ask())) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        assert answers == [alone] * 6

    def test_one_handle_for_two_loops_and_a_thread(
        self, engine: Engine, alone: list[list[int]]
    ) -> None:
        results: list[list[int]] = []
        with inside_a_step(engine) as stands:
            handle = engine.submit(PROMPTS[0], greedy())

            async def wait() -> None:
                results.append((await handle).token_ids)

            threads = [threading.Thread(target=lambda: asyncio.run(wait())) for _ in range(2)]
            threads.append(
                threading.Thread(target=lambda: results.append(handle.result().token_ids))
            )
            for thread in threads:
                thread.start()
            assert stands.wait(LONG)
        for thread in threads:
            thread.join(LONG)
        assert results == [alone[0]] * 3


class TestLeaving:
    def test_a_cancelled_agenerate_aborts_its_requests(self, engine: Engine) -> None:
        before = engine.stats().output_tokens

        async def ask() -> None:
            with inside_a_step(engine) as stands:
                task = asyncio.create_task(engine.agenerate([PROMPT, [8]], greedy(None)))
                await asyncio.to_thread(stands.wait, LONG)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task

        asyncio.run(ask())
        assert_all_free(engine)
        assert engine.stats().output_tokens <= before + 2  # the step that was under way

    @pytest.mark.parametrize("call", ["agenerate", "astream"])
    def test_cancelled_while_its_prompt_is_encoded_nothing_is_submitted(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch, call: str
    ) -> None:
        before = engine.stats().requests
        door, encodes, go_on = engine.door, threading.Event(), threading.Event()
        made: list[object] = []

        class SlowDoor:
            def make_all(self, *args: Any) -> list[object]:
                encodes.set()
                assert go_on.wait(LONG)
                made.extend(door.make_all(*args))
                return made

            def make(self, *args: Any) -> object:
                return self.make_all(*args)[0]

        monkeypatch.setattr(engine, "door", SlowDoor())

        async def ask() -> None:
            if call == "agenerate":
                await engine.agenerate(PROMPT, greedy(None))
            else:
                await anext(engine.astream(PROMPT, greedy(None)))

        async def leave() -> None:
            task = asyncio.create_task(ask())
            await asyncio.to_thread(encodes.wait, LONG)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            go_on.set()

        asyncio.run(leave())  # which waits for its threads
        assert len(made) == 1
        assert engine.stats().requests == before
        assert_all_free(engine)

    def test_a_stream_left_early_aborts(self, engine: Engine) -> None:
        async def listen() -> None:
            async for chunk in engine.astream(PROMPT, greedy(None)):
                assert chunk.token_ids
                break

        asyncio.run(listen())
        assert_all_free(engine)

    def test_a_stream_closed_early_aborts(self, engine: Engine) -> None:
        async def listen() -> None:
            stream: Any = engine.astream(PROMPT, greedy(None))
            await anext(stream)
            await stream.aclose()
            assert_all_free(engine)

        asyncio.run(listen())

    def test_a_cancelled_wait_leaves_the_request_and_nothing_else(self, engine: Engine) -> None:
        """Asking again and again with a timeout costs no memory."""

        async def ask() -> None:
            with inside_a_step(engine):
                handle = engine.submit(PROMPT, greedy())
                for wait in [handle.aresult] * 5 + [handle.__anext__] * 5:
                    with pytest.raises(asyncio.TimeoutError):
                        await asyncio.wait_for(wait(), 0.001)
                assert handle._mailbox._wakers == {}
            assert (await handle).completion_tokens == 12

        asyncio.run(ask())

    def test_a_loop_that_dies_with_requests_under_way_harms_nobody(self, engine: Engine) -> None:
        """Its coroutines never end; the engine's thread must not fall over them."""
        with between_steps(engine):
            loop = asyncio.new_event_loop()
            handles = [engine.submit(PROMPT, greedy()) for _ in range(2)]

            async def wait() -> None:
                tasks = [
                    asyncio.ensure_future(handles[0].aresult()),
                    asyncio.ensure_future(handles[1].__anext__()),
                ]
                await soon()
                assert [len(h._mailbox._wakers) for h in handles] == [1, 1]
                kept.extend(tasks)

            kept: list[object] = []
            loop.set_exception_handler(lambda *_: None)  # it complains of its pending tasks
            loop.run_until_complete(wait())
            loop.close()
            post(engine, lambda: one_step(engine))
        assert [h.result(LONG).completion_tokens for h in handles] == [12, 12]
        kept.clear()
        gc.collect()
        assert engine.generate(PROMPT, greedy(1)).completion_tokens == 1


class TestBackPressure:
    def test_a_slow_coroutine_gets_joined_pieces_and_delays_nobody(self, engine: Engine) -> None:
        async def ask() -> None:
            slow = engine.submit(PROMPT, greedy(60))
            first = await anext(slow)
            others = await engine.agenerate(PROMPTS, greedy(60))
            assert isinstance(others, list)
            assert {c.completion_tokens for c in others} == {60}
            whole = await slow
            rest = [chunk async for chunk in slow]
            assert first.token_ids + rest[0].token_ids == whole.token_ids
            assert len(rest) == 1

        asyncio.run(ask())

    def test_a_blocked_loop_delays_nobody(self, engine: Engine) -> None:
        """A loop that runs nothing meanwhile has at most one callback a reader waiting for it."""
        calls: list[object] = []

        async def ask() -> None:
            loop = asyncio.get_running_loop()
            real = loop.call_soon_threadsafe

            def count(*args: Any, **kw: Any) -> Any:
                calls.append(args)
                return real(*args, **kw)

            loop.call_soon_threadsafe = count  # type: ignore[method-assign]
            with between_steps(engine):
                handle = engine.submit(PROMPT, greedy(100))
                task = asyncio.ensure_future(handle.__anext__())
                await soon()  # it waits, before there is anything to tell it
            with in_thread(lambda: engine.generate(PROMPTS, greedy(60))):
                pass  # this thread, and with it the loop, waits for the other
            whole = handle.result()
            assert len(calls) <= 1
            assert (await task).token_ids == whole.token_ids

        asyncio.run(ask())


class TestMailbox:
    def test_no_event_is_lost_between_looking_and_waiting(self) -> None:
        """A thread writes as fast as it can while a coroutine reads as fast as it can."""

        async def read(box: Mailbox) -> list[int]:
            ids: list[int] = []
            while (chunk := await box.await_piece()) is not None:
                ids += chunk.token_ids
            return ids

        for _ in range(5):
            box = Mailbox()

            def write(box: Mailbox = box) -> None:
                for i in range(2000):
                    box.add("", [i])
                box.end(Completion("", [], "length", None, 1, 0, 0))

            with in_thread(write):
                ids = asyncio.run(asyncio.wait_for(read(box), LONG))
            assert ids == list(range(2000))

    def test_readers_of_the_end_are_not_woken_by_pieces(self) -> None:
        async def wait() -> None:
            box = Mailbox()
            end = asyncio.ensure_future(box.await_end())
            piece = asyncio.ensure_future(box.await_piece())
            await soon()
            box.add("a", [1])
            assert list(box._wakers.values()) == [True]
            assert await piece == Chunk("a", [1])
            error = EngineError("late")
            box.end(error)
            assert await end is error

        asyncio.run(wait())


class TestDeath:
    @pytest.mark.parametrize("how", ["closed", "broke"])
    def test_every_waiting_coroutine_hears_of_it(self, tiny_model_dir: Path, how: str) -> None:
        engine = fp32(str(tiny_model_dir))

        def broken(_: object) -> Any:
            raise ZeroDivisionError("the model broke")

        async def listen() -> None:
            async for _ in engine.astream(PROMPT, greedy(None)):
                pass

        async def ask() -> list[object]:
            handle = engine.submit(PROMPT, greedy(None))
            await anext(handle)
            tasks = [
                asyncio.ensure_future(engine.agenerate(PROMPTS, greedy(None))),
                asyncio.ensure_future(listen()),
                asyncio.ensure_future(handle.aresult()),
            ]
            while engine.stats().requests < 1 + len(PROMPTS) + 1:
                await asyncio.sleep(0.001)
            if how == "closed":
                await asyncio.to_thread(engine.close)
            else:
                engine.call(lambda: setattr(engine.loop.runner, "forward", broken))
            ends = await asyncio.gather(*tasks, return_exceptions=True)
            with pytest.raises(EngineError, match=how):
                await engine.agenerate(PROMPT)
            with pytest.raises(EngineError, match=how):
                await anext(engine.astream(PROMPT))
            return list(ends)

        errors = asyncio.run(asyncio.wait_for(ask(), LONG))
        assert len(errors) == 3
        assert all(isinstance(e, EngineError) and how in str(e) for e in errors)
        engine.close()

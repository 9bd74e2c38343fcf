"""Handles and mailboxes: every request ends once, whoever leaves, however slowly anyone reads."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisgl import Completion, Engine, SamplingParams
from minisgl.engine.engine import EngineError
from minisgl.engine.handle import Handle, Mailbox
from minisgl.engine.output import Chunk
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
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def engine(tiny_model_dir: Path) -> Iterator[Engine]:
    with fp32(str(tiny_model_dir), prefill_budget=8) as engine:
        yield engine


def done(text: str = "", ids: tuple[int, ...] = ()) -> Completion:
    return Completion(text, list(ids), "length", None, 1, 0, len(ids))


class TestMailbox:
    @given(st.lists(st.one_of(st.none(), st.text(max_size=3)), max_size=12))
    def test_pieces_join_to_the_whole_whenever_they_are_read(
        self, events: list[str | None]
    ) -> None:
        """A text is a piece that comes, None a reader that looks."""
        box = Mailbox()
        said, heard, sent, seen = "", "", 0, []
        for event in events:
            if event is not None:
                box.add(event, [sent])
                said, sent = said + event, sent + 1
            elif len(seen) < sent:  # else it would wait
                chunk = box.read()
                assert chunk is not None and chunk.completion is None
                heard, seen = heard + chunk.text, seen + chunk.token_ids
        box.end(done(said))
        last = box.read()
        assert last is not None and last.completion is box.outcome
        assert (heard + last.text, seen + last.token_ids) == (said, list(range(sent)))
        assert box.read() is None

    def test_the_first_end_is_the_only_one(self) -> None:
        box = Mailbox()
        first, second = done("a"), done("b")
        assert box.end(first)
        assert not box.end(second)
        assert not box.end(EngineError("late"))
        assert box.wait() is first

    @pytest.mark.parametrize("ids", [[1, 2], []])  # none: a jump may still change them
    def test_an_error_comes_after_the_pieces_before_it_and_once(self, ids: list[int]) -> None:
        box = Mailbox()
        box.add("ab", ids)
        box.end(EngineError("broke"))
        assert box.read() == Chunk("ab", ids)
        with pytest.raises(EngineError, match="broke"):
            box.read()
        assert box.read() is None

    def test_two_reading_threads_share_the_pieces_and_both_end(self) -> None:
        box = Mailbox()
        heard: list[int] = []

        def read() -> None:
            while (chunk := box.read()) is not None:
                heard.extend(chunk.token_ids)

        with in_thread(read), in_thread(read):
            for i in range(500):
                box.add("x", [i])
            box.end(done())
        assert sorted(heard) == list(range(500))

    def test_what_nobody_reads_is_one_piece(self) -> None:
        box = Mailbox()
        for i in range(100):
            box.add("x", [i])
        assert box.read() == Chunk("x" * 100, list(range(100)))


class TestHandle:
    def test_the_result_is_that_of_generate_and_stays(self, engine: Engine) -> None:
        handle = engine.submit(PROMPT, greedy())
        result = handle.result()
        assert result.token_ids == engine.generate(PROMPT, greedy()).token_ids
        assert handle.result() is result
        assert handle.is_done
        assert result.request_id == handle.request_id

    def test_pieces_can_be_read_after_the_result(self, engine: Engine) -> None:
        handle = engine.submit(PROMPT, greedy())
        result = handle.result()
        assert list(handle) == [Chunk(result.text, result.token_ids, result)]
        assert list(handle) == []

    def test_pieces_bring_the_log_probabilities_of_their_tokens(self, engine: Engine) -> None:
        handle = engine.submit(PROMPT, greedy(logprobs=2))
        pieces = list(handle)
        told = [each for piece in pieces for each in piece.logprobs or ()]
        assert told == handle.result().logprobs and len(told) == 12
        assert all(len(piece.logprobs or ()) == len(piece.token_ids) for piece in pieces)
        assert all(piece.logprobs is None for piece in engine.stream(PROMPT, greedy()))

    def test_many_start_together(self, engine: Engine) -> None:
        handles = engine.submit_all([PROMPT, "Once"], greedy(4, n=2, seed=1))
        done = [handle.result(LONG) for handle in handles]
        assert [one.text for one in done] == [
            one.text for one in engine.generate([PROMPT, "Once"], greedy(4, n=2, seed=1))
        ]
        assert [one.index for one in done] == [0, 1, 0, 1]
        for handle, one in zip(handles, done, strict=True):
            assert (handle.prompt_tokens, handle.cached_tokens) == (
                one.prompt_tokens,
                one.cached_tokens,
            )

    def test_a_timeout_leaves_the_request_running(self, engine: Engine) -> None:
        with inside_a_step(engine):
            handle = engine.submit(PROMPT, greedy())
            with pytest.raises(TimeoutError, match=r"0\.01 s"):
                handle.result(timeout=0.01)
            assert not handle.is_done
        assert handle.result(LONG).completion_tokens == 12

    def test_a_bad_request_raises_at_once(self, engine: Engine) -> None:
        with pytest.raises(ValueError, match="empty"):
            engine.submit("")
        with pytest.raises(ValueError, match="n=2"):
            engine.submit("a", SamplingParams(n=2))

    def test_ids_rise_with_arrival(self, engine: Engine) -> None:
        ids = [engine.submit(PROMPT, greedy(1)).request_id for _ in range(5)]
        assert ids == sorted(set(ids))

    def test_requests_of_one_call_are_scheduled_together(self, engine: Engine) -> None:
        """Also when the engine thread is quick to read: they are one item of its inbox."""
        engine.flush_cache()
        batches: list[int] = []
        forward = engine.loop.runner.forward

        def watch(step: Any) -> Any:
            batches.append(len(step.extends))
            return forward(step)

        engine.call(lambda: setattr(engine.loop.runner, "forward", watch))
        for _ in range(20):
            engine.generate([[5], [6], [7]], greedy(1))
        engine.call(lambda: delattr(engine.loop.runner, "forward"))
        assert batches == [3] * 20


class TestN:
    def test_one_is_an_object_and_three_a_list_with_ids_of_their_own(self, engine: Engine) -> None:
        params = SamplingParams(n=3, temperature=1.0, max_tokens=6, ignore_eos=True, seed=11)
        one = engine.generate(PROMPT, SamplingParams(max_tokens=1))
        three = engine.generate(PROMPT, params)
        assert isinstance(one, Completion)
        assert isinstance(three, list)
        assert [c.index for c in three] == [0, 1, 2]
        assert len({c.request_id for c in three}) == 3
        assert len({tuple(c.token_ids) for c in three}) > 1  # seeds 11, 12, 13

    def test_the_nth_answer_is_that_of_the_nth_seed(self, engine: Engine) -> None:
        def ask(n: int, seed: int) -> list[Completion]:
            answer = engine.generate(
                [PROMPT], SamplingParams(n=n, temperature=1.0, max_tokens=6, seed=seed)
            )
            assert isinstance(answer, list)
            return answer

        together = [c.token_ids for c in ask(3, 11)]
        assert together == [ask(1, seed)[0].token_ids for seed in (11, 12, 13)]

    def test_two_prompts_of_two_answers_come_in_order(self, engine: Engine) -> None:
        a, b = [5, 6, 7], [9, 10, 11, 12]
        params = SamplingParams(n=2, temperature=0.0, max_tokens=4, ignore_eos=True)
        four = engine.generate([a, b], params)
        assert [(c.prompt_tokens, c.index) for c in four] == [(3, 0), (3, 1), (4, 0), (4, 1)]
        alone = [engine.generate(p, greedy(4)).token_ids for p in (a, a, b, b)]
        assert [c.token_ids for c in four] == alone

    def test_each_prompt_may_have_its_own_n(self, engine: Engine) -> None:
        params = [SamplingParams(n=n, temperature=0.0, max_tokens=1) for n in (2, 1)]
        assert [c.index for c in engine.generate([[5], [6]], params)] == [0, 1, 0]

    @pytest.mark.parametrize("n", [0, -1, 1.5, True])
    def test_other_numbers_are_refused(self, n: Any) -> None:
        with pytest.raises(ValueError, match=f"n={n}: give a whole number of at least 1"):
            SamplingParams(n=n)


class TestAbort:
    """D18: while waiting, mid-chunk, running, finished; twice is as good as once."""

    @pytest.mark.parametrize("steps", [0, 1, 2, 5, 9])
    @pytest.mark.parametrize("times", [1, 2])
    def test_slots_are_free_before_the_next_step_and_the_end_comes_once(
        self, engine: Engine, steps: int, times: int
    ) -> None:
        """A prompt of 20 in chunks of 8: no step is waiting, one is mid-chunk, then it runs."""
        prompt = list(range(10, 30))
        whole = engine.generate(prompt, greedy()).token_ids
        engine.flush_cache()
        with between_steps(engine):
            handle = engine.submit(prompt, greedy())
            post(engine, lambda: [one_step(engine) for _ in range(steps)])
            for _ in range(times):
                handle.abort()
            held = post(engine, lambda: engine.loop.stats().request_slots)
        assert held.result(LONG) == 0
        ends = [chunk.completion for chunk in handle if chunk.completion]
        assert len(ends) == 1
        result = handle.result()
        assert ends[0] is result
        assert result.finish_reason == "abort"
        assert result.token_ids == whole[: max(0, steps - 2)]
        handle.abort()  # it has ended: nothing happens
        assert handle.result() is result
        assert_all_free(engine)

    def test_an_abort_that_crosses_the_end_changes_nothing(self, engine: Engine) -> None:
        """Sent while the request runs, read when it has ended by itself."""
        with between_steps(engine):
            handle = engine.submit(PROMPT, greedy(2))
            post(engine, lambda: [one_step(engine) for _ in range(2)])
            handle.abort()
        assert handle.result(LONG).finish_reason == "length"
        assert_all_free(engine)

    def test_a_waiting_request_leaves_the_queue(self, tiny_model_dir: Path) -> None:
        with fp32(str(tiny_model_dir), max_running=1) as engine:
            with between_steps(engine):
                first = engine.submit(PROMPT, greedy(6))
                second = engine.submit(PROMPT, greedy(6))
                third = engine.submit(PROMPT, greedy(6))
                post(engine, lambda: one_step(engine))
                second.abort()
                queue = post(engine, lambda: len(engine.loop.scheduler.waiting))
            assert queue.result(LONG) == 1
            assert second.result(LONG).token_ids == []
            assert first.result(LONG).token_ids == third.result(LONG).token_ids
            assert_all_free(engine)

    def test_a_retracted_request_can_be_aborted(self, tiny_model_dir: Path) -> None:
        with fp32(str(tiny_model_dir), kv_tokens=24) as engine:
            whole = engine.generate([9, 10, 11, 12], greedy(14)).token_ids
            engine.flush_cache()

            def until_retracted() -> None:
                while engine.loop.scheduler.retractions == before:
                    one_step(engine)

            before = engine.stats().retractions
            with between_steps(engine):
                handles = [engine.submit([i, 10, 11, 12], greedy(14)) for i in (5, 9)]
                post(engine, until_retracted)
                for handle in handles:
                    handle.abort()
            results = [handle.result(LONG) for handle in handles]
            assert [r.finish_reason for r in results] == ["abort", "abort"]
            assert 0 < len(results[1].token_ids) < 14
            assert whole[: len(results[1].token_ids)] == results[1].token_ids
            assert_all_free(engine)

    def test_a_dropped_handle_aborts(self, engine: Engine) -> None:
        before = engine.stats().output_tokens
        with between_steps(engine):
            engine.submit(PROMPT, greedy(None))
        assert engine.stats().output_tokens == before
        assert_all_free(engine)

    def test_a_loop_that_is_left_aborts(self, engine: Engine) -> None:
        for chunk in engine.stream(PROMPT, greedy(None)):
            assert chunk.token_ids
            break
        assert_all_free(engine)

    def test_a_handle_dropped_by_the_garbage_collector_aborts(self, engine: Engine) -> None:
        """In whatever thread it runs: here, the engine's."""
        before = engine.stats().output_tokens
        with between_steps(engine):
            cycle: list[Any] = [engine.submit(PROMPT, greedy(None))]
            cycle.append(cycle)
            del cycle
            post(engine, gc.collect)
        assert engine.stats().output_tokens <= before + 1
        assert_all_free(engine)

    @pytest.mark.skipif(sys.platform == "win32", reason="Windows can't interrupt a waiting thread")
    def test_ctrl_c_in_generate_aborts_its_requests(
        self, engine: Engine, request: pytest.FixtureRequest
    ) -> None:
        before = engine.stats().output_tokens
        main = threading.main_thread().ident
        assert main is not None
        interrupted = threading.Event()

        def once(*_: object) -> None:
            if not interrupted.is_set():
                interrupted.set()
                raise KeyboardInterrupt

        handler = signal.signal(signal.SIGINT, once)
        request.addfinalizer(lambda: signal.signal(signal.SIGINT, handler))
        with inside_a_step(engine) as stands:

            def interrupt() -> None:
                assert stands.wait(LONG)
                while not interrupted.wait(0.05):  # a signal just before a wait does not end it
                    signal.pthread_kill(main, signal.SIGINT)

            with in_thread(interrupt), pytest.raises(KeyboardInterrupt):
                engine.generate([PROMPT, [8], [9]], greedy(None))
        assert_all_free(engine)
        assert engine.stats().output_tokens <= before + 3  # the step that was under way

    def test_one_failed_answer_aborts_the_rest_of_its_call(self, tiny_model_dir: Path) -> None:
        with fp32(str(tiny_model_dir)) as engine:
            embed = engine.loop.runner.model.model.embed.weight
            engine.call(lambda: embed[300].fill_(float("nan")))
            with pytest.raises(EngineError, match="NaN"):
                engine.generate([[300], PROMPT], greedy(None))
            assert engine.stats().output_tokens < 100
            assert_all_free(engine)


class TestNaN:
    """B14: a request whose logits are NaN fails; nobody reads what it leaves behind."""

    @staticmethod
    def poison(engine: Engine, token: int) -> None:
        embed = engine.loop.runner.model.model.embed.weight
        engine.call(lambda: embed[token].fill_(float("nan")))

    def test_the_cache_keeps_nothing_of_it(self, tiny_model_dir: Path) -> None:
        """Attention weighs hidden keys with 0, and 0 x NaN is NaN: [5, 6] may be poisoned too."""
        with fp32(str(tiny_model_dir)) as engine:
            clean = engine.generate([5, 6, 7], greedy()).token_ids
            engine.flush_cache()
            self.poison(engine, 300)
            with pytest.raises(EngineError, match="NaN"):
                engine.generate([5, 6, 300], greedy())
            assert engine.generate([5, 6, 7], greedy()).token_ids == clean
            assert_all_free(engine)

    def test_nor_does_the_workspace(self, tiny_model_dir: Path) -> None:
        """NaN comes while it decodes; its row goes to one that is shorter than its neighbour."""
        long = [8, 7, 6, 5, 4, 3, 8, 7, 6, 5, 4, 3]
        with fp32(str(tiny_model_dir), context_length=64) as engine:
            clean = engine.generate([9], greedy(2)).token_ids
            before = engine.generate(long, greedy(None)).token_ids
            answer = engine.generate(PROMPT, greedy(None)).token_ids
            token = next(t for t in answer if t not in [9, *clean, *before, *long, *PROMPT])
            self.poison(engine, token)
            neighbour = engine.stream(long, greedy(None))
            next(neighbour)
            with pytest.raises(EngineError, match="NaN"):
                engine.generate(PROMPT, greedy(None))
            assert engine.generate([9], greedy(2)).token_ids == clean
            assert neighbour.result(LONG).token_ids == before
            assert_all_free(engine)


class TestSlowReaders:
    def test_pieces_are_joined_and_nobody_waits(self, engine: Engine) -> None:
        slow = engine.stream(PROMPT, greedy(60))
        others = engine.generate([[i] for i in range(3, 20)], greedy(60))
        assert {c.completion_tokens for c in others} == {60}
        whole = slow.result()
        assert [c.token_ids for c in slow] == [whole.token_ids]  # one piece

    def test_who_stops_reading_costs_its_own_answer_at_most(self, engine: Engine) -> None:
        """The mailbox holds each token once until it is read, and nothing after."""
        handle = engine.submit(PROMPT, greedy(100))
        next(handle)
        handle.result()
        box = handle._mailbox
        assert 0 < len(box._ids) <= 100
        assert "".join(box._text) == handle.result().text[-len("".join(box._text)) :]
        list(handle)
        assert (box._ids, box._text, box._wakers) == ([], [], {})


Reader = Callable[[Handle], object]
READERS: dict[str, Reader] = {
    "result": lambda handle: handle.result(LONG),
    "iterate": list,
}


class TestDeath:
    """H8: whatever breaks, every waiting caller hears of it, once; so does every later one."""

    @staticmethod
    def breaks(engine: Engine, where: str) -> None:
        """From now on this part of the engine raises.  For the engine thread."""

        def broken(*_: object, **__: object) -> Any:
            raise ZeroDivisionError(f"{where} broke")

        loop = engine.loop
        owner: Any = {
            "next_step": loop.scheduler,
            "after_step": loop.scheduler,
            "finish": loop.scheduler,
            "forward": loop.runner,
            "check": loop.runner,
        }[where]
        setattr(owner, where, broken)

    @pytest.mark.parametrize("where", ["next_step", "after_step", "forward", "finish"])
    @pytest.mark.parametrize("reader", READERS)
    def test_every_waiting_caller_gets_the_cause_once(
        self, tiny_model_dir: Path, where: str, reader: str
    ) -> None:
        with fp32(str(tiny_model_dir), max_running=2) as engine:
            errors: list[BaseException] = []
            ends: list[Mailbox] = []

            def ask(i: int) -> None:
                handle = engine.submit([5, i], greedy(8))
                ends.append(handle._mailbox)
                try:
                    READERS[reader](handle)
                except EngineError as error:
                    errors.append(error)

            def generate() -> None:
                try:
                    engine.generate([[6], [7]], greedy(8))
                except EngineError as error:
                    errors.append(error)

            threads = [threading.Thread(target=ask, args=(i,)) for i in range(3, 9)]
            threads.append(threading.Thread(target=generate))
            with between_steps(engine):
                for thread in threads:
                    thread.start()
                post(engine, lambda: one_step(engine))
                post(engine, lambda: self.breaks(engine, where))
                stats = post(engine, engine.loop.stats)
            for thread in threads:
                thread.join(LONG)
            assert stats.done()
            assert len(errors) == 7
            for error in errors:
                assert f"ZeroDivisionError: {where} broke" in str(error)
                assert isinstance(error.__cause__, ZeroDivisionError)
            assert len({id(error) for error in errors}) == 7  # nobody raises another's
            assert all(box.outcome is not None for box in ends)
            later: list[Callable[[], object]] = [
                lambda: engine.generate(PROMPT),
                lambda: engine.submit(PROMPT),
                engine.stats,
                engine.check,
                engine.flush_cache,
            ]
            for call in later:
                with pytest.raises(EngineError, match=f"{where} broke") as caught:
                    call()
                assert isinstance(caught.value.__cause__, ZeroDivisionError)

    def test_a_fault_in_one_request_s_last_words_reaches_that_request_too(
        self, tiny_model_dir: Path
    ) -> None:
        """It has left the scheduler when its text breaks: the scheduler can't be asked for it."""
        engine = fp32(str(tiny_model_dir))
        with between_steps(engine):
            handle = engine.submit(PROMPT, greedy(1))
            post(engine, lambda: self.break_text(engine))
        with pytest.raises(EngineError, match="no text"):
            handle.result(LONG)
        engine.close()

    @staticmethod
    def break_text(engine: Engine) -> None:
        def broken() -> str:
            raise ZeroDivisionError("no text")

        (req,) = engine.loop.scheduler.waiting
        req.detokenizer.finish = broken  # type: ignore[method-assign]

    def test_wrong_accounts_are_found_when_the_engine_goes_idle(self, tiny_model_dir: Path) -> None:
        engine = fp32(str(tiny_model_dir))
        engine.call(lambda: self.breaks(engine, "check"))
        engine.generate(PROMPT, greedy(1))
        with pytest.raises(EngineError, match="check broke"):
            engine.generate(PROMPT, greedy(1))
        engine.close()

    def test_calls_that_wait_hear_of_it(self, tiny_model_dir: Path) -> None:
        engine = fp32(str(tiny_model_dir))
        with between_steps(engine):
            engine.loop._inbox.put(None)
            asked = post(engine, engine.loop.stats)
        with pytest.raises(EngineError, match="closed"):
            asked.result(LONG)
        engine.close()

    def test_what_a_call_raises_is_its_caller_s_alone(self, engine: Engine) -> None:
        for error in (ValueError("mine"), SystemExit(3), KeyboardInterrupt()):

            def f(error: BaseException = error) -> None:
                raise error

            with pytest.raises(type(error)):
                engine.call(f)
        assert engine.generate(PROMPT, greedy(1)).completion_tokens == 1

    def test_the_engine_thread_can_not_wait_for_itself(self, engine: Engine) -> None:
        with pytest.raises(RuntimeError, match="another thread"):
            engine.call(lambda: engine.generate(PROMPT))
        assert engine.call(engine.stats).running == 0  # but it may look in
        assert engine.generate(PROMPT, greedy(1)).completion_tokens == 1


class TestClose:
    def test_while_requests_wait_and_run(self, tiny_model_dir: Path) -> None:
        engine = fp32(str(tiny_model_dir), max_running=2)
        streams = [engine.stream([5, i], greedy(None)) for i in range(6, 12)]
        next(streams[0])
        engine.close()
        for stream in streams:
            with pytest.raises(EngineError, match="closed"):
                list(stream)
            assert list(stream) == []
        with pytest.raises(EngineError, match="closed"):
            engine.submit(PROMPT)

    def test_from_the_engine_thread(self, tiny_model_dir: Path) -> None:
        engine = fp32(str(tiny_model_dir))
        stream = engine.stream(PROMPT, greedy(None))
        engine.call(engine.close)
        with pytest.raises(EngineError, match="closed"):
            stream.result(LONG)
        engine.close()

    def test_from_many_threads_at_once_while_others_ask(self, tiny_model_dir: Path) -> None:
        engine = fp32(str(tiny_model_dir))
        ends: list[object] = []

        def ask(i: int) -> None:
            for _ in range(50):
                try:
                    ends.append(engine.generate([i], greedy(2)))
                except EngineError as error:
                    ends.append(error)

        askers = [threading.Thread(target=ask, args=(i,)) for i in range(3, 9)]
        for thread in askers:
            thread.start()
        engine.generate(PROMPT, greedy(4))
        closers = [threading.Thread(target=engine.close) for _ in range(3)]
        for thread in closers:
            thread.start()
        for thread in askers + closers:
            thread.join(LONG)
            assert not thread.is_alive()
        assert len(ends) == 300
        assert isinstance(ends[-1], EngineError)

    def test_an_engine_that_nobody_holds_ends_its_thread(self, tiny_model_dir: Path) -> None:
        engine = fp32(str(tiny_model_dir))
        handle = engine.submit(PROMPT, greedy(4))
        thread, model = engine.loop._thread, weakref.ref(engine.loop.runner.model)
        del engine
        assert handle.result(LONG).completion_tokens == 4  # a handle keeps its engine
        del handle
        gc.collect()
        assert not thread.is_alive()
        assert model() is None

    def test_the_thread_does_not_keep_what_it_was_sent_last(self, tiny_model_dir: Path) -> None:
        engine = fp32(str(tiny_model_dir))
        thread = engine.loop._thread
        engine.call(partial(id, engine))  # idle before it and after it
        del engine
        gc.collect()
        assert not thread.is_alive()

    def test_it_says_when_it_has_ended(self, tiny_model_dir: Path) -> None:
        engine = fp32(str(tiny_model_dir))
        assert not engine.ended.done()
        engine.close()
        assert engine.ended.result(LONG) is None
        engine = fp32(str(tiny_model_dir))
        engine.loop.runner.forward = None  # type: ignore[assignment]
        with pytest.raises(EngineError, match="not callable"):
            engine.generate(PROMPT, greedy(4))
        assert "not callable" in str(engine.ended.exception(LONG))

    def test_a_program_that_forgets_to_close_ends(self, tiny_model_dir: Path) -> None:
        program = f"""
import atexit
atexit.register(lambda: print(engine.loop._thread.is_alive()))  # first in, last out
from minisgl import Engine, SamplingParams
engine = Engine({str(tiny_model_dir)!r}, dtype="float32")
stream = engine.stream([5, 6], SamplingParams(max_tokens=None, ignore_eos=True))
next(stream)
"""
        ended = subprocess.run(
            [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=60
        )
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "False\n", "")

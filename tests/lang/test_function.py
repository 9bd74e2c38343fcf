"""Programs and their arguments, settings, batches, constant prefixes."""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minisgl.lang as sgl
from minisgl import SamplingParams
from minisgl.lang.settings import Settings, is_setting
from minisgl.lang.values import Argument, Value
from tests.engine.common import LONG, in_thread
from tests.lang.fake import Boom, FakeBackend, no_thread_stays, words

ROOT = Path(__file__).parents[2]


@sgl.function
def qa(s: sgl.ProgramState, question: str, hint: str = "") -> str:
    """Answer a question."""
    s += "Q: " + question + hint + "\nA:" + sgl.gen("x")
    return question.upper()


def params_of(backend: FakeBackend) -> SamplingParams:
    return next(params for kind, _, params in backend.calls if kind in ("generate", "stream"))


class TestArguments:
    def test_by_position_and_by_name(self) -> None:
        for state in (
            qa.run("why", "!", backend=FakeBackend()),
            qa.run("why", hint="!", backend=FakeBackend()),
            qa("why", hint="!", backend=FakeBackend()),
            qa.bind(hint="!").run("why", backend=FakeBackend()),
            qa.bind(question="no").bind(question="why", hint="!").run(backend=FakeBackend()),
        ):
            assert state.text().startswith("Q: why!\nA:")
            assert state.ret_value == "WHY"

    def test_a_program_is_still_its_function(self) -> None:
        assert (qa.__name__, qa.__doc__) == ("qa", "Answer a question.")
        assert list(inspect.signature(qa.func).parameters) == ["s", "question", "hint"]

    def test_mistakes_name_the_program(self) -> None:
        backend = FakeBackend()
        with pytest.raises(TypeError, match=r"program qa\(question.*: missing a required"):
            qa.run(backend=backend)
        with pytest.raises(TypeError, match=r"program qa\(.*unexpected.*'temprature'"):
            qa.run("why", temprature=0, backend=backend)
        with pytest.raises(ValueError, match=r"program qa\(.* has no argument 'answer'"):
            qa.bind(answer=1)
        with pytest.raises(
            ValueError, match=r"first argument is its state: def empty\(s, \.\.\.\)"
        ):

            @sgl.function
            def empty() -> None: ...

        async def waits(s: sgl.ProgramState) -> None: ...

        def yields(s: sgl.ProgramState) -> Any:
            yield s

        for func in (waits, yields):
            with pytest.raises(ValueError, match="is a coroutine or a generator"):
                sgl.function(func)
        assert backend.calls == []

    def test_the_first_argument_may_have_any_name_and_others_be_settings_names(self) -> None:
        @sgl.function
        def f(state: sgl.ProgramState, n: int) -> None:
            state += "n" * n + sgl.gen("x")

        backend = FakeBackend()
        assert f.run(n=3, temperature=0.5, backend=backend).text().startswith("nnn")
        assert (params_of(backend).n, params_of(backend).temperature) == (1, 0.5)

    def test_programs_call_programs(self) -> None:
        @sgl.function
        def outer(s: sgl.ProgramState) -> None:
            s += qa.run("inner", backend=backend)["x"] + sgl.gen("y")

        backend = FakeBackend()
        with no_thread_stays():
            state = outer.run(backend=backend)
        assert state.text() == words("Q: inner\nA:", 8) + state["y"]

    def test_helpers_write_into_the_state_they_are_given(self) -> None:
        """`s += ...` in a function changes the caller's state, not a copy of it."""

        def few_shot(s: sgl.ProgramState) -> None:
            s += "Q: 1\nA: 1\n"

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            few_shot(s)
            s += "Q: 2\nA:"

        assert f.run(backend=FakeBackend()).text() == "Q: 1\nA: 1\nQ: 2\nA:"


class TestSettings:
    def test_a_gens_own_come_before_the_runs_and_those_before_the_defaults(self) -> None:
        def asked(gen: dict[str, Any], run: dict[str, Any]) -> SamplingParams:
            @sgl.function
            def f(s: sgl.ProgramState) -> None:
                s += "Q" + sgl.gen("x", **gen)

            backend = FakeBackend()
            f.run(backend=backend, **run)
            return params_of(backend)

        assert asked({}, {}) == SamplingParams(max_tokens=128)
        assert asked({}, {"max_new_tokens": 5}) == SamplingParams(max_tokens=5)
        assert asked({}, {"max_tokens": None}) == SamplingParams(max_tokens=None)
        assert asked({"max_tokens": 7}, {"max_tokens": 5}).max_tokens == 7
        assert asked({"max_tokens": None}, {"max_tokens": 5}).max_tokens == 5  # it says nothing
        assert asked({"stop": "\n"}, {"stop": ["a", "b"]}).stop == ("\n",)
        assert asked({}, {"stop": None, "stop_token_ids": None}).stop == ()
        both = asked({"temperature": 0}, {"temperature": 0.5, "top_p": 0.9, "top_k": 4})
        assert (both.temperature, both.top_p, both.top_k) == (0, 0.9, 4)
        everything: dict[str, Any] = {
            "min_tokens": 2, "temperature": 0.5, "top_p": 0.9, "top_k": 4, "min_p": 0.1,
            "frequency_penalty": 0.5, "presence_penalty": 0.25, "repetition_penalty": 1.5,
            "ignore_eos": True, "seed": 3, "stop_token_ids": [5], "logit_bias": {3: 1.0},
        }  # fmt: skip
        assert asked(everything, {}) == SamplingParams(max_tokens=128, **everything)
        assert asked({}, everything) == asked(everything, {})

    def test_log_probabilities_by_sglangs_names(self) -> None:
        def asked(**gen: Any) -> tuple[int | None, int | None]:
            @sgl.function
            def f(s: sgl.ProgramState) -> None:
                s += "Q" + sgl.gen("x", **gen)

            backend = FakeBackend()
            f.run(backend=backend)
            return params_of(backend).logprobs, params_of(backend).prompt_logprobs_from

        assert asked() == (None, None)
        assert asked(return_logprob=False) == (None, None)
        assert asked(return_logprob=True) == (0, None)
        assert asked(return_logprob=True, logprob_start_len=-1) == (0, None)
        assert asked(return_logprob=True, top_logprobs_num=3, logprob_start_len=0) == (3, 0)
        assert asked(return_logprob=True, logprob_start_len=4, return_text_in_logprobs=True) == (
            0,
            5,
        )
        with pytest.raises(ValueError, match="tokens always come with their text"):
            asked(return_text_in_logprobs=False)

    def test_are_checked_where_they_are_written(self) -> None:
        with pytest.raises(ValueError, match=r"top_p=1\.2: give a number in"):
            sgl.gen("x", top_p=1.2)
        with pytest.raises(ValueError, match="temperature=-1"):
            qa.run("why", temperature=-1, backend=FakeBackend())
        with pytest.raises(TypeError, match="temprature"):
            sgl.gen("x", temprature=1)
        with pytest.raises(ValueError, match=r"regex '\(', position 0: '\(' without its '\)'"):
            sgl.gen("x", regex="(")
        with pytest.raises(ValueError, match="regex=3"):
            sgl.gen("x", regex=3)  # type: ignore[arg-type]

    def test_patterns_are_the_engines_and_not_res(self) -> None:
        """Python's `re` knows no \\p{L}, and knows back-references."""
        assert sgl.gen("x", regex=r"\p{L}+").settings["regex"] == r"\p{L}+"  # type: ignore[union-attr]
        with pytest.raises(ValueError, match=r"position 3: the back-reference"):
            sgl.gen("x", regex=r"(a)\1")

    def test_editors_know_every_one_of_them(self) -> None:
        own = set(inspect.signature(sgl.gen).parameters) - {"others"}
        known = own | set(Settings.__annotations__)
        assert {f.name for f in dataclasses.fields(SamplingParams)} <= known
        assert all(is_setting(name) for name in Settings.__annotations__)

    def test_an_unknown_switch_is_an_error(self) -> None:
        with pytest.raises(AttributeError):
            sgl.global_config.verbose = 2  # type: ignore[attr-defined]


class TestBatch:
    def test_results_are_in_order_whatever_ends_first(self) -> None:
        backend = FakeBackend(delay=lambda text: 0.03 if "1" in text else 0.0)
        items: list[Any] = [{"question": "0"}, ("1",), ["2", "!"], {"question": "3", "hint": "?"}]
        with no_thread_stays():
            states = qa.run_batch(items, backend=backend, temperature=0)
        asked = ["Q: 0", "Q: 1", "Q: 2!", "Q: 3?"]
        assert [state["x"] for state in states] == [words(a + "\nA:", 8) for a in asked]
        assert [state.ret_value for state in states] == ["0", "1", "2", "3"]
        assert params_of(backend).temperature == 0

    def test_of_nothing_is_nothing(self) -> None:
        assert qa.run_batch([], backend=FakeBackend()) == []

    def test_one_that_fails_loses_none_of_the_others(self) -> None:
        """E4."""
        backend = FakeBackend(fails=lambda text: "98" in text, delay=lambda _: 0.001)
        items = [{"question": str(i)} for i in range(100)]
        with no_thread_stays():
            states = qa.run_batch(items, backend=backend, return_exceptions=True)
        assert isinstance(states[98], Boom)
        assert all(state["x"] for i, state in enumerate(states) if i != 98)
        with no_thread_stays(), pytest.raises(Boom) as caught:
            qa.run_batch(items, backend=backend)
        if sys.version_info >= (3, 11):
            assert "run 98 of a batch of 100" in caught.value.__notes__[-1]
        assert len(backend.asked("generate")) == 200

    def test_a_function_that_fails_is_such_a_failure(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState, i: int) -> None:
            s += f"{1 // i}" + sgl.gen("x")

        states = f.run_batch([(1,), (0,), (2,)], backend=FakeBackend(), return_exceptions=True)
        assert isinstance(states[1], ZeroDivisionError)
        assert states[0]["x"] == words("1", 8)

    def test_thousands_run_together_on_few_threads(self) -> None:
        """E9: a program that only waits for its generations needs no thread."""
        backend = FakeBackend()
        backend.gate.clear()
        most_threads = 0
        others = set(threading.enumerate())  # of servers and engines that other tests keep

        def open_gate() -> None:
            nonlocal most_threads
            while backend.running < 2000:
                time.sleep(0.001)
                most_threads = max(most_threads, len(set(threading.enumerate()) - others))
            backend.gate.set()

        with no_thread_stays():
            opener = threading.Thread(target=open_gate)
            opener.start()
            states = qa.run_batch([(str(i),) for i in range(2000)], num_threads=4, backend=backend)
            opener.join()
        assert len(states) == 2000 and backend.most_running >= 2000
        assert most_threads < 20

    def test_fifty_that_read_their_answers_are_asked_together_by_default(self) -> None:
        """Each holds a thread while it waits, and the scheduler should see all of them."""
        backend = FakeBackend()
        backend.gate.clear()

        @sgl.function
        def f(s: sgl.ProgramState, i: int) -> str:
            s += f"prefix {i % 5}, {i}" + sgl.gen("x", max_tokens=1)
            return s["x"]

        def open_gate() -> None:
            end = time.monotonic() + LONG
            while backend.running < 50 and time.monotonic() < end:
                time.sleep(0.001)
            backend.gate.set()

        with no_thread_stays(), in_thread(open_gate):
            states = f.run_batch([(i,) for i in range(50)], backend=backend)
        assert backend.most_running == 50
        assert [s.ret_value for s in states] == [
            words(f"prefix {i % 5}, {i}", 1) for i in range(50)
        ]

    def test_threads_are_bounded(self) -> None:
        running, most = 0, 0
        lock = threading.Lock()

        @sgl.function
        def f(s: sgl.ProgramState, i: int) -> None:
            nonlocal running, most
            s += f"{i}" + sgl.gen("x")  # where the search for a constant prefix ends
            with lock:
                running += 1
                most = max(most, running)
            s["x"]
            with lock:
                running -= 1

        f.run_batch([(i,) for i in range(20)], num_threads=3, backend=FakeBackend())
        assert 1 <= most <= 3
        for wrong in (0, -1, "many", True, 1.5):
            with pytest.raises(ValueError, match="whole number above 0"):
                f.run_batch([(1,)], num_threads=wrong, backend=FakeBackend())

    def test_results_as_they_come(self) -> None:
        """E6: in order, and the first before the last has begun to be computed."""
        backend = FakeBackend(fails=lambda text: False)
        blocked = threading.Event()

        class Slow(FakeBackend):
            async def generate(self, context: Any, params: Any) -> Any:
                while "last" in context.text and not blocked.is_set():
                    await asyncio.sleep(0.001)
                return await super().generate(context, params)

        backend = Slow()
        with no_thread_stays():
            states = qa.run_batch(
                [("0",), ("1",), ("last",)], generator_style=True, backend=backend
            )
            assert next(states)["x"] == words("Q: 0\nA:", 8)
            assert next(states)["x"] == words("Q: 1\nA:", 8)
            blocked.set()
            assert next(states)["x"] == words("Q: last\nA:", 8)
            assert list(states) == []

    def test_leaving_early_ends_the_others(self) -> None:
        backend = FakeBackend(delay=lambda text: 0 if "Q: 0" in text else 60)
        with no_thread_stays():
            states = qa.run_batch(
                [(str(i),) for i in range(50)], generator_style=True, backend=backend
            )
            next(states)
            while backend.running < 49:
                time.sleep(0.001)
            states.close()
        assert (backend.aborted, backend.running) == (49, 0)

    def test_progress_is_shown_when_asked_for(self, capsys: pytest.CaptureFixture[str]) -> None:
        qa.run_batch([("a",), ("b",)], backend=FakeBackend())
        assert capsys.readouterr().err == ""
        qa.run_batch([("a",), ("b",)], progress_bar=True, backend=FakeBackend())
        assert capsys.readouterr().err == "\r1/2 programs\r2/2 programs\n"

    def test_mistakes(self) -> None:
        backend = FakeBackend()
        with pytest.raises(ValueError, match="batch item 'why': give a dict"):
            qa.run_batch(["why"], backend=backend)
        with pytest.raises(TypeError, match="too many positional arguments"):
            qa.run_batch([("a",), ("a", "b", "c")], backend=backend)
        with pytest.raises(TypeError, match="has no argument 'temprature'"):
            qa.run_batch([("a",)], temprature=1, backend=backend)
        assert backend.calls == []

    def test_ctrl_c_ends_a_batch_cleanly(self) -> None:
        """E6."""
        code = """
import signal, threading, time, minisgl.lang as sgl
from tests.lang.fake import FakeBackend
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
backend = FakeBackend(delay=lambda _: 60)
@sgl.function
def f(s, i):
    s += f"{i}" + sgl.gen("x")
    s["x"]
def report():
    while backend.running < 200: time.sleep(0.001)
    print("running", flush=True)
threading.Thread(target=report).start()
try:
    f.run_batch([(i,) for i in range(300)], num_threads=200, backend=backend)
except KeyboardInterrupt:
    alive = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
    print("interrupted", backend.running, alive, flush=True)
"""
        with subprocess.Popen(
            [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        ) as process:  # fmt: skip
            try:
                assert process.stdout is not None
                assert process.stdout.readline() == "running\n"
                process.send_signal(signal.SIGINT)
                said, _ = process.communicate(timeout=LONG)
            finally:
                process.kill()
        assert (said.split(" [")[0], process.returncode) == ("interrupted 0", 0)


class TestCoroutines:
    def test_programs_can_be_awaited_together(self) -> None:
        backend = FakeBackend(delay=lambda _: 0.01)

        async def main() -> list[sgl.ProgramState]:
            return await asyncio.gather(*(qa.arun(str(i), backend=backend) for i in range(5)))

        with no_thread_stays():
            states = asyncio.run(main())
        assert [s["x"] for s in states] == [words(f"Q: {i}\nA:", 8) for i in range(5)]
        assert [s.ret_value for s in states] == list("01234")

    def test_errors_are_raised_and_cancelling_ends_the_program(self) -> None:
        with no_thread_stays(), pytest.raises(Boom):
            asyncio.run(qa.arun("why", backend=FakeBackend(fails=lambda _: True)))
        backend = FakeBackend(
            fails=lambda text: "bad" in text, delay=lambda text: 60 if "slow" in text else 0.01
        )

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            forks = s.fork(2)
            forks += "slow" + sgl.gen("x")
            s += "bad" + sgl.gen("y")

        with no_thread_stays(), pytest.raises(Boom):
            asyncio.run(f.arun(backend=backend))
        assert (backend.aborted, backend.running) == (2, 0)
        backend = FakeBackend(delay=lambda _: 60)

        async def main() -> None:
            task = asyncio.create_task(qa.arun("why", backend=backend))
            while not backend.running:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        with no_thread_stays():
            asyncio.run(main())
        assert (backend.aborted, backend.running) == (1, 0)


class TestConstantPrefix:
    PREFIX = "These are some examples of questions, with the answers to them. " * 2

    def cached(self, program: Any, **bound: Any) -> str:
        backend = FakeBackend()
        text = sgl.function(program).bind(**bound).cache(backend)
        assert backend.asked("cache_prefix") == [text] * bool(text)
        return text

    def test_ends_at_the_first_argument(self) -> None:
        def adds(s: sgl.ProgramState, question: str) -> None:
            s += self.PREFIX + "Q: "
            s += question + "."

        def joins(s: sgl.ProgramState, question: str, shots: str = "3") -> None:
            s += self.PREFIX
            s += "Q: " + question
            s += shots

        def formats(s: sgl.ProgramState, question: str) -> None:
            s += self.PREFIX + "Q: "
            s += f"{question}"

        def decides(s: sgl.ProgramState, question: str) -> None:
            s += self.PREFIX + "Q: "
            if question:
                s += "never"

        def loops(s: sgl.ProgramState, items: list[str]) -> None:
            s += self.PREFIX + "Q: "
            for item in items:
                s += item

        def asks(s: sgl.ProgramState, question: str) -> None:
            s += self.PREFIX + "Q: "
            s += question.strip()

        for program in (adds, joins, formats, decides, loops, asks):
            assert self.cached(program) == self.PREFIX + "Q: ", program.__name__

    def test_ends_at_the_first_call_of_the_model(self) -> None:
        def gens(s: sgl.ProgramState) -> None:
            s += self.PREFIX + "Q: " + sgl.gen("x") + "never"

        def reads(s: sgl.ProgramState) -> None:
            s["own"] = 1
            s += self.PREFIX + "Q: "
            try:
                s += f"{s['x']}"
            except Exception:
                s += "never"

        def forks(s: sgl.ProgramState) -> None:
            s += self.PREFIX + "Q: "
            s.fork(3)

        def fails(s: sgl.ProgramState) -> None:
            s += self.PREFIX + "Q: "
            raise Boom

        for program in (gens, reads, forks, fails):
            assert self.cached(program) == self.PREFIX + "Q: ", program.__name__

    def test_holds_roles_and_what_is_bound(self) -> None:
        def chats(s: sgl.ProgramState, task: str, question: str) -> None:
            s += sgl.system(self.PREFIX + task)
            s += sgl.user(question)

        text = self.cached(chats, task="Add.")
        assert text == (f"<|im_start|>system\n{self.PREFIX}Add.<|im_end|>\n<|im_start|>user\n")

    def test_a_short_one_is_not_worth_it(self) -> None:
        assert self.cached(lambda s, q: s.extend("short" + q)) == ""

    def test_a_batch_sends_it_first_and_once(self) -> None:
        called = []

        @sgl.function
        def f(s: sgl.ProgramState, i: int) -> None:
            called.append(i)
            s += self.PREFIX + f"{i}" + sgl.gen("x")

        @sgl.function
        def g(s: sgl.ProgramState, i: int) -> None:
            s += self.PREFIX
            s += f"{i}" + sgl.gen("x")

        backend = FakeBackend()
        g.run_batch([(1,), (2,)], backend=backend)
        assert backend.calls[0][:2] == ("cache_prefix", self.PREFIX)
        assert len(backend.asked("cache_prefix")) == 1
        g.run_batch([(1,)], backend=(one := FakeBackend()))
        assert one.asked("cache_prefix") == []
        sgl.global_config.enable_precache_with_tracing = False
        try:
            f.run_batch([(1,), (2,)], backend=(off := FakeBackend()))
        finally:
            sgl.global_config.enable_precache_with_tracing = True
        assert off.asked("cache_prefix") == [] and sorted(called) == [1, 2]

    def test_an_argument_has_no_value_outside_of_it(self) -> None:
        question = Value(Argument("q"))
        with pytest.raises(TypeError, match=r"Value\(q\) has no value"):
            sgl.function(lambda s: s.extend(question)).run(backend=FakeBackend())


@given(st.lists(st.integers(0, 30), min_size=1, max_size=30), st.integers(1, 5))
def test_any_batch_is_its_programs_one_by_one(delays: list[int], num_threads: int) -> None:
    backend = FakeBackend(delay=lambda text: delays[int(text.split("#")[1])] / 10000)

    @sgl.function
    def f(s: sgl.ProgramState, i: int) -> str:
        s += f"#{i}#" + sgl.gen("x", max_tokens=2) + sgl.gen("y", max_tokens=1)
        return s["x"]

    states = f.run_batch(
        [(i,) for i in range(len(delays))], num_threads=num_threads, backend=backend
    )
    assert [s.text() for s in states] == [
        f.run(i, backend=backend).text() for i in range(len(delays))
    ]

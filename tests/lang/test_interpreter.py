"""Streams: whatever the backend's speed, a program says the same; errors reach whoever reads."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
import traceback
from collections.abc import AsyncIterator, Callable
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minisgl.lang as sgl
from minisgl.lang import ir
from tests.engine.common import in_thread
from tests.lang.fake import Boom, FakeBackend, language_threads, no_thread_stays, words

# ---------------------------------------------------------------------- programs, as data

names = st.sampled_from(["a", "b", "c"])
simple = st.one_of(
    st.tuples(st.just("say"), st.sampled_from(["x", "yy\n", " Z"])),
    st.tuples(st.just("gen"), names),
    st.tuples(st.just("select"), names),
    st.tuples(st.just("echo"), names),
)
statements: Any = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.tuples(st.just("fork"), st.lists(st.lists(inner, max_size=3), min_size=1, max_size=3)),
        st.tuples(st.just("scope"), st.lists(inner, max_size=3)),
    ),
    max_leaves=12,
)
programs = st.lists(statements, min_size=1, max_size=6)


def run_on_state(s: sgl.ProgramState, program: list[Any]) -> None:
    """The program in the language."""
    for kind, what in program:
        match kind:
            case "say":
                s += what
            case "gen":
                s += sgl.gen(what, max_tokens=3)
            case "select":
                s += sgl.select(what, ["one", "two", "three"])
            case "echo":
                if what in s:
                    s += "<" + s[what] + ">"
            case "scope":
                with s.var_scope("scope"):
                    run_on_state(s, what)
            case "fork":
                forks = s.fork(len(what))
                for state, branch in zip(forks, what, strict=True):
                    run_on_state(state, branch)
                forks.join("concate_and_append")


def by_hand(text: str, program: list[Any], known: dict[str, str]) -> str:
    """The obvious model: the text that the program adds up to, one call after another."""
    for kind, what in program:
        match kind:
            case "say":
                text += what
            case "gen":
                known[what] = words(text, 3)
                text += known[what]
            case "select":
                known[what] = best_choice(text, ["one", "two", "three"])
                text += known[what]
            case "echo":
                if what in known:
                    text += f"<{known[what]}>"
            case "scope":
                start = len(text)
                text = by_hand(text, what, known)
                known["scope"] = text[start:]
            case "fork":
                said = [by_hand(text, branch, dict(known))[len(text) :] for branch in what]
                text += "".join(said)
    return text


def best_choice(text: str, choices: list[str]) -> str:
    def mean(choice: str) -> float:
        tokens = FakeBackend._tokens(text, choice)
        return sum(t[0] for t in tokens) / len(tokens)

    return max(choices, key=mean)


async def all_of(pieces: AsyncIterator[Any]) -> list[Any]:
    return [piece async for piece in pieces]


def test_hand_model_is_not_trivial() -> None:
    said = {best_choice("x" * n, ["one", "two", "three"]) for n in range(20)}
    assert len(said) > 1


class TestAnySchedule:
    @given(programs, st.integers(0, 10**6), st.booleans())
    def test_random_programs_say_the_same_at_any_speed(
        self, program: list[Any], seed: int, stream: bool
    ) -> None:
        random = Random(seed)
        backend = FakeBackend(delay=lambda _: random.choice([0, 0, 0.0005, 0.002]))
        f = sgl.function(lambda s: run_on_state(s, program))
        with no_thread_stays():
            state = f.run(backend=backend, stream=stream)
            known: dict[str, str] = {}
            assert state.text() == by_hand("", program, known)
            assert {name: state[name] for name in known} == known

    @given(programs)
    def test_pieces_join_to_the_text(self, program: list[Any]) -> None:
        backend = FakeBackend()
        f = sgl.function(lambda s: run_on_state(s, program))
        state = f.run(backend=backend, stream=True)
        assert "".join(state.text_iter()) == state.text() == by_hand("", program, {})

    @given(programs)
    def test_without_frontend_parallelism_it_is_the_same(self, program: list[Any]) -> None:
        backend = FakeBackend()
        f = sgl.function(lambda s: run_on_state(s, program))
        sgl.global_config.enable_parallel_decoding = False
        try:
            assert f.run(backend=backend).text() == by_hand("", program, {})
        finally:
            sgl.global_config.enable_parallel_decoding = True
        assert backend.most_running <= 1 + len(backend.asked("cache_prefix"))


class TestPrimitives:
    def test_adding_returns_at_once_and_reading_waits(self) -> None:
        backend = FakeBackend()
        backend.gate.clear()
        went_on = threading.Event()

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "Q" + sgl.gen("x", max_tokens=2) + "!"
            went_on.set()
            s += s["x"]

        state = f.run(backend=backend, stream=True)
        assert went_on.wait(5)
        backend.gate.set()
        x = words("Q", 2)
        assert state.text() == f"Q{x}!{x}"

    def test_gens_of_branches_are_under_way_together(self) -> None:
        """The paper's parallelism: one thread, and no call waits for another."""
        backend = FakeBackend()
        backend.gate.clear()

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "start"
            forks = s.fork(50)
            forks += lambda i: f" {i}" + sgl.gen("x")
            while backend.running < 51:  # and the hint
                time.sleep(0.001)
            assert language_threads() == ["minisgl-lang"]
            backend.gate.set()
            forks.join()
            s += " ".join(s["x"])

        state = f.run(backend=backend)
        assert state["x"] == [words(f"start {i}", 8) for i in range(50)]

    def test_a_name_used_twice_has_its_last_value_and_never_a_half(self) -> None:
        """E19."""
        backend = FakeBackend()

        @sgl.function
        def inner(s: sgl.ProgramState) -> None:
            s += "inner" + sgl.gen("x")

        @sgl.function
        def f(s: sgl.ProgramState) -> list[str]:
            s += "1" + sgl.gen("x", max_tokens=1)
            first = s["x"]
            s += "2" + sgl.gen("x", max_tokens=2)
            second = s["x"]
            s["x"] = inner.run(backend=backend)["x"]
            return [first, second, s["x"]]

        one = "1" + words("1", 1)
        state = f.run(backend=backend)
        assert state.ret_value == [words("1", 1), words(one + "2", 2), words("inner", 8)]

    def test_who_reads_while_a_name_is_said_again_sees_one_value_or_the_other(self) -> None:
        backend = FakeBackend()
        reads: list[str] = []
        began, over = threading.Event(), threading.Event()

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "1" + sgl.gen("x")
            s["x"]
            began.set()
            for i in range(20):
                s += f"{i}" + sgl.gen("x")
                s["x"]

        def read() -> None:
            while not over.is_set():
                reads.append(state["x"])

        with no_thread_stays():
            state = f.run(backend=backend, stream=True)
            assert began.wait(5)
            with in_thread(read):
                state.sync()
                over.set()
        whole = {words(text, 8) for text in backend.asked("stream")}
        assert len(whole) == 21 and reads and set(reads) <= whole

    def test_unnamed_ones_are_numbered(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += sgl.gen(max_tokens=1) + sgl.select(choices=["p", "q"]) + sgl.gen(max_tokens=2)

        state = f.run(backend=FakeBackend())
        assert state.text() == state["gen_0"] + state["select_0"] + state["gen_1"]

    def test_branches_go_on_counting(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "a" + sgl.gen(max_tokens=1)
            forks = s.fork(2)
            forks += sgl.gen(max_tokens=2)
            forks.join()

        state = f.run(backend=FakeBackend())
        assert state["gen_0"] == words("a", 1)
        assert state["gen_1"] == [words("a" + state["gen_0"], 2)] * 2

    def test_n_answers_are_a_list_and_the_text_goes_on_with_the_first(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState, stream: bool = False) -> None:
            s += "Q" + sgl.gen("x", n=3, max_tokens=2)

        for stream in (False, True):
            state = f.run(backend=FakeBackend(), stream=stream)
            assert state["x"] == [words("Q", 2, i) for i in range(3)]
            assert state.text() == "Q" + state["x"][0]
            assert [meta["index"] for meta in state.get_meta_info("x")] == [0, 1, 2]
            assert "".join(state.text_iter("x")) == state["x"][0]

    def test_a_scope_is_a_variable_also_when_its_block_fails(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "a"
            with pytest.raises(ZeroDivisionError), s.var_scope("v"):
                s += "b" + sgl.gen("x", max_tokens=1)
                raise ZeroDivisionError
            s += "c"

        state = f.run(backend=FakeBackend())
        assert state["v"] == "b" + state["x"]

    def test_what_can_not_be_added_is_refused_at_its_line(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            with pytest.raises(ValueError, match="None can't be added"):
                s += None
            with pytest.raises(TypeError, match="3 can't be added"):
                s += 3
            with pytest.raises(TypeError, match=r"\[\] can't be added"):
                s += "a" + sgl.gen("x") + []
            with pytest.raises(ValueError, match="this model can't see: fake"):
                s += sgl.image("cat.png")
            with pytest.raises(ValueError, match="min_tokens=200: give at most max_tokens=128"):
                s += sgl.gen("y", min_tokens=200)
            s += "ok"

        assert f.run(backend=FakeBackend()).text() == "ok"

    def test_a_state_goes_on_after_its_program(self) -> None:
        """As in a notebook."""

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "Q"

        with no_thread_stays():
            state = f.run(backend=FakeBackend())
            state += sgl.gen("x", max_tokens=1)
            assert state.text() == "Q" + state["x"]

    def test_extend_is_the_papers_name_of_adding(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s.extend("Q").extend(sgl.gen("x", max_tokens=1))

        state = f.run(backend=FakeBackend())
        assert state.text() == "Q" + state["x"]


class TestForks:
    def test_a_fork_of_one_is_the_program_itself(self) -> None:
        @sgl.function
        def plain(s: sgl.ProgramState) -> None:
            s += "a" + sgl.gen("x") + "b" + sgl.gen("y")

        @sgl.function
        def forked(s: sgl.ProgramState) -> str:
            s += "a" + sgl.gen("x")
            (t,) = s.fork(1)
            t += "b" + sgl.gen("y")
            return t.text()

        backend = FakeBackend()
        assert forked.run(backend=backend).ret_value == plain.run(backend=backend).text()

    def test_a_branch_knows_the_variables_before_it_and_not_those_after(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "a" + sgl.gen("x")  # not there yet when the branch begins
            (t,) = s.fork(1)
            s += sgl.gen("y")
            assert t["x"] == s["x"]
            with pytest.raises(KeyError, match="no variable 'y' in this program; it has 'x'"):
                t["y"]

        f.run(backend=FakeBackend(delay=lambda _: 0.005))

    def test_forking_waits_for_nothing(self) -> None:
        backend = FakeBackend()
        backend.gate.clear()

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "a" + sgl.gen("x")
            forks = s.fork(2)
            forks += ["1", "2"]
            forks += sgl.gen("y")
            backend.gate.set()
            forks.join()

        state = f.run(backend=backend)
        text = state.text()
        assert state["y"] == [words(text + "1", 8), words(text + "2", 8)]

    def test_gathering(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s["old"] = "kept"
            with s.fork(3) as forks:
                assert len(forks) == len(list(forks)) == len(forks[:3]) == 3
                forks += "common "
                forks += lambda i: f"{i}:" + sgl.gen("x", max_tokens=1)
                forks[1] += sgl.gen("only", max_tokens=1)
                forks[2]["old"] = "changed"
            with s.copy() as t:
                t["copied"] = 5

        state = f.run(backend=FakeBackend())
        assert state["x"] == [words(f"common {i}:", 1) for i in range(3)]
        assert state["only"] == [words("common 1:" + state["x"][1], 1)]
        assert (state["old"], state["copied"], state.text()) == ("kept", [5], "")

    def test_aligned_lists_have_an_item_for_each_branch(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> Any:
            forks = s.fork(3)
            forks[1] += "a" + sgl.gen("x", max_tokens=1)
            forks.join(align=True)
            return s["x"]

        expected = [None, words("a", 1), None]
        assert f.run(backend=FakeBackend()).ret_value == expected
        assert f.compile().run(backend=FakeBackend()).ret_value == expected

    def test_appending_takes_what_was_said_until_the_join(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "0"
            forks = s.fork(2)
            forks += lambda i: f"[{i}]" + sgl.gen(max_tokens=1)
            forks.join("concate_and_append")
            forks += "too late"
            s += "."

        said = [f"[{i}]" + words(f"0[{i}]", 1) for i in range(2)]
        assert f.run(backend=FakeBackend()).text() == "0" + "".join(said) + "."

    def test_mistakes(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            for size in (0, -1, 1.5, "2", True):
                with pytest.raises(ValueError, match="whole number of at least 1"):
                    s.fork(size)
            forks = s.fork(number=2)
            with pytest.raises(ValueError, match="3 values for 2 branches"):
                forks += ["a", "b", "c"]
            with pytest.raises(ValueError, match="5 can't be added to branches"):
                forks += 5
            with pytest.raises(ValueError, match="can't be replaced"):
                forks[0] = s
            with pytest.raises(ValueError, match='choose one of "gather_variable"'):
                forks.join("all")
            with pytest.raises(ValueError, match="align=True with mode='conc"):
                forks.join("concate_and_append", align=True)

        f.run(backend=FakeBackend())

    def test_the_hint_comes_before_the_branches_and_only_where_it_helps(self) -> None:
        """E2: a fork of nothing sends nothing."""

        @sgl.function
        def f(s: sgl.ProgramState, prefix: str, size: int) -> None:
            s += prefix
            s.fork(size).join()
            forks = s.fork(size)
            forks += sgl.gen("x", max_tokens=1)
            forks.join()

        def hints(prefix: str, size: int) -> list[str]:
            backend = FakeBackend()
            f.run(prefix, size, backend=backend)
            return backend.asked("cache_prefix")

        assert hints("shared", 3) == ["shared", "shared"]
        assert hints("", 3) == hints("shared", 1) == []
        sgl.global_config.enable_fork_hint = False
        try:
            assert hints("shared", 3) == []
        finally:
            sgl.global_config.enable_fork_hint = True

    def test_a_hint_that_fails_is_no_failure(self) -> None:
        class NoCache(FakeBackend):
            async def cache_prefix(self, context: Any) -> None:
                raise Boom

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "a"
            s.fork(2).join()
            s += sgl.gen("x", max_tokens=1)

        assert f.run(backend=NoCache())["x"] == words("a", 1)


class TestErrors:
    """E3, E5."""

    @staticmethod
    def fails_late(text: str) -> bool:
        return text.endswith("bad")

    READS: dict[str, Callable[[sgl.ProgramState], Any]] = {  # noqa: RUF012
        "value": lambda s: s["x"],
        "later value": lambda s: s["y"],
        "meta": lambda s: s.get_meta_info("x"),
        "text": lambda s: s.text(),
        "messages": lambda s: s.messages(),
        "sync": lambda s: s.sync(),
        "pieces": lambda s: list(s.text_iter()),
        "pieces of a variable": lambda s: list(s.text_iter("y")),
        "awaited pieces": lambda s: asyncio.run(all_of(s.text_async_iter())),
        "awaited pieces of a variable": lambda s: asyncio.run(all_of(s.text_async_iter("y"))),
        "join": lambda s: s.fork(2).join(),
        "append": lambda s: (s.error(), s.extend("more")),
        "scope": lambda s: s["v"],
    }

    @pytest.mark.parametrize("read", READS.values(), ids=READS)
    @pytest.mark.parametrize("stream", [False, True])
    def test_an_error_reaches_whoever_reads_at_once(
        self, read: Callable[[sgl.ProgramState], Any], stream: bool
    ) -> None:
        seen = []

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            with s.var_scope("v"):
                s += "bad" + sgl.gen("x")  # the line that is to blame
                s += sgl.gen("y") + "after"
            with pytest.raises(Boom, match="no answer to 'bad'") as caught:
                read(s)
            seen.append(caught.value)

        backend = FakeBackend(fails=self.fails_late, delay=lambda _: 0.01)
        start = time.monotonic()
        with no_thread_stays(), pytest.raises(Boom) as caught:
            f.run(backend=backend, stream=stream).sync()
        assert time.monotonic() - start < 1
        assert seen == [caught.value]
        told = "".join(traceback.format_exception(caught.value))
        assert "# the line that is to blame" in told

    def test_what_was_there_before_stays_readable(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "good" + sgl.gen("x", max_tokens=1)
            s += "bad" + sgl.gen("y")

        state = f.run(backend=FakeBackend(fails=self.fails_late), stream=True)
        assert isinstance(state.error(), Boom)
        assert state["x"] == words("good", 1)
        pieces = state.text_iter()
        assert "".join(next(pieces) for _ in range(1)).startswith("good")
        with pytest.raises(Boom):
            list(pieces)

    def test_a_branch_that_fails_fails_the_join_and_not_its_siblings(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> str:
            forks = s.fork(3)
            forks += ["a", "bad", "c"]
            forks += sgl.gen("x", max_tokens=1)
            with pytest.raises(Boom):
                forks.join()
            with pytest.raises(Boom):
                forks.join("concate_and_append")
            return forks[2]["x"]

        with no_thread_stays():
            state = f.run(backend=FakeBackend(fails=self.fails_late))
        assert state.ret_value == words("c", 1)

    def test_a_branch_that_fails_later_fails_the_state_it_was_appended_to(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            forks = s.fork(2)
            forks += ["a", "bad"]
            forks += sgl.gen("x", max_tokens=1)
            forks.join("concate_and_append")
            s += "after" + sgl.gen("y")

        backend = FakeBackend(fails=self.fails_late, delay=lambda _: 0.01)
        with no_thread_stays(), pytest.raises(Boom) as caught:
            f.run(backend=backend)
        assert "forks += sgl.gen" in "".join(traceback.format_exception(caught.value))

    def test_a_parent_that_fails_fails_its_branches(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "bad" + sgl.gen("x")
            forks = s.fork(2)
            forks += sgl.gen("y")
            for t in forks:
                with pytest.raises(Boom):
                    t["y"]
                with pytest.raises(Boom):
                    t["x"]
            raise ZeroDivisionError

        with no_thread_stays(), pytest.raises(ZeroDivisionError):
            f.run(backend=FakeBackend(fails=self.fails_late, delay=lambda _: 0.01))

    @pytest.mark.parametrize("stream", [False, True])
    def test_an_error_of_the_function_ends_what_it_started(self, stream: bool) -> None:
        backend = FakeBackend()
        backend.gate.clear()

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            forks = s.fork(3)
            forks += "a" + sgl.gen("x")
            s += "b" + sgl.gen("y")
            while backend.running < 4:
                time.sleep(0.001)
            raise ZeroDivisionError("mine")

        with no_thread_stays(), pytest.raises(ZeroDivisionError, match="mine"):
            "".join(f.run(backend=backend, stream=stream).text_iter())
        assert (backend.aborted, backend.running) == (4, 0)

    def test_an_idle_streaming_program_tells_its_readers_too(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "all is well"
            raise ZeroDivisionError

        state = f.run(backend=FakeBackend(), stream=True)
        for read in (state.text, lambda: "".join(state.text_iter()), lambda: state["never"]):
            with pytest.raises(ZeroDivisionError):
                read()

    def test_whatever_a_backend_raises_is_the_readers_to_see(self) -> None:
        class Exit(BaseException):
            pass

        class Leaves(FakeBackend):
            async def generate(self, context: Any, params: Any) -> Any:
                raise Exit

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "a" + sgl.gen("x")

        with no_thread_stays():
            for _ in range(2):  # the second one has a background as well
                with pytest.raises(Exit):
                    f.run(backend=Leaves())

    def test_cancelling(self) -> None:
        backend = FakeBackend()
        backend.gate.clear()

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "a" + sgl.gen("x")
            s["x"]

        with no_thread_stays():
            state = f.run(backend=backend, stream=True)
            while not backend.running:
                time.sleep(0.001)
            state.cancel()
            for read in (lambda: state["x"], state.text, lambda: list(state.text_iter("x"))):
                with pytest.raises(sgl.ProgramCancelledError):
                    read()
        assert (backend.aborted, backend.running) == (1, 0)

    def test_cancelling_what_has_ended_changes_nothing(self) -> None:
        state = sgl.function(lambda s: s.extend("a")).run(backend=FakeBackend())
        state.cancel()
        assert state.text() == "a"

    def test_a_program_that_fails_last_ends_its_branches_too(self) -> None:
        backend = FakeBackend(
            fails=self.fails_late, delay=lambda text: 60 if text.endswith("slow") else 0.01
        )

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            forks = s.fork(2)
            forks += "slow" + sgl.gen("x")
            s += "bad" + sgl.gen("y")

        with no_thread_stays(), pytest.raises(Boom):
            f.run(backend=backend)
        assert (backend.aborted, backend.running) == (2, 0)

    @pytest.mark.parametrize("reads", [True, False], ids=["reading", "at the end"])
    def test_ctrl_c_ends_the_program(self, reads: bool) -> None:
        backend = FakeBackend(delay=lambda _: 60)

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "a" + sgl.gen("x")
            if reads:
                s["x"]

        def interrupt() -> None:
            while not backend.running:
                time.sleep(0.001)
            time.sleep(0.05)
            signal.pthread_kill(main, signal.SIGINT)

        main = threading.get_ident()
        # A shell's background jobs ignore the signal.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with no_thread_stays(), in_thread(interrupt), pytest.raises(KeyboardInterrupt):
                f.run(backend=backend)
        finally:
            signal.signal(signal.SIGINT, before)
        assert (backend.aborted, backend.running) == (1, 0)

    def test_values_of_the_program_may_be_anything(self) -> None:
        class Silent:
            def __str__(self) -> str:
                raise Boom

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s["x"] = Silent()
            s["y"] = "text"

        state = f.run(backend=FakeBackend())
        assert isinstance(state["x"], Silent)
        assert (list(state.text_iter("x")), list(state.text_iter("y"))) == ([], ["text"])

    def test_a_thousand_readers_do_not_grow_the_traceback(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "bad" + sgl.gen("x")

        state = f.run(backend=FakeBackend(fails=self.fails_late), stream=True)
        lengths = []
        for _ in range(100):
            with pytest.raises(Boom) as caught:
                state["x"]
            lengths.append(len(traceback.extract_tb(caught.value.__traceback__)))
        assert lengths[0] == lengths[-1]

    def test_waiting_has_a_limit(self) -> None:
        backend = FakeBackend()
        backend.gate.clear()

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "a" + sgl.gen("x")

        state = f.run(backend=backend, stream=True)
        for wait in (state.get_var, state.get_meta_info):
            with pytest.raises(TimeoutError, match=r"no value of 'x' within 0\.01 s"):
                wait("x", timeout=0.01)
        backend.gate.set()
        assert state["x"] == words("a", 8)


class TestStreams:
    def test_a_late_variable_is_waited_for_and_a_missing_one_is_a_key_error(self) -> None:
        go_on = threading.Event()

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            assert go_on.wait(5)
            s += "a" + sgl.gen("x")

        state = f.run(backend=FakeBackend(), stream=True)
        assert "x" not in state
        threading.Timer(0.01, go_on.set).start()
        assert "".join(state.text_iter("x")) == words("a", 8)
        with pytest.raises(KeyError, match="no variable 'z'"):
            state.text_iter("z")

    def test_many_readers_each_get_everything(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "a" + sgl.gen("x") + "b" + sgl.select("y", ["p", "q"])

        state = f.run(backend=FakeBackend(delay=lambda _: 0.005), stream=True)

        async def read() -> str:
            return "".join([piece async for piece in state.text_async_iter()])

        async def read_all() -> list[str]:
            return await asyncio.gather(read(), read(), read())

        assert asyncio.run(read_all()) == [state.text()] * 3 == ["".join(state.text_iter())] * 3

    def test_pieces_with_their_meta_data(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "a" + sgl.gen("x")

        state = f.run(backend=FakeBackend(), stream=True)

        async def read() -> list[tuple[str, Any]]:
            return [pair async for pair in state.text_async_iter("x", return_meta_data=True)]

        pairs = asyncio.run(read())
        assert "".join(text for text, _ in pairs) == state["x"]
        sent = 0
        for text, meta in pairs:
            sent += len(text)
            assert meta["sent"] == sent
        with pytest.raises(ValueError, match="only a variable has meta data"):
            asyncio.run(anext(state.text_async_iter(return_meta_data=True)))  # type: ignore

    def test_a_branch_can_be_streamed_by_the_program(self) -> None:
        """E7."""

        @sgl.function
        def f(s: sgl.ProgramState) -> list[str]:
            forks = s.fork(2)
            forks += ["a", "b"]
            forks += sgl.gen("x")
            return ["".join(t.text_iter("x")) for t in forks]

        state = f.run(backend=FakeBackend(), stream=True)
        state.sync()
        assert state.ret_value == [words("a", 8), words("b", 8)]

    def test_a_program_of_branches_is_awaited_whole_or_by_a_variable(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "start"
            forks = s.fork(2)
            forks += ["a", "b"]
            forks += sgl.gen("x", max_tokens=2)
            forks.join("concate_and_append")
            s += "end" + sgl.gen("y", max_tokens=1)

        state = f.run(backend=FakeBackend(delay=lambda _: 0.005), stream=True)

        async def both() -> list[list[str]]:
            return await asyncio.gather(
                all_of(state.text_async_iter()), all_of(state.text_async_iter("y"))
            )

        whole, last = asyncio.run(both())
        said = "starta" + words("starta", 2) + "b" + words("startb", 2) + "end"
        assert "".join(whole) == state.text() == said + state["y"]
        assert "".join(last) == state["y"] == words(said, 1)

    def test_a_program_that_does_not_stream_gives_its_text_whole(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "a" + sgl.gen("x")

        state = f.run(backend=FakeBackend())
        assert list(state.text_iter()) == [state.text()]
        assert list(state.text_iter("x")) == [state["x"]]


def test_nodes_are_values() -> None:
    assert sgl.gen("x", 8) == sgl.gen("x", max_tokens=8) != sgl.gen("y", 8)
    both = "a" + sgl.gen("x") + ("b" + sgl.gen("y")) + "c"
    assert [type(node) for node in both.nodes] == [ir.Text, ir.Gen, ir.Text, ir.Gen, ir.Text]
    with pytest.raises(AttributeError):
        sgl.gen("x").name = "y"  # type: ignore

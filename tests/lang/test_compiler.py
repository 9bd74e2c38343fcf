"""Programs as graphs: they do what the same programs do as functions, and can be stored."""

from __future__ import annotations

import asyncio
import json
import signal
import threading
import time
import traceback
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from random import Random
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minisgl.lang as sgl
from minisgl.lang import graph as g
from minisgl.lang.compiler import CompiledProgram
from minisgl.lang.drawing import layout
from minisgl.lang.passes import NO_PASSES, Passes
from minisgl.lang.stored import read, write
from scripts.show import graph
from tests.engine.common import in_thread
from tests.lang.fake import Boom, FakeBackend, no_thread_stays, words
from tests.lang.text_model import TextModel, knows

# ---------------------------------------------------------------------- programs, as data

names = st.sampled_from(["a", "b", "c"])
tests = st.sampled_from([
    lambda x: x == " 1234", lambda x: x < " 8", lambda x: x.strip().startswith("a"),
    lambda x: (x > " 4") & (x < " c") | x.endswith("0"),
])  # fmt: skip
simple = st.one_of(
    st.tuples(st.just("say"), st.sampled_from(["", "x", "yy\n", " Z"])),
    st.tuples(st.just("argument"), st.sampled_from(["q", "r"])),
    st.tuples(st.just("gen"), names),
    st.tuples(st.just("unnamed"), st.integers(1, 3)),
    st.tuples(st.just("select"), names),
    st.tuples(st.just("echo"), names),
    st.tuples(st.just("set"), st.tuples(names, names)),
    st.tuples(st.just("nested"), st.tuples(names, names)),
)
bodies: Any = lambda inner: st.lists(inner, max_size=3)  # noqa: E731
statements: Any = st.recursive(
    simple,
    lambda inner: st.one_of(
        st.tuples(st.just("fork"), st.tuples(
            st.lists(bodies(inner), min_size=1, max_size=3),
            st.sampled_from(["gather_variable", "concate_and_append", None]),
        )),
        st.tuples(st.just("scope"), bodies(inner)),
        st.tuples(st.just("role"), st.tuples(st.sampled_from(["user", "tool"]), bodies(inner))),
        st.tuples(st.just("when"), st.tuples(names, tests, bodies(inner), bodies(inner))),
        st.tuples(st.just("repeat"), st.tuples(st.integers(1, 3), names, tests, bodies(inner))),
    ),
    max_leaves=14,
)  # fmt: skip
programs = st.lists(statements, min_size=1, max_size=6)


@sgl.function
def nested(s: sgl.ProgramState, text: str) -> str:
    s += "N:" + text + sgl.gen("inner", max_tokens=1)
    return s["inner"]


class Writer:
    """Runs a random program on a state, whatever is behind it.

    A variable is a text here, if it was not gathered by a join: lists are said by their first item.
    """

    def __init__(self, q: Any, r: Any) -> None:
        self.arguments = {"q": q, "r": r}
        self.speaks = False
        self.in_part = False

    def run(self, s: sgl.ProgramState, program: list[Any]) -> None:
        for kind, what in program:
            getattr(self, f"_{kind}")(s, what)

    def text(self, s: sgl.ProgramState, name: str) -> Any:
        value = s[name] if name in s else "nothing"  # noqa: SIM401  # a state is no dict
        while isinstance(value, list):
            value = value[0]
        return value

    def _say(self, s: sgl.ProgramState, what: str) -> None:
        s += what

    def _argument(self, s: sgl.ProgramState, what: str) -> None:
        s += "<" + self.arguments[what] + ">"

    def _gen(self, s: sgl.ProgramState, what: str) -> None:
        s += sgl.gen(what, max_tokens=3)

    def _unnamed(self, s: sgl.ProgramState, what: int) -> None:
        if not self.in_part:
            s += sgl.gen(max_tokens=what)

    def _select(self, s: sgl.ProgramState, what: str) -> None:
        s += sgl.select(what, ["one", "two", "three"])

    def _echo(self, s: sgl.ProgramState, what: str) -> None:
        s += "(" + self.text(s, what) + ")"

    def _set(self, s: sgl.ProgramState, what: tuple[str, str]) -> None:
        s[what[0]] = self.text(s, what[1]) + "!"

    def _nested(self, s: sgl.ProgramState, what: tuple[str, str]) -> None:
        state = nested(self.text(s, what[0]), max_tokens=2)
        s[what[1]] = state["inner"].strip()

    def _scope(self, s: sgl.ProgramState, what: list[Any]) -> None:
        with s.var_scope("c"):
            self.run(s, what)

    def _role(self, s: sgl.ProgramState, what: tuple[str, list[Any]]) -> None:
        if self.speaks:
            self.run(s, what[1])
            return
        self.speaks = True
        with s.role(what[0]):
            self.run(s, what[1])
        self.speaks = False

    def _fork(self, s: sgl.ProgramState, what: tuple[list[Any], Any]) -> None:
        branches, mode = what
        forks = s.fork(len(branches))
        for state, branch in zip(forks, branches, strict=True):
            self.run(state, branch)
        if mode is not None:
            forks.join(mode)

    def _when(self, s: sgl.ProgramState, what: tuple[str, Any, list[Any], list[Any]]) -> None:
        name, test, then, otherwise = what
        self._set_all(s)
        s += sgl.when(test(self.text(s, name)), self._part(then), self._part(otherwise))

    def _repeat(self, s: sgl.ProgramState, what: tuple[int, str, Any, list[Any]]) -> None:
        at_most, name, test, body = what
        self._set_all(s)
        s += sgl.repeat(self._part(body), at_most, lambda t: test(self.text(t, name)))

    def _set_all(self, s: sgl.ProgramState) -> None:
        """So that `name in s` does not depend on the part that runs."""
        for name in ("a", "b", "c"):
            s[name] = self.text(s, name)

    def _part(self, program: list[Any]) -> Callable[[sgl.ProgramState], None]:
        def part(s: sgl.ProgramState) -> None:
            before, self.in_part = self.in_part, True
            self.run(s, program)
            self.in_part = before

        return part


def function_of(program: list[Any]) -> sgl.Function[..., Any]:
    def f(s: sgl.ProgramState, q: str, r: str = "default") -> Any:
        Writer(q, r).run(s, program)
        return {name: s[name] for name in ("a", "b", "c") if name in s}

    return sgl.function(f)


def told(state: sgl.ProgramState) -> Any:
    """Everything that can be read."""
    variables = {name: state[name] for name in state.stream_executor.outline.variables}
    metas = {name: state.get_meta_info(name) for name in variables if name not in ("a", "b", "c")}
    return state.text(), state.messages(), variables, state.ret_value, metas


class TestEquality:
    @given(programs, st.integers(0, 10**6), st.booleans())
    def test_compiled_is_interpreted(self, program: list[Any], seed: int, passes: bool) -> None:
        f = function_of(program)
        compiled = f.compile(passes=Passes() if passes else NO_PASSES)
        assert list(g.faults(compiled.graph)) == []
        again, _ = read(write(compiled.graph))
        assert write(again) == write(compiled.graph)
        compiled.draw(), compiled.draw(kind="dot")
        random = Random(seed)
        slow = FakeBackend(delay=lambda _: random.choice([0, 0, 0.0005, 0.002]))
        sgl.set_default_backend(FakeBackend())  # of nested programs
        try:
            expected = told(f.run("Q", backend=FakeBackend()))
        finally:
            sgl.set_default_backend(None)
        with no_thread_stays():
            assert told(compiled.run(q="Q", backend=slow)) == expected
            assert told(CompiledProgram(again).run("Q", backend=FakeBackend())) == expected


def read_again(compiled: CompiledProgram) -> CompiledProgram:
    """As a file keeps it."""
    graph, tokens = read(write(compiled.traced, compiled.num_api_spec_tokens))
    return CompiledProgram(graph, num_api_spec_tokens=tokens)


class TestBatch:
    LONG = "A long beginning, which all the runs of a batch have in common, word by word. "

    @staticmethod
    def program(s: sgl.ProgramState, question: str, hint: str = "") -> str:
        s += TestBatch.LONG + question + hint + sgl.gen("x", max_tokens=2)
        return s["x"]

    def test_states_in_order(self) -> None:
        compiled = sgl.function(self.program).compile()
        backend = FakeBackend(delay=lambda text: 0.02 if "1" in text else 0)
        with no_thread_stays():
            states = compiled.run_batch(
                [("1",), {"question": "0"}, ["2", "!"]], backend=backend, temperature=0
            )
        assert [s.ret_value for s in states] == [words(self.LONG + t, 2) for t in ("1", "0", "2!")]
        assert all(p.temperature == 0 for kind, _, p in backend.calls if kind == "generate")
        assert compiled.run_batch([], backend=backend) == []

    def test_one_that_fails_loses_none_of_the_others(self) -> None:
        compiled = sgl.function(self.program).compile()
        backend = FakeBackend(fails=lambda text: text.endswith("bad"))
        items = [("a",), ("bad",), ("b",)]
        states = compiled.run_batch(items, backend=backend, return_exceptions=True)
        assert isinstance(states[1], Boom) and states[2]["x"] == words(self.LONG + "b", 2)
        with pytest.raises(Boom):
            compiled.run_batch(items, backend=backend)

    def test_thousands_need_one_thread(self) -> None:
        before, new = set(threading.enumerate()), set()

        class Watching(FakeBackend):
            async def generate(self, context: Any, params: Any) -> Any:
                new.update(set(threading.enumerate()) - before)
                return await super().generate(context, params)

        items = [(str(i),) for i in range(2000)]
        states = sgl.function(self.program).compile().run_batch(items, backend=Watching())
        assert len(states) == 2000
        assert [thread.name for thread in new] == ["minisgl-lang"]

    def test_what_is_wrong_with_one_is_its_own(self) -> None:
        compiled = sgl.function(lambda s, q: s.extend(q.strip() + sgl.gen("x")) and None).compile()
        items = [("a ",), (3,), ("b",)]
        states = compiled.run_batch(items, backend=FakeBackend(), return_exceptions=True)
        assert isinstance(states[1], TypeError)
        assert [states[i]["x"] for i in (0, 2)] == [words("a", 8), words("b", 8)]

    def test_mistakes(self) -> None:
        compiled, backend = sgl.function(self.program).compile(), FakeBackend()
        with pytest.raises(TypeError, match=r"program program\(question, hint\): missing a"):
            compiled.run(backend=backend)
        with pytest.raises(TypeError, match="unexpected keyword argument 'temprature'"):
            compiled.run("a", temprature=1, backend=backend)
        with pytest.raises(TypeError, match=r"run_batch\(\) has no argument 'temprature'"):
            compiled.run_batch([("a",)], temprature=1, backend=backend)
        with pytest.raises(ValueError, match="temperature=-1"):
            compiled.run("a", temperature=-1, backend=backend)
        with pytest.raises(ValueError, match="batch item 'a'"):
            compiled.run_batch(["a"], backend=backend)
        with pytest.raises(TypeError, match="3 can't be added"):
            compiled.run(3, backend=backend)
        with pytest.raises(TypeError, match="where a graph says an argument, give it a text"):
            compiled.run(sgl.gen("y"), backend=backend)
        assert backend.calls == []


class TestInterrupt:
    def test_ctrl_c_ends_a_batch(self) -> None:
        """E6."""
        backend = FakeBackend(delay=lambda _: 60)

        @sgl.function
        def f(s: sgl.ProgramState, i: str) -> None:
            s += i + sgl.gen("x")

        def interrupt() -> None:
            while backend.running < 50:
                time.sleep(0.001)
            signal.pthread_kill(main, signal.SIGINT)

        main = threading.get_ident()
        # A shell's background jobs ignore the signal.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            with no_thread_stays(), in_thread(interrupt), pytest.raises(KeyboardInterrupt):
                f.compile().run_batch([(str(i),) for i in range(50)], backend=backend)
        finally:
            signal.signal(signal.SIGINT, before)
        assert (backend.aborted, backend.running) == (50, 0)


class TestRunning:
    def test_the_state_is_like_any_other(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState, q: str) -> None:
            s += sgl.user(q)
            s += sgl.assistant_begin() + sgl.gen("x", n=2, max_tokens=2)

        state = f.compile(FakeBackend()).run("Q")
        prompt = "<|im_start|>user\nQ<|im_end|>\n<|im_start|>assistant\n"
        assert state["x"] == [words(prompt, 2, i) for i in range(2)]
        assert [m["index"] for m in state.get_meta_info("x")] == [0, 1]
        assert list(state.text_iter()) == [state.text()] == [prompt + state["x"][0]]
        assert state.messages() == [{"role": "user", "content": "Q"}]
        assert state.usage().spent.calls == 1
        state += "!" + sgl.gen("y", max_tokens=1) + sgl.assistant_end()
        assert state["y"] == words(prompt + state["x"][0] + "!", 1)
        assert state.messages()[1]["role"] == "assistant"

    def test_it_can_be_awaited_and_cancelled(self) -> None:
        compiled = sgl.function(lambda s, q: s.__iadd__(q + sgl.gen("x")) and None).compile()

        async def main() -> Any:
            return await asyncio.gather(*(compiled.arun(q, backend=FakeBackend()) for q in "ab"))

        with no_thread_stays():
            assert [s["x"] for s in asyncio.run(main())] == [words("a", 8), words("b", 8)]
        backend = FakeBackend(delay=lambda _: 60)

        async def leave() -> None:
            task = asyncio.create_task(compiled.arun("a", backend=backend))
            while not backend.running:
                await asyncio.sleep(0.001)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        with no_thread_stays():
            asyncio.run(leave())
        assert (backend.aborted, backend.running) == (1, 0)

    def test_speculation_saves_as_many_calls(self) -> None:
        def fields(s: sgl.ProgramState) -> None:
            s += "Name:" + sgl.gen("name", stop="\n") + "\nJob:" + sgl.gen("job", stop="\n")
            forks = s.fork(2)
            forks += "\nBorn:" + sgl.gen("born", stop="\n")
            forks.join()

        f = sgl.Function(fields, num_api_spec_tokens=64)
        document = "Name: Ada\nJob: mathematician\nBorn: 1815\n"
        said, calls = [], []
        for run in (f.run, f.compile().run, read_again(f.compile()).run):
            state = run(backend=TextModel(knows(document)), temperature=0)
            said.append((state.text(), state["name"], state["born"]))
            calls.append((state.usage().spent.calls, state.usage().saved_calls))
        assert said == [said[0]] * 3 and calls == [calls[0]] * 3
        assert calls[0] == (1, 3) and said[0][1:] == (" Ada", [" 1815", " 1815"])

    def test_an_error_ends_the_run_with_its_line(self) -> None:
        backend = FakeBackend(
            fails=lambda t: t.endswith("bad"), delay=lambda t: 60 if t.endswith("slow") else 0
        )

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            forks = s.fork(2)
            forks += ["slow", "bad"]
            forks += sgl.gen("x")  # the line that is to blame
            forks.join()
            s += "slow" + sgl.gen("y")

        with no_thread_stays(), pytest.raises(Boom) as caught:
            f.compile(passes=Passes(batch_gens=False)).run(backend=backend)
        assert "# the line that is to blame" in "".join(traceback.format_exception(caught.value))
        assert backend.running == 0

    def test_a_branch_that_nobody_reads_may_not_fail_unseen_either(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s.fork(1)[0].extend("bad" + sgl.gen("x"))

        backend = FakeBackend(fails=lambda text: text == "bad")
        with no_thread_stays(), pytest.raises(Boom):
            f.compile(passes=NO_PASSES).run(backend=backend)
        f.compile().run(backend=backend)  # it is dead code

    def test_a_graph_waits_for_values_and_not_for_lines(self) -> None:
        """The summary does not need the branches, so it is under way with them."""

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "start"
            forks = s.fork(3)
            forks += lambda i: f"{i}" + sgl.gen("x")
            forks.join()
            s += "sum" + sgl.gen("sum")

        backend = FakeBackend(delay=lambda _: 0.001)
        f.compile().run(backend=backend)
        assert backend.most_running == 4

    def test_models_that_need_roles_or_can_not_see_say_so(self) -> None:
        outside = sgl.function(lambda s: s.__iadd__("a" + sgl.gen("x")) and None)
        with pytest.raises(ValueError, match="stands outside of any role, and fake"):
            outside.compile().run(backend=FakeBackend(needs_roles=True))
        with pytest.raises(ValueError, match="stands outside of any role"):
            outside.compile(FakeBackend(needs_roles=True))
        shows = sgl.function(lambda s, p: s.__iadd__(sgl.image(p)) and None)
        with pytest.raises(ValueError, match="can't see: fake"):
            shows.compile().run("cat.png", backend=FakeBackend())
        state = shows.compile().run("cat.png", backend=FakeBackend(can_see=True))
        assert [image.source for image in state.stream_executor.context.media] == ["cat.png"]

    def test_values_of_a_run_are_its_own(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState, shots: list[str] = []) -> None:  # noqa: B006
            s["list"] = ["a", shots]

        compiled = f.compile()
        compiled.run(backend=FakeBackend())["list"][1].append("changed")
        assert compiled.run(backend=FakeBackend())["list"] == ["a", []]


class TestControl:
    @sgl.function
    @staticmethod
    def judge(s: sgl.ProgramState, essay: str) -> None:
        s += essay + sgl.select("kind", ["good", "bad"])

        def praise(s: sgl.ProgramState) -> None:
            forks = s.fork(2)
            forks += lambda i: f"{i}" + sgl.gen("detail", max_tokens=1)
            forks.join("concate_and_append")
            s["praise"] = forks[0]["detail"]

        s += sgl.when(s["kind"] == "good", praise, "Why bad?" + sgl.gen("why", max_tokens=1))
        s += "."

    @staticmethod
    def attempts(s: sgl.ProgramState, good: str) -> None:
        s["tries"] = "" if s is None else "-"

        def attempt(s: sgl.ProgramState) -> None:
            s["tries"] = s["tries"] + "*"
            s += " try" + s["tries"] + sgl.gen("try", max_tokens=1)

        s += sgl.repeat(attempt, at_most=4, until=lambda s: s["try"].strip() < good)
        s += " done" + s["tries"]

    @pytest.mark.parametrize("essay", [str(i) for i in range(8)])
    def test_one_way_or_the_other(self, essay: str) -> None:
        states = [
            self.judge.run(essay, backend=FakeBackend()),
            self.judge.compile().run(essay, backend=FakeBackend()),
        ]
        good = states[0]["kind"] == "good"
        for state in states:
            assert state.text() == states[0].text()
            assert ("why" in state, "praise" in state) == (not good, good)

    @pytest.mark.parametrize("good", ["0", "3", "7", "zzzz"])
    def test_until_it_is_good(self, good: str) -> None:
        f = sgl.function(self.attempts)
        expected = f.run(good, backend=FakeBackend())
        state = f.compile().run(good, backend=FakeBackend())
        assert state.text() == expected.text()
        assert state["tries"] == expected["tries"]
        rounds = {"0": 4, "zzzz": 1}
        assert good not in rounds or state["tries"] == "-" + "*" * rounds[good]

    def test_reading_what_has_not_been_set_is_a_key_error(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState, q: str) -> None:
            s += sgl.when(q == "yes", sgl.gen("x", max_tokens=1)) + s["x"]

        with pytest.raises(KeyError, match="no variable 'x' in this program"):
            f.run("no", backend=FakeBackend())

        @sgl.function
        def g(s: sgl.ProgramState, q: str) -> None:
            s += sgl.when(q == "yes", sgl.gen("x", max_tokens=1))
            s += s["x"]

        with pytest.raises(KeyError, match="no variable 'x': what sets it has not run"):
            g.compile().run("no", backend=FakeBackend())
        assert g.compile().run("yes", backend=FakeBackend())["x"] == words("", 1)

    def test_mistakes(self) -> None:
        for wrong in (None, 3, ["a"]):
            with pytest.raises(ValueError, match="is no part of a program"):
                sgl.when(True, wrong)  # type: ignore[arg-type]
        for wrong in (0, True, "3"):
            with pytest.raises(ValueError, match=f"at_most={wrong!r}"):
                sgl.repeat("a", wrong)  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="until=3: give a function"):
            sgl.repeat("a", 2, 3)  # type: ignore[arg-type]

    PARTS: dict[str, tuple[Any, str]] = {  # noqa: RUF012
        "unnamed": (lambda s, q: sgl.when(q == "a", sgl.gen()), "name it"),
        "role": (lambda s, q: sgl.when(q == "a", sgl.user_begin()), "end in it the role"),
        "outer": (
            lambda s, q: (lambda f: sgl.when(q == "a", lambda _: f[0].extend("x")))(s.fork(1)),
            "only to the state that the part is given",
        ),
    }

    @pytest.mark.parametrize("case", PARTS.values(), ids=PARTS)
    def test_what_a_part_can_not_do_in_a_graph(self, case: tuple[Any, str]) -> None:
        with pytest.raises(sgl.TraceError, match=case[1]):
            sgl.function(lambda s, q: s.extend(case[0](s, q)) and None).trace()

    def test_values_from_inside_are_read_by_name_outside(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState, q: str) -> None:
            kept = []
            s += sgl.when(q == "a", lambda s: kept.append(s.extend(sgl.gen("x"))["x"]))
            s += kept[0]

        with pytest.raises(sgl.TraceError, match="does not stand before it: outside of a when"):
            f.trace()


class TestFiles:
    @sgl.function
    @staticmethod
    def program(s: sgl.ProgramState, topic: str, style: str = "old") -> list[str]:
        s += sgl.system("Be brief.") + sgl.user("On " + topic + ", " + style)
        with s.assistant():
            forks = s.fork(2)
            forks += sgl.gen("x", max_tokens=2, stop=["\n"], json_schema={"type": ["string"]})
            forks.join()
            s += sgl.select("y", ["p", "q"])
            s += sgl.when(s["y"] == "p", s["x"][0], "none")
        return [s["y"], s["x"]]

    def test_saved_and_loaded_it_is_the_same(self, tmp_path: Path) -> None:
        file = tmp_path / "program.json"
        compiled = self.program.compile()
        compiled.save(file)
        again = sgl.CompiledProgram.load(file)
        assert str(again.graph) == str(compiled.graph)
        backend = FakeBackend()
        assert told(again.run("tea", backend=backend)) == told(compiled.run("tea", backend=backend))
        assert "/" not in json.loads(file.read_text())["graph"]["body"]["nodes"][0]["line"]

    def test_what_is_no_program_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "program.json"
        self.program.compile().save(file)
        whole = file.read_text()
        for text, message in {
            "{": "is no JSON",
            "[]": 'has no "minisgl_program"',
            whole.replace('"minisgl_program": 1', '"minisgl_program": 7'): "of version 7: this min",
            whole.replace('"=="', '"__import__"'): "damaged: operation '__import__'",
            whole.replace('"is": "Fork"', '"is": "Spoon"'): "damaged: unknown",
            whole.replace('"size": 2', '"width": 2'): "damaged: a Fork with",
            whole.replace('"fork": ', '"fork": 9'): "does not stand before it",
        }.items():
            file.write_text(text)
            with pytest.raises(ValueError, match=message):
                sgl.CompiledProgram.load(file)

    @given(st.data())
    def test_a_damaged_file_never_does_anything_else(self, data: Any) -> None:
        stored = json.loads(write(self.program.compile().graph))
        place, key = stored, "graph"
        while isinstance(place[key], dict | list) and place[key] and data.draw(st.integers(0, 5)):
            place = place[key]
            keys = list(place) if isinstance(place, dict) else range(len(place))
            key = data.draw(st.sampled_from(list(keys)))
        place[key] = data.draw(st.sampled_from([None, 3, "x", [], {}, {"is": "Fork", "size": 2}]))
        try:
            read(json.dumps(stored))
        except ValueError as error:
            assert "the program is damaged" in str(error)

    def test_python_of_the_programs_own_can_not_be_saved(self, tmp_path: Path) -> None:
        class Own(sgl.ChoicesSamplingMethod):
            def __call__(self, **_: Any) -> Any: ...

        for part in (
            sgl.gen("x", dtype=Kind), sgl.select("x", ["a", "b"], choices_method=Own()),
            sgl.image(object()),
        ):  # fmt: skip
            compiled = sgl.function(lambda s, part=part: s.extend(part) and None).compile(part=part)
            with pytest.raises(ValueError, match=r"%0 .* can't be saved: .*test_compiler"):
                compiled.save(tmp_path / "x.json")
        f = sgl.function(lambda s: s.extend(sgl.gen("x", dtype=int)) and None)
        f.compile().save(tmp_path / "x.json")

    def test_pictures(self, tmp_path: Path) -> None:
        compiled = self.program.compile()
        file = tmp_path / "program.svg"
        tree = ElementTree.fromstring(compiled.draw(file))
        assert file.read_text() == compiled.draw()
        classes = [e.get("class") for e in tree.iter() if e.get("class")]
        assert classes.count("gen") == 2 and classes.count("when") == 1
        assert classes.count("part") == 2
        shown = {e.text for e in tree.iter("{http://www.w3.org/2000/svg}title")}
        assert {str(node) for node in compiled.graph.nodes} <= shown
        dot = compiled.draw(kind="dot")
        assert dot.startswith('digraph "program(topic, style)" {') and dot.endswith("}\n")
        assert dot.count("[label=") == len(compiled.graph.nodes)
        with pytest.raises(ValueError, match='kind=\'png\': give "svg" or "dot"'):
            compiled.draw(kind="png")

    def test_the_picture_in_the_docs_is_current(self, tmp_path: Path) -> None:
        graph.main([str(tmp_path / "p.svg")])
        kept = Path(__file__).parents[2] / "docs" / "pictures" / "graph.svg"
        drawn = (tmp_path / "p.svg").read_text(encoding="utf-8")
        assert drawn == kept.read_text(encoding="utf-8"), f"python -m scripts.show.graph {kept}"
        graph.judge.compile().save(tmp_path / "p.json")
        graph.main(
            [str(tmp_path / "p.dot"), "--program", str(tmp_path / "p.json"), "--kind", "dot"]
        )
        assert (tmp_path / "p.dot").read_text().startswith('digraph "judge(essay)"')

    def test_boxes_do_not_lie_on_one_another(self) -> None:
        found = layout(self.program.compile().graph)
        places = [(column, row) for _, column, row in found.nodes.values()]
        assert len(set(places)) == len(places)
        for edge in found.edges:
            assert found.nodes[edge.source][2] < found.nodes[edge.target][2]


class Kind(Enum):
    ONE = "one"

"""Tracing: what a program does, written down without a model and without its arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given

import minisgl.lang as sgl
from minisgl.lang import graph as g
from minisgl.lang import ir
from minisgl.lang.values import (
    METHODS,
    OPERATIONS,
    Argument,
    Call,
    Constant,
    Ref,
    Value,
    compute,
    expression_of,
    shown,
)
from tests.lang.fake import FakeBackend
from tests.lang.test_interpreter import programs, run_on_state


def ops(tracer: Any) -> list[Any]:
    return [node.op for node in tracer.flatten_nodes()]


class TestGraph:
    def test_a_program_becomes_its_nodes(self) -> None:
        @sgl.function
        def qa(s: sgl.ProgramState, question: str, hint: str = "") -> str:
            s += sgl.user("Q: " + question + hint)
            s += sgl.assistant("A:" + sgl.gen("answer", max_tokens=8) + sgl.gen())
            s += sgl.select(choices=["good", "bad"])
            return s["answer"]

        tracer = qa.trace()
        assert ops(tracer) == [
            ir.RoleBegin("user"), ir.Text("Q: "), g.Say(Argument("question")),
            g.Say(Argument("hint")), ir.RoleEnd("user"), ir.RoleBegin("assistant"), ir.Text("A:"),
            sgl.gen("answer", max_tokens=8), sgl.gen("gen_0"), ir.RoleEnd("assistant"),
            sgl.select("select_0", ["good", "bad"]),
        ]  # fmt: skip
        assert tracer.nodes == tracer.flatten_nodes()
        assert list(tracer.variables) == ["answer", "gen_0", "select_0"]
        assert tracer.returns == Ref(7, "answer")
        assert "test_tracer.py" in tracer.nodes[0].line and tracer.nodes[0].line.endswith("in qa")

    def test_what_is_given_is_known(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState, topics: list[str], style: str) -> None:
            for topic in topics:
                s += f"{topic} in the {style} style.\n"

        assert ops(f.trace(topics=["a", "b"], style="old")) == [
            ir.Text("a in the old style.\n"), ir.Text("b in the old style.\n"),
        ]  # fmt: skip
        assert ops(f.bind(style="old").trace(topics=[])) == []
        with pytest.raises(ValueError, match=r"program f\(.* has no argument 'topic'"):
            f.trace(topic="a")

    def test_branches_are_streams_and_their_values_edges(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "start"
            branches = s.fork(2)
            branches += lambda i: f"{i}:" + sgl.gen("x")
            branches.join()
            s += "first " + s["x"][0]
            branches.join("concate_and_append")

        tracer = f.trace()
        begin, end = tracer.flatten_nodes()[2].id, tracer.flatten_nodes()[5].id
        assert str(g.Graph("f", {}, tracer.block(), Constant(None))).splitlines() == [
            "%0 ConstantText('start')",
            "%1 Fork(2)  after %0",
            "%2 GetForkItem(%1, 0)  needs %1",
            "%3 GetForkItem(%1, 1)  needs %1",
            "%4 ConstantText('0:')  after %2",
            "%5 Gen('x')  after %4",
            "%6 ConstantText('1:')  after %3",
            "%7 Gen('x')  after %6",
            "%8 Join(%5, %7, 'gather_variable')  after %1  needs %5, %7",
            "%9 ConstantText('first ')  after %8",
            "%10 Variable(s['x'])  after %9  needs %5",
            "%11 Join(%5, %7, 'concate_and_append')  after %10  needs %5, %7",
        ]
        assert [node.id for node in tracer.nodes] == [0, 1, 8, 9, 10, 11]
        assert ops(tracer)[8] == g.Join(((begin, end), (3, 7)), "gather_variable")
        assert expression_of(tracer.variables["x"]) == Call("list", (Ref(5, "x"), Ref(7, "x")))

    def test_what_a_node_depends_on(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            branches = s.fork(2)
            branches += sgl.gen("x")
            s += branches[1]["x"]

        assert f.trace().last_node.print_graph_dfs().splitlines() == [
            "%0 Fork(2)",
            "%2 GetForkItem(%0, 1)  after %0",
            "%4 Gen('x')  after %2",
            "%5 Variable(s['x'])  after %0, %4",
        ]
        with pytest.raises(ValueError, match="no last node"):
            _ = sgl.function(lambda s: None).trace().last_node

    def test_a_program_that_is_called_joins_in(self) -> None:
        @sgl.function
        def expand(s: sgl.ProgramState, tip: str) -> str:
            s += "Expand: " + tip + sgl.gen("detail")
            return s["detail"]

        @sgl.function
        def f(s: sgl.ProgramState, topic: str) -> None:
            s += "A tip for " + topic + ":" + sgl.gen("tip")
            state = expand(s["tip"], temperature=0)
            s += state["detail"] + state.ret_value

        tracer = f.trace()
        assert ops(tracer)[4:] == [
            g.Begin({"temperature": 0}), ir.Text("Expand: "), g.Say(Ref(3, "tip")),
            sgl.gen("detail"), g.Say(Ref(7, "detail")), g.Say(Ref(7, "detail")),
        ]  # fmt: skip
        assert [n.stream for n in tracer.flatten_nodes()] == [0] * 4 + [1] * 4 + [0] * 2

        @sgl.function
        def elsewhere(s: sgl.ProgramState) -> None:
            expand.run("x", backend=FakeBackend())

        with pytest.raises(sgl.TraceError, match="a graph runs on one backend"):
            elsewhere.trace()

    def test_pictures_may_be_arguments(self) -> None:
        tracer = sgl.function(lambda s, path: s.user(sgl.image(path) + "What is it?")).trace
        with pytest.raises(ValueError, match="can't see: fake"):
            tracer(backend=FakeBackend())

        @sgl.function
        def f(s: sgl.ProgramState, path: str) -> None:
            s += sgl.user(sgl.image(path))

        assert ops(f.trace())[1] == ir.Image(Argument("path"))

    @given(programs)
    def test_no_program_has_a_faulty_graph(self, program: list[Any]) -> None:
        tracer = sgl.function(lambda s: run_on_state(s, program)).trace()
        graph = g.Graph("f", {}, tracer.block(), tracer.returns)
        assert list(g.faults(graph)) == []


class TestRefusals:
    """E18: what a graph can't hold is refused, with the line and the way out."""

    CASES: dict[str, tuple[Callable[[Any, Any], Any], str]] = {  # noqa: RUF012
        "f-string": (lambda s, q: s.extend(f"I ask {q}"), r'argument \'q\'.*by "\.\.\." \+ value'),
        "str": (lambda s, q: s.extend(str(q)), "its text"),
        "if": (lambda s, q: s.extend("a" if q == "yes" else "b"), r"`q == 'yes'`.*sgl\.when"),
        "while": (lambda s, q: all([q]), r"sgl\.repeat"),
        "in": (lambda s, q: "yes" in q, r"`in`.*sgl\.when"),
        "len": (lambda s, q: len(q), r"how long.*trace\(q=\.\.\.\)"),
        "loop": (lambda s, q: list(q), r"one by one.*compile\(q=\.\.\.\)"),
        "range": (lambda s, q: range(q), "its number"),
        "float": (lambda s, q: float(q), "its number"),
        "dict": (lambda s, q: {q: 1}, "in a dict"),
        "method": (lambda s, q: q.zfill(3), r"`\.zfill`.*can say it, compare it, and call"),
        "join": (lambda s, q: s.extend(" ".join([q])), r"expected str.*put texts together"),
        "times": (lambda s, q: q * 2, "Value.*put texts together"),
        "setting": (lambda s, q: sgl.gen("x", max_tokens=q), "max_tokens=Value.*give the arg"),
        "variable": (lambda s, q: f"{s.extend(sgl.gen('x'))['x']}", "variable 'x'"),
        "text": (lambda s, q: s.text(), "what has been said.*var_scope"),
        "messages": (lambda s, q: s.messages(), "what has been said"),
        "pieces": (lambda s, q: list(s.text_iter()), "what has been said"),
        "meta": (lambda s, q: s.extend(sgl.gen("x")).get_meta_info("x"), "the backend tells"),
        "pieces of x": (lambda s, q: list(s.extend(sgl.gen("x")).text_iter("x")), "the pieces of"),
        "state": (lambda s, q: [s], "returns a state"),
    }

    @pytest.mark.parametrize("case", CASES.values(), ids=CASES)
    def test_each_names_its_line(self, case: tuple[Callable[..., Any], str]) -> None:
        program, message = case
        with pytest.raises(sgl.TraceError, match=message) as caught:
            sgl.function(program).trace()
        if "returns a state" not in message:
            assert f"{__file__}:{program.__code__.co_firstlineno}" in str(caught.value)

    def test_it_is_a_type_error_as_in_sglang_and_no_except_of_the_program_sees_it(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState, question: str) -> None:
            try:
                s += f"{question}"
            except Exception:
                s += "never"

        with pytest.raises(TypeError):
            f.trace()

    def test_other_errors_are_the_programs_own(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += sgl.gen("x")
            return s["y"]

        with pytest.raises(KeyError, match="no variable 'y' in this program; it has 'x'"):
            f.trace()
        with pytest.raises(ZeroDivisionError):
            sgl.function(lambda s: 1 // 0).trace()
        with pytest.raises(TypeError, match="can only concatenate"):
            sgl.function(lambda s: "a" + 1).trace()

    def test_a_trace_ends_with_its_function(self) -> None:
        inner = sgl.function(lambda s: s.extend("a"))
        with pytest.raises(ZeroDivisionError):
            sgl.function(lambda s: 1 // 0).trace()
        assert inner.run(backend=FakeBackend()).text() == "a"


class TestValues:
    q = Value(Argument("q"))

    @pytest.mark.parametrize(
        "asked",
        [
            lambda q: q == "Yes ",
            lambda q: q != "Yes ",
            lambda q: (q < "Z") & (q <= "Z") | (q > "a") & (q >= "a"),
            lambda q: "a" + q + "b" + (q + q),
            lambda q: q.strip().lower() == "yes",
            lambda q: [q[0], q[1:], q[:-1], {"k": (q, 1)}],
            lambda q: q.split("e")[1],
            lambda q: q.replace("Y", "N").startswith("N"),
        ],
    )
    def test_they_compute_what_python_would(self, asked: Callable[[Any], Any]) -> None:
        expression = expression_of(asked(self.q))
        assert compute(expression, lambda _: "Yes ") == asked("Yes ")

    def test_every_method_is_that_of_strings(self) -> None:
        arguments: dict[str, tuple[Any, ...]] = {
            "endswith": ("b",), "startswith": ("a",), "partition": (" ",), "rpartition": (" ",),
            "removeprefix": ("a",), "removesuffix": ("b",), "replace": ("a", "c"),
        }  # fmt: skip
        for name in METHODS:
            value = getattr(self.q, name)(*arguments.get(name, ()))
            expected = getattr("a b", name)(*arguments.get(name, ()))
            assert compute(expression_of(value), lambda _: "a b") == expected
            assert f"q.{name}(" in shown(expression_of(value))
        assert not any(name.startswith("_") for name in OPERATIONS)
        with pytest.raises(TypeError):  # and of nothing else
            compute(Call("strip", (Constant(3),)), lambda _: None)

    def test_a_thousand_texts_are_one_sum(self) -> None:
        text: Any = ""
        for _ in range(5 * sys.getrecursionlimit()):
            text = text + self.q
        assert len(compute(expression_of(text), lambda _: "ab")) == 10 * sys.getrecursionlimit()

    def test_chains_are_no_values(self) -> None:
        with pytest.raises(TypeError, match="can be added to a program, but is no value"):
            expression_of("a" + sgl.gen("x"))

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s["x"] = "a" + sgl.gen("x")

        with pytest.raises(TypeError, match="is no value"):
            f.trace()

    def test_as_a_program_writes_them(self) -> None:
        q = self.q
        for value, text in {
            "Value(q.strip() == 'yes')": q.strip() == "yes",
            "Value(q[1:] + 'a' + q)": q[1:] + "a" + q,
            "Value(q[0])": q[0],
        }.items():
            assert repr(text) == value
        assert shown(expression_of([q, {"k": (q,)}])) == "[q, {'k': [q]}]"

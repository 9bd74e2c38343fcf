"""Each optimisation: the result is unchanged, and its effect is there; off, it is not."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minisgl.lang as sgl
from minisgl.lang import graph as g
from minisgl.lang import ir
from minisgl.lang.passes import NO_PASSES, Passes
from minisgl.lang.passes.batch_gens import batches
from minisgl.lang.passes.code_motion import (
    Piece,
    by_model,
    by_rules,
    check,
    move_code,
    order_in,
    prompt,
    shareable,
    split,
)
from minisgl.lang.passes.dead_code import remove_dead_code
from minisgl.lang.passes.fold_text import fold_text
from minisgl.lang.passes.order_runs import order_runs, shared
from minisgl.lang.values import Argument
from scripts.bench import code_motion
from tests.lang.fake import FakeBackend, words


def compiled(program: Any, passes: Passes = NO_PASSES) -> sgl.CompiledProgram:
    return sgl.function(program).compile(passes=passes)


def kinds(graph: g.Graph) -> list[str]:
    return [type(node.op).__name__ for node in graph.nodes]


def same(program: Any, *args: Any, **switch: Any) -> tuple[FakeBackend, FakeBackend]:
    """The program without and with one pass says the same; what each of them asked."""
    off, on = FakeBackend(), FakeBackend()
    one = compiled(program).run(*args, backend=off)
    other = compiled(program, Passes(**{**vars(NO_PASSES), **switch})).run(*args, backend=on)
    assert one.text() == other.text()
    assert one.ret_value == other.ret_value
    return off, on


class TestFoldText:
    @staticmethod
    def program(s: sgl.ProgramState, q: str) -> None:
        s += "a"
        s += ""
        s += "b" + q + "c"
        s += "d"
        forks = s.fork(1)
        forks += "e"
        forks.join("concate_and_append")
        forks += "too late"
        s += "f"
        s += "g"

    def test_texts_that_follow_one_another_are_one(self) -> None:
        same(self.program, "Q", fold_text=True)
        graph = compiled(self.program).graph
        folded = fold_text(graph)
        texts = [node.op.text for node in folded.nodes if isinstance(node.op, ir.Text)]
        assert texts == ["ab", "cd", "e", "too late", "fg"]
        assert (len(graph.nodes), len(folded.nodes)) == (13, 9)
        assert list(g.faults(folded)) == []


class TestDeadCode:
    @staticmethod
    def program(s: sgl.ProgramState) -> Any:
        s += "start"
        s.fork(2)[0].extend("never joined" + sgl.gen("a"))
        forks = s.fork(3)
        forks += lambda i: f"{i}" + sgl.gen("x", max_tokens=1)
        forks += "after" + sgl.gen("y", max_tokens=1)
        s += forks[1]["x"]
        s += sgl.when(forks[0]["x"] == "?", lambda t: t.fork(1)[0].extend(sgl.gen("dead")), "no")
        return forks[1]["x"]

    def test_what_nobody_reads_is_not_asked_for(self) -> None:
        off, on = same(self.program, dead_code=True)
        assert len(off.asked("generate")) == 7
        assert sorted(on.asked("generate")) == ["start0", "start1"]

    def test_what_is_gathered_is_read(self) -> None:
        def gathers(s: sgl.ProgramState) -> None:
            forks = s.fork(2)
            forks += sgl.gen("x", max_tokens=1) + "and more" + sgl.gen("y") + "nobody reads this"
            forks.join()

        graph = compiled(gathers).graph
        left = remove_dead_code(graph)
        assert kinds(left).count("Gen") == 4 and kinds(left).count("Text") == 2
        assert list(g.faults(left)) == []
        join = next(node.op for node in left.nodes if isinstance(node.op, g.Join))
        ends = {node.id for node in left.nodes if isinstance(node.op, ir.Gen)}
        assert {end for _, end in join.branches} <= ends

    def test_of_a_loop_what_ends_it_is_read(self) -> None:
        def loops(s: sgl.ProgramState) -> None:
            def body(s: sgl.ProgramState) -> None:
                branch = s.fork(1)[0]
                branch += "b" + sgl.gen("x", max_tokens=1)
                ends.append(branch)

            ends: list[Any] = []
            s += sgl.repeat(body, 3, until=lambda s: ends[-1]["x"] > " 4")

        same(loops, dead_code=True)


class TestBatchGens:
    class Counting(FakeBackend):
        def __init__(self) -> None:
            super().__init__()
            self.batches: list[list[str]] = []

        async def generate_all(self, contexts: Sequence[Any], params: Sequence[Any]) -> Any:
            self.batches.append([context.text for context in contexts])
            return await super().generate_all(contexts, params)

    @staticmethod
    def program(s: sgl.ProgramState) -> None:
        s += "start"
        forks = s.fork(3)
        forks += lambda i: f"{i}" + sgl.gen("x", max_tokens=1)
        forks[0] += "more" + sgl.gen("y", max_tokens=1)
        forks.join()
        s += "sum" + sgl.gen("sum", n=2) + s["x"][0] + s["x"][1] + sgl.gen("last")

    def test_gens_that_are_ready_together_are_one_submission(self) -> None:
        off, on = self.Counting(), self.Counting()
        one = compiled(self.program).run(backend=off)
        other = compiled(self.program, Passes()).run(backend=on)
        assert one.text() == other.text() and one["sum"] == other["sum"]
        assert off.batches == []
        assert [sorted(b) for b in on.batches] == [["start0", "start1", "start2", "startsum"]]

    def test_no_gen_waits_for_one_that_is_not_ready(self) -> None:
        graph = compiled(self.program).graph
        found = batches(graph)
        names = {node.id: node.op.name for node in graph.nodes if isinstance(node.op, ir.Gen)}
        assert [[names[i] for i in batch] for batch in found] == [["x", "x", "x", "sum"]]


class TestOrderAndPrefix:
    LONG = "A beginning that all the runs of this batch have in common, and long enough. "

    @staticmethod
    def program(s: sgl.ProgramState, subject: str, question: str) -> None:
        s += sgl.user(TestOrderAndPrefix.LONG + "Subject: " + subject + "\n" + question)
        s += sgl.assistant(sgl.gen("x", max_tokens=2))

    ITEMS = [(subject, f"{i}") for i in range(4) for subject in ("algebra", "biology", "art")]  # noqa: RUF012

    def test_neighbours_share_what_they_begin_with(self) -> None:
        off, on = FakeBackend(), FakeBackend()
        one = compiled(self.program).run_batch(self.ITEMS, backend=off)
        other = compiled(self.program, Passes(cache_prefix=False)).run_batch(self.ITEMS, backend=on)
        assert [s["x"] for s in one] == [s["x"] for s in other]
        assert sorted(off.asked("generate")) == sorted(on.asked("generate"))
        gain = shared(on.asked("generate")) - shared(off.asked("generate"))
        assert gain >= 3 * (len("algebra") + len("biology") + len("art"))

    @given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["x", "xy"])), max_size=6))
    def test_no_order_shares_more(self, items: list[tuple[str, str]]) -> None:
        graph = compiled(lambda s, p, q: s.extend(p + q) and None).graph
        runs = [{"p": p, "q": q} for p, q in items]
        order = order_runs(graph, runs)
        texts = [p + q for p, q in items]
        best = max((shared(list(each)) for each in permutations(texts)), default=0)
        assert shared([texts[i] for i in order]) == best

    def test_the_common_prefix_is_sent_once_and_first(self) -> None:
        on, off = FakeBackend(), FakeBackend()
        compiled(self.program, Passes()).run_batch(self.ITEMS, backend=on)
        assert on.calls[0][0] == "cache_prefix"
        assert on.asked("cache_prefix") == ["<|im_start|>user\n" + self.LONG + "Subject: "]
        compiled(self.program).run_batch(self.ITEMS, backend=off)
        compiled(self.program, Passes()).run_batch(self.ITEMS[:1], backend=off)
        assert off.asked("cache_prefix") == []


def pieces_of(*texts: str) -> list[Piece]:
    """Texts in braces stand for arguments."""
    nodes = [
        g.Node(i, 0, g.Say(Argument(t.strip("{}"))) if t.startswith("{") else ir.Text(t))
        for i, t in enumerate(texts)
    ]
    return split(nodes)


class TestCodeMotion:
    @staticmethod
    def program(s: sgl.ProgramState, question: str) -> None:
        s += "Here is a question: " + question + "\n"
        s += "Act as a careful teacher. Answer in one word.\nAnswer:"
        s += sgl.gen("answer", max_tokens=2)

    FIRST = "Act as a careful teacher. Answer in one word.\n"

    def test_what_is_constant_comes_first(self) -> None:
        moved = compiled(self.program, Passes(code_motion="rules"))
        assert list(g.faults(moved.graph)) == []
        assert shareable(moved.graph) == self.FIRST + "Here is a question: "
        assert shareable(compiled(self.program, Passes()).graph) == "Here is a question: "
        backend = FakeBackend()
        state = moved.run("Why?", backend=backend)
        text = self.FIRST + "Here is a question: Why?\nAnswer:"
        assert state.text() == text + words(text, 2)

    def test_a_model_proposes_and_is_checked(self) -> None:
        class Proposes(FakeBackend):
            def __init__(self, order: str, **more: Any) -> None:
                super().__init__(**more)
                self.order = order

            def answer(self, *_: Any) -> str:  # type: ignore[override]
                return self.order

        for needs_roles in (False, True):
            good = Proposes(" 1, 2, 0, 3\n", needs_roles=needs_roles)
            moved = compiled(self.program, Passes(code_motion=good))
            assert shareable(moved.graph) == self.FIRST + "Here is a question: "
            assert "0: Here is a question: {question}\n1: Act as" in good.calls[0][1]
        plain = str(compiled(self.program).graph)
        for bad in (" 1, 2, 3, 0", "no idea", "0, 0, 1, 2, 3", "1, 2, 0", ""):
            asked = Passes(**{**vars(NO_PASSES), "code_motion": Proposes(bad)})
            assert str(compiled(self.program, asked).graph) == plain

    @pytest.mark.parametrize(
        ("texts", "order"),
        [
            (["Text: ", "{t}", "\nBe brief.\nSummary:"], [1, 0, 2]),
            (["Text: ", "{t}", "\nSummarise the text above.\nSummary:"], [0, 1, 2]),
            (["Text: ", "{t}", "\nRead it twice.\nBe brief.\nSummary:"], [2, 0, 1, 3]),
            (["{t}", "\nBe brief.\n", "{u}", "\nNo lists.\nSummary:"], [1, 3, 0, 2, 4]),
            (["{t}", "\nThe answers are:\n", "{u}", "\nNo lists.\nA:"], [3, 0, 1, 2, 4]),
            (["Be brief.\nNo lists.\n", "{t}", "\nA:"], [0, 1, 2, 3]),
        ],
    )
    def test_rules(self, texts: list[str], order: list[int]) -> None:
        assert by_rules(pieces_of(*texts)) == order

    def test_what_is_wrong_with_an_order_is_said(self) -> None:
        pieces = pieces_of("Text: ", "{t}", "\nRead it.\nHere is more:\n", "{u}", "\nEnd:")
        assert len(pieces) == 5
        for order, message in {
            (0, 1, 2, 3): "each once",
            (0, 1, 2, 4, 3): "is not the last",
            (3, 1, 2, 0, 4): "changed its order",
            (1, 0, 2, 3, 4): "'Read it.' refers to what comes before",
            (0, 2, 1, 3, 4): "'Here is more:' is not followed",
        }.items():
            assert message in str(check(pieces, order))
        assert check(pieces, range(5)) is None

    @given(st.lists(st.sampled_from(
        ["{a}", "{b}", "Be brief. ", "Use it.\n", "Data:\n", "No. Yes.\n", "x", "\n"]
    ), max_size=10))  # fmt: skip
    def test_by_rules_an_order_is_right_and_shares_no_less(self, texts: list[str]) -> None:
        pieces = pieces_of(*texts)
        assert "".join(piece.text for piece in pieces) == "".join(texts)
        order = by_rules(pieces)
        assert check(pieces, order) is None

        def constant(order: Sequence[int]) -> int:
            told = 0
            for i in order:
                if not pieces[i].is_constant:
                    break
                told += len(pieces[i].text)
            return told

        assert constant(order) >= constant(range(len(pieces)))

    def test_only_what_is_said_before_the_first_answer_moves(self) -> None:
        def late(s: sgl.ProgramState, q: str) -> None:
            s += sgl.gen("x") + q + "\nBe brief.\nA:" + sgl.gen("y")

        graph = compiled(late).graph
        assert prompt(graph) == (0, [])
        assert move_code(graph, "rules") == graph

        def role(s: sgl.ProgramState, q: str) -> None:
            s += sgl.system("Be kind.") + sgl.user("Q: " + q + "\nBe brief.\nNow answer.")

        moved = move_code(compiled(role).graph, "rules")
        assert kinds(moved)[:4] == ["RoleBegin", "Text", "RoleEnd", "RoleBegin"]
        assert isinstance(moved.nodes[4].op, ir.Text) and moved.nodes[4].op.text == "Be brief.\n"

    def test_the_studys_own_orders_are_accepted_and_by_rules_most_are_found(self) -> None:
        found = 0
        for template in code_motion.TEMPLATES:
            _, pieces = prompt(code_motion.graph_of(template))
            assert check(pieces, template.right) is None, template.name
            found += tuple(by_rules(pieces)) == template.right
        assert (len(code_motion.TEMPLATES), found) == (20, 19)

        def right(pieces: Sequence[Piece]) -> Sequence[int]:
            return next(
                each.right
                for each in code_motion.TEMPLATES
                if prompt(code_motion.graph_of(each))[1] == pieces
            )

        rows = code_motion.study(code_motion.TEMPLATES, right, len)
        assert all(row["tokens after"] >= row["tokens before"] for row in rows)
        told = code_motion.summary("a person", rows)
        assert (told["prompts"], told["right"], told["another, accepted"]) == (20, 20, 0)

    def test_numbers_in_an_answer(self) -> None:
        assert order_in("The order is 2,0 , 1.") == [2, 0, 1]
        assert by_model([], FakeBackend()) != [0]


def test_mistakes() -> None:
    with pytest.raises(ValueError, match="fold_text=1: give True or False"):
        Passes(fold_text=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="code_motion='yes': give \"rules\", a backend, or None"):
        Passes(code_motion="yes")  # type: ignore[arg-type]

"""Compiled programs on a real engine: the same answers, and what is shared is computed once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import minisgl.lang as sgl
from minisgl import Engine, SamplingParams
from minisgl.lang.passes import NO_PASSES
from tests.engine.common import assert_all_free, fp32
from tests.lang.fake import no_thread_stays

GREEDY = {"temperature": 0, "ignore_eos": True, "max_tokens": 6}
ESSAY = "Trees cool the street, and a walk below them lowers the pulse. " * 4


@pytest.fixture(scope="module")
def engine(tiny_model_dir: Path) -> Iterator[Engine]:
    with fp32(str(tiny_model_dir)) as engine:
        yield engine


@pytest.fixture(autouse=True)
def clean(engine: Engine) -> Iterator[None]:
    assert engine.flush_cache()
    yield
    assert_all_free(engine)


@sgl.function
def judge(s: sgl.ProgramState, essay: str) -> None:
    s += essay + sgl.select("kind", [" essay", " list"])
    forks = s.fork(4)
    forks += lambda i: f" {i}:" + sgl.gen("judgment")
    forks.join()
    s += sgl.when(s["kind"] == " essay", s["judgment"][0] + "!", s["judgment"][1] + "?")
    s += " In sum:" + sgl.gen("sum", n=2)


def test_it_says_what_the_function_says(engine: Engine) -> None:
    expected = judge.run(ESSAY, backend=engine, **GREEDY)
    for passes in (NO_PASSES, sgl.Passes()):
        with no_thread_stays():
            state = judge.compile(engine, passes).run(ESSAY, **GREEDY)
        assert state.text() == expected.text()
        assert state["judgment"] == expected["judgment"] and state["sum"] == expected["sum"]
        assert state.get_meta_info("sum")[0]["finish_reason"]["type"] == "length"


def test_a_program_that_speculates_may_be_called(engine: Engine) -> None:
    """It asks for some gens and has others ahead, so no batch of them becomes full."""
    begun = "Two"
    whole = engine.generate(begun, SamplingParams(temperature=0, max_tokens=64))
    said = [engine.tokenizer.decode(whole.token_ids[:n]) for n in (3, 5)]
    settings = {"temperature": 0, "max_tokens": 3}

    @sgl.function(num_api_spec_tokens=64)
    def speculates(s: sgl.ProgramState) -> list[str]:
        s += begun + sgl.gen("a", **settings)
        forks = s.fork(2)
        forks += [said[1].removeprefix(said[0]), "else"]
        forks += sgl.gen("b", **settings)
        forks.join()
        return s["b"]

    @sgl.function
    def calls(s: sgl.ProgramState) -> list[str]:
        state = speculates()
        s += "In sum" + sgl.gen("c", **settings)
        return state.ret_value

    expected = calls.compile(engine, NO_PASSES).run().ret_value
    assert expected[0] == whole.text[len(said[1]) :][: len(expected[0])]
    assert calls.compile(engine).run().ret_value == expected


def test_branches_sent_together_compute_the_essay_once(engine: Engine) -> None:
    size = len(engine.tokenizer.encode(ESSAY))
    before = engine.stats()
    judge.compile(engine).run(ESSAY, **GREEDY)
    after = engine.stats()
    cached = after.cached_tokens - before.cached_tokens
    computed = after.prompt_tokens - before.prompt_tokens - cached
    assert size <= computed < 2 * size


def test_a_batch_of_graphs(engine: Engine) -> None:
    compiled = judge.compile(engine)
    essays = [(ESSAY + str(i),) for i in range(6)]
    states = compiled.run_batch(essays, **GREEDY)
    assert [s.text() for s in states] == [compiled.run(*e, **GREEDY).text() for e in essays]

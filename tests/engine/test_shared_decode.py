"""Shared decode through the engine: the same tokens, whatever is shared and however it is read."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisgl import Completion, Engine
from minisgl.engine import model_runner
from minisgl.engine.cuda_graph import CudaGraphRunner
from minisgl.engine.step import Step
from scripts.make_tiny_model import make_tiny_model
from tests.engine.common import fp32, greedy

SYSTEM = list(range(3, 43))
FEW_SHOT = [*SYSTEM, *range(50, 80)]
# Two questions under each of two few-shot prefixes, one short chat, one prompt of its own.
PROMPTS = [
    [*FEW_SHOT, 90, 91],
    [*FEW_SHOT, 90, 92],
    [*FEW_SHOT, 93],
    [*SYSTEM, 60, 61, 62],
    [*SYSTEM, 60, 61, 63],
    [5, 6, 7],
]


def ids(completions: list[Completion]) -> list[list[int]]:
    return [c.token_ids for c in completions]


class Watched:
    """An engine that shares whatever can be shared, and notes what it shared in each step."""

    def __init__(self, path: Path, min_saved: int = 1, **settings: Any) -> None:
        self.engine = fp32(str(path), **settings)
        self.shared: list[set[tuple[int, int, int]]] = []  # (start, stop, members) by step
        runner = self.engine.loop.runner
        assert runner.min_saved is not None
        runner.min_saved = min_saved
        forward = runner.forward

        def note(step: Step) -> Any:
            result = forward(step)
            runner.check()
            self.shared.append({(s.start, s.stop, len(s.members)) for s in runner._segments})
            return result

        runner.forward = note  # type: ignore[method-assign]

    def seen(self) -> set[tuple[int, int, int]]:
        return set().union(*self.shared)


@pytest.fixture(scope="module")
def alone(tiny_model_dir: Path) -> list[list[int]]:
    """Each prompt by itself, 24 tokens."""
    with fp32(str(tiny_model_dir), shared_decode=False) as engine:
        assert engine.loop.runner.min_saved is None
        return ids([engine.generate(p, greedy(24)) for p in PROMPTS])


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"decode_workspace": False},
        {"max_running": 3},
        {"prefill_budget": 16},
        {"kv_tokens": 230},
        {"prefix_cache": "none"},
    ],
    ids=str,
)
def test_equal_answers_with_joins_leaves_and_retraction(
    tiny_model_dir: Path, alone: list[list[int]], settings: dict[str, Any]
) -> None:
    watched = Watched(tiny_model_dir, **settings)
    with watched.engine as engine:
        params = [greedy(n) for n in (24, 5, 12, 24, 8, 1)]  # they leave one after another
        expected = [a[: p.max_tokens] for a, p in zip(alone, params, strict=True)]
        for _ in range(2):  # cold and warm
            assert ids(engine.generate(PROMPTS, params)) == expected
        engine.check()
    is_shared = bool(watched.seen())
    assert is_shared == ("prefix_cache" not in settings)


def test_nested_prefixes_become_nested_segments(
    tiny_model_dir: Path, alone: list[list[int]]
) -> None:
    watched = Watched(tiny_model_dir)
    with watched.engine as engine:
        assert ids(engine.generate(PROMPTS, greedy(24))) == alone
    assert {(0, 40, 5), (40, 70, 3), (70, 71, 2), (40, 42, 2)} <= watched.seen()


def test_answers_to_one_prompt_share_it(tiny_model_dir: Path, alone: list[list[int]]) -> None:
    watched = Watched(tiny_model_dir)
    with watched.engine as engine:
        answers = engine.generate(PROMPTS[0], greedy(24, n=4))
        assert ids(answers) == [alone[0]] * 4
    assert (0, len(PROMPTS[0]) - 1, 4) in watched.seen()


def test_forks_of_a_long_answer_move_to_a_larger_slab(tiny_model_dir: Path) -> None:
    first = [*range(3, 50)] * 2
    forks = [[*first, i] for i in range(60, 63)]
    with fp32(str(tiny_model_dir), context_length=420, shared_decode=False) as engine:
        expected = ids([engine.generate(p, greedy(300)) for p in forks])
    watched = Watched(tiny_model_dir, context_length=420)
    with watched.engine as engine:
        assert ids(engine.generate(forks, greedy(300))) == expected
    assert (0, len(first), 3) in watched.seen()


def test_what_saves_little_is_not_shared(tiny_model_dir: Path, alone: list[list[int]]) -> None:
    watched = Watched(tiny_model_dir, min_saved=10_000)
    with watched.engine as engine:
        assert ids(engine.generate(PROMPTS, greedy(24))) == alone
    assert watched.seen() == set()


def test_the_grouping_is_asked_for_only_when_the_batch_changes(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    find = model_runner.find_segments

    def counted(*args: Any) -> Any:
        calls.append(len(args[0]))
        return find(*args)

    monkeypatch.setattr(model_runner, "find_segments", counted)
    with fp32(str(tiny_model_dir)) as engine:
        engine.generate(PROMPTS[:3], greedy(24))
    assert calls == [3]


@pytest.mark.parametrize("leave", ["finish", "abort"])
def test_an_idle_engine_keeps_nothing_of_those_who_left(tiny_model_dir: Path, leave: str) -> None:
    watched = Watched(tiny_model_dir)
    engine, runner = watched.engine, watched.engine.loop.runner
    workspace = runner.workspace
    assert workspace is not None
    with engine:
        if leave == "finish":
            engine.generate(PROMPTS, greedy())
        else:
            handles = [engine.submit(prompt, greedy(None)) for prompt in PROMPTS]
            for handle in handles:
                next(handle)  # it decodes
            for handle in handles:
                handle.abort()
            for handle in handles:
                assert handle.result().finish_reason == "abort"
        assert watched.seen()
        assert engine.call(lambda: (workspace.used, len(workspace.shared))) == (0, 0)
        assert engine.call(lambda: runner._present + list(workspace.place)) == []


def test_a_sliding_window_shares_nothing(tmp_path: Path) -> None:
    path = make_tiny_model(
        tmp_path / "m", architecture="MistralForCausalLM", sliding_window=8, num_layers=1
    )
    with fp32(str(path)) as engine:
        assert engine.loop.runner.min_saved is None


def test_shared_steps_run_without_a_graph(tiny_model_dir: Path, alone: list[list[int]]) -> None:
    watched = Watched(tiny_model_dir, min_saved=80, decode_workspace=False, max_running=4)
    replays: list[int] = []

    def capture(step: Callable[[], None]) -> Callable[[], None]:
        return lambda: replays.append(1) or step()  # type: ignore[func-returns-value]

    with watched.engine as engine:
        runner, s = engine.loop.runner, engine.loop.scheduler
        runner.graphs = CudaGraphRunner(runner.model, s.pool, s.req_to_token.table, 4, capture)
        params = [greedy(n) for n in (12, 12, 12, 20)]
        expected = [a[: p.max_tokens] for a, p in zip(alone[2:], params, strict=True)]
        assert ids(engine.generate(PROMPTS[2:], params)) == expected
    is_shared = [bool(s) for s in watched.shared]
    assert True in is_shared
    # The step of the prompts runs without a graph too, and shares nothing yet.
    assert len(replays) == is_shared.count(False) - 1


@given(
    prompts=st.lists(st.lists(st.integers(3, 5), min_size=1, max_size=20), min_size=2, max_size=6),
    lengths=st.lists(st.integers(0, 9), min_size=6, max_size=6),
    which=st.sampled_from(["workspace", "pool"]),
)
def test_any_mix_under_pressure_equals_each_alone(
    tight: dict[str, Engine], prompts: list[list[int]], lengths: list[int], which: str
) -> None:
    """Few slots, a small budget, few rows: members join, leave, are retracted and return."""
    params = [greedy(n) for n in lengths[: len(prompts)]]
    roomy = tight["roomy"]
    alone = [roomy.generate(p, s).token_ids for p, s in zip(prompts, params, strict=True)]
    assert ids(tight[which].generate(prompts, params)) == alone
    tight[which].check()


@pytest.fixture(scope="module")
def tight(tiny_model_dir: Path) -> Iterator[dict[str, Engine]]:
    small = {"kv_tokens": 60, "prefill_budget": 8, "max_running": 4}
    workspace = Watched(tiny_model_dir, **small)
    pool = Watched(tiny_model_dir, **small, decode_workspace=False)
    with (
        workspace.engine,
        pool.engine,
        fp32(str(tiny_model_dir), prefix_cache="none") as roomy,
    ):
        yield {"workspace": workspace.engine, "pool": pool.engine, "roomy": roomy}
    assert workspace.seen()
    assert pool.seen()

"""Figures 7 and 12: workloads on random models of the shapes, one system after another."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from minisgl import Engine, SamplingParams
from scripts.bench import in_turn, random_models, shapes
from scripts.bench.figures import Options, mixtral, tensor_parallel
from scripts.bench.random_models import prepare, save_weights
from scripts.bench.results import Result
from scripts.bench.shapes import SHAPES
from scripts.bench.workloads import WORKLOADS, Size
from scripts.bench.workloads.systems import OFF, OURS

QUICK = Options(quick=True, device="cpu")
pytestmark = pytest.mark.filterwarnings("ignore:load_format='dummy'")


@pytest.fixture(autouse=True)
def tiny_shapes(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes of a few thousand weights, a tokenizer that needs no default model, and less to do."""
    sizes = {"hidden": 32, "inner": 48, "layers": 2, "heads": 4, "kv_heads": 2, "vocab": 384}
    tiny = {name: replace(shape, **sizes) for name, shape in SHAPES.items()}
    monkeypatch.setattr(random_models, "SHAPES", tiny)
    monkeypatch.setattr(shapes, "resolve_model", lambda name: tiny_model_dir)
    monkeypatch.setattr(in_turn, "size_of", lambda workload, options: Size(4, 1, 0.05))


def column(result: Result, table: int, name: str) -> list[object]:
    rows = result.tables[table]
    return [row[rows.columns.index(name)] for row in rows.rows]


def test_with_everything_off_mixtral_answers_alike() -> None:
    names = ("mmlu", "hellaswag", "react", "json_decoding")  # one token, select, stops, a pattern
    result = mixtral.run(QUICK, names, scale=1)
    assert column(result, 0, "workload") == [WORKLOADS[name].title for name in names]
    assert tuple(result.raw) == names
    for name, raw in result.raw.items():
        equal, answers = raw[OFF]["equal"]
        assert equal == answers > 0, name
        (ours,), (off,) = raw[OURS]["hit_rates"], raw[OFF]["hit_rates"]
        assert ours > 0 == off, name
    assert result.notes[0].startswith("The model: mixtral-8x7b: 0 million random weights; 1 rank")


def test_two_ranks_answer_like_one_and_say_less_when_a_prefix_is_cached() -> None:
    names = ("mmlu", "hellaswag")  # the second wants logits of its prompts' tokens
    result = tensor_parallel.run(QUICK, names, scale=1)
    for name in names:
        for other in (OFF, tensor_parallel.ONE_RANK):
            equal, answers = result.raw[name][other]["equal"]
            assert equal == answers > 0, (name, other)
    for said in result.raw["all_reduce"].values():
        assert (said["per_sum"], said["layers"]) == (32 * 4, 2)
        assert said["counted"] == said["total"] > 0
    ours, off = (column(result, 2, f"tokens computed, {OURS}"), column(result, 2, "all off"))
    assert all(0 < a < b for a, b in zip(ours, off, strict=True))  # type: ignore[operator]


def test_other_systems_get_the_weights_that_the_engine_draws(tmp_path: Path) -> None:
    model = prepare(QUICK, "mixtral-8x7b", 1, tmp_path)
    drawn, stored = model, save_weights(model)
    params = SamplingParams(max_tokens=8, temperature=0, ignore_eos=True)
    answers = []
    for each in (drawn, stored):
        with Engine(str(each.path), kv_tokens=100, **each.settings) as engine:
            answers.append(engine.generate("one two three", params).token_ids)
    assert answers[0] == answers[1]
    with pytest.raises(ValueError, match="peer 'transformers' reads weights from files"):
        mixtral.run(replace(QUICK, real_shapes=True, peers=(("transformers", "python"),)), ["mmlu"])


@pytest.mark.slow
def test_a_peer_runs_the_same_programs() -> None:
    options = replace(QUICK, peers=(("transformers", sys.executable),))
    result = mixtral.run(options, ["mmlu", "react"], scale=1)
    for name in ("mmlu", "react"):
        equal, answers = result.raw[name]["transformers"]["equal"]
        assert equal == answers > 0

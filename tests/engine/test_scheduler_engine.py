"""The scheduler's promises once more with a real model: equal answers, and what was computed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from minisgl import Engine, SamplingParams
from minisgl.config import POLICIES, EngineConfig
from minisgl.engine.engine import EngineError
from minisgl.engine.memory import plan_memory
from minisgl.models.config import ModelConfig
from scripts.make_tiny_model import make_tiny_model
from tests.engine.common import assert_all_free, fp32, greedy

PREFIX = list(range(100, 140))
TOGETHER = [[*PREFIX, 5 + i, 50] for i in range(8)]


@pytest.fixture(scope="module")
def alone(tiny_model_dir: Path) -> Iterator[Engine]:
    """Shares nothing: what every answer is compared with."""
    with fp32(str(tiny_model_dir), prefix_cache="none") as engine:
        yield engine


def answers(engine: Engine, prompts: list[list[int]], params: SamplingParams) -> list[list[int]]:
    return [engine.generate(prompt, params).token_ids for prompt in prompts]


@pytest.mark.parametrize(
    "settings",
    [{}, {"decode_workspace": False}, {"prefill_budget": 16}, {"policy": "dfs-weight"}],
    ids=str,
)
def test_eight_cold_prompts_compute_their_prefix_once(
    tiny_model_dir: Path, alone: Engine, settings: dict[str, Any]
) -> None:
    with fp32(str(tiny_model_dir), **settings) as engine:
        together = engine.generate(TOGETHER, greedy(6))
        stats = engine.stats()
        assert stats.prompt_tokens - stats.cached_tokens == 40 + 8 * 2
        if "prefill_budget" not in settings:
            assert stats.steps == 6, "the prefix and all that builds on it are one step"
        assert [a.token_ids for a in together] == answers(alone, TOGETHER, greedy(6))
        assert_all_free(engine)


def test_a_sliding_window_reads_what_the_same_step_writes(tmp_path: Path) -> None:
    path = str(make_tiny_model(tmp_path / "m", architecture="MistralForCausalLM", sliding_window=8))
    with fp32(path) as engine, fp32(path, prefix_cache="none") as alone:
        together = engine.generate(TOGETHER, greedy(6))
        assert sum(a.cached_tokens for a in together) == 7 * 40
        assert [a.token_ids for a in together] == answers(alone, TOGETHER, greedy(6))


@pytest.mark.parametrize("policy", POLICIES)
def test_every_policy_gives_the_same_answers_under_pressure(
    tiny_model_dir: Path, alone: Engine, policy: str
) -> None:
    prompts = [[*PREFIX[: 3 * (i % 4)], 5 + i, 6] for i in range(12)]
    with fp32(
        str(tiny_model_dir), policy=policy, max_overtakes=2, kv_tokens=40, prefill_budget=9,
        max_running=5, max_cached_tokens=20,
    ) as engine:  # fmt: skip
        together = engine.generate(prompts, greedy(16))
        assert [a.token_ids for a in together] == answers(alone, prompts, greedy(16))
        assert engine.stats().retractions > 0
        assert engine.stats().tree_slots <= 20
        assert_all_free(engine)


def test_namespaces_share_nothing_and_answer_the_same(tiny_model_dir: Path) -> None:
    with fp32(str(tiny_model_dir)) as engine:
        cached = {}
        tokens = set()
        for namespace in (None, "adapter", "salt", "adapter", None):
            answer = engine.generate(TOGETHER[0], greedy(4, namespace=namespace))
            cached.setdefault(namespace, []).append(answer.cached_tokens)
            tokens.add(tuple(answer.token_ids))
        assert cached == {None: [0, 41], "adapter": [0, 41], "salt": [0]}
        assert len(tokens) == 1


def test_a_cap_of_zero_keeps_nothing_but_shares_what_runs(tiny_model_dir: Path) -> None:
    with fp32(str(tiny_model_dir), max_cached_tokens=0) as engine:
        together = engine.generate(TOGETHER, greedy(6))
        assert sum(a.cached_tokens for a in together) == 7 * 40
        assert engine.stats().free_slots == engine.stats().pool_slots
        assert engine.generate(TOGETHER[0], greedy(2)).cached_tokens == 0


@pytest.mark.parametrize("company", [1, 3])
def test_a_fault_leaves_no_poison_in_the_cache(tiny_model_dir: Path, company: int) -> None:
    """NaN in K or V of a token would fail all who match it later, were it still there."""
    prompts = [[*PREFIX, 300, 5 + i] for i in range(company)]
    with fp32(str(tiny_model_dir)) as engine:
        healthy = answers(engine, prompts, greedy(4))
        engine.flush_cache()
        embed = engine.loop.runner.model.model.embed.weight
        weights = embed[300].clone()
        engine.call(lambda: embed[300].fill_(float("nan")))
        handles = [engine.submit(prompt, greedy(4)) for prompt in prompts]
        for handle in handles:
            with pytest.raises(EngineError, match="NaN"):
                handle.result()
        engine.check()
        engine.call(lambda: embed[300].copy_(weights))
        assert answers(engine, prompts, greedy(4)) == healthy
        assert_all_free(engine)


def test_going_idle_checks_the_accounts_but_walks_no_tree(tiny_model_dir: Path) -> None:
    def walk() -> None:
        raise AssertionError("the whole tree was walked")

    with fp32(str(tiny_model_dir)) as engine:
        engine.call(lambda: setattr(engine.loop.scheduler.tree, "check", walk))
        assert engine.generate([5, 6], greedy(2)).completion_tokens == 2
        with pytest.raises(AssertionError, match="walked"):
            engine.check()
    with fp32(str(tiny_model_dir)) as engine:
        engine.call(lambda: engine.loop.scheduler.pool.alloc(1))  # a leak
        answer = engine.submit([5, 6], greedy(2))
        assert answer.result().completion_tokens == 2
        with pytest.raises(EngineError, match=r"free \+ .* is not"):
            engine.generate([5, 6], greedy(2))


@pytest.mark.parametrize(
    ("settings", "way_out"),
    [
        ({"kv_memory_fraction": 1e-12}, "Raise kv_memory_fraction, or free memory$"),
        ({"kv_tokens": 1}, "Raise kv_tokens$"),
        ({"context_length": 1, "max_running": 1}, "Raise context_length$"),
    ],
    ids=str,
)
def test_a_pool_that_is_too_small_says_which_way_to_turn_the_knob(
    settings: dict[str, Any], way_out: str
) -> None:
    model = ModelConfig.from_dict(
        {
            "architectures": ["LlamaForCausalLM"],
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 320,
        }
    )
    with pytest.raises(ValueError, match=rf"would hold [01] tokens.*{way_out}") as error:
        plan_memory(
            EngineConfig(**settings),
            model,
            weights=123 * 2**20,
            context_length=settings.get("context_length", 64),
            dtype=torch.float32,
            device=torch.device("cpu"),
        )
    words = str(error.value)
    assert "weights 123 MiB, then" in words and "x 0.5 KiB" in words

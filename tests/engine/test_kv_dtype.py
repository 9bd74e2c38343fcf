"""`kv_dtype`: keys and values in another type than the activations, and one answer all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache

from minisgl import Engine
from tests.engine.common import assert_all_free, fp32, greedy

SHARED = [(7 * i) % 300 + 5 for i in range(90)]  # longer than a slab's first threshold
LOGPROBS = greedy(logprobs=1)
PROMPTS = [[*SHARED, 11, 12], [*SHARED, 13], [5, 90, 7], [*SHARED[:40], 20, 21, 22]]


def rounding(narrow: torch.dtype) -> Any:
    """transformers' cache, but keys and values go through `narrow` as they come."""
    stock = DynamicCache.update

    def update(self: Any, k: torch.Tensor, v: torch.Tensor, *rest: Any, **options: Any) -> Any:
        k, v = (x.to(narrow).to(x.dtype) for x in (k, v))
        return stock(self, k, v, *rest, **options)

    return mock.patch.object(DynamicCache, "update", update)


@pytest.fixture(scope="module", params=["bfloat16", "float16"])
def kv_dtype(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def expected(tiny_model_dir: Path, kv_dtype: str) -> list[list[tuple[int, float]]]:
    """transformers' greedy tokens and their log-probabilities, on rounded keys and values."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    answers = []
    with rounding(getattr(torch, kv_dtype)):
        for prompt in PROMPTS:
            out = model.generate(
                torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0,
                output_logits=True, return_dict_in_generate=True,
            )  # fmt: skip
            ids = out.sequences[0, len(prompt) :].tolist()
            logprobs = torch.log_softmax(torch.cat(out.logits), dim=-1)
            answers.append([(t, float(row[t])) for t, row in zip(ids, logprobs, strict=True)])
    return answers


WAYS: dict[str, dict[str, Any]] = {
    "workspace": {},
    "from the pool": {"decode_workspace": False},
    "in chunks": {"prefill_budget": 16},
    "uncached": {"prefix_cache": "none"},
}


@pytest.fixture(params=list(WAYS))
def engine(request: pytest.FixtureRequest, tiny_model_dir: Path, kv_dtype: str) -> Iterator[Engine]:
    settings = WAYS[request.param]
    with fp32(str(tiny_model_dir), kv_dtype=kv_dtype, kv_tokens=1024, **settings) as engine:
        yield engine
        assert_all_free(engine)


def test_answers_equal_transformers_on_rounded_keys(
    engine: Engine, expected: list[list[tuple[int, float]]]
) -> None:
    """Cold, warm, together and one by one.

    Keys that are not rounded move a log-probability by 3e-3 here (float16: 3e-4); a value on the
    border that rounds the other way moves it by 4e-5.
    """
    for prompts in (PROMPTS, PROMPTS[::-1], *([p] for p in PROMPTS)):
        for prompt, answer in zip(prompts, engine.generate(prompts, LOGPROBS), strict=True):
            theirs = expected[PROMPTS.index(prompt)]
            assert answer.token_ids == [t for t, _ in theirs]
            assert [x.logprob for x in answer.logprobs or ()] == pytest.approx(
                [p for _, p in theirs], abs=1e-4
            )


def test_the_pool_holds_it_and_has_room_for_more(tiny_model_dir: Path) -> None:
    per_token = {}
    for name in ("auto", "bfloat16", "float32"):
        with fp32(str(tiny_model_dir), kv_dtype=name, kv_tokens=64) as engine:
            layers = engine.loop.scheduler.pool.layers
            assert {layer.dtype for layer in layers} == {
                torch.float32 if name == "auto" else getattr(torch, name)
            }
            per_token[name] = engine.memory.per_token
    assert per_token["auto"] == per_token["float32"] == 2 * per_token["bfloat16"]


def test_a_wider_pool_than_the_activations(tiny_model_dir: Path) -> None:
    """Nothing is lost and nothing won: the answers of a pool of the activations' own type."""
    answers = []
    for name in ("auto", "float32"):
        with Engine(str(tiny_model_dir), dtype="bfloat16", kv_dtype=name, kv_tokens=512) as engine:
            done = engine.generate(PROMPTS, greedy())
            answers.append([a.token_ids for a in done])
            assert_all_free(engine)
    assert answers[0] == answers[1]

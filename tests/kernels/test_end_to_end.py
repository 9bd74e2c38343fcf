"""A whole engine on interpreted Triton kernels: prefill, chunks, a cache hit, a batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from minisgl import Engine, SamplingParams
from minisgl.kernels.dispatch import INTERPRETED
from scripts.make_tiny_model import make_tiny_model

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")

PROMPTS = [[5, 90, 7, 200, 31], [5, 90, 7, 200, 44, 61]]


@pytest.mark.parametrize(
    ("dtype", "budget"),
    [
        ("float32", 4),
        ("float32", 64),  # the second prompt attends to what the first computes in the same step
        ("bfloat16", 4),
    ],
)
def test_greedy_tokens_equal_transformers(tmp_path: Path, dtype: str, budget: int) -> None:
    path = make_tiny_model(
        tmp_path / "m", dtype=getattr(torch, dtype), num_layers=1, vocab_size=300, hidden_size=32
    )
    theirs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    theirs.generation_config.eos_token_id = None
    expected = []
    for prompt in PROMPTS:
        out = theirs.generate(
            torch.tensor([prompt]), max_new_tokens=3, do_sample=False, pad_token_id=0
        )
        expected.append(out[0, len(prompt) :].tolist())
    params = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    settings = {"context_length": 16, "kv_tokens": 32, "prefill_budget": budget}
    with Engine(str(path), dtype=dtype, **settings) as ours:
        assert ours.loop.runner.workspace is None, "interpreted kernels read the pool"
        answers = ours.generate(PROMPTS, params)
        assert [a.token_ids for a in answers] == expected
        warm = ours.generate(PROMPTS[1], params)
        assert warm.token_ids == expected[1]
        assert warm.cached_tokens == len(PROMPTS[1]) - 1
        ours.check()

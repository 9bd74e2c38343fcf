"""A whole engine on interpreted Triton kernels: prefill, chunks, a cache hit, a batch."""

from __future__ import annotations

import re
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
    ("kind", "dtype", "budget"),
    [
        ("Llama", "float32", 4),
        # the second prompt attends to what the first computes in the same step
        ("Llama", "float32", 64),
        ("Llama", "bfloat16", 4),
        ("Mixtral", "float32", 64),
    ],
)
def test_greedy_tokens_equal_transformers(
    tmp_path: Path, kind: str, dtype: str, budget: int
) -> None:
    path = make_tiny_model(
        tmp_path / "m",
        architecture=f"{kind}ForCausalLM",
        dtype=getattr(torch, dtype),
        num_layers=1,
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_experts=3,
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


def test_a_constrained_answer_beside_a_free_one(tmp_path: Path) -> None:
    """The mask is found on the host, sent once, and applied by its kernel; the other row is free.
    What is forced is an extend in the middle of an answer."""
    path = make_tiny_model(tmp_path / "m", num_layers=1, vocab_size=300, hidden_size=32)
    regex = "[ab](no|yes, sir)"
    free = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    follow = SamplingParams(temperature=0.0, regex=regex)
    settings = {"context_length": 32, "kv_tokens": 64, "dtype": "float32"}
    answers = {}
    for jump_forward in (True, False):
        with Engine(str(path), jump_forward=jump_forward, **settings) as engine:
            together = engine.generate(PROMPTS, [free, follow])
            answers[jump_forward] = together[1]
            assert together[0].token_ids == engine.generate(PROMPTS[0], free).token_ids
            engine.check()
    jumps, walks = answers[True], answers[False]
    assert re.fullmatch(regex, jumps.text)
    assert (jumps.token_ids, jumps.text) == (walks.token_ids, walks.text)
    assert jumps.forward_passes < walks.forward_passes
    assert jumps.removed == pytest.approx(walks.removed, abs=1e-4)
    assert jumps.removed and all(0 < share < 1 for share in jumps.removed)

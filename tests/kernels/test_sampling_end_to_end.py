"""Penalties, biases and log-probabilities of a whole engine on interpreted Triton kernels."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from minisgl import Engine, SamplingParams
from minisgl.kernels.dispatch import INTERPRETED
from scripts.make_tiny_model import make_tiny_model

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")

PROMPT = [5, 90, 7, 5]


def test_tokens_and_logprobs_equal_transformers(tmp_path: Path) -> None:
    path = make_tiny_model(tmp_path / "m", num_layers=1, vocab_size=300, hidden_size=32)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    ids = list(PROMPT)
    with torch.inference_mode():
        banned = int(model(torch.tensor([ids])).logits[0, -1].argmax())
        for _ in range(3):
            x = model(torch.tensor([ids])).logits[0, -1].clone()
            counts = Counter(ids[len(PROMPT) :])
            for token in set(ids):
                x[token] = x[token] / 1.5 if x[token] > 0 else x[token] * 1.5
                x[token] -= 0.5 * counts[token] + 0.25 * (counts[token] > 0)
            x[banned] = -torch.inf
            ids.append(int(x.argmax()))
        table = torch.log_softmax(model(torch.tensor([ids])).logits[0], dim=-1)
    params = SamplingParams(
        temperature=0.0,
        max_tokens=3,
        ignore_eos=True,
        repetition_penalty=1.5,
        frequency_penalty=0.5,
        presence_penalty=0.25,
        logit_bias={banned: -torch.inf},  # type: ignore[arg-type]
        logprobs=2,
        prompt_logprobs_from=1,
    )
    plain = SamplingParams(temperature=0.0, max_tokens=2, ignore_eos=True)
    with Engine(str(path), dtype="float32", context_length=16, kv_tokens=32) as engine:
        out, _ = engine.generate([PROMPT, [9]], [params, plain])
        engine.check()
    assert PROMPT + out.token_ids == ids
    assert out.prompt_logprobs is not None
    assert out.logprobs is not None
    for position, told in enumerate(out.prompt_logprobs + list(out.logprobs), 1):
        assert told is not None
        assert told.token_id == ids[position]
        values, tokens = table[position - 1].topk(2)
        assert told.logprob == pytest.approx(float(table[position - 1, ids[position]]), abs=1e-4)
        assert [i for i, _ in told.top] == tokens.tolist()
        assert [v for _, v in told.top] == pytest.approx(values.tolist(), abs=1e-4)

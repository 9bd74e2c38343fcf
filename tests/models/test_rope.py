"""Frequencies and tables equal those of transformers' own rope code, for every supported type."""

import copy
from typing import Any

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from minisgl.models.config import ModelConfig
from minisgl.models.rope import inv_freq, rope_table

SIZES: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 32,
    "hidden_size": 256,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "max_position_embeddings": 4096,
}
LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 1024,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
KINDS = [
    {"rope_type": "default", "rope_theta": 10000.0},
    {"rope_type": "default", "rope_theta": 500000.0},
    {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.5},
    {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0},
    {"rope_theta": 500000.0, **LLAMA3},
    {"rope_theta": 500000.0, **LLAMA3, "factor": 32.0, "high_freq_factor": 8.0},
    {"rope_theta": 10000.0, **YARN},
    {"rope_theta": 1000000.0, **YARN, "attention_factor": 1.25},
    {"rope_theta": 10000.0, **YARN, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    {"rope_theta": 10000.0, **YARN, "mscale": 1.0, "mscale_all_dim": 0.5},
    {"rope_theta": 10000.0, **YARN, "factor": 1.0, "original_max_position_embeddings": 4096},
]


def both(parameters: dict[str, Any], **changes: Any) -> tuple[ModelConfig, LlamaRotaryEmbedding]:
    sizes = {**SIZES, **changes}
    ours = ModelConfig.from_dict({**sizes, "rope_parameters": copy.deepcopy(parameters)})
    theirs = LlamaConfig(**sizes, rope_parameters=copy.deepcopy(parameters))
    return ours, LlamaRotaryEmbedding(theirs)


@pytest.mark.parametrize("head_dim", [32, 64, 80])
@pytest.mark.parametrize("parameters", KINDS, ids=lambda p: p["rope_type"])
def test_frequencies_equal_transformers(parameters: dict[str, Any], head_dim: int) -> None:
    ours, theirs = both(parameters, head_dim=head_dim)
    freq, scaling = inv_freq(ours.rope, ours.head_dim, ours.max_position)
    assert freq.dtype == torch.float32
    torch.testing.assert_close(freq, theirs.inv_freq, rtol=1e-6, atol=0)
    assert scaling == pytest.approx(theirs.attention_scaling, rel=1e-12)


@pytest.mark.parametrize("parameters", KINDS, ids=lambda p: p["rope_type"])
def test_the_table_rotates_as_transformers_does(parameters: dict[str, Any]) -> None:
    ours, theirs = both(parameters, head_dim=16)
    positions = torch.tensor([[0, 1, 7, 511, 4095]])
    x = torch.randn(1, 2, 5, 16, generator=torch.Generator().manual_seed(0))
    expected, _ = apply_rotary_pos_emb(x, x, *theirs(x, positions))

    cos, sin = (table[positions[0]] for table in rope_table(ours.rope, 16, ours.max_position))
    swapped = torch.cat((x[..., 8:], x[..., :8]), dim=-1)
    torch.testing.assert_close(x * cos + swapped * sin, expected, rtol=1e-4, atol=2e-3)
    near = slice(0, 3)  # float32 angles of thousands of radians lose digits, those of few don't
    actual = (x * cos + swapped * sin)[:, :, near]
    torch.testing.assert_close(actual, expected[:, :, near], rtol=1e-5, atol=1e-5)


def test_dynamic_beyond_the_trained_context_uses_the_longest_contexts_theta() -> None:
    ours, theirs = both(KINDS[3])
    within, _ = inv_freq(ours.rope, 64, 100)
    torch.testing.assert_close(within, theirs.inv_freq, rtol=1e-6, atol=0)

    theirs(torch.zeros(1), torch.tensor([[8191]]))  # transformers has now seen 8,192 positions
    beyond, _ = inv_freq(ours.rope, 64, 8192)
    torch.testing.assert_close(beyond, theirs.inv_freq, rtol=1e-5, atol=0)
    assert (beyond[1:] < within[1:]).all()


def test_the_top_level_trained_context_overrides_as_in_transformers() -> None:
    parameters = {"rope_theta": 10000.0, **YARN}
    ours, theirs = both(parameters, original_max_position_embeddings=2048)
    assert ours.rope.original_max_position == 2048
    torch.testing.assert_close(inv_freq(ours.rope, 64, 1)[0], theirs.inv_freq, rtol=1e-6, atol=0)


def test_tables_have_both_halves_and_the_sign_in_sin() -> None:
    ours, _ = both(KINDS[0])
    cos, sin = rope_table(ours.rope, 64, 10)
    assert cos.shape == sin.shape == (10, 64)
    assert cos.dtype == sin.dtype == torch.float32
    assert torch.equal(cos[:, :32], cos[:, 32:])
    assert torch.equal(sin[:, :32], -sin[:, 32:])
    assert sin[1, 32] == torch.tensor(1.0).sin()  # pair 0 turns one radian a position

"""ModelConfig reads what transformers writes, old and new, and refuses what it can't run."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from minisgl.models.config import ModelConfig

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0,
    "torch_dtype": "bfloat16",
    "eos_token_id": 2,
    "bos_token_id": 1,
}
MISTRAL = {**LLAMA, "architectures": ["MistralForCausalLM"]}
MIXTRAL = {**LLAMA, "architectures": ["MixtralForCausalLM"]}


def read(base: dict[str, Any] = LLAMA, generation: Any = None, **changes: Any) -> ModelConfig:
    return ModelConfig.from_dict({**base, **changes}, generation)


def test_names_and_derived_values() -> None:
    config = read()
    assert (config.num_layers, config.num_heads, config.num_kv_heads) == (2, 4, 2)
    assert (config.head_dim, config.max_position, config.rms_norm_eps) == (16, 512, 1e-5)
    assert config.dtype is torch.bfloat16
    assert not config.tie_word_embeddings
    assert (config.rope.type, config.rope.theta) == ("default", 50000.0)


def test_an_explicit_head_dim_wins() -> None:
    assert read(head_dim=32).head_dim == 32
    assert read(head_dim=None).head_dim == 16
    assert read(hidden_size=50, head_dim=16).head_dim == 16
    with pytest.raises(ValueError, match=r"hidden_size 50 is not a multiple .* 4"):
        read(hidden_size=50)


def test_key_value_heads_default_to_the_class_of_transformers() -> None:
    assert read(num_key_value_heads=None).num_kv_heads == 4
    without = {k: v for k, v in MISTRAL.items() if k != "num_key_value_heads"}
    assert read(without, num_attention_heads=16).num_kv_heads == 8
    with pytest.raises(ValueError, match=r"num_attention_heads 4 .* num_key_value_heads 3"):
        read(num_key_value_heads=3)


def test_only_mistral_has_a_window_and_only_llama_biases() -> None:
    assert read(MISTRAL, sliding_window=128).sliding_window == 128
    assert read(MISTRAL, sliding_window=None).sliding_window == 0
    assert read(MISTRAL).sliding_window == 4096  # MistralConfig's default
    assert read(sliding_window=128).sliding_window == 0
    assert read(attention_bias=True, mlp_bias=True).attention_bias
    assert read(mlp_bias=True).mlp_bias
    assert not read(MISTRAL, attention_bias=True).attention_bias


def test_end_tokens_are_the_union_of_both_files() -> None:
    assert read(generation={"eos_token_id": [2, 7, 9]}).eos_token_ids == {2, 7, 9}
    assert read(eos_token_id=[3, 4], generation={"eos_token_id": 5}).eos_token_ids == {3, 4, 5}
    assert read(eos_token_id=None).eos_token_ids == frozenset()


@pytest.mark.parametrize("key", ["type", "rope_type"])
def test_rope_scaling_in_both_spellings(key: str) -> None:
    rope = read(rope_scaling={key: "linear", "factor": 4}).rope
    assert (rope.type, rope.factor, rope.theta) == ("linear", 4.0, 50000.0)
    assert read(rope_scaling={key: "default"}).rope.type == "default"
    assert read(rope_scaling=None).rope.type == "default"


@pytest.mark.parametrize(
    ("base", "oldest"),
    [(LLAMA, 1e4), (MISTRAL, 1e4), (MIXTRAL, 1e6)],
    ids=["Llama", "Mistral", "Mixtral"],
)
def test_theta_comes_from_rope_parameters_and_is_never_guessed_there(
    base: dict[str, Any], oldest: float
) -> None:
    old = {k: v for k, v in base.items() if k != "rope_theta"}
    new = {"rope_type": "default", "rope_theta": 2e6}
    assert read(old, rope_parameters=new).rope.theta == 2e6
    assert read(base, rope_parameters=new).rope.theta == 2e6
    for none in ({}, {"rope_type": "default"}, {"rope_type": "linear", "factor": 2.0}):
        with pytest.raises(ValueError, match="no rope_theta"):
            read(old, rope_parameters=none)
    # The first of their kind had no such key, also where their context was stretched.
    assert read(old).rope.theta == oldest
    assert read(old, rope_scaling={"type": "linear", "factor": 2.0}).rope.theta == oldest
    llama3 = {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}
    with pytest.raises(ValueError, match="no rope_theta"):
        read(old, rope_scaling=llama3)


def test_rope_parameters_and_rope_scaling_must_agree() -> None:
    linear = {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4}
    for same in (linear, {"type": "linear", "factor": 2}):
        rope = read(rope_parameters=linear, rope_scaling=same).rope
        assert (rope.type, rope.factor, rope.theta) == ("linear", 2, 1e4)
    with pytest.raises(ValueError, match="contradict"):
        read(rope_parameters=linear, rope_scaling={"type": "linear", "factor": 4.0})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel.*LlamaForCausalLM, Mistral"),
        ({"architectures": None, "model_type": "bert"}, "bert is not supported"),
        ({"hidden_act": "gelu"}, "'gelu'.*'silu'"),
        ({"quantization_config": {"quant_method": "awq"}}, "'awq'.*float32, float16, bfloat16"),
        ({"torch_dtype": "float8_e4m3fn"}, "float8_e4m3fn.*float32, float16, bfloat16"),
        (
            {"rope_scaling": {"type": "longrope"}},
            "'longrope'.*default, linear, dynamic, llama3, yarn",
        ),
        ({"rope_scaling": {"factor": 4.0}}, "rope_scaling .'factor': 4.0. gives no rope_type"),
        ({"rope_parameters": {"factor": 4.0, "rope_theta": 1e4}}, "gives no rope_type"),
        ({"rope_scaling": {"type": "linear", "rope_type": "yarn", "factor": 4}}, "two kinds"),
        ({"rope_scaling": "linear"}, "rope_scaling is 'linear'; it must be an object"),
        ({"rope_scaling": {"rope_type": "linear"}}, "'linear' needs 'factor'"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8}}, "needs 'low_freq_factor'"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}, "per kind of layer"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"rope_theta": 0}, "rope_theta is 0"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
        ({"num_hidden_layers": None}, "lacks num_hidden_layers"),
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"head_dim": 15}, "head_dim is 15"),
        ({"max_position_embeddings": "many"}, "max_position_embeddings is 'many'"),
        ({"num_attention_heads": 0}, "num_attention_heads is 0"),
    ],
)
def test_what_is_refused_and_in_which_words(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read(**changes)


def test_a_missing_architecture_follows_from_the_model_type() -> None:
    assert read(architectures=None, model_type="mistral").architecture == "MistralForCausalLM"


def test_from_dir_reads_both_files_and_names_the_broken_one(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no config\.json"):
        ModelConfig.from_dir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": 9}')
    assert ModelConfig.from_dir(tmp_path).eos_token_ids == {2, 9}
    (tmp_path / "generation_config.json").write_text('{"eos_tok')
    with pytest.raises(ValueError, match=r"generation_config\.json is not valid JSON"):
        ModelConfig.from_dir(tmp_path)
    (tmp_path / "generation_config.json").unlink()
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(ValueError, match=r"config\.json holds a list"):
        ModelConfig.from_dir(tmp_path)


def test_agrees_with_what_transformers_saves(tmp_path: Path) -> None:
    from transformers import LlamaConfig

    LlamaConfig(
        vocab_size=90,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        head_dim=16,
        rope_parameters={"rope_type": "default", "rope_theta": 123456.0},
        architectures=["LlamaForCausalLM"],
    ).save_pretrained(tmp_path)
    config = ModelConfig.from_dir(tmp_path)
    assert (config.rope.theta, config.head_dim, config.num_kv_heads) == (123456.0, 16, 4)

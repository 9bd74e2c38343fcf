"""The metadata of a llama-architecture GGUF file as Hugging Face's config.json."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from minisgl.models.config import RopeConfig
from minisgl.models.rope import inv_freq

if TYPE_CHECKING:
    from gguf import GGUFReader

ROPE_FACTORS = "rope_freqs.weight"  # a tensor that is no weight: see _llama3_scaling


def model_config(reader: GGUFReader, meta: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The contents of config.json (but the dtype) and generation_config.json.

    Raises:
        ValueError: not a dense llama model, or a key missing.
    """
    architecture = meta.get("general.architecture")
    if architecture != "llama":
        raise ValueError(f"general.architecture {architecture!r} is not supported; 'llama' is")
    if meta.get("split.count", 1) > 1:
        raise ValueError("this is one part of several: merge them with llama-gguf-split --merge")
    if meta.get("llama.expert_count", 0):
        raise ValueError(
            f"a mixture of {meta['llama.expert_count']} experts is not supported as a GGUF file; "
            "as a Hugging Face directory it is"
        )

    def need(key: str) -> Any:
        if meta.get(f"llama.{key}") is None:
            raise ValueError(f"the metadata lacks llama.{key}")
        return meta[f"llama.{key}"]

    heads, hidden = need("attention.head_count"), need("embedding_length")
    head_dim = meta.get("llama.attention.key_length", hidden // heads)
    rotated = meta.get("llama.rope.dimension_count", head_dim)
    if rotated != head_dim:
        raise ValueError(f"rope turns {rotated} of {head_dim} dimensions; only all are supported")
    names = {tensor.name for tensor in reader.tensors}
    if "token_embd.weight" not in names:
        raise ValueError("the file holds no token_embd.weight; is it a vocabulary only?")
    embedding = next(t for t in reader.tensors if t.name == "token_embd.weight")
    window = int(meta.get("llama.attention.sliding_window", 0))
    config: dict[str, Any] = {
        "architectures": ["MistralForCausalLM" if window else "LlamaForCausalLM"],
        "model_type": "mistral" if window else "llama",
        "vocab_size": int(embedding.shape[1]),
        "hidden_size": hidden,
        "intermediate_size": need("feed_forward_length"),
        "num_hidden_layers": need("block_count"),
        "num_attention_heads": heads,
        "num_key_value_heads": meta.get("llama.attention.head_count_kv", heads),
        "head_dim": head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": _short(need("attention.layer_norm_rms_epsilon")),
        "max_position_embeddings": need("context_length"),
        "tie_word_embeddings": "output.weight" not in names,
        "attention_bias": "blk.0.attn_q.bias" in names,
        "mlp_bias": "blk.0.ffn_gate.bias" in names,
        # the older spelling, because transformers 4 would overlook `rope_parameters`
        "rope_theta": _short(meta.get("llama.rope.freq_base", 10000.0)),
        "rope_scaling": _rope_scaling(reader, meta, head_dim),
        "bos_token_id": meta.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": meta.get("tokenizer.ggml.eos_token_id"),
        "pad_token_id": meta.get("tokenizer.ggml.padding_token_id"),
    }
    if window:
        config["sliding_window"] = window
    ends = {meta.get(f"tokenizer.ggml.{kind}_token_id") for kind in ("eos", "eot", "eom")}
    generation = {
        "bos_token_id": config["bos_token_id"],
        "eos_token_id": sorted(end for end in ends if end is not None),
        "pad_token_id": config["pad_token_id"],
    }
    return config, generation


def _short(value: float) -> float:
    """The shortest decimal that is the same float32: GGUF's 9.99999974e-06 was 1e-05."""
    return float(str(np.float32(value)))


def _rope_scaling(reader: GGUFReader, meta: dict[str, Any], head_dim: int) -> dict[str, Any] | None:
    """`rope_scaling` of config.json: none, linear, yarn, or Llama 3's."""
    factors = next((t.data for t in reader.tensors if t.name == ROPE_FACTORS), None)
    if factors is not None:
        return _llama3_scaling(np.array(factors), meta, head_dim)
    prefix = "llama.rope.scaling."
    kind = meta.get(prefix + "type", "none")
    if kind == "none":
        return None
    if kind not in ("linear", "yarn"):
        raise ValueError(f"{prefix}type {kind!r} is not supported; none, linear and yarn are")
    scaling = {"rope_type": kind, "factor": _short(meta[prefix + "factor"])}
    optional = {
        "original_max_position_embeddings": "original_context_length",
        "attention_factor": "attn_factor",
        "beta_fast": "yarn_beta_fast",
        "beta_slow": "yarn_beta_slow",
    }
    for name, key in optional.items() if kind == "yarn" else ():
        if prefix + key in meta:
            value = meta[prefix + key]
            scaling[name] = _short(value) if isinstance(value, float) else value
    return scaling


def _llama3_scaling(factors: np.ndarray, meta: dict[str, Any], head_dim: int) -> dict[str, Any]:
    """Llama 3's parameters from what GGUF keeps of them: the divisor of each frequency, [D/2].

    They can't be solved for, but they can be recognised: Llama 3.x differ in `factor` alone.
    """
    theta = _short(meta.get("llama.rope.freq_base", 10000.0))
    plain, _ = inv_freq(RopeConfig(theta), head_dim, 1)
    for original in (8192, 4096, 16384, 32768):
        scaling: dict[str, Any] = {
            "rope_type": "llama3",
            "factor": _short(float(factors.max())),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": original,
        }
        rope = RopeConfig(
            theta,
            "llama3",
            0,
            scaling["factor"],
            original,
            low_freq_factor=1.0,
            high_freq_factor=4.0,
        )
        scaled, _ = inv_freq(rope, head_dim, 1)
        if np.allclose(plain / scaled, factors, rtol=1e-3):
            return scaling
    raise ValueError(f"{ROPE_FACTORS} holds a scaling of frequencies other than Llama 3's")

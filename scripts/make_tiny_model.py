"""Make a tiny Llama, Mistral or Mixtral with random weights, as a Hugging Face directory.

The tests and the tour need a model that is there at once, on any machine, without a download.
This one has two layers and a real byte-level BPE tokenizer, trained here on a few lines of text.
What it says is nonsense, but the same nonsense every time, and every part of the engine that a
large model would use is in use.

    python scripts/make_tiny_model.py build/tiny-model
    python scripts/make_tiny_model.py build/tiny-mistral --architecture MistralForCausalLM
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BOS, TURN, EOS = "<|endoftext|>", "<|im_start|>", "<|im_end|>"

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

TEXT = [
    "A radix tree keeps every prefix once, and each request walks down from the root.",
    "The first token is slow, the next tokens are fast: their keys and values are remembered.",
    "What is the capital of France? The capital of France is Paris.",
    "Once upon a time there was a small engine that read its own code and understood it.",
    "system user assistant: you are a helpful assistant, and the user asks a question.",
    "Two requests that begin alike share the work, and the tree knows how far they agree.",
]


def make_tiny_model(
    path: str | Path,
    *,
    architecture: str = "LlamaForCausalLM",
    vocab_size: int = 384,
    hidden_size: int = 64,
    intermediate_size: int = 128,
    num_layers: int = 2,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_dim: int | None = None,
    max_position: int = 512,
    rope_theta: float = 10000.0,
    rope_scaling: dict[str, Any] | None = None,
    rope_parameters: dict[str, Any] | None = None,
    sliding_window: int | None = None,
    num_experts: int = 8,
    experts_per_token: int = 2,
    tie: bool = True,
    attention_bias: bool = False,
    mlp_bias: bool = False,
    add_bos: bool = False,
    dtype: torch.dtype = torch.float32,
    shards: int = 1,
    seed: int = 0,
) -> Path:
    """Write config, tokenizer, generation config and weights into `path`, and return `path`.

    `rope_scaling` is the older spelling in config.json, `rope_parameters` that of transformers 5.
    `add_bos` makes the tokenizer put BOS before every text, as Llama's does. `shards` > 1 splits
    the weights over several safetensors files with an index.
    """
    path = Path(path)
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = _tokenizer(vocab_size, add_bos)
    tokenizer.save(str(path / "tokenizer.json"))
    bos, eos = tokenizer.token_to_id(BOS), tokenizer.token_to_id(EOS)
    config: dict[str, Any] = {
        "architectures": [architecture],
        "model_type": architecture.removesuffix("ForCausalLM").lower(),
        "vocab_size": vocab_size,
        "hidden_size": hidden_size,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": num_kv_heads,
        "max_position_embeddings": max_position,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "tie_word_embeddings": tie,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "torch_dtype": str(dtype).removeprefix("torch."),
    }
    if architecture == "LlamaForCausalLM":
        config |= {"attention_bias": attention_bias, "mlp_bias": mlp_bias}
    else:
        config["sliding_window"] = sliding_window
    if architecture == "MixtralForCausalLM":
        config |= {"num_local_experts": num_experts, "num_experts_per_tok": experts_per_token}
    if head_dim is not None:
        config["head_dim"] = head_dim
    if rope_parameters is not None:
        config["rope_parameters"] = {"rope_theta": rope_theta, **rope_parameters}
    else:
        config |= {"rope_theta": rope_theta, "rope_scaling": rope_scaling}
    _write_json(path / "config.json", config)
    _write_json(path / "generation_config.json", {"bos_token_id": bos, "eos_token_id": eos})
    _write_json(
        path / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": BOS,
            "eos_token": EOS,
            "add_bos_token": add_bos,
            "chat_template": CHAT_TEMPLATE,
            "clean_up_tokenization_spaces": False,
            "model_max_length": max_position,
        },
    )
    _save(path, _weights(config, seed, dtype), shards)
    return path


def _tokenizer(vocab_size: int, add_bos: bool) -> Tokenizer:
    """A byte-level BPE: 3 special tokens, the 256 bytes, and merges up to `vocab_size`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, TURN, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    if add_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{BOS} $A", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
        )
    return tokenizer


def _weights(config: dict[str, Any], seed: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Random tensors under the hub's names.  Scaled so that activations neither vanish nor explode,
    and the logits spread enough that greedy decoding seldom meets a near-tie."""
    g = torch.Generator().manual_seed(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    head_dim = config.get("head_dim") or hidden // config["num_attention_heads"]
    q, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    weights: dict[str, torch.Tensor] = {}

    def linear(name: str, rows: int, columns: int, bias: bool) -> None:
        weights[f"{name}.weight"] = torch.randn(rows, columns, generator=g) / columns**0.5
        if bias:
            weights[f"{name}.bias"] = 0.1 * torch.randn(rows, generator=g)

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = 1.0 + 0.1 * torch.randn(hidden, generator=g)

    vocab = config["vocab_size"]
    weights["model.embed_tokens.weight"] = 0.3 * torch.randn(vocab, hidden, generator=g)
    for i in range(config["num_hidden_layers"]):
        layer = f"model.layers.{i}"
        attention_bias = config.get("attention_bias", False)
        mlp_bias = config.get("mlp_bias", False)
        norm(f"{layer}.input_layernorm")
        linear(f"{layer}.self_attn.q_proj", q, hidden, attention_bias)
        linear(f"{layer}.self_attn.k_proj", kv, hidden, attention_bias)
        linear(f"{layer}.self_attn.v_proj", kv, hidden, attention_bias)
        linear(f"{layer}.self_attn.o_proj", hidden, q, attention_bias)
        norm(f"{layer}.post_attention_layernorm")
        experts = config.get("num_local_experts")
        if experts is None:
            mlps = {f"{layer}.mlp": ("gate_proj", "up_proj", "down_proj")}
        else:
            moe = f"{layer}.block_sparse_moe"
            linear(f"{moe}.gate", experts, hidden, False)
            mlps = {f"{moe}.experts.{e}": ("w1", "w3", "w2") for e in range(experts)}
        for mlp, (gate, up, down) in mlps.items():
            linear(f"{mlp}.{gate}", inner, hidden, mlp_bias)
            linear(f"{mlp}.{up}", inner, hidden, mlp_bias)
            linear(f"{mlp}.{down}", hidden, inner, mlp_bias)
    norm("model.norm")
    if not config["tie_word_embeddings"]:
        weights["lm_head.weight"] = 0.3 * torch.randn(vocab, hidden, generator=g)
    return {name: w.to(dtype) for name, w in weights.items()}


def _save(path: Path, weights: dict[str, torch.Tensor], shards: int) -> None:
    """One model.safetensors, or `shards` numbered files and an index of what lies where."""
    if shards == 1:
        save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
        return
    names = list(weights)
    weight_map: dict[str, str] = {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = {name: weights[name] for name in names[shard::shards]}
        save_file(part, path / file, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(part, file)
    size = sum(w.numel() * w.element_size() for w in weights.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    _write_json(path / "model.safetensors.index.json", index)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("path", help="the directory to write")
    parser.add_argument(
        "--architecture",
        default="LlamaForCausalLM",
        choices=["LlamaForCausalLM", "MistralForCausalLM", "MixtralForCausalLM"],
    )
    parser.add_argument("--num-layers", type=int, default=2)
    parser.add_argument("--num-heads", type=int, default=4)
    parser.add_argument("--num-kv-heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=None)
    parser.add_argument("--sliding-window", type=int, default=None)
    parser.add_argument("--num-experts", type=int, default=8, help="of a Mixtral")
    parser.add_argument("--rope-scaling", type=json.loads, default=None, help="as JSON")
    parser.add_argument("--untied", dest="tie", action="store_false", help="a separate lm_head")
    parser.add_argument(
        "--dtype", type=lambda name: getattr(torch, name), default=torch.float32, metavar="NAME"
    )
    parser.add_argument("--seed", type=int, default=0)
    print(make_tiny_model(**vars(parser.parse_args())))


if __name__ == "__main__":
    main()

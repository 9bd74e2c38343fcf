"""GGUF to a Hugging Face directory: `python -m minisgl.models.gguf FILE OUT`.

The engine reads Hugging Face directories only, so a .gguf is converted once, any llama-architecture one:

    config.json  generation_config.json  tokenizer.json  tokenizer_config.json  model.safetensors

Weights are stored exactly as dequantised, in the narrowest type that holds every value: float16 and
bfloat16 stay as they are, float32 becomes bfloat16 or float16 where nothing is lost, and blocks (Q8_0,
Q4_1, ...) become float32, because scale * integer + offset has more digits than 16 bits hold.  The default
model grows from 98 MB to 538 MB so; `--dtype bfloat16` halves that and rounds.  The loader casts anyway.

Leaves out: other architectures, mixtures of experts, files split into parts.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save_file

from minisgl.models.config import DTYPES, ModelConfig, RopeConfig
from minisgl.models.gguf_tokenizer import build_tokenizer
from minisgl.models.progress import ProgressBar
from minisgl.models.rope import inv_freq

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor

FORMAT = (
    1  # raised whenever the same file converts to something else: old conversions are then redone
)
SHARD_BYTES = 4_000_000_000  # what is held in memory before it is written

_NAMES = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_ROPE_FACTORS = "rope_freqs.weight"


def convert(
    file: str | Path, out: str | Path, *, dtype: str = "exact", progress: bool | None = None
) -> Path:
    """Write the model in GGUF `file` as a new directory `out`, whole or not at all; returns `out`.

    `dtype` is "exact" (see the module) or the type of all weights.  `progress`: see ProgressBar.

    Raises:
        ValueError: no readable GGUF file, a model or tokenizer that isn't supported, `out` not empty.
    """
    file, out = Path(file), Path(out)
    if dtype != "exact" and dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is not supported; these are: exact, {', '.join(DTYPES)}")
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise ValueError(f"{out} exists already; give the name of a new directory")
    reader = _read(file)
    try:
        meta = _metadata(reader)
        config, generation = model_config(reader, meta)
        tokenizer, tokenizer_config = build_tokenizer(meta)
    except ValueError as error:
        raise ValueError(f"{file}: {error}") from error

    partial = out.with_name(f".{out.name}.{os.getpid()}.partial")
    partial.mkdir(parents=True)
    try:
        kinds = _write_weights(reader, config, partial, dtype, progress)
        config["torch_dtype"] = max(kinds, key=lambda name: (DTYPES[name].itemsize, name))
        ModelConfig.from_dict(config, generation)  # what we write, we can read
        tokenizer.save(str(partial / "tokenizer.json"))
        _write_json(partial / "tokenizer_config.json", tokenizer_config)
        _write_json(partial / "generation_config.json", generation)
        _write_json(partial / "config.json", config)
        _publish(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return out


def model_config(reader: GGUFReader, meta: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The contents of config.json (but the dtype) and generation_config.json.

    Raises:
        ValueError: not a dense llama model, or a key missing.
    """
    architecture = meta.get("general.architecture")
    if architecture != "llama":
        raise ValueError(f"general.architecture {architecture!r} is not supported; 'llama' is")
    if meta.get("split.count", 1) > 1:
        raise ValueError(
            "one part of a split file; merge the parts first (llama-gguf-split --merge)"
        )
    if meta.get("llama.expert_count", 0):
        raise ValueError(f"a mixture of {meta['llama.expert_count']} experts is not supported")

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
        "eos_token_id": sorted(ends - {None}),
        "pad_token_id": config["pad_token_id"],
    }
    return config, generation


def unpermute(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo GGUF's order of the rows of q and k, [H D, ...] -> [H D, ...].

    Hugging Face rotates dimension i of a head with i + D/2, GGUF with its neighbour: the converter to
    GGUF interleaved the halves of every head.

    >>> unpermute(np.array([0, 2, 1, 3]), num_heads=1)
    array([0, 1, 2, 3])
    """
    pairs = rows.reshape(num_heads, -1, 2, *rows.shape[1:])  # [H, D/2, 2, ...]
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def hub_name(name: str) -> str:
    """The Hugging Face name of a GGUF tensor.

    >>> hub_name("blk.3.attn_q.weight")
    'model.layers.3.self_attn.q_proj.weight'
    """
    *block, part, leaf = name.split(".")
    if part not in _NAMES or leaf not in ("weight", "bias"):
        raise ValueError(f"tensor {name!r} has no place in a dense llama model")
    return f"model.layers.{block[1]}.{_NAMES[part]}.{leaf}" if block else f"{_NAMES[part]}.{leaf}"


def _read(file: Path) -> GGUFReader:
    try:
        from gguf import GGUFReader
    except ImportError as error:
        raise ValueError(
            "reading GGUF files needs the package gguf: pip install 'minisgl[gguf]'"
        ) from error
    if not file.is_file():
        raise ValueError(f"there is no file {file}")
    try:
        return GGUFReader(file)
    except (ValueError, IndexError, KeyError, OverflowError, OSError) as error:
        raise ValueError(f"{file} is not a complete GGUF file ({error}); fetch it again") from error


def _metadata(reader: GGUFReader) -> dict[str, Any]:
    return {name: field.contents() for name, field in reader.fields.items()}


def _short(value: float) -> float:
    """The shortest decimal that is the same float32: GGUF's 9.99999974e-06 was 1e-05."""
    return float(str(np.float32(value)))


def _rope_scaling(reader: GGUFReader, meta: dict[str, Any], head_dim: int) -> dict[str, Any] | None:
    """`rope_scaling` of config.json: none, linear, yarn, or Llama 3's."""
    factors = next((t.data for t in reader.tensors if t.name == _ROPE_FACTORS), None)
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
    raise ValueError(f"{_ROPE_FACTORS} holds a scaling of frequencies other than Llama 3's")


def _tensors(
    reader: GGUFReader, config: dict[str, Any]
) -> Iterator[tuple[str, ReaderTensor, torch.Tensor]]:
    """Hugging Face name, GGUF tensor and values, one after the other, ready to store exactly."""
    from gguf.quants import dequantize

    for tensor in reader.tensors:
        if tensor.name == _ROPE_FACTORS:
            continue
        kind = tensor.tensor_type.name
        values = dequantize(tensor.data, tensor.tensor_type).reshape(tensor.shape[::-1])
        if ".attn_q." in tensor.name:
            values = unpermute(values, config["num_attention_heads"])
        elif ".attn_k." in tensor.name:
            values = unpermute(values, config["num_key_value_heads"])
        exact = torch.from_numpy(np.array(values, dtype=np.float32))
        if kind in ("F16", "BF16", "F32"):
            exact = _narrow(exact, prefer=torch.float16 if kind == "F16" else torch.bfloat16)
        yield hub_name(tensor.name), tensor, exact


def _narrow(x: torch.Tensor, prefer: torch.dtype) -> torch.Tensor:
    """`x` in a 16-bit type if that loses nothing.

    >>> _narrow(torch.tensor([1.0, 3.5]), torch.bfloat16).dtype, _narrow(torch.tensor(1 / 3), torch.float16).dtype
    (torch.bfloat16, torch.float32)
    """
    for dtype in (prefer, torch.bfloat16, torch.float16):
        if torch.equal(x.to(dtype).float(), x):
            return x.to(dtype)
    return x


def _write_weights(
    reader: GGUFReader, config: dict[str, Any], out: Path, dtype: str, progress: bool | None
) -> set[str]:
    """Write the safetensors, with an index if they are several; returns the dtypes of the matrices."""
    shard: dict[str, torch.Tensor] = {}
    shards: list[list[str]] = []
    kinds: set[str] = set()
    total = size = 0

    def flush() -> None:
        nonlocal shard, size
        part = out / f"{len(shards)}.part"
        save_file(shard, part, metadata={"format": "pt"})
        part.chmod(0o644)  # safetensors makes it unreadable for others
        shards.append(list(shard))
        shard, size = {}, 0

    megabytes = sum(int(t.n_bytes) for t in reader.tensors) / 1e6
    with ProgressBar("converting GGUF", megabytes, "MB", progress) as bar:
        for name, source, exact in _tensors(reader, config):
            tensor = exact if dtype == "exact" else exact.to(DTYPES[dtype])
            if tensor.dim() > 1:
                kinds.add(str(tensor.dtype).removeprefix("torch."))
            if size and size + tensor.nbytes > SHARD_BYTES:
                flush()
            shard[name] = tensor
            size += tensor.nbytes
            total += tensor.nbytes
            bar.advance(int(source.n_bytes) / 1e6)
        flush()

    if len(shards) == 1:
        (out / "0.part").rename(out / "model.safetensors")
        return kinds
    weight_map = {}
    for i, names in enumerate(shards):
        shard_name = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        (out / f"{i}.part").rename(out / shard_name)
        weight_map.update(dict.fromkeys(names, shard_name))
    index = {"metadata": {"total_size": total}, "weight_map": weight_map}
    _write_json(out / "model.safetensors.index.json", index)
    return kinds


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _publish(partial: Path, out: Path) -> None:
    """Give the finished directory its name; another process that was faster has written the same."""
    try:
        partial.rename(out)
    except OSError:
        if not (out / "config.json").is_file():
            raise


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m minisgl.models.gguf",
        description="Convert a llama-architecture GGUF file into a Hugging Face directory.",
    )
    parser.add_argument("file", help="the .gguf file")
    parser.add_argument("out", help="the directory to make")
    parser.add_argument(
        "--dtype",
        default="exact",
        choices=("exact", *DTYPES),
        help="type of the stored weights (default: the narrowest that loses nothing)",
    )
    options = parser.parse_args(arguments)
    try:
        out = convert(options.file, options.out, dtype=options.dtype)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())

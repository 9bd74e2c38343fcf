"""GGUF to a Hugging Face directory: `python -m minisgl.models.gguf FILE OUT`.

The engine reads Hugging Face directories only, so a .gguf (any of llama architecture) becomes one:

    config.json  generation_config.json  tokenizer.json  tokenizer_config.json  model.safetensors

Weights are stored exactly as dequantised, in the narrowest type that holds every value: float16 and
bfloat16 stay as they are, float32 becomes bfloat16 or float16 where nothing is lost, and blocks
(Q8_0, Q4_1, ...) become float32, because scale * integer + offset has more digits than 16 bits
hold.  So the default model grows from 98 MB to 538 MB; `--dtype bfloat16` halves that, and rounds.
The loader casts to whatever type the engine runs in.

Leaves out: other architectures, mixtures of experts, files split into parts.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors.torch import save_file

from minisgl.models.config import DTYPES, ModelConfig
from minisgl.models.gguf_config import ROPE_FACTORS, model_config
from minisgl.models.gguf_tokenizer import build_tokenizer
from minisgl.models.progress import ProgressBar

if TYPE_CHECKING:
    from gguf import GGUFReader, ReaderTensor

FORMAT = 1  # raised when the same file converts to something else: caches are then made anew
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


def convert(
    file: str | Path, out: str | Path, *, dtype: str = "exact", progress: bool | None = None
) -> Path:
    """Write the model in GGUF `file` as a new directory `out`, whole or not at all; returns `out`.

    `dtype` is "exact" (see the module) or the type of all weights.  `progress`: see ProgressBar.

    Raises:
        ValueError: no readable GGUF file, an unsupported model or tokenizer, or `out` is not empty.
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

    out.parent.mkdir(parents=True, exist_ok=True)
    partial = Path(tempfile.mkdtemp(".partial", f".{out.name}.", out.parent))
    try:
        partial.chmod(0o755)  # mkdtemp's are closed to others
        kinds = _write_weights(reader, config, partial, dtype, progress=progress)
        config["torch_dtype"] = kinds.pop() if len(kinds) == 1 else "float32"
        ModelConfig.from_dict(config, generation)  # what we write, we can read
        tokenizer.save(str(partial / "tokenizer.json"))
        _write_json(partial / "tokenizer_config.json", tokenizer_config)
        _write_json(partial / "generation_config.json", generation)
        _write_json(partial / "config.json", config)
        _publish(partial, out)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return out


def unpermute(rows: np.ndarray, num_heads: int) -> np.ndarray:
    """Undo GGUF's order of the rows of q and k, [H D, ...] -> [H D, ...].

    Hugging Face rotates dimension i of a head with i + D/2, GGUF with its neighbour: whoever wrote
    the GGUF interleaved the halves of every head.

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


def _tensors(
    reader: GGUFReader, config: dict[str, Any]
) -> Iterator[tuple[str, ReaderTensor, torch.Tensor]]:
    """Hugging Face name, GGUF tensor and values, one after the other, ready to store exactly."""
    from gguf.quants import dequantize

    for tensor in reader.tensors:
        if tensor.name == ROPE_FACTORS:
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

    >>> _narrow(torch.tensor([1.0, 3.5]), torch.bfloat16).dtype
    torch.bfloat16
    >>> _narrow(torch.tensor([1 / 3]), torch.bfloat16).dtype
    torch.float32
    """
    for dtype in (prefer, torch.bfloat16, torch.float16):
        if torch.equal(x.to(dtype).float(), x):
            return x.to(dtype)
    return x


def _write_weights(
    reader: GGUFReader, config: dict[str, Any], out: Path, dtype: str, *, progress: bool | None
) -> set[str]:
    """Write the safetensors, and an index for several; returns the dtypes of the matrices."""
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
    with ProgressBar("converting GGUF", megabytes, "MB", show=progress) as bar:
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
    """Give the finished directory its name; a process that was faster has written the same."""
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

"""What an engine is started with: one frozen object that checks its own values."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")
LOAD_FORMATS = ("auto", "dummy")
POLICIES = ("lpm", "dfs-weight", "fcfs", "random")
PREFIX_CACHES = ("tree", "table", "none")

_AT_LEAST = {
    "context_length": 1,
    "max_running": 1,
    "prefill_budget": 1,
    "kv_tokens": 1,
    "max_overtakes": 0,
    "max_cached_tokens": 0,
    "vision_cache_mib": 0,
    "tp_size": 1,
}


@dataclass(frozen=True)
class EngineConfig:
    """Settings of an `Engine`; every field can be given to `Engine(...)` by name.

    Raises:
        ValueError: for a value that is not allowed, with the value and what is allowed.
    """

    model: str | None = None
    """A Hugging Face directory, a hub id, a .gguf file, or None for the embedded default model."""

    load_format: str = "auto"
    """"auto": the checkpoint's weights.  "dummy": random ones, to measure a model of which only the
    config and the tokenizer are there; its answers are noise."""

    device: str = "auto"
    """"cuda", "cpu", or "auto": a GPU where there is one."""

    dtype: str = "auto"
    """Of weights and activations. "auto": the half precision that the machine is fast at, on a CPU
    without any float32 with float16 weights (see `minisgl.engine.hardware`)."""

    context_length: int | None = None
    """Most tokens of prompt and answer together; None: what the model was trained for."""

    max_running: int = 64
    """Most requests that compute at the same time."""

    prefill_budget: int = 2048
    """Most tokens of one step; longer prompts are prefilled in chunks."""

    kv_tokens: int | None = None
    """Slots of the KV pool, in tokens; None: as many as `kv_memory_fraction` holds."""

    kv_dtype: str = "auto"
    """Of the keys and values in the pool; "auto": as the activations.  A narrower one holds more
    tokens, and what is computed with is rounded to it, from the first token of a prompt on."""

    kv_memory_fraction: float | None = None
    """Share of the memory that is free after loading which the KV pool may take;
    None: 0.85 on a GPU, 0.25 on a CPU (where the decode workspace may take as much again)."""

    policy: str = "lpm"
    """Order of waiting requests: "lpm" (longest prefix match first, paper section 3), "dfs-weight"
    (depth first over the tree, to where most wait), "fcfs" (order of arrival) or "random"."""

    max_overtakes: int = 128
    """How many later arrivals a policy may admit while a request waits; then it goes first."""

    prefix_cache: str = "tree"
    """Where the KV of finished requests is kept for reuse: in the radix "tree"; in a "table", where
    only a whole request can be found (the paper's ablation); or nowhere ("none"): every prompt is
    computed anew, and the policy is "fcfs"."""

    max_hit_rate: float = 1.0
    """Share of a prompt's tokens that may come from the cache at most; what it holds beyond that is
    computed anew, to measure what a hit is worth."""

    max_cached_tokens: int | None = None
    """Most tokens of finished requests to keep; None: as many as the pool has room for."""

    vision_cache_mib: int = 256
    """Most MiB of what the vision tower made of images to keep for prompts to come, beside the
    radix cache; 0: only what prompts under way need.  Taken from the KV pool's share."""

    jump_forward: bool = True
    """Compute the tokens of text that a pattern forces in one forward pass (paper section 4);
    False: one pass for each, with the same answers."""

    decode_workspace: bool = True
    """On a CPU, keep running requests' KV contiguous as well (docs/decisions.md)."""

    shared_decode: bool = True
    """Attend once to a prefix that running requests share, where that saves enough reading
    (docs/decisions.md); False: each for itself.  Never with a sliding window."""

    cuda_graphs: bool = True
    """On a GPU, record the decode step at start-up and replay it; False: launch every kernel
    anew, which starts sooner and decodes small batches slower.  A CPU has no graphs to record."""

    tp_size: int = 1
    """Over how many GPUs each layer is split (tensor parallelism, docs/scaling.md); on a CPU, over
    how many processes.  Started by the engine on this host, or by `torchrun` on several."""

    trace: str | Path | None = None
    """Write a trace of every step to this file, to look at in Perfetto; None: none is kept."""

    @classmethod
    def make(cls, **settings: Any) -> EngineConfig:
        """From keywords; ValueError names those that are unknown, and all that are known."""
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(settings) - set(known))
        if unknown:
            names = ", ".join(n for n in known if n != "model")
            raise ValueError(f"unknown setting {', '.join(map(repr, unknown))}; known: {names}")
        return cls(**settings)

    @property
    def is_dummy(self) -> bool:
        """Whether the weights are random, and none are read."""
        return self.load_format == "dummy"

    def __post_init__(self) -> None:
        _choice("load_format", self.load_format, LOAD_FORMATS)
        _choice("device", self.device, DEVICES)
        _choice("dtype", self.dtype, DTYPES)
        _choice("kv_dtype", self.kv_dtype, DTYPES)
        _choice("policy", self.policy, POLICIES)
        _choice("prefix_cache", self.prefix_cache, PREFIX_CACHES)
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "bool" and not isinstance(value, bool):
                raise ValueError(f"{field.name}={value!r}: give True or False")
        for name, least in _AT_LEAST.items():
            value = getattr(self, name)
            optional = name in ("context_length", "kv_tokens", "max_cached_tokens")
            if optional and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise ValueError(
                    f"{name}={value!r}: give a whole number of at least {least}"
                    + (", or None" if optional else "")
                )
        if self.trace is not None and not (self.trace and isinstance(self.trace, (str, Path))):
            raise ValueError(f"trace={self.trace!r}: give the path of a file, or None")
        if not _is_share(self.max_hit_rate):
            raise ValueError(f"max_hit_rate={self.max_hit_rate!r}: give a share in [0, 1]")
        fraction = self.kv_memory_fraction
        if fraction is not None and not (_is_share(fraction) and fraction):
            raise ValueError(f"kv_memory_fraction={fraction!r}: give a share in (0, 1], or None")


def _is_share(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1


def _choice(name: str, value: object, allowed: tuple[str, ...]) -> None:
    if value not in allowed:
        raise ValueError(f"{name}={value!r}: choose one of {', '.join(allowed)}")

"""How many tokens of KV the machine has room for: the arithmetic, in one place and in words."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from minisgl.cache.kv_pool import KVPool
from minisgl.config import EngineConfig
from minisgl.engine.hardware import free_memory
from minisgl.models.config import ModelConfig
from minisgl.models.linear import kv_heads_of
from minisgl.parallel import Parallel

GPU_SHARE, CPU_SHARE = 0.85, 0.25  # of the memory that is free once the weights are loaded
MIB = 2**20
ALONE = Parallel()


@dataclass(frozen=True)
class MemoryPlan:
    """Bytes unless said otherwise.  `str()` is what the engine reports when it starts."""

    weights: int
    free: int  # once the weights are loaded
    vision: int  # of `free`, kept for the features of images
    share: float | None  # of the rest that the pool may take; None: `kv_tokens` was given
    per_token: int
    slots: int  # tokens
    limit: str  # what decided `slots`

    @property
    def pool(self) -> int:
        """What the KV pool takes."""
        return self.slots * self.per_token

    def __str__(self) -> str:
        weights, free, vision, pool = (
            f"{b / MIB:,.0f} MiB" for b in (self.weights, self.free, self.vision, self.pool)
        )
        images = f", {vision} of it for images" if self.vision else ""
        return (
            f"weights {weights}, then {free} free{images}; KV pool {self.slots:,} tokens "
            f"x {self.per_token / 1024:,.1f} KiB = {pool} ({self.limit})"
        )


def plan_memory(
    config: EngineConfig,
    model: ModelConfig,
    *,
    weights: int,
    context_length: int,
    dtype: torch.dtype,
    device: torch.device,
    vision: int = 0,
    parallel: Parallel = ALONE,
) -> MemoryPlan:
    """Size the pool of one rank.  `vision`: bytes to keep free for the features of images.

    Raises:
        ValueError: not a single request would fit; with the sizes, and which setting to move where.
    """
    per_token = KVPool.bytes_per_token(
        model.num_layers, kv_heads_of(model.num_kv_heads, parallel), model.head_dim, dtype=dtype
    )
    free = free_memory(device)
    if device.type == "cpu":
        free //= parallel.size  # which all ranks of this host see
    share = None
    if config.kv_tokens is not None:
        slots, limit, way_out = config.kv_tokens, "kv_tokens", "Raise kv_tokens"
    else:
        share = config.kv_memory_fraction
        if share is None:
            share = GPU_SHARE if device.type == "cuda" else CPU_SHARE
        slots, limit = (
            int(max(0, free - vision) * share) // per_token,
            f"{share:.0%} of what is free",
        )
        way_out = "Raise kv_memory_fraction, or free memory"
        if vision:
            way_out = "Lower vision_cache_mib, raise kv_memory_fraction, or free memory"
        most = config.max_running * context_length
        if most < slots:
            slots, limit = most, "max_running x context_length: more can't be used"
            way_out = "Raise context_length"
    plan = MemoryPlan(weights, free, vision, share, per_token, slots, limit)
    if slots < 2:  # one token of a prompt, and one of its answer
        raise ValueError(f"the KV pool would hold {slots} tokens: {plan}. {way_out}")
    return plan

"""`Share`: what one tensor-parallel rank holds: its part of the weights, and of K and V.

With one rank, which is the rule, that is all of them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from minisgl.cache.kv_pool import KVPool
from minisgl.cache.req_to_token import ReqToToken
from minisgl.config import EngineConfig
from minisgl.engine.hardware import Placement, place
from minisgl.engine.memory import MemoryPlan, plan_memory
from minisgl.models.config import ModelConfig
from minisgl.models.linear import kv_heads_of
from minisgl.models.llava_config import LlavaConfig
from minisgl.models.registry import load_config, load_model, weight_bytes
from minisgl.parallel import Parallel


@dataclass(frozen=True)
class Share:
    """A loaded model, or a rank's part of one, and the memory that it computes in.

    Attributes:
        config: of the whole language model.
        vision: of a model that sees; None: it reads text only.
        context_length: of the longest request, in tokens.
    """

    config: ModelConfig
    vision: LlavaConfig | None
    placement: Placement
    context_length: int
    net: nn.Module
    memory: MemoryPlan
    pool: KVPool
    req_to_token: ReqToToken


def load_share(
    settings: EngineConfig,
    path: Path,
    parallel: Parallel,
    *,
    local_rank: int = 0,
    progress: bool = False,
) -> Share:
    """Load the rank's part of the model in `path`; all ranks do it at the same time.

    Args:
        local_rank: which of this host's GPUs is ours.

    Raises:
        ValueError: a setting that doesn't go with the model, or a model that can't be loaded.
    """
    whole = load_config(path)
    vision = whole if isinstance(whole, LlavaConfig) else None
    config = whole.text if isinstance(whole, LlavaConfig) else whole
    placement = place(settings, config.dtype, local_rank)
    device, dtype = placement.device, placement.dtype
    if device.index is not None:
        torch.cuda.set_device(device)  # where Triton launches
    context_length = _context_length(settings, config)
    net = load_model(
        path,
        whole,
        dtype=dtype,
        device=device,
        max_len=context_length,
        half_weights=placement.half_weights,
        parallel=parallel,
        progress=progress,
        dummy=settings.is_dummy,
    )
    memory = plan_memory(
        settings,
        config,
        weights=weight_bytes(net),
        context_length=context_length,
        dtype=placement.kv_dtype,
        device=device,
        vision=settings.vision_cache_mib * 2**20 if vision else 0,
        parallel=parallel,
    )
    if parallel.size > 1:  # a slot has the same number on every rank
        slots = torch.tensor(memory.slots)
        dist.all_reduce(slots, dist.ReduceOp.MIN, group=parallel.control)
        memory = replace(memory, slots=int(slots))
    if progress:
        print(memory, file=sys.stderr)  # noqa: T201  # asked for
    kv_heads = kv_heads_of(config.num_kv_heads, parallel)
    pool = KVPool(
        memory.slots, config.num_layers, kv_heads, config.head_dim, placement.kv_dtype, device
    )
    req_to_token = ReqToToken(settings.max_running, context_length, device)
    return Share(config, vision, placement, context_length, net, memory, pool, req_to_token)


def _context_length(settings: EngineConfig, config: ModelConfig) -> int:
    asked, trained = settings.context_length, config.max_position
    if asked is None:
        return trained
    # Dynamic NTK is made to be stretched: it chooses its base for the length asked for.
    if asked > trained and config.rope.type != "dynamic":
        raise ValueError(f"context_length={asked}: the model was made for {trained} tokens at most")
    return asked

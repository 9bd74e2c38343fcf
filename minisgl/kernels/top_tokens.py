"""Top tokens: the k likeliest tokens of each row, likeliest first.

    ids[b, :] = places of the k largest of logits[b, :]; of equal ones the first in the vocabulary

Shapes: logits [B, V] -> ids [B, k].  B rows, V vocabulary.

A logit and its place become one integer, so that no two are equal and a maximum is unique:

    key = order(logit) · 2^32 + (2^31 - 1 - place)

where `order` reads the bits of a float as an integer that rises with it.  One program keeps a tile
of BLOCK_V keys in registers and takes the maximum k times; then one program per row does the same
with what the tiles found.
Source: the order of float bits: Herf 2001, "Radix Tricks"; the two stages as in flash decoding.
"""

import torch

from minisgl.kernels.block_sizes import vocab_blocks
from minisgl.kernels.dispatch import tl, triton, use_triton

LAST = 2**31 - 1  # minus the place: of equal logits the first has the largest key


def top_tokens_ref(logits: torch.Tensor, k: int) -> torch.Tensor:
    bits = (logits.float() + 0.0).view(torch.int32)  # + 0.0: -0.0 equals 0.0
    order = (bits ^ ((bits >> 31) & LAST)).long()
    place = torch.arange(logits.shape[1], device=logits.device)
    return ((order << 32) + (LAST - place)).topk(k).indices


@triton.jit
def _take_largest(keys, out_ptr, k, DECODE: tl.constexpr, LAST: tl.constexpr):
    """Store the k largest keys, largest first, or with DECODE their places."""
    for i in range(k):
        largest = tl.max(keys, axis=0)
        tl.store(out_ptr + i, LAST - (largest & LAST) if DECODE else largest)
        keys = tl.where(keys == largest, -(2**63), keys)


@triton.jit(do_not_specialize=["k"])
def _tile_tops_kernel(
    logits_ptr,  # [B, V]
    tops_ptr,  # [B, tiles, k] int64
    stride_lb,
    V,
    k,
    LAST: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    b, tile = tl.program_id(0).to(tl.int64), tl.program_id(1)
    v = tile * BLOCK_V + tl.arange(0, BLOCK_V)
    x = tl.load(logits_ptr + b * stride_lb + v, mask=v < V, other=0.0).to(tl.float32)
    bits = tl.where(x == 0, 0.0, x).to(tl.int32, bitcast=True)
    order = bits ^ ((bits >> 31) & LAST)
    keys = (order.to(tl.int64) << 32) + (LAST - v)
    keys = tl.where(v < V, keys, -(2**63))
    tops_ptr += (b * tl.num_programs(1) + tile) * k
    _take_largest(keys, tops_ptr, k, DECODE=False, LAST=LAST)


@triton.jit(do_not_specialize=["n", "k"])
def _merge_tops_kernel(
    tops_ptr,  # [B, n] int64
    ids_ptr,  # [B, k] int64
    n,
    k,
    LAST: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BLOCK_N)
    keys = tl.load(tops_ptr + b * n + i, mask=i < n, other=-(2**63))
    _take_largest(keys, ids_ptr + b * k, k, DECODE=True, LAST=LAST)


def top_tokens(logits: torch.Tensor, k: int, blocks: dict[str, int] | None = None) -> torch.Tensor:
    """The ids [B, k] int64 of the k largest logits of each row, largest first.

    logits [B, V] of any float dtype with unit last stride; 1 <= k <= V.  A row with a NaN has no
    order.
    """
    B, V = logits.shape
    if not 1 <= k <= V:
        raise ValueError(f"top_tokens: k={k} of a vocabulary of {V}")
    if not use_triton(logits):
        return top_tokens_ref(logits, k)
    if logits.stride(1) != 1:
        raise ValueError(f"top_tokens needs a unit last stride; got strides {logits.stride()}")
    ids = torch.empty((B, k), dtype=torch.int64, device=logits.device)
    if B == 0:
        return ids
    blocks = blocks or vocab_blocks()
    tiles = triton.cdiv(V, blocks["BLOCK_V"])
    tops = torch.empty((B, tiles, k), dtype=torch.int64, device=logits.device)
    _tile_tops_kernel[(B, tiles)](logits, tops, logits.stride(0), V, k, LAST=LAST, **blocks)
    launch = {name: value for name, value in blocks.items() if name != "BLOCK_V"}
    block = triton.next_power_of_2(tiles * k)
    _merge_tops_kernel[(B,)](tops, ids, tiles * k, k, LAST=LAST, BLOCK_N=block, **launch)
    return ids

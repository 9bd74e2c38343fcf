"""Sort (token, expert) pairs by expert: a counting sort, padded so that no tile has two experts.

    pair p = t * K + k:  token t goes to its k-th expert, experts[t, k]

    experts  [[2, 0], [0, 1], [0, 2]],  BLOCK = 2
    pairs    1 2 | 4 _ | 3 _ | 0 5      _ is padding: the number of pairs, which no pair has
    tiles      0     0     1     2      the expert of each tile; -1 where there is nothing to do

Shapes: experts [T, K] int32 -> pairs [tiles * BLOCK] int32, tiles [tiles] int32.

How many tiles there are depends on the routing, which only the device knows.  The launcher
allocates as many as there can be (`most_tiles`), so nothing waits and a CUDA graph can be recorded.
Pairs of one expert stay in order, and nothing is atomic: the same input gives the same output.
One program places the pairs of one expert.  Where they begin depends on the experts before it, so
every program counts all pairs; they are few, and this saves a second launch.
"""

import torch

from minisgl.kernels.block_sizes import sort_blocks
from minisgl.kernels.dispatch import tl, triton, use_triton


def most_tiles(pairs: int, num_experts: int, block: int) -> int:
    """How many tiles `pairs` pairs can need: each begun tile holds a pair.

    >>> most_tiles(2, 8, 16), most_tiles(4096, 8, 128)
    (2, 39)
    """
    return min(pairs, (pairs + num_experts * (block - 1)) // block)


def sort_by_expert_ref(
    experts: torch.Tensor, num_experts: int, block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    flat = experts.flatten()
    most = most_tiles(flat.numel(), num_experts, block)
    pairs = torch.full((most, block), flat.numel(), dtype=torch.int32, device=flat.device)
    tiles = torch.full((most,), -1, dtype=torch.int32, device=flat.device)
    first = 0
    for e in range(num_experts):
        for mine in (flat == e).nonzero()[:, 0].split(block):
            if len(mine):
                pairs[first, : len(mine)] = mine.int()
                tiles[first] = e
                first += 1
    return pairs.flatten(), tiles


@triton.jit(do_not_specialize=["N", "most"])
def _sort_by_expert_kernel(
    experts_ptr,  # [N]
    pairs_ptr,  # [most * BLOCK]
    tiles_ptr,  # [most]
    N,
    most,
    E,
    BLOCK: tl.constexpr,
    BLOCK_E: tl.constexpr,
    CHUNK: tl.constexpr,
):
    me = tl.program_id(0)
    e = tl.arange(0, BLOCK_E)
    hits = tl.zeros([CHUNK, BLOCK_E], tl.int32)
    for start in range(0, N, CHUNK):
        p = start + tl.arange(0, CHUNK)
        expert = tl.load(experts_ptr + p, mask=p < N, other=-1)
        hits += (expert[:, None] == e[None, :]).to(tl.int32)
    count = tl.sum(hits, axis=0)  # [BLOCK_E]
    size = (count + BLOCK - 1) // BLOCK  # in tiles
    first = tl.sum(tl.where(e < me, size, 0), axis=0)
    mine = tl.sum(tl.where(e == me, count, 0), axis=0)
    end = first + (mine + BLOCK - 1) // BLOCK

    placed = first * BLOCK
    for start in range(0, N, CHUNK):
        p = start + tl.arange(0, CHUNK)
        is_mine = tl.load(experts_ptr + p, mask=p < N, other=-1) == me
        before = tl.cumsum(is_mine.to(tl.int32), axis=0) - 1
        tl.store(pairs_ptr + placed + before, p, mask=is_mine)
        placed += tl.sum(is_mine.to(tl.int32), axis=0)
    padding = placed + tl.arange(0, BLOCK)
    tl.store(pairs_ptr + padding, tl.zeros([BLOCK], tl.int32) + N, mask=padding < end * BLOCK)

    # The tiles of one expert follow one another; the last program also marks those left over.
    stop = tl.where(me == E - 1, most, end)
    for start in range(first, stop, CHUNK):
        tile = start + tl.arange(0, CHUNK)
        tl.store(tiles_ptr + tile, tl.where(tile < end, me, -1), mask=tile < stop)


def sort_by_expert(
    experts: torch.Tensor, num_experts: int, block: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pairs by expert.  experts [T, K] int32, contiguous, each in [0, num_experts); block: a power
    of two -> pairs [tiles * block], tiles [tiles], both int32.  Of a tile whose expert is -1 the
    pairs are not written.
    """
    if not use_triton(experts):
        return sort_by_expert_ref(experts, num_experts, block)
    if experts.dtype != torch.int32 or not experts.is_contiguous():
        raise ValueError(
            f"sort_by_expert needs contiguous int32 experts [T, K]; got {experts.dtype} with "
            f"strides {experts.stride()}"
        )
    N = experts.numel()
    most = most_tiles(N, num_experts, block)
    pairs = torch.empty(most * block, dtype=torch.int32, device=experts.device)
    tiles = torch.empty(most, dtype=torch.int32, device=experts.device)
    if N:
        _sort_by_expert_kernel[(num_experts,)](
            experts, pairs, tiles, N, most, num_experts, BLOCK=block, **sort_blocks(num_experts)
        )
    return pairs, tiles

"""Block sizes of every kernel: one table, chosen by hand and checked in.

No autotuner: it needs a GPU to import, breaks CUDA graph capture, and may choose differently from
run to run, which changes the last bits of the answers.  A row here depends on the GPU generation,
the element size and the head dimension, never on what happens to be in the batch.

Generations, by the shared memory that one block may use:

    80   sm_80 (A100)                     163 KiB, cp.async
    86   sm_86, sm_89, sm_120 (consumer)   99 KiB, cp.async
    90   sm_90, sm_100 (Hopper and later) 227 KiB, wgmma
     0   Triton's CPU interpreter: tiny blocks, so that tiny inputs fill several of them
"""

import torch

from minisgl.kernels.dispatch import INTERPRETED, triton

# Attention: (generation, element size in bytes, head dimension padded to a power of two)
#   -> query rows, keys, warps, pipeline stages
_EXTEND = {
    (80, 2, 64): (128, 64, 8, 3),
    (80, 2, 128): (64, 64, 4, 2),
    (80, 2, 256): (64, 32, 8, 2),
    (86, 2, 64): (64, 64, 4, 3),
    (86, 2, 128): (64, 32, 4, 2),
    (86, 2, 256): (32, 32, 4, 2),
    (90, 2, 64): (128, 64, 8, 3),
    (90, 2, 128): (128, 64, 8, 3),
    (90, 2, 256): (64, 32, 8, 2),
    (0, 2, 64): (16, 16, 1, 1),
}
#   -> keys, warps, pipeline stages
_DECODE = {
    (80, 2, 64): (128, 4, 3),
    (80, 2, 128): (64, 4, 3),
    (80, 2, 256): (32, 4, 3),
    (86, 2, 64): (64, 4, 3),
    (86, 2, 128): (64, 4, 3),
    (86, 2, 256): (32, 4, 3),
    (90, 2, 64): (128, 4, 3),
    (90, 2, 128): (64, 4, 3),
    (90, 2, 256): (32, 4, 3),
    (0, 2, 64): (16, 1, 1),
}
# Cascade, with more query rows than decode's 16, by padded head dimension: fits every generation
_CASCADE = {64: (64, 64, 4, 3), 128: (64, 64, 8, 3), 256: (64, 32, 8, 2)}
# fp32 has no tensor cores here (every product is exact IEEE), so small tiles that fit anywhere.
_EXTEND_FP32 = {64: (32, 16, 4, 2), 128: (16, 16, 4, 2), 256: (16, 16, 4, 2)}
_DECODE_FP32 = {64: (32, 4, 2), 128: (16, 4, 2), 256: (16, 4, 2)}

# Linear: (generation, element size) -> rows, columns, depth, warps, stages
_LINEAR = {
    (80, 2): (128, 128, 32, 8, 4),
    (80, 4): (64, 32, 32, 4, 2),
    (86, 2): (128, 128, 32, 8, 3),
    (86, 4): (64, 32, 32, 4, 2),
    (90, 2): (128, 256, 64, 8, 3),
    (90, 4): (64, 32, 32, 4, 2),
    (0, 2): (16, 16, 16, 1, 1),
    (0, 4): (16, 16, 16, 1, 1),
}
#   few rows (see linear.SMALL_T) -> columns, depth, warps, stages
_LINEAR_SMALL = {
    (80, 2): (32, 128, 4, 4),
    (80, 4): (32, 32, 4, 2),
    (86, 2): (32, 128, 4, 3),
    (86, 4): (32, 32, 4, 2),
    (90, 2): (32, 128, 4, 4),
    (90, 4): (32, 32, 4, 2),
    (0, 2): (16, 16, 1, 1),
    (0, 4): (16, 16, 1, 1),
}

# Mixture of experts: (generation, element size, rows of a tile)
#   -> columns (of gate and of up each; twice as many of down), depth, warps, stages
_MOE = {
    (80, 2, 16): (32, 128, 4, 3),
    (80, 2, 64): (64, 64, 4, 3),
    (80, 2, 128): (64, 32, 8, 4),
    (86, 2, 16): (32, 128, 4, 3),
    (86, 2, 64): (64, 64, 4, 3),
    (86, 2, 128): (64, 32, 8, 3),
    (90, 2, 16): (32, 128, 4, 4),
    (90, 2, 64): (64, 64, 4, 4),
    (90, 2, 128): (128, 64, 8, 3),
}
_MOE_FP32 = (16, 32, 4, 2)


def generation() -> int:
    """The row of the tables for the current GPU (asked here, at launch, never at import)."""
    if INTERPRETED:
        return 0
    arch = triton.runtime.driver.active.get_current_target().arch
    if arch == 80:
        return 80
    return 90 if 90 <= arch < 120 else 86


def wider(a: torch.dtype, b: torch.dtype) -> torch.dtype:
    """Of the dtypes of q and of the pool, the one whose tiles take more shared memory.

    >>> wider(torch.float32, torch.bfloat16)
    torch.float32
    """
    return a if a.itemsize >= b.itemsize else b


def _head_class(head_dim: int) -> int:
    for size in (64, 128, 256):
        if head_dim <= size:
            return size
    raise ValueError(f"head_dim {head_dim} is not supported: at most 256")


def _launch(num_warps: int, num_stages: int) -> dict[str, int]:
    return {"num_warps": num_warps, "num_stages": num_stages, "enable_fp_fusion": True}


def extend_blocks(dtype: torch.dtype, head_dim: int) -> dict[str, int]:
    """BLOCK_M (query rows) and BLOCK_N (keys) of extend_attention, and how to launch it."""
    size, arch = _head_class(head_dim), generation()
    if arch == 0:
        row = _EXTEND[0, 2, 64]
    elif dtype == torch.float32:
        row = _EXTEND_FP32[size]
    else:
        row = _EXTEND[arch, 2, size]
    return {"BLOCK_M": row[0], "BLOCK_N": row[1], **_launch(row[2], row[3])}


def decode_blocks(dtype: torch.dtype, head_dim: int) -> dict[str, int]:
    """BLOCK_N (keys) of decode_attention, and how to launch it."""
    size, arch = _head_class(head_dim), generation()
    if arch == 0:
        row = _DECODE[0, 2, 64]
    elif dtype == torch.float32:
        row = _DECODE_FP32[size]
    else:
        row = _DECODE[arch, 2, size]
    return {"BLOCK_N": row[0], **_launch(row[1], row[2])}


def cascade_blocks(dtype: torch.dtype, head_dim: int, rows: int) -> dict[str, int]:
    """BLOCK_M and BLOCK_N of cascade_attention for `rows` stacked query rows, and the launch.

    Up to 16 rows are bound by reading the keys, as decode is, and take decode's tile.
    """
    if rows <= 16:
        return {"BLOCK_M": 16, **decode_blocks(dtype, head_dim)}
    size = _head_class(head_dim)
    if generation() == 0:
        row = (32, 16, 1, 1)
    elif dtype == torch.float32:
        row = _EXTEND_FP32[size]
    else:
        row = _CASCADE[size]
    return {"BLOCK_M": row[0], "BLOCK_N": row[1], **_launch(row[2], row[3])}


def linear_blocks(dtype: torch.dtype) -> dict[str, int]:
    """BLOCK_M, BLOCK_N, BLOCK_K of linear with many rows, and how to launch it."""
    m, n, k, warps, stages = _LINEAR[generation(), dtype.itemsize]
    return {"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, **_launch(warps, stages)}


def linear_small_blocks(dtype: torch.dtype) -> dict[str, int]:
    """BLOCK_N, BLOCK_K of linear with few rows, and how to launch it."""
    n, k, warps, stages = _LINEAR_SMALL[generation(), dtype.itemsize]
    return {"BLOCK_N": n, "BLOCK_K": k, **_launch(warps, stages)}


def moe_rows(pairs: int, num_experts: int) -> int:
    """Rows of one expert's tile: as many as an expert has on average, and 16, 64 or 128.

    >>> moe_rows(128, 8), moe_rows(129, 8), moe_rows(4096, 8)
    (16, 64, 128)
    """
    return next((rows for rows in (16, 64) if pairs <= rows * num_experts), 128)


def moe_blocks(dtype: torch.dtype, pairs: int, num_experts: int) -> dict[str, int]:
    """BLOCK_M, BLOCK_N, BLOCK_K of moe, and how to launch it."""
    arch, rows = generation(), moe_rows(pairs, num_experts)
    if arch == 0:
        rows, row = 16, (16, 16, 1, 1)
    elif dtype == torch.float32:
        rows, row = min(rows, 64), _MOE_FP32
    else:
        row = _MOE[arch, 2, rows]
    return {"BLOCK_M": rows, "BLOCK_N": row[0], "BLOCK_K": row[1], **_launch(row[2], row[3])}


def route_blocks(num_experts: int) -> dict[str, int]:
    """ROWS (tokens), BLOCK_E (experts) and BLOCK_D of route: about 4,096 products at a time."""
    experts = triton.next_power_of_2(num_experts)
    rows, products = (8, 32) if INTERPRETED else (1, max(64, 4096 // experts))
    return {"ROWS": rows, "BLOCK_E": experts, "BLOCK_D": products, **_launch(4, 1)}


def sort_blocks(num_experts: int) -> dict[str, int]:
    """BLOCK_E (experts) and CHUNK (pairs counted at a time) of sort_by_expert."""
    experts = triton.next_power_of_2(num_experts)
    chunk = 32 if INTERPRETED else min(1024, max(64, 4096 // experts))
    return {"BLOCK_E": experts, "CHUNK": chunk, **_launch(8, 1)}


def row_blocks(width: int) -> dict[str, int]:
    """ROWS and BLOCK_D of a kernel whose program owns whole rows of `width` elements."""
    block = triton.next_power_of_2(width)
    elements = 256 if INTERPRETED else 2048
    warps = 8 if block >= 4096 else 4
    return {"ROWS": max(1, elements // block), "BLOCK_D": block, **_launch(warps, 1)}


def tile_blocks(width: int) -> dict[str, int]:
    """ROWS and BLOCK_D of a pointwise kernel, whose program owns a tile of a few rows."""
    block = min(triton.next_power_of_2(width), 32 if INTERPRETED else 1024)
    elements = 128 if INTERPRETED else 2048
    return {"ROWS": max(1, elements // block), "BLOCK_D": block, **_launch(4, 1)}


def vocab_blocks() -> dict[str, int]:
    """BLOCK_V: the tile of a vocabulary that sample and logprob walk over.

    Unfused, so that sample's weights have the same bits in each of its passes.
    """
    tile = {"BLOCK_V": 64 if INTERPRETED else 2048}
    return {**tile, **_launch(num_warps=8, num_stages=1), "enable_fp_fusion": False}


def entry_blocks() -> dict[str, int]:
    """BLOCK_N: the entries that one program of adjust_logits changes.

    Unfused, so that a changed logit has the bits of the reference.
    """
    return {"BLOCK_N": 64 if INTERPRETED else 256, **_launch(4, 1), "enable_fp_fusion": False}

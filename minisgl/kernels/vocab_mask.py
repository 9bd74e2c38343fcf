"""Vocab mask: forbid the tokens that a constrained answer may not go on with, in place.

    allowed[n, v] = bit v % 32 of table[rows[n], v // 32]       False past the table's last bit
    kept[n]       = Σ_allowed e^logits[n, v] / Σ_v e^logits[n, v]
    logits[n, v]  = -inf    where not allowed

Shapes: logits [N, V], table [R, W] int32, rows [N] -> kept [N] fp32.  N rows, V vocabulary, R
different masks, W words of 32 tokens each, low bits first.  A row with rows[n] = -1 is free.

One program reads and writes one row once, tile by tile.  Every lane keeps its own running maximum
and, relative to it, two sums (the online softmax): of all tokens, and of the allowed ones.  The
lanes meet once, at the end.  A free row is not touched.
Sources: Dong et al. 2024, "XGrammar", arXiv 2411.15100 (masks as bits); Milakov and Gimelshein
2018, "Online normalizer calculation for softmax", arXiv 1805.02867.
"""

import torch
import torch.nn.functional as F

from minisgl.kernels.block_sizes import vocab_blocks
from minisgl.kernels.dispatch import tl, triton, use_triton


def vocab_mask_ref(logits: torch.Tensor, table: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    V, device = logits.shape[1], logits.device
    # What each byte of a mask adds to eight logits; -0.0 leaves even the sign of a zero.
    bits = torch.arange(256, device=device).unsqueeze(1) >> torch.arange(8, device=device) & 1
    added = torch.where(bits == 1, -0.0, -torch.inf)
    biases: dict[int, torch.Tensor] = {}  # of each different mask: [V]
    kept = torch.ones(len(rows), device=device)
    for n, row in enumerate(rows.tolist()):  # row by row: a batch does not fit in the caches
        if row < 0:
            continue
        if row not in biases:
            bias = F.embedding(table[row].view(torch.uint8).int(), added).flatten()  # [32 · W]
            biases[row] = F.pad(bias, (0, V - len(bias)), value=-torch.inf)
        p = torch.softmax(logits[n], dim=-1, dtype=torch.float32)
        kept[n] = p.add_(biases[row]).clamp_(min=0.0).sum()
        logits[n] += biases[row]
    # No distribution, no share: p is NaN where the row has a NaN or a +inf, or only -inf.
    return kept.nan_to_num_(nan=0.0).clamp_(max=1.0)


@triton.jit
def _vocab_mask_kernel(
    logits_ptr,  # [N, V]
    table_ptr,  # [R, W] int32
    rows_ptr,  # [N] int64, -1: free
    kept_ptr,  # [N] fp32
    stride_ln,
    stride_tr,
    V,
    W,
    BLOCK_V: tl.constexpr,  # a multiple of 32
):
    n = tl.program_id(0).to(tl.int64)
    row = tl.load(rows_ptr + n)
    if row < 0:
        tl.store(kept_ptr + n, 1.0)
        return
    logits_ptr += n * stride_ln
    table_ptr += row * stride_tr
    bit = tl.arange(0, 32)[None, :]
    m = tl.full([BLOCK_V // 32, 32], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_V // 32, 32], tl.float32)
    l_allowed = tl.zeros([BLOCK_V // 32, 32], tl.float32)
    for first in range(0, tl.cdiv(V, 32), BLOCK_V // 32):
        word = first + tl.arange(0, BLOCK_V // 32)
        words = tl.load(table_ptr + word, mask=word < W, other=0)[:, None]
        allowed = (words >> bit & 1) != 0
        v = word[:, None] * 32 + bit
        x = tl.load(logits_ptr + v, mask=v < V, other=float("-inf")).to(tl.float32)
        # subtle: a sum, so that a NaN or a +inf leaves a NaN for the sampler to see.
        left = tl.where(allowed, x, x + float("-inf"))
        tl.store(logits_ptr + v, left.to(logits_ptr.dtype.element_ty), mask=v < V)
        m_new = tl.maximum(m, x)
        m_use = tl.where(m_new == float("-inf"), 0.0, m_new)  # nothing yet: -inf - -inf is NaN
        shrink, p = tl.exp(m - m_use), tl.exp(x - m_use)
        l = l * shrink + p
        l_allowed = l_allowed * shrink + tl.where(allowed, p, 0.0)
        m = m_new
    peak = tl.max(m)
    scale = tl.exp(m - tl.where(peak == float("-inf"), 0.0, peak))
    total, share = tl.sum(l * scale), tl.sum(l_allowed * scale)
    # No distribution, no share: the total is NaN after a NaN or a +inf, and 0 of only -inf.
    tl.store(kept_ptr + n, tl.where(total > 0.0, tl.div_rn(share, total), 0.0))


def vocab_mask(
    logits: torch.Tensor,
    table: torch.Tensor,
    rows: torch.Tensor,
    blocks: dict[str, int] | None = None,
) -> torch.Tensor:
    """Forbid in row n of `logits`, in place, what row `rows[n]` of `table` does not allow.

    logits [N, V] of any float dtype, table [R, W] int32, both with unit last stride; rows [N] int64
    in [-1, R), contiguous -> kept [N] fp32: the share of softmax(logits[n]) that the mask leaves,
    in [0, 1].  Ids from 32 · W on are forbidden.  rows[n] = -1 leaves its row as it is, kept 1.

    What is no number stays in sight of whoever samples: a forbidden NaN or +inf becomes a NaN.
    Such a row, like one with nothing allowed and one of -inf alone, has kept 0.
    """
    N, V = logits.shape
    if (
        logits.stride(1) != 1
        or table.dim() != 2
        or table.dtype != torch.int32
        or table.stride(1) != 1
        or rows.shape != (N,)
        or rows.dtype != torch.int64
        or not rows.is_contiguous()
    ):
        raise ValueError(
            f"vocab_mask needs logits [N, V] and an int32 table [R, W] with unit last stride, and "
            f"contiguous int64 rows [N]; got {tuple(logits.shape)} strides {logits.stride()}, "
            f"{table.dtype} {tuple(table.shape)} strides {table.stride()}, "
            f"{rows.dtype} {tuple(rows.shape)}"
        )
    if not use_triton(logits):
        return vocab_mask_ref(logits, table, rows)
    kept = torch.empty(N, dtype=torch.float32, device=logits.device)
    if N == 0:
        return kept
    W = table.shape[1]
    _vocab_mask_kernel[(N,)](
        logits, table, rows, kept, logits.stride(0), table.stride(0), V, W,
        **(blocks or vocab_blocks()),
    )  # fmt: skip
    return kept

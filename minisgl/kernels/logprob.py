"""Log-probabilities of a few tokens per row.

    out[b, n] = log_softmax(logits[b, :])[ids[b, n]] = logits[b, ids[b, n]] - log Σ_v e^logits[b, v]

Shapes: logits [B, V], ids [B, N] -> [B, N] fp32.  B rows, V vocabulary, N tokens.
One program reads one row once, tile by tile.  Every lane keeps its own running maximum and its sum
relative to it (the online softmax), and the lanes meet once, at the end.
Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", arXiv 1805.02867.
"""

import torch

from minisgl.kernels.block_sizes import vocab_blocks
from minisgl.kernels.dispatch import tl, triton, use_triton


def logprob_ref(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    scores = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    return scores.gather(1, ids.long())


@triton.jit(do_not_specialize=["N"])
def _logprob_kernel(
    logits_ptr,  # [B, V]
    ids_ptr,  # [B, N] contiguous
    out_ptr,  # [B, N] contiguous
    stride_lb,
    V,
    N,
    BLOCK_V: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64)
    row_ptr = logits_ptr + b * stride_lb
    m = tl.full([BLOCK_V], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_V], tl.float32)
    for first in range(0, V, BLOCK_V):
        v = first + tl.arange(0, BLOCK_V)
        x = tl.load(row_ptr + v, mask=v < V, other=float("-inf")).to(tl.float32)
        m_new = tl.maximum(m, x)
        m_use = tl.where(m_new == float("-inf"), 0.0, m_new)  # nothing yet: -inf - -inf is NaN
        l = l * tl.exp(m - m_use) + tl.exp(x - m_use)
        m = m_new
    peak = tl.max(m, axis=0)
    peak = tl.where(peak == float("-inf"), 0.0, peak)
    total = tl.sum(l * tl.exp(m - peak), axis=0)
    n = tl.arange(0, BLOCK_N)
    token = tl.load(ids_ptr + b * N + n, mask=n < N, other=0).to(tl.int64)
    x = tl.load(row_ptr + token, mask=n < N, other=0.0).to(tl.float32)
    tl.store(out_ptr + b * N + n, x - peak - tl.log(total), mask=n < N)


def logprob(
    logits: torch.Tensor, ids: torch.Tensor, blocks: dict[str, int] | None = None
) -> torch.Tensor:
    """log_softmax(logits)[ids] in fp32: logits [B, V] with unit last stride, ids [B, N] -> [B, N].

    ids are int32 or int64 in [0, V), contiguous.  A token whose logit is -inf gets -inf.
    """
    if not use_triton(logits):
        return logprob_ref(logits, ids)
    B, V = logits.shape
    if logits.stride(1) != 1 or ids.dim() != 2 or len(ids) != B or not ids.is_contiguous():
        raise ValueError(
            f"logprob needs logits [B, V] with unit last stride and contiguous ids [B, N]; got "
            f"logits {tuple(logits.shape)} strides {logits.stride()}, ids {tuple(ids.shape)} "
            f"strides {ids.stride()}"
        )
    N = ids.shape[1]
    out = torch.empty((B, N), dtype=torch.float32, device=logits.device)
    if out.numel() == 0:
        return out
    blocks = blocks or vocab_blocks()
    block_n = triton.next_power_of_2(N)
    _logprob_kernel[(B,)](logits, ids, out, logits.stride(0), V, N, BLOCK_N=block_n, **blocks)
    return out

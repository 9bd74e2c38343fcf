"""Log-probability of one token per row.

    out[b] = log_softmax(logits[b, :])[ids[b]] = logits[b, ids[b]] - log Σ_v e^logits[b, v]

Shapes: logits [B, V], ids [B] -> [B] fp32.  B rows, V vocabulary.
One program reads one row once, tile by tile.  Every lane keeps its own running maximum and its sum
relative to it (the online softmax), and the lanes meet once, at the end.
Source: Milakov and Gimelshein 2018, "Online normalizer calculation for softmax", arXiv 1805.02867.
"""

import torch

from minisgl.kernels.block_sizes import vocab_blocks
from minisgl.kernels.dispatch import tl, triton, use_triton


def logprob_ref(logits: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    scores = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
    return scores.gather(1, ids.long().unsqueeze(1)).squeeze(1)


@triton.jit
def _logprob_kernel(
    logits_ptr,  # [B, V]
    ids_ptr,  # [B]
    out_ptr,  # [B]
    stride_lb,
    stride_ids,
    V,
    BLOCK_V: tl.constexpr,
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
    token = tl.load(ids_ptr + b * stride_ids).to(tl.int64)
    x = tl.load(row_ptr + token).to(tl.float32)
    tl.store(out_ptr + b, x - peak - tl.log(total))


def logprob(
    logits: torch.Tensor, ids: torch.Tensor, blocks: dict[str, int] | None = None
) -> torch.Tensor:
    """log_softmax(logits)[ids] in fp32.  logits [B, V] with unit last stride, ids [B] -> [B].

    ids are int32 or int64 in [0, V).  A token whose logit is -inf gets -inf.
    """
    if not use_triton(logits):
        return logprob_ref(logits, ids)
    B, V = logits.shape
    if logits.stride(1) != 1 or ids.shape != (B,):
        raise ValueError(
            f"logprob needs logits [B, V] with unit last stride and ids [B]; got logits "
            f"{tuple(logits.shape)} strides {logits.stride()}, ids {tuple(ids.shape)}"
        )
    out = torch.empty(B, dtype=torch.float32, device=logits.device)
    if B == 0:
        return out
    blocks = blocks or vocab_blocks()
    _logprob_kernel[(B,)](logits, ids, out, logits.stride(0), ids.stride(0), V, **blocks)
    return out

"""Decode attention over contiguous keys and values: the CPU's fast path, plain torch.

    o[r, h] = softmax_l(scale · q[r, h]·k[r, h // G, l]) · v[r, h // G, l]

Shapes: q [B, H, D], k and v [B·KV, L, D] (head-major), mask [B, 1, L] or None -> o [B, H, D].

Two batched matrix products with a softmax between; the G = H / KV query heads that share a KV head
are the rows of one product, so keys are read once for all of them.  Gathering keys from scattered
slots first costs more than the attention itself, which is why engine/decode_workspace.py keeps them
like this. There is no Triton kernel here: a GPU reads scattered slots at full speed
(decode_attention.py).
"""

from __future__ import annotations

import torch


def slab_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
) -> torch.Tensor:
    """`mask` is added to the scores: 0 where a key may be read, -inf where not."""
    B, H, D = q.shape
    KV = k.shape[0] // B
    grouped = q.reshape(B * KV, H // KV, D)
    # beta = 0: the first operand is never read, only its dtype
    scores = torch.baddbmm(q.new_empty(1), grouped, k.transpose(1, 2), beta=0, alpha=scale)
    if mask is not None:
        scores.view(B, H, -1).add_(mask)
    weights = torch.softmax(scores, dim=-1, dtype=torch.float32).to(v.dtype)
    return torch.bmm(weights, v).view(B, H, D)

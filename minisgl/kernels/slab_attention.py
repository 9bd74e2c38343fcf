"""Decode attention over contiguous keys and values: the CPU's fast path, plain torch.

    o[r, h] = softmax_l(scale · q[r, h]·k[r, h // G, l]) · v[r, h // G, l]

Shapes: q [B, H, D], k and v [B·KV, L, D] (head-major), mask [B·KV, 1 or G, L] or None
-> o [B, H, D].

Two batched matrix products with a softmax between; the G = H / KV query heads that share a KV head
are the rows of one product, so keys are read once for all of them.  Keys that B requests share are
read once for all B·G (`shared_attention`).  Gathering keys from scattered slots first costs more
than the attention itself, which is why engine/decode_workspace.py keeps them like this. There is no
Triton kernel here: a GPU reads scattered slots at full speed (decode_attention.py).

Attention over disjoint sets of keys merges exactly, given lse = log Σ e^score (natural, unlike the
base-2 one of online_softmax) of each; see `merge`.
"""

from __future__ import annotations

from functools import cache

import torch

ROUND = 32  # lengths are rounded up to it: oneDNN makes a product of a new shape slowly
MANY_ROWS = 16  # of the queries of a head, which from then on are the product's first operand
MANY_SCORES = 2**14  # of a head, of bfloat16: then products win over flash attention
BLOCK = 384  # rows


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
    scores = attention_scores(q.reshape(B * KV, H // KV, D), k, mask, scale)
    return torch.bmm(torch.softmax(scores, dim=-1), v).view(B, H, D)


def slab_attention_lse(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`slab_attention`, and the lse [B, H] fp32 to merge it by.  Every row has a key to read."""
    B, H, D = q.shape
    KV = k.shape[0] // B
    scores = attention_scores(q.reshape(B * KV, H // KV, D), k, mask, scale)
    o, lse = weighted_sum_(scores, v)
    return o.view(B, H, D), lse.view(B, H)


def shared_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention of B requests to the same keys: q [B, H, D], k and v [KV, P, D] -> o, lse."""
    B, H, D = q.shape
    KV = k.shape[0]
    # All queries of a KV head are the rows of one product: [B, KV, G, D] -> [KV, B · G, D]
    rows = q.reshape(B, KV, H // KV, D).transpose(0, 1).reshape(KV, -1, D)
    # In blocks, since B · G rows of P scores would not stay in the processor's cache.
    if q.dtype == torch.bfloat16 and rows.shape[1] * k.shape[1] >= MANY_SCORES:
        parts = [
            weighted_sum_(attention_scores(block, k, None, scale), v)
            for block in rows.split(BLOCK, dim=1)
        ]
        o, lse = (torch.cat(each, dim=1) for each in zip(*parts, strict=True))
    else:  # the operator behind F.scaled_dot_product_attention, which gives the lse as well
        attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        (o,), (lse,) = attend(rows[None], k[None], v[None], 0.0, False, scale=scale)
    o = o.unflatten(1, (B, -1)).transpose(0, 1).reshape(B, H, D)
    return o, lse.unflatten(1, (B, -1)).transpose(0, 1).reshape(B, H)


def merge(
    o: torch.Tensor, lse: torch.Tensor, other_o: torch.Tensor, other_lse: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over the union of two disjoint sets of keys, from attention over each.

    o [B, H, D], lse [B, H]; each is weighted with its share of Σ e^score over both.
    """
    weight = torch.sigmoid(other_lse - lse)  # e^other / (e^other + e^lse)
    o = torch.lerp(o, other_o, weight.unsqueeze(-1).to(o.dtype))
    return o, torch.logaddexp(lse, other_lse)


def attention_scores(
    rows: torch.Tensor, k: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """scale · rows·k: rows [N, M, D], k [N, L, D], mask [N or 1, M or 1, L] -> [N, M, L]"""
    # oneDNN, which multiplies bfloat16, lays the second operand out anew: let that be the few rows.
    if k.dtype == torch.bfloat16 and rows.shape[1] < MANY_ROWS:
        mask = None if mask is None else mask.transpose(1, 2)
        return _product(mask, k, rows.transpose(1, 2), scale).transpose(1, 2)
    return _product(mask, rows, k.transpose(1, 2), scale)


def weighted_sum_(scores: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """softmax(scores) · v and the lse, by hand and in place, which for bfloat16 is faster than to
    have the softmax and then the lse: scores [N, M, L], v [N, L, D] -> [N, M, D], [N, M] fp32."""
    largest = scores.amax(dim=-1, keepdim=True)
    weights = scores.sub_(largest).exp_()
    total = torch.bmm(weights, _one(v.dtype).expand(*v.shape[:2], 1))
    return torch.bmm(weights, v).div_(total), (largest.float() + total.float().log()).squeeze(-1)


def _product(
    mask: torch.Tensor | None, a: torch.Tensor, b: torch.Tensor, scale: float
) -> torch.Tensor:
    if mask is not None:
        return torch.baddbmm(mask, a, b, alpha=scale)
    # beta = 0: the first operand is never read, only its dtype
    return torch.baddbmm(_unread(a.dtype), a, b, beta=0, alpha=scale)


@cache
def _unread(dtype: torch.dtype) -> torch.Tensor:
    return torch.zeros(1, dtype=dtype)


@cache
def _one(dtype: torch.dtype) -> torch.Tensor:
    return torch.ones(1, dtype=dtype)

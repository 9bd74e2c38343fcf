r"""Merge partials: attention over a set of keys, from the attention over each part of the set.

    lse = log2 Σ_p 2^lse_p        out = Σ_p 2^(lse_p - lse) · o_p

Shapes: o [B, H, P, D], lse [B, H, P] -> out [B, H, D], lse [B, H].  B requests, H query heads,
P disjoint sets of keys, D head_dim.

`lse` of a set is the base-2 log of Σ 2^score over its keys, as in online_softmax.py; a set without
keys has lse = -inf.  One program merges one head of one request.
Source: Flash-Decoding (Dao et al. 2023); for shared prefixes, FlashInfer's cascade (arXiv
2501.01005).
"""

import torch

from minisgl.kernels.dispatch import tl, triton, use_triton


def merge_partials_ref(o: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    peak = lse.amax(dim=-1, keepdim=True)
    weight = torch.exp2(lse - peak.masked_fill(peak == float("-inf"), 0.0))  # [B, H, P]
    total = weight.sum(dim=-1, keepdim=True)
    o = o.float().masked_fill((lse == float("-inf")).unsqueeze(-1), 0.0)
    merged = (weight.unsqueeze(-1) * o).sum(dim=-2) / total.clamp(min=1.0)
    return merged, (peak + torch.log2(total)).squeeze(-1)


@triton.jit(do_not_specialize=["num_parts"])
def _merge_partials_kernel(
    o_ptr,  # [B, H, P, D] fp32 contiguous
    lse_ptr,  # [B, H, P] fp32 contiguous
    out_ptr,  # [B, H, D] contiguous
    out_lse_ptr,  # [B, H] fp32 contiguous, or None
    seq_lens_ptr,  # [B]: parts past the end, or wholly before the window, were not written; or None
    num_parts,
    H: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,  # power of two >= D
    WINDOW: tl.constexpr,
    SPLIT: tl.constexpr,
    BLOCK_P: tl.constexpr,  # power of two >= P
):
    b = tl.program_id(0).to(tl.int64)
    at = b * H + tl.program_id(1)
    part = tl.arange(0, BLOCK_P)
    d = tl.arange(0, BLOCK_D)
    written = part < num_parts
    if seq_lens_ptr is not None:
        seq_len = tl.load(seq_lens_ptr + b).to(tl.int32)
        written = written & (part * SPLIT < seq_len)
        if WINDOW > 0:
            written = written & (part >= tl.maximum(seq_len - WINDOW, 0) // SPLIT)
    lse = tl.load(lse_ptr + at * num_parts + part, mask=written, other=float("-inf"))
    peak = tl.max(lse, axis=0)
    weight = tl.exp2(lse - tl.where(peak == float("-inf"), 0.0, peak))  # an empty part weighs 0
    total = tl.sum(weight, axis=0)
    mask = (written & (lse > float("-inf")))[:, None] & (d < D)[None, :]
    o_at = o_ptr + (at * num_parts + part)[:, None] * D + d[None, :]
    o = tl.load(o_at, mask=mask, other=0.0)
    # The largest weight is 1, so total >= 1, or all parts are empty: then 0, and lse -inf.
    out = tl.sum(weight[:, None] * o, axis=0) / tl.maximum(total, 1.0)
    tl.store(out_ptr + at * D + d, out.to(out_ptr.dtype.element_ty), mask=d < D)
    if out_lse_ptr is not None:
        tl.store(out_lse_ptr + at, peak + tl.log2(total))


def merge_partials(o: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The attention over the union of P disjoint sets of keys, from the attention over each set.

    o [B, H, P, D] fp32, lse [B, H, P] fp32 base 2, both contiguous -> out [B, H, D], lse [B, H],
    fp32.  A set without keys has lse = -inf (its o is not read); if all are empty, the answer is
    (0, -inf).
    """
    B, H, P, D = o.shape
    if lse.shape != (B, H, P):
        raise ValueError(
            f"merge_partials needs o [B, H, P, D] and lse [B, H, P]; got {tuple(o.shape)} and "
            f"{tuple(lse.shape)}"
        )
    if not use_triton(o):
        return merge_partials_ref(o, lse)
    out = torch.empty((B, H, D), dtype=torch.float32, device=o.device)
    out_lse = torch.empty((B, H), dtype=torch.float32, device=o.device)
    merge_into(out, out_lse, o.contiguous(), lse.contiguous())
    return out, out_lse


def merge_into(
    out: torch.Tensor,
    out_lse: torch.Tensor | None,
    o: torch.Tensor,
    lse: torch.Tensor,
    seq_lens: torch.Tensor | None = None,
    window: int = 0,
    split: int = 1,
) -> None:
    """The kernel of `merge_partials`, into out [B, H, D] of any dtype.

    With `seq_lens`, only the parts that plain decode writes are read; the others may hold anything.
    """
    B, H, P, D = o.shape
    if B == 0:
        return
    _merge_partials_kernel[(B, H)](
        o,
        lse,
        out,
        out_lse,
        seq_lens,
        P,
        H=H,
        D=D,
        BLOCK_D=triton.next_power_of_2(D),
        WINDOW=window,
        SPLIT=split,
        BLOCK_P=triton.next_power_of_2(P),
        num_warps=4 if P <= 64 else 8,
        enable_fp_fusion=True,
    )

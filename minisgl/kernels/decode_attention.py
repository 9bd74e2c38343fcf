r"""Decode attention: one query per request over the request's slots (split-K, then combine).

    out[b, h] = Σ_j softmax_j(scale · q[b, h] · k[j, h / G]) v[j, h / G],   j < seq_lens[b]

Shapes: q [B, H, D], pool [S, 2, KV, D], req_to_token [R, C] -> out [B, H, D].  B requests, H query
heads, KV heads, G = H / KV, D head_dim, S slots, P parts of one request's keys.

    keys of request b   |---- part 0 ----|---- part 1 ----|-- part 2 --|       SPLIT keys a part
                             (o, lse)         (o, lse)        (o, lse)         stage 1: attend
                                   \___ merged by their lse ___/              stage 2: merge

One program of stage 1 attends all G query heads of one KV head (the rows of one matmul: K and V
are read once for the group) to every P-th part; one program of stage 2 merges one head.
SPLIT depends on the size of the table only, and each part is computed on its own, so a request's
answer is the same bits in any batch.  `lse` is the base-2 log of Σ 2^score, as in online_softmax.
Source: Flash-Decoding (Dao et al. 2023), over the pool of SGLang (arXiv 2312.07104, section 3).
"""

import math

import torch
import torch.nn.functional as F

from minisgl.kernels.block_sizes import decode_blocks
from minisgl.kernels.dispatch import tl, triton, use_triton
from minisgl.kernels.online_softmax import fold_keys

# A part is 1/64 of the longest possible request, and at least this many keys.
MIN_SPLIT = 256
MAX_PARTS = 64
# Programs that fill a large GPU a few times over; the answer does not depend on it.
PROGRAMS = 1024


def decode_attention_ref(
    q: torch.Tensor,
    pool: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    B, H, D = q.shape
    KV = pool.shape[2]
    longest = max([1, *seq_lens.tolist()])
    table = req_to_token[rows.long(), :longest].long()  # [B, L]
    key = torch.arange(longest, device=q.device)
    lengths = seq_lens.unsqueeze(1)
    visible = key < lengths
    if window:
        visible &= key >= lengths - window
    # Hidden columns repeat a slot of the same request: finite numbers, which the mask then drops.
    last = table.gather(1, (lengths.long() - 1).clamp_(min=0)).masked_fill_(lengths == 0, 0)
    k, v = pool[torch.where(visible, table, last)].permute(2, 0, 3, 1, 4)  # each [B, KV, L, D]
    # The G heads of a group are the queries of one KV head: `enable_gqa` would repeat the keys.
    out = F.scaled_dot_product_attention(
        q.unflatten(1, (KV, H // KV)), k, v, attn_mask=visible[:, None, None, :], scale=scale
    ).reshape(B, H, D)
    return out.masked_fill_((lengths == 0).unsqueeze(2), 0)


def merge_partials_ref(o: torch.Tensor, lse: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    peak = lse.amax(dim=-1, keepdim=True)
    weight = torch.exp2(lse - peak.masked_fill(peak == float("-inf"), 0.0))  # [B, H, P]
    total = weight.sum(dim=-1, keepdim=True)
    o = o.float().masked_fill((lse == float("-inf")).unsqueeze(-1), 0.0)
    merged = (weight.unsqueeze(-1) * o).sum(dim=-2) / total.clamp(min=1.0)
    return merged, (peak + torch.log2(total)).squeeze(-1)


@triton.jit(do_not_specialize=["stride_rows", "num_parts"])
def _decode_attention_kernel(
    q_ptr,  # [B, H, D]
    pool_ptr,  # [S, 2, KV, D]
    o_ptr,  # [B, H, P, D] fp32 contiguous
    lse_ptr,  # [B, H, P] fp32 contiguous
    req_to_token_ptr,  # [R, C]
    rows_ptr,  # [B]
    seq_lens_ptr,  # [B]
    stride_qb,
    stride_qh,
    stride_pt,
    stride_pp,  # from a token's keys to its values (p: the pair)
    stride_ph,
    stride_rows,
    num_parts,
    qk_scale,  # scale · log2 e
    H: tl.constexpr,
    G: tl.constexpr,  # query heads of one KV head
    BLOCKS_G: tl.constexpr,  # programs that share one KV head's query heads
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,  # power of two >= D
    WINDOW: tl.constexpr,  # 0: no window
    SPLIT: tl.constexpr,
    BLOCK_G: tl.constexpr,  # 16: the fewest rows of a matmul
    BLOCK_N: tl.constexpr,  # divides SPLIT
):
    b = tl.program_id(0).to(tl.int64)
    head = (tl.program_id(1) // BLOCKS_G).to(tl.int64)
    g = tl.program_id(1) % BLOCKS_G * BLOCK_G + tl.arange(0, BLOCK_G)
    seq_len = tl.load(seq_lens_ptr + b).to(tl.int32)
    oldest = tl.maximum(seq_len - WINDOW, 0) if WINDOW > 0 else 0  # the first visible key
    part = oldest // SPLIT + tl.program_id(2)
    if part * SPLIT >= seq_len:
        return

    d = tl.arange(0, BLOCK_D)
    h = head * G + g
    q_at = q_ptr + b * stride_qb + h[:, None] * stride_qh + d[None, :]
    q = tl.load(q_at, mask=(g < G)[:, None] & (d < D)[None, :], other=0.0)
    table_ptr = req_to_token_ptr + tl.load(rows_ptr + b).to(tl.int64) * stride_rows
    k_ptr = pool_ptr + head * stride_ph
    v_ptr = k_ptr + stride_pp
    while part * SPLIT < seq_len:
        m = tl.full([BLOCK_G], float("-inf"), tl.float32)
        l = tl.zeros([BLOCK_G], tl.float32)
        acc = tl.zeros([BLOCK_G, BLOCK_D], tl.float32)
        begin = tl.maximum(part * SPLIT, oldest // BLOCK_N * BLOCK_N)
        end = tl.minimum(part * SPLIT + SPLIT, seq_len)
        for start in range(begin, end, BLOCK_N):
            key = start + tl.arange(0, BLOCK_N)
            visible = (key < end) & (key >= oldest)
            slot = tl.load(table_ptr + key, mask=visible, other=0).to(tl.int64)
            k_mask = visible[None, :] & (d < D)[:, None]
            v_mask = visible[:, None] & (d < D)[None, :]
            k = tl.load(k_ptr + slot[None, :] * stride_pt + d[:, None], mask=k_mask, other=0.0)
            v = tl.load(v_ptr + slot[:, None] * stride_pt + d[None, :], mask=v_mask, other=0.0)
            s = tl.dot(q, k, input_precision="ieee") * qk_scale
            s = tl.where(visible[None, :], s, float("-inf"))
            m, l, acc = fold_keys(s, v, m, l, acc)
        # Every part has a visible key, so l > 0.
        at = (b * H + h) * num_parts + part
        o = acc / l[:, None]
        o_mask = (g < G)[:, None] & (d < D)[None, :]
        tl.store(o_ptr + at[:, None] * D + d[None, :], o, mask=o_mask)
        tl.store(lse_ptr + at, m + tl.log2(l), mask=g < G)
        part += tl.num_programs(2)


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
    _merge(o.contiguous(), lse.contiguous(), out, out_lse, None, window=0, split=1)
    return out, out_lse


def _merge(
    o: torch.Tensor,
    lse: torch.Tensor,
    out: torch.Tensor,
    out_lse: torch.Tensor | None,
    seq_lens: torch.Tensor | None,
    window: int,
    split: int,
) -> None:
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
        num_warps=4,
        enable_fp_fusion=True,
    )


def split_size(longest: int) -> int:
    """Keys of one part, for a table with room for `longest` tokens: the same for every batch.

    >>> split_size(8192), split_size(131072)
    (256, 2048)
    """
    split = MIN_SPLIT
    while split * MAX_PARTS < longest:
        split *= 2
    return split


def decode_attention(
    q: torch.Tensor,
    pool: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    window: int = 0,
    blocks: dict[str, int] | None = None,
    split: int | None = None,
) -> torch.Tensor:
    """Attention of one new token per request over all of its keys, its own included.

    q [B, H, D] and pool [S, 2, KV, D] in one dtype, any strides but a unit last one; req_to_token
    [R, C] int32; rows, seq_lens [B] integers, seq_lens counting the new token.  window > 0: only
    the last `window` keys.  A row with seq_len 0 (the padding of a captured graph) gives 0.
    `split`: keys of one part (default `split_size(C)`).  Returns a new contiguous [B, H, D].
    """
    B, H, D = q.shape
    KV = pool.shape[2]
    if H % KV or pool.shape[1:] != (2, KV, D) or window < 0:
        raise ValueError(
            f"decode_attention needs q [B, H, D], pool [S, 2, KV, D] with H a multiple of KV and "
            f"window >= 0; got {tuple(q.shape)}, {tuple(pool.shape)}, window={window}"
        )
    if not use_triton(q):
        return decode_attention_ref(q, pool, req_to_token, rows, seq_lens, scale, window)
    if q.stride(2) != 1 or pool.stride(3) != 1:
        raise ValueError("decode_attention needs q and pool with unit last strides")
    out = torch.empty((B, H, D), dtype=q.dtype, device=q.device)
    if B == 0:
        return out
    blocks = blocks or decode_blocks(q.dtype, D)
    split = split or split_size(req_to_token.shape[1])
    P = triton.cdiv(req_to_token.shape[1], split)
    o = torch.empty((B, H, P, D), dtype=torch.float32, device=q.device)
    lse = torch.empty((B, H, P), dtype=torch.float32, device=q.device)
    blocks_g = triton.cdiv(H // KV, 16)
    # The grid knows the batch size and the table, not the lengths: a captured graph serves any.
    per_head = min(P, triton.cdiv(PROGRAMS, B * KV * blocks_g))
    _decode_attention_kernel[(B, KV * blocks_g, per_head)](
        q,
        pool,
        o,
        lse,
        req_to_token,
        rows,
        seq_lens,
        *q.stride()[:2],
        *pool.stride()[:3],
        req_to_token.stride(0),
        P,
        scale * math.log2(math.e),
        H=H,
        G=H // KV,
        BLOCKS_G=blocks_g,
        D=D,
        BLOCK_D=max(16, triton.next_power_of_2(D)),
        WINDOW=window,
        SPLIT=split,
        BLOCK_G=16,
        **blocks,
    )
    _merge(o, lse, out, None, seq_lens, window, split)
    return out

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
answer is the same bits in any batch.  (o, lse) and stage 2: see merge_partials.py.
Source: Flash-Decoding (Dao et al. 2023), over the pool of SGLang (arXiv 2312.07104, section 3).
"""

import math

import torch
import torch.nn.functional as F

from minisgl.kernels.block_sizes import decode_blocks, wider
from minisgl.kernels.dispatch import tl, triton, use_triton
from minisgl.kernels.merge_partials import merge_into
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
    keys = pool[torch.where(visible, table, last)].to(q.dtype)  # [B, L, 2, KV, D]
    k, v = keys.permute(2, 0, 3, 1, 4)  # each [B, KV, L, D]
    # The G heads of a group are the queries of one KV head: `enable_gqa` would repeat the keys.
    out = F.scaled_dot_product_attention(
        q.unflatten(1, (KV, H // KV)), k, v, attn_mask=visible[:, None, None, :], scale=scale
    ).reshape(B, H, D)
    return out.masked_fill_((lengths == 0).unsqueeze(2), 0)


@triton.jit
def attend_part(
    q,  # [M, BLOCK_D]
    k_ptr,  # key 0 of this KV head
    v_ptr,
    stride_pt,
    table_ptr,  # the slot of each position
    first,
    stop,  # positions [first, stop): one at least
    qk_scale,
    M: tl.constexpr,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    d = tl.arange(0, BLOCK_D)
    m = tl.full([M], float("-inf"), tl.float32)
    l = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, BLOCK_D], tl.float32)
    for start in range(first // BLOCK_N * BLOCK_N, stop, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        visible = (key < stop) & (key >= first)
        slot = tl.load(table_ptr + key, mask=visible, other=0).to(tl.int64)
        k_mask = visible[None, :] & (d < D)[:, None]
        v_mask = visible[:, None] & (d < D)[None, :]
        k = tl.load(k_ptr + slot[None, :] * stride_pt + d[:, None], mask=k_mask, other=0.0)
        v = tl.load(v_ptr + slot[:, None] * stride_pt + d[None, :], mask=v_mask, other=0.0)
        s = tl.dot(q, k.to(q.dtype), input_precision="ieee") * qk_scale
        s = tl.where(visible[None, :], s, float("-inf"))
        m, l, acc = fold_keys(s, v.to(q.dtype), m, l, acc)
    return acc / l[:, None], m + tl.log2(l)  # a part has a visible key, so l > 0


@triton.jit(do_not_specialize=["stride_rows", "num_parts", "first_part"])
def _decode_attention_kernel(
    q_ptr,  # [B, H, D]
    pool_ptr,  # [S, 2, KV, D]
    o_ptr,  # [B, H, P, D] fp32 contiguous
    lse_ptr,  # [B, H, P] fp32 contiguous
    req_to_token_ptr,  # [R, C]
    rows_ptr,  # [B]
    seq_lens_ptr,  # [B]
    tails_ptr,  # [B]: the first position to attend; or None
    stride_qb,
    stride_qh,
    stride_pt,
    stride_pp,  # from a token's keys to its values (p: the pair)
    stride_ph,
    stride_rows,
    num_parts,
    first_part,  # the place of part 0 among the P
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
    # The first visible key.
    if tails_ptr is not None:
        oldest = tl.load(tails_ptr + b).to(tl.int32)
    elif WINDOW > 0:
        oldest = tl.maximum(seq_len - WINDOW, 0)
    else:
        oldest = 0
    part = oldest // SPLIT + tl.program_id(2)
    if part * SPLIT >= seq_len:
        return

    d = tl.arange(0, BLOCK_D)
    h = head * G + g
    mask = (g < G)[:, None] & (d < D)[None, :]
    q_at = q_ptr + b * stride_qb + h[:, None] * stride_qh + d[None, :]
    q = tl.load(q_at, mask=mask, other=0.0)
    table_ptr = req_to_token_ptr + tl.load(rows_ptr + b).to(tl.int64) * stride_rows
    k_ptr = pool_ptr + head * stride_ph
    while part * SPLIT < seq_len:
        first = tl.maximum(part * SPLIT, oldest)
        stop = tl.minimum(part * SPLIT + SPLIT, seq_len)
        o, lse = attend_part(
            q, k_ptr, k_ptr + stride_pp, stride_pt, table_ptr, first, stop, qk_scale,
            BLOCK_G, D, BLOCK_D, BLOCK_N,
        )  # fmt: skip
        at = (b * H + h) * num_parts + first_part + part
        tl.store(o_ptr + at[:, None] * D + d[None, :], o, mask=mask)
        tl.store(lse_ptr + at, lse, mask=g < G)
        part += tl.num_programs(2)


def split_size(longest: int) -> int:
    """Keys of one part, for a table with room for `longest` tokens: the same for every batch.

    >>> split_size(8192), split_size(131072)
    (256, 2048)
    """
    split = MIN_SPLIT
    while split * MAX_PARTS < longest:
        split *= 2
    return split


def attend_parts(
    o: torch.Tensor,
    lse: torch.Tensor,
    q: torch.Tensor,
    pool: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    *,
    split: int,
    window: int = 0,
    tails: torch.Tensor | None = None,
    blocks: dict[str, int] | None = None,
) -> None:
    """Stage 1: part p of each request goes to place P - cdiv(C, split) + p of its P partials.

    o [B, H, P, D] and lse [B, H, P], fp32 contiguous, are written where a request has keys.
    `tails` [B] int32: the keys before that position are somebody else's work.
    """
    B, H, D = q.shape
    KV, P = pool.shape[2], o.shape[2]
    parts = triton.cdiv(req_to_token.shape[1], split)
    blocks = blocks or decode_blocks(wider(q.dtype, pool.dtype), D)
    blocks_g = triton.cdiv(H // KV, 16)
    # The grid knows the batch size and the table, not the lengths: a captured graph serves any.
    per_head = min(parts, triton.cdiv(PROGRAMS, B * KV * blocks_g))
    _decode_attention_kernel[(B, KV * blocks_g, per_head)](
        q,
        pool,
        o,
        lse,
        req_to_token,
        rows,
        seq_lens,
        tails,
        *q.stride()[:2],
        *pool.stride()[:3],
        req_to_token.stride(0),
        P,
        P - parts,
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

    q [B, H, D] and pool [S, 2, KV, D], any strides but a unit last one, each of its own dtype: keys
    and values are computed with in q's.  req_to_token [R, C] int32; rows, seq_lens [B] integers,
    seq_lens counting the new token.  window > 0: only the last `window` keys.  A row with seq_len 0
    (the padding of a captured graph) gives 0.  `split`: keys of one part (default `split_size(C)`).
    Returns a new contiguous [B, H, D] of q's dtype.
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
    split = split or split_size(req_to_token.shape[1])
    P = triton.cdiv(req_to_token.shape[1], split)
    o = torch.empty((B, H, P, D), dtype=torch.float32, device=q.device)
    lse = torch.empty((B, H, P), dtype=torch.float32, device=q.device)
    attend_parts(
        o, lse, q, pool, req_to_token, rows, seq_lens, scale,
        split=split, window=window, blocks=blocks,
    )  # fmt: skip
    merge_into(out, None, o, lse, seq_lens, window, split)
    return out

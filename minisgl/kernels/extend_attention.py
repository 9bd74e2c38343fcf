"""Extend attention: new tokens attend to [their request's cached prefix | themselves].

    out[t, h] = Σ_j softmax_j(scale · q[t, h] · k[j, h / G]) v[j, h / G]     j: the visible keys

                     keys:   prefix, by slot        new tokens, side by side
    query 0 (pos p)        x x x x x x x x x x      x
    query 1                x x x x x x x x x x      x x          causal: up to itself;
    query 2                x x x x x x x x x x      x x x        window w: the last w of these

Shapes: q [T, H, D], kv [T, 2, KV, D], pool [S, 2, KV, D] -> out [T, H, D].  T new tokens of all
requests, H query heads, KV heads, G = H / KV, D head_dim, S slots; request b of B has the new
tokens [cu_seqlens[b], cu_seqlens[b+1]) and the prefix slots req_to_token[rows[b], :prefix_lens[b]].
One program computes BLOCK_M queries of one head, over all of their keys.
Source: FlashAttention (arXiv 2205.14135) over the token-level pool of SGLang (arXiv 2312.07104,
section 3), where prefill of a request whose prefix is cached is called extend.
"""

import math

import torch
import torch.nn.functional as F

from minisgl.kernels.block_sizes import extend_blocks, wider
from minisgl.kernels.dispatch import tl, triton, use_triton
from minisgl.kernels.extend_on_cpu import ExtendPlan, extend_on_cpu, plan_extends
from minisgl.kernels.online_softmax import fold_keys


def extend_attention_ref(
    q: torch.Tensor,
    kv: torch.Tensor,
    pool: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    prefix_lens: torch.Tensor,
    cu_seqlens: torch.Tensor,
    scale: float,
    causal: bool = True,
    window: int = 0,
) -> torch.Tensor:
    T, H, D = q.shape
    KV = kv.shape[2]
    G = H // KV
    out = torch.empty((T, H, D), dtype=q.dtype, device=q.device)
    bounds = cu_seqlens.tolist()
    requests = zip(rows.tolist(), prefix_lens.tolist(), bounds[:-1], bounds[1:], strict=True)
    for row, prefix, start, end in requests:
        n = end - start
        slots = req_to_token[row, :prefix].long()
        keys = torch.cat([pool[slots], kv[start:end].to(pool.dtype)])  # [L, 2, KV, D]
        k, v = keys.to(q.dtype).permute(1, 2, 0, 3).unsqueeze(2)  # each [KV, 1, L, D]
        position = torch.arange(prefix, prefix + n, device=q.device).unsqueeze(1)  # [n, 1]
        key = torch.arange(prefix + n, device=q.device)  # [L]
        visible = key <= position if causal else key >= 0
        if window:
            visible = visible & (key > position - window)
        o = F.scaled_dot_product_attention(
            q[start:end].view(n, KV, G, D).permute(1, 2, 0, 3),  # [KV, G, n, D]
            k.expand(KV, G, -1, D),
            v.expand(KV, G, -1, D),
            attn_mask=visible.expand(n, -1),
            scale=scale,
        )
        out[start:end] = o.permute(2, 0, 1, 3).flatten(1, 2)
    return out


@triton.jit
def _attend(
    q,  # [BLOCK_M, BLOCK_D]
    q_pos,  # [BLOCK_M] position of each query
    m,
    l,
    acc,
    k_ptr,  # key 0 of this KV head
    v_ptr,
    stride_kt,  # from a key to the next one
    table_ptr,  # PAGED: the slot of each key
    begin,
    end,  # keys [begin, end) are folded, begin a multiple of BLOCK_N
    first_pos,  # position of key 0
    qk_scale,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_N: tl.constexpr,
    PAGED: tl.constexpr,
    MASKED: tl.constexpr,  # False: whole blocks, each key visible to each query
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,
    KEPT: tl.constexpr,  # the pool's dtype
):
    d = tl.arange(0, BLOCK_D)
    for start in range(begin, end, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        inside = key < end
        if PAGED:
            place = tl.load(table_ptr + key, mask=inside, other=0).to(tl.int64)
        else:
            place = key.to(tl.int64)
        k_mask = inside[None, :] & (d < D)[:, None]
        v_mask = inside[:, None] & (d < D)[None, :]
        k = tl.load(k_ptr + place[None, :] * stride_kt + d[:, None], mask=k_mask, other=0.0)
        v = tl.load(v_ptr + place[:, None] * stride_kt + d[None, :], mask=v_mask, other=0.0)
        # A new key counts as what the pool will hold of it: the same whoever computes it.
        k, v = k.to(KEPT).to(q.dtype), v.to(KEPT).to(q.dtype)
        s = tl.dot(q, k, input_precision="ieee") * qk_scale
        if MASKED:
            visible = inside[None, :]
            key_pos = (first_pos + key)[None, :]
            if CAUSAL:
                visible = visible & (key_pos <= q_pos[:, None])
            if WINDOW > 0:
                visible = visible & (key_pos > q_pos[:, None] - WINDOW)
            s = tl.where(visible, s, float("-inf"))
        m, l, acc = fold_keys(s, v, m, l, acc)
    return m, l, acc


@triton.jit(do_not_specialize=["stride_rows"])
def _extend_attention_kernel(
    q_ptr,  # [T, H, D]
    kv_ptr,  # [T, 2, KV, D]
    pool_ptr,  # [S, 2, KV, D]
    out_ptr,  # [T, H, D]
    req_to_token_ptr,  # [R, C]
    rows_ptr,  # [B]
    prefix_lens_ptr,  # [B]
    cu_seqlens_ptr,  # [B + 1]
    stride_qt,
    stride_qh,
    stride_kt,
    stride_kp,  # from a token's keys to its values (p: the pair)
    stride_kh,
    stride_pt,
    stride_pp,
    stride_ph,
    stride_ot,
    stride_oh,
    stride_rows,
    qk_scale,  # scale · log2 e
    G: tl.constexpr,  # query heads of one KV head
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,  # power of two >= D
    CAUSAL: tl.constexpr,
    WINDOW: tl.constexpr,  # 0: no window
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    # The last tile of a request sees the most keys: start it first, so that no long one is left.
    tile = tl.num_programs(0) - 1 - tl.program_id(0)
    h = tl.program_id(1)
    b = tl.program_id(2)
    start = tl.load(cu_seqlens_ptr + b)
    n = tl.load(cu_seqlens_ptr + b + 1) - start
    first = tile * BLOCK_M
    if first >= n:
        return
    prefix = tl.load(prefix_lens_ptr + b).to(tl.int32)
    n = n.to(tl.int32)
    start = start.to(tl.int64)
    head = (h // G).to(tl.int64)

    i = first + tl.arange(0, BLOCK_M)
    d = tl.arange(0, BLOCK_D)
    q_mask = (i < n)[:, None] & (d < D)[None, :]
    token = (start + i)[:, None]
    q_at = q_ptr + token * stride_qt + h.to(tl.int64) * stride_qh + d[None, :]
    q = tl.load(q_at, mask=q_mask, other=0.0)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    q_pos = prefix + i
    kept: tl.constexpr = pool_ptr.dtype.element_ty

    # Stage 1: the cached prefix, by slot.  Every query sees all of it, or the end of it.
    k_at = pool_ptr + head * stride_ph
    table_ptr = req_to_token_ptr + tl.load(rows_ptr + b).to(tl.int64) * stride_rows
    if WINDOW > 0:
        begin = tl.maximum(prefix + first - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    else:
        begin = prefix // BLOCK_N * BLOCK_N
        m, l, acc = _attend(
            q, q_pos, m, l, acc, k_at, k_at + stride_pp, stride_pt, table_ptr, 0, begin, 0,
            qk_scale, D, BLOCK_D, BLOCK_N, True, False, CAUSAL, WINDOW, kept,
        )  # fmt: skip
    m, l, acc = _attend(
        q, q_pos, m, l, acc, k_at, k_at + stride_pp, stride_pt, table_ptr, begin, prefix, 0,
        qk_scale, D, BLOCK_D, BLOCK_N, True, True, CAUSAL, WINDOW, kept,
    )  # fmt: skip

    # Stage 2: the new tokens.  Whole blocks below the diagonal first, then the diagonal's.
    k_at = kv_ptr + start * stride_kt + head * stride_kh
    if CAUSAL:
        end = tl.minimum(first + BLOCK_M, n)
    else:
        end = n
    if WINDOW > 0:
        begin = tl.maximum(first - WINDOW + 1, 0) // BLOCK_N * BLOCK_N
    else:
        if CAUSAL:
            begin = (first + 1) // BLOCK_N * BLOCK_N
        else:
            begin = n // BLOCK_N * BLOCK_N
        m, l, acc = _attend(
            q, q_pos, m, l, acc, k_at, k_at + stride_kp, stride_kt, table_ptr, 0, begin, prefix,
            qk_scale, D, BLOCK_D, BLOCK_N, False, False, CAUSAL, WINDOW, kept,
        )  # fmt: skip
    m, l, acc = _attend(
        q, q_pos, m, l, acc, k_at, k_at + stride_kp, stride_kt, table_ptr, begin, end, prefix,
        qk_scale, D, BLOCK_D, BLOCK_N, False, True, CAUSAL, WINDOW, kept,
    )  # fmt: skip

    # Every query sees at least itself; only the rows past the end of the tile may have l = 0.
    out = acc / tl.where(l > 0, l, 1.0)[:, None]
    out_at = out_ptr + token * stride_ot + h.to(tl.int64) * stride_oh + d[None, :]
    tl.store(out_at, out.to(out_ptr.dtype.element_ty), mask=q_mask)


def extend_attention(
    q: torch.Tensor,
    kv: torch.Tensor,
    pool: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    prefix_lens: torch.Tensor,
    cu_seqlens: torch.Tensor,
    max_extend_len: int,
    scale: float,
    causal: bool = True,
    window: int = 0,
    blocks: dict[str, int] | None = None,
    plan: ExtendPlan | None = None,
) -> torch.Tensor:
    """Attention of each request's new tokens over its cached prefix and over themselves.

    q [T, H, D], kv [T, 2, KV, D] and pool [S, 2, KV, D], any strides but a unit last one (q and kv
    are views of the fused projection); req_to_token [R, C] int32; rows, prefix_lens [B] and
    cu_seqlens [B+1] integers, cu_seqlens[B] == T; max_extend_len >= the most new tokens of any
    request.  window > 0: each query sees only the last `window` keys, itself included.
    The pool may have another dtype than q and kv: the products are q's, and the new keys and values
    are first rounded to the pool's, so that a prompt has one answer, cached or not, whole or in
    chunks.  Where nothing is ever cached, as in a vision tower, the pool may be empty: `kv[:0]`.
    A CPU reads which request attends to what from `plan`, which is `plan_extends` of the same
    arguments (None: made here): one serves all layers of a step.
    Returns a new contiguous [T, H, D] of q's dtype.
    """
    T, H, D = q.shape
    KV = kv.shape[2]
    if H % KV or kv.shape != (T, 2, KV, D) or pool.shape[1:] != kv.shape[1:]:
        raise ValueError(
            f"extend_attention needs q [T, H, D], kv [T, 2, KV, D], pool [S, 2, KV, D] with H a "
            f"multiple of KV; got {tuple(q.shape)}, {tuple(kv.shape)}, {tuple(pool.shape)}"
        )
    if window < 0 or (window and not causal):
        raise ValueError(f"window={window} must be >= 0, and 0 where causal=False")
    if not use_triton(q):
        plan = plan or plan_extends(req_to_token, rows, prefix_lens, cu_seqlens, causal, window)
        return extend_on_cpu(q, kv, pool, plan, scale)
    if q.stride(2) != 1 or kv.stride(3) != 1 or pool.stride(3) != 1:
        raise ValueError("extend_attention needs q, kv and pool with unit last strides")
    out = torch.empty((T, H, D), dtype=q.dtype, device=q.device)
    B = rows.shape[0]
    if T == 0 or B == 0:
        return out
    blocks = blocks or extend_blocks(wider(q.dtype, pool.dtype), D)
    # The tiles are many, so they lie on x: y and z stop at 65,535.
    _extend_attention_kernel[(triton.cdiv(max_extend_len, blocks["BLOCK_M"]), H, B)](
        q,
        kv,
        pool,
        out,
        req_to_token,
        rows,
        prefix_lens,
        cu_seqlens,
        *q.stride()[:2],
        *kv.stride()[:3],
        *pool.stride()[:3],
        *out.stride()[:2],
        req_to_token.stride(0),
        scale * math.log2(math.e),
        G=H // KV,
        D=D,
        BLOCK_D=max(16, triton.next_power_of_2(D)),
        CAUSAL=causal,
        WINDOW=window,
        **blocks,
    )
    return out

r"""Cascade attention: decode in which keys that several requests share are read once for all.

    out[b, h] = Σ_j softmax_j(scale · q[b, h] · k[j, h / G]) v[j, h / G],   j < seq_lens[b]

Shapes: q [B, H, D], pool [S, 2, KV, D], req_to_token [R, C] -> out [B, H, D], as decode_attention.
B requests, H query heads, KV heads, G = H / KV, D head_dim, S slots; N segments, M members in all.

A *segment* is a run of positions that its members have in common, slot by slot: a node of the radix
tree, or several.  What is left of a request after its segments is its *tail*.

    positions       0                  a             b            part: SPLIT positions
    request 0       |---- depth 0 -----|-- depth 1 --|- tail -|
    request 1       |                  |   members   |-- tail --|
    request 2       |     members      |------ tail ------|

Stage 1 attends to each segment with the queries of all its members, stacked as the rows of one
matmul, and to the tails as plain decode does; stage 2 merges a request's partials by their lse
(merge_partials.py).  So the work follows the number of different keys, not the sum of the lengths.

Long runs are cut into pieces where a multiple of SPLIT lies, as in decode.  The piece of part p is
partial p + depth of each member, and of a tail p + num_depths: depths grow along a request, so no
two of its pieces meet, and C / SPLIT + num_depths places hold any tree.  One program of stage 1
computes BLOCK_M stacked rows of one KV head, over some pieces of one segment.
Source: Hydragen (arXiv 2402.05099), and FlashInfer's cascade for more than one level (arXiv
2501.01005).
"""

import math
from dataclasses import dataclass

import torch

from minisgl.kernels.block_sizes import cascade_blocks, wider
from minisgl.kernels.decode_attention import PROGRAMS, attend_part, attend_parts, split_size
from minisgl.kernels.dispatch import tl, triton, use_triton
from minisgl.kernels.merge_partials import merge_into, merge_partials_ref


@dataclass(frozen=True)
class Segments:
    """Which requests of a decode batch share which positions.

    The segments of one request follow each other from position 0 to its tail, in order of depth;
    a depth may be missing.  Every request has a tail: the new token at least.
    """

    rows: torch.Tensor  # [N] int32: a row of req_to_token that holds the segment's slots
    starts: torch.Tensor  # [N] int32
    stops: torch.Tensor  # [N] int32: positions [start, stop)
    members: torch.Tensor  # [M] int32: places in the decode batch, segment after segment
    cu_members: torch.Tensor  # [N + 1] int32: where each segment's members start, then M
    depths: torch.Tensor  # [N] int32: 0 for the outermost; a request has one of each at most
    tails: torch.Tensor  # [B] int32: the first position after the request's segments; 0: none
    num_depths: int
    max_members: int  # of one segment

    def __post_init__(self) -> None:
        N = self.rows.shape[0]
        for name in ("rows", "starts", "stops", "depths", "cu_members"):
            shape = tuple(getattr(self, name).shape)
            if shape != (N + (name == "cu_members"),):
                raise ValueError(f"{name} of {N} segments has the shape {shape}")
        if N and (self.num_depths < 1 or self.max_members < 1):
            raise ValueError(
                f"{N} segments need num_depths and max_members of at least 1; got "
                f"{self.num_depths} and {self.max_members}"
            )


def cascade_attention_ref(
    q: torch.Tensor,
    pool: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    seq_lens: torch.Tensor,
    segments: Segments,
    scale: float,
) -> torch.Tensor:
    o, lse = attend_segments_ref(q, pool, req_to_token, segments, scale)
    tail_o, tail_lse = attend_tails_ref(
        q, pool, req_to_token, rows, seq_lens, segments.tails, scale
    )
    o, lse = torch.cat([o, tail_o.unsqueeze(2)], dim=2), torch.cat([lse, tail_lse], dim=2)
    return merge_partials_ref(o, lse)[0].to(q.dtype)


def attend_segments_ref(
    q: torch.Tensor,
    pool: torch.Tensor,
    req_to_token: torch.Tensor,
    segments: Segments,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each request's partial of each depth: o [B, H, num_depths, D], lse [B, H, num_depths]."""
    B, H, D = q.shape
    KV = pool.shape[2]
    o = torch.zeros((B, H, segments.num_depths, D), device=q.device)
    lse = torch.full((B, H, segments.num_depths), float("-inf"), device=q.device)
    bounds = segments.cu_members.tolist()
    runs = (segments.rows, segments.starts, segments.stops, segments.depths)
    for n, (row, start, stop, depth) in enumerate(zip(*(x.tolist() for x in runs), strict=True)):
        members = segments.members[bounds[n] : bounds[n + 1]].long()  # [m]
        keys = pool.index_select(0, req_to_token[row, start:stop].long())  # [L, 2, KV, D]
        k, v = keys.to(q.dtype).permute(1, 2, 0, 3)  # each [KV, L, D]
        stacked = q[members].unflatten(1, (KV, H // KV)).transpose(0, 1)  # [KV, m, G, D]
        part, total = _attend(stacked.flatten(1, 2), k, v, None, scale)  # [KV, m · G, D]
        part, total = (x.unflatten(1, (len(members), -1)).transpose(0, 1) for x in (part, total))
        o[members, :, depth] = part.flatten(1, 2).float()
        lse[members, :, depth] = total.flatten(1, 2)
    return o, lse


def attend_tails_ref(
    q: torch.Tensor,
    pool: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    seq_lens: torch.Tensor,
    tails: torch.Tensor,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Each request's keys from its tail on: o [B, H, D], lse [B, H, 1]."""
    B, H, D = q.shape
    KV = pool.shape[2]
    lengths = (seq_lens - tails).long().unsqueeze(1)  # [B, 1]
    key = torch.arange(max([1, *lengths.flatten().tolist()]), device=q.device)  # [L]
    visible = key < lengths
    # Hidden columns repeat the last key: a finite number, which the mask then drops.
    position = tails.long().unsqueeze(1) + torch.minimum(key, (lengths - 1).clamp(min=0))
    slots = req_to_token[rows.long()].gather(1, position).long().masked_fill(lengths == 0, 0)
    keys = pool[slots].to(q.dtype).permute(2, 0, 3, 1, 4)  # [2, B, KV, L, D]
    k, v = keys.flatten(1, 2)
    hidden = ~visible.repeat_interleave(KV, dim=0).unsqueeze(1)  # [B · KV, 1, L]
    o, lse = _attend(q.reshape(B * KV, H // KV, D), k, v, hidden, scale)
    return o.view(B, H, D).float(), lse.view(B, H, 1)


def _attend(
    q: torch.Tensor,  # [N, M, D]
    k: torch.Tensor,  # [N, L, D]
    v: torch.Tensor,  # [N, L, D]
    hidden: torch.Tensor | None,  # [N, 1, L]
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(o [N, M, D], lse [N, M] base 2)."""
    scores = (q.float() * scale) @ k.float().mT
    if hidden is not None:
        scores.masked_fill_(hidden, float("-inf"))
    lse = torch.logsumexp(scores, dim=-1)  # [N, M]
    weights = torch.exp(scores - lse.masked_fill(lse == float("-inf"), 0.0).unsqueeze(2))
    return weights @ v.float(), lse * math.log2(math.e)


@triton.jit(do_not_specialize=["stride_rows", "num_parts", "blocks_m"])
def _cascade_attention_kernel(
    q_ptr,  # [B, H, D]
    pool_ptr,  # [S, 2, KV, D]
    o_ptr,  # [B, H, P, D] fp32 contiguous
    lse_ptr,  # [B, H, P] fp32 contiguous
    req_to_token_ptr,  # [R, C]
    rows_ptr,  # [N]
    starts_ptr,  # [N]
    stops_ptr,  # [N]
    members_ptr,  # [M]
    cu_members_ptr,  # [N + 1]
    depths_ptr,  # [N]
    stride_qb,
    stride_qh,
    stride_pt,
    stride_pp,  # from a token's keys to its values (p: the pair)
    stride_ph,
    stride_rows,
    num_parts,  # P
    blocks_m,  # programs that share one segment's stacked rows
    qk_scale,  # scale · log2 e
    H: tl.constexpr,
    G: tl.constexpr,  # query heads of one KV head
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,  # power of two >= D
    SPLIT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,  # divides SPLIT
):
    n = tl.program_id(0) // blocks_m
    head = tl.program_id(1).to(tl.int64)
    first_member = tl.load(cu_members_ptr + n).to(tl.int32)
    stacked = (tl.load(cu_members_ptr + n + 1).to(tl.int32) - first_member) * G
    first_row = tl.program_id(0) % blocks_m * BLOCK_M
    begin = tl.load(starts_ptr + n).to(tl.int32)
    end = tl.load(stops_ptr + n).to(tl.int32)
    part = begin // SPLIT + tl.program_id(2)
    if (first_row >= stacked) | (part * SPLIT >= end):
        return

    d = tl.arange(0, BLOCK_D)
    row = first_row + tl.arange(0, BLOCK_M)  # counts [m, G]
    used = row < stacked
    b = tl.load(members_ptr + first_member + row // G, mask=used, other=0).to(tl.int64)
    h = head * G + row % G
    mask = used[:, None] & (d < D)[None, :]
    q_at = q_ptr + b[:, None] * stride_qb + h[:, None] * stride_qh + d[None, :]
    q = tl.load(q_at, mask=mask, other=0.0)
    table_ptr = req_to_token_ptr + tl.load(rows_ptr + n).to(tl.int64) * stride_rows
    k_ptr = pool_ptr + head * stride_ph
    depth = tl.load(depths_ptr + n).to(tl.int32)
    while part * SPLIT < end:
        first = tl.maximum(part * SPLIT, begin)
        stop = tl.minimum(part * SPLIT + SPLIT, end)
        o, lse = attend_part(
            q, k_ptr, k_ptr + stride_pp, stride_pt, table_ptr, first, stop, qk_scale,
            BLOCK_M, D, BLOCK_D, BLOCK_N,
        )  # fmt: skip
        at = (b * H + h) * num_parts + part + depth
        tl.store(o_ptr + at[:, None] * D + d[None, :], o, mask=mask)
        tl.store(lse_ptr + at, lse, mask=used)
        part += tl.num_programs(2)


def cascade_attention(
    q: torch.Tensor,
    pool: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    seq_lens: torch.Tensor,
    segments: Segments,
    scale: float,
    window: int = 0,
    blocks: dict[str, int] | None = None,
    split: int | None = None,
) -> torch.Tensor:
    """`decode_attention`, up to rounding, with the keys of each segment read once for its members.

    Tensors as in `decode_attention`, `blocks` those of stage 1 over segments.  A request's bits
    depend on the segments it is in, so on its company, as plain decode's do not.
    Returns a new contiguous [B, H, D].

    Raises:
        ValueError: shapes that do not fit, or a sliding window, whose keys are not a shared prefix.
    """
    B, H, D = q.shape
    KV, N = pool.shape[2], segments.rows.shape[0]
    if H % KV or pool.shape[1:] != (2, KV, D) or segments.tails.shape != (B,):
        raise ValueError(
            f"cascade_attention needs q [B, H, D], pool [S, 2, KV, D] with H a multiple of KV and "
            f"tails [B]; got {tuple(q.shape)}, {tuple(pool.shape)}, {tuple(segments.tails.shape)}"
        )
    if window:
        raise ValueError(f"cascade_attention has no sliding window; got window={window}")
    if not use_triton(q):
        return cascade_attention_ref(q, pool, req_to_token, rows, seq_lens, segments, scale)
    if q.stride(2) != 1 or pool.stride(3) != 1:
        raise ValueError("cascade_attention needs q and pool with unit last strides")
    out = torch.empty((B, H, D), dtype=q.dtype, device=q.device)
    if B == 0:
        return out
    split = split or split_size(req_to_token.shape[1])
    parts = triton.cdiv(req_to_token.shape[1], split)
    P = parts + segments.num_depths
    o = torch.empty((B, H, P, D), dtype=torch.float32, device=q.device)
    # Which pieces a request has is known on the device only: what nobody writes weighs nothing.
    lse = torch.full((B, H, P), float("-inf"), dtype=torch.float32, device=q.device)
    if N:
        stacked = segments.max_members * (H // KV)
        blocks = blocks or cascade_blocks(wider(q.dtype, pool.dtype), D, stacked)
        blocks_m = triton.cdiv(stacked, blocks["BLOCK_M"])
        # As in decode, the grid does not know the lengths: a captured graph serves any.
        per_block = min(parts, triton.cdiv(PROGRAMS, N * blocks_m * KV))
        _cascade_attention_kernel[(N * blocks_m, KV, per_block)](
            q,
            pool,
            o,
            lse,
            req_to_token,
            segments.rows,
            segments.starts,
            segments.stops,
            segments.members,
            segments.cu_members,
            segments.depths,
            *q.stride()[:2],
            *pool.stride()[:3],
            req_to_token.stride(0),
            P,
            blocks_m,
            scale * math.log2(math.e),
            H=H,
            G=H // KV,
            D=D,
            BLOCK_D=max(16, triton.next_power_of_2(D)),
            SPLIT=split,
            **blocks,
        )
    attend_parts(
        o, lse, q, pool, req_to_token, rows, seq_lens, scale, split=split, tails=segments.tails
    )
    merge_into(out, None, o, lse)
    return out

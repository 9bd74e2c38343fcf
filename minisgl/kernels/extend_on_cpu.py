"""Extend attention on a CPU: a prefix that several requests share is gathered and read once.

    request 0    |------ segment ------|-- tail: the rest of the prefix, then the new tokens --|
    request 1    |                     |---- tail ----|
    request 2    |---------------------|-- segment --|-- tail --|
    request 3    |                     |             |-- tail -----|

Shapes: as extend_attention.  Every new token attends to its request's tail, which is causal, and to
its segments, with the new tokens of all their members as the rows of one product; the parts merge
by their lse (slab_attention.py).  A *segment* is a run of slots that rows of `req_to_token` have in
common, as in cascade_attention.py; here it is found by comparing the rows, once a step, since all
layers attend alike: see `ExtendPlan`.  There is no Triton kernel here: extend_attention.py has it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise

import torch

from minisgl.kernels.slab_attention import attention_scores, merge, shared_attention

MIN_SHARED = 128  # slots of a segment; what fewer of them spare does not pay for the merge
BLOCK = 128  # new tokens whose scores are in memory at a time
MANY = 32  # new tokens that are worth blocks


@dataclass(frozen=True)
class Segment:
    """Slots that several requests' prefixes have in common."""

    slots: torch.Tensor  # [P] int64
    tokens: slice | torch.Tensor  # the members' new tokens: [start, stop), or [M] int64


@dataclass(frozen=True)
class Tail:
    """One request's new tokens [start, stop), and what of its prefix is in no segment."""

    start: int
    stop: int
    slots: torch.Tensor  # [P] int64
    causal: bool  # a new token sees no later one ...
    window: int  # ... and so many at most; 0: all

    @cached_property
    def mask(self) -> torch.Tensor | None:
        """[n, P + n], added to the scores; None: `causal` alone says who sees what."""
        P, n = len(self.slots), self.stop - self.start
        if not self.causal or not (self.window or P):
            return None
        position = torch.arange(P, P + n).unsqueeze(1)
        key = torch.arange(P + n)
        hidden = key > position
        if self.window:
            hidden |= key <= position - self.window
        return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))


@dataclass(frozen=True)
class ExtendPlan:
    """Who attends to what in one step: the same in every layer."""

    tails: list[Tail]
    segments: list[Segment]


def plan_extends(
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    prefix_lens: torch.Tensor,
    cu_seqlens: torch.Tensor,
    causal: bool = True,
    window: int = 0,
) -> ExtendPlan:
    """The plan of a step; arguments as of extend_attention."""
    bounds, prefixes = cu_seqlens.tolist(), prefix_lens.tolist()
    table = req_to_token[rows.long(), : max(prefixes, default=0)].long()  # [B, longest prefix]
    new = [range(*pair) for pair in pairwise(bounds)]
    busy = [b for b, tokens in enumerate(new) if tokens]
    if not any(prefixes[b] + len(new[b]) > window for b in busy):
        window = 0  # everything is within it

    tail_starts = [0] * len(new)
    segments = []
    # Under a window the tokens of a prefix see different parts of it: nothing is shared.
    for members, start, stop in () if window else _common_runs(table, prefixes, busy):
        tokens = [t for b in members for t in new[b]]
        neighbours = slice(tokens[0], tokens[-1] + 1)  # which costs no copy
        is_run = tokens[-1] - tokens[0] == len(tokens) - 1
        where = neighbours if is_run else torch.tensor(tokens)
        segments.append(Segment(table[members[0], start:stop], where))
        for b in members:
            tail_starts[b] = stop

    tails = []
    for b in busy:
        prefix = prefixes[b]
        # Keys that not even the first new token's window reaches are not gathered.
        first = max(0, prefix - window + 1) if window else tail_starts[b]
        tails.append(Tail(new[b].start, new[b].stop, table[b, first:prefix], causal, window))
    return ExtendPlan(tails, segments)


def extend_on_cpu(
    q: torch.Tensor, kv: torch.Tensor, pool: torch.Tensor, plan: ExtendPlan, scale: float
) -> torch.Tensor:
    """q [T, H, D], kv [T, 2, KV, D], pool [S, 2, KV, D] -> [T, H, D]; see extend_attention."""
    T, H, _ = q.shape
    out = torch.empty(q.shape, dtype=q.dtype)
    lse = torch.empty((T, H)) if plan.segments else None
    for tail in plan.tails:
        new = slice(tail.start, tail.stop)
        its_lse = None if lse is None else lse[new]
        out[new] = _attend_tail(q[new], kv[new], pool, tail, scale, its_lse)
    for segment in plan.segments:
        assert lse is not None
        k, v = pool.index_select(0, segment.slots).to(q.dtype).permute(1, 2, 0, 3)  # [KV, P, D]
        part = shared_attention(q[segment.tokens], k, v, scale)
        merged = merge(out[segment.tokens], lse[segment.tokens], *part)
        out[segment.tokens], lse[segment.tokens] = merged
    return out


def _attend_tail(
    q: torch.Tensor,  # [n, H, D]
    kv: torch.Tensor,  # [n, 2, KV, D]
    pool: torch.Tensor,
    tail: Tail,
    scale: float,
    lse: torch.Tensor | None,
) -> torch.Tensor:
    """o [n, H, D]; `lse` [n, H] is filled in, if there is one."""
    P, n = len(tail.slots), len(kv)
    keys = kv.to(pool.dtype)  # counts as what the pool will hold of it
    if P:
        joined = torch.empty((P + n, *kv.shape[1:]), dtype=q.dtype)
        joined[:P], joined[P:] = pool.index_select(0, tail.slots), keys
        keys = joined
    k, v = keys.to(q.dtype).permute(1, 2, 0, 3)  # [KV, P + n, D]
    # Flash attention leaves unused what multiplies bfloat16 so much faster than float32.
    if q.dtype == torch.bfloat16 and n >= MANY and not tail.window:
        return _attend_in_blocks(q, k, v, tail.causal, scale, lse)
    # The operator behind F.scaled_dot_product_attention, which gives the lse as well.
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    is_causal = tail.causal and tail.mask is None
    queries = q.transpose(0, 1).unsqueeze(0)  # [1, H, n, D]
    o, its_lse = attend(queries, k[None], v[None], 0.0, is_causal, attn_mask=tail.mask, scale=scale)
    if lse is not None:
        lse.copy_(its_lse[0].t())
    return o[0].transpose(0, 1)


def _attend_in_blocks(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    causal: bool,
    scale: float,
    lse: torch.Tensor | None,
) -> torch.Tensor:
    """q [n, H, D], the last n tokens of k and v [KV, L, D] -> o [n, H, D], and `lse` [n, H].

    A block of queries at a time sees all its keys in two products with a softmax between them.
    """
    (n, H, D), (KV, L, _) = q.shape, k.shape
    G = H // KV
    rows = q.view(n, KV, G, D).permute(1, 2, 0, 3)  # [KV, G, n, D]
    o = torch.empty(q.shape, dtype=q.dtype)
    for start in range(0, n, BLOCK):
        block = slice(start, min(start + BLOCK, n))
        m = block.stop - start
        seen = L - n + block.stop if causal else L
        scores = attention_scores(rows[:, :, block].reshape(KV, G * m, D), k[:, :seen], None, scale)
        if causal:
            scores.view(KV, G, m, seen)[..., seen - m :] += _later(m, q.dtype)
        weights = torch.softmax(scores, dim=-1)
        o[block] = torch.bmm(weights, v[:, :seen]).view(H, m, D).transpose(0, 1)
        if lse is not None:  # the largest weight is e^(largest score - lse)
            largest = scores.amax(dim=-1).float() - weights.amax(dim=-1).float().log()
            lse[block] = largest.view(H, m).t()
    return o


@cache
def _later(n: int, dtype: torch.dtype) -> torch.Tensor:
    """Added to the scores of n tokens among themselves: -inf where a key is later."""
    return torch.full((n, n), float("-inf"), dtype=dtype).triu(1)


def _common_runs(
    table: torch.Tensor,
    prefixes: Sequence[int],
    members: list[int],
    start: int = 0,
    agreed: int = 0,
) -> Iterator[tuple[list[int], int, int]]:
    """(members, start, stop): positions whose slots `members` have in common, outermost first.

    table [B, C]: the slots; all of `members` have the same up to `agreed`, and those before `start`
    are in a run already.
    """
    if len(members) < 2:
        return
    shortest = min(prefixes[b] for b in members)
    slots = table[members, agreed:shortest]
    stop = agreed + int((slots == slots[0]).all(dim=0).cumprod(dim=0).sum())
    if stop - start >= MIN_SHARED:
        yield members, start, stop
        start = stop
    branches = defaultdict[int, list[int]](list)
    for b in members:
        if prefixes[b] > stop:
            branches[int(table[b, stop])].append(b)
    for branch in branches.values():
        yield from _common_runs(table, prefixes, branch, start, stop)

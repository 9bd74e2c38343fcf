"""Extend attention on a CPU: a prefix that several requests share is gathered and read once.

    request 0    |------ segment ------|-- tail: the rest of the prefix, then the new tokens --|
    request 1    |                     |---- tail ----|
    request 2    |---------------------|-- segment --|-- tail --|
    request 3    |                     |             |-- tail -----|

Shapes: as extend_attention.  Every new token attends to its request's tail, which is causal, and to
its segments, with the new tokens of all their members as the rows of one product; the parts merge
by their lse (slab_attention.py).  Tails of like lengths are padded to one batch (`Tails`).

A *segment* is a run of slots that rows of `req_to_token` have in common, as for the kernel in
cascade_attention.py; here it is found by comparing the rows, once a step, since all layers attend
alike: see `ExtendPlan`.  There is no Triton kernel here: extend_attention.py has it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise

import torch

from minisgl.kernels.slab_attention import (
    ROUND,
    attention_scores,
    merge,
    shared_attention,
    weighted_sum_,
)

MIN_SHARED = 128  # slots of a segment; what fewer of them spare does not pay for the merge
BLOCK = 128  # new tokens whose scores are in memory at a time
MANY = 32  # new tokens that are worth blocks
APART = 2**13  # scores of one head that take as long as it takes to have one more batch of tails
MOST_SCORES = 2**17  # in a batch, of one head
ROUND_NEW = 8  # as ROUND, of new tokens


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

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def has_prefix(self) -> bool:
        """Whether `slots` are any."""
        return len(self.slots) > 0

    @property
    def num_scores(self) -> int:
        """Of one head."""
        return len(self) * (len(self.slots) + len(self))

    @cached_property
    def mask(self) -> torch.Tensor | None:
        """[n, P + n], added to the scores; None: `causal` alone says who sees what."""
        P, n = len(self.slots), len(self)
        if not self.causal or not (self.window or P):
            return None
        position = torch.arange(P, P + n).unsqueeze(1)
        key = torch.arange(P + n)
        hidden = key > position
        if self.window:
            hidden |= key <= position - self.window
        return torch.zeros(hidden.shape).masked_fill_(hidden, float("-inf"))


@dataclass(frozen=True)
class Tails:
    """Tails that are one batch of products, each made as long as the longest.

        |. . . a a a|a a a . .|    prefixes, padded in front | new tokens, padded behind
        |b b b b b b|b b b b b|

    So which new tokens see each other is the same for all, and nobody sees the padding but itself.
    It is a request's own, so that numbers of one that are not finite are no other's.
    """

    tails: Sequence[Tail]  # B
    prefix: int  # P, of the longest
    width: int  # n: new tokens, of the longest
    tokens: slice | torch.Tensor  # [start, stop) or [B · n] int64: new tokens, padding one of them
    slots: torch.Tensor  # [B · P] int64: of the prefixes, padding one of them
    padding: torch.Tensor | None  # [B, 1, 1, 1, P], added to the scores; None: there is none
    real: slice | torch.Tensor  # which of the B · n are not padding

    @classmethod
    def of(cls, tails: Sequence[Tail]) -> Tails:
        """Those of one tail have no padding."""
        if len(tails) == 1:
            (tail,) = tails
            its = slice(tail.start, tail.stop)
            return cls(tails, len(tail.slots), len(tail), its, tail.slots, None, slice(None))
        prefix, width = _common_sizes(tails)
        lengths = torch.tensor([len(tail) for tail in tails]).unsqueeze(1)
        starts = torch.tensor([tail.start for tail in tails]).unsqueeze(1)
        place = torch.arange(width)
        tokens = (starts + place.minimum(lengths - 1)).flatten()
        real = (place < lengths).flatten().nonzero().squeeze(1)
        slots, padding = torch.empty(0, dtype=torch.int64), None
        if prefix:
            missing = [prefix - len(tail.slots) for tail in tails]
            padded = zip(missing, (tail.slots for tail in tails), strict=True)
            slots = torch.cat([x for n, its in padded for x in (its[:1].expand(n), its)])
            hidden = torch.arange(prefix) < torch.tensor(missing).view(-1, 1, 1, 1, 1)
            padding = torch.zeros(hidden.shape, dtype=torch.bfloat16)  # 0 and -inf are exact in it
            padding.masked_fill_(hidden, float("-inf"))
        return cls(tails, prefix, width, tokens, slots, padding, real)


@dataclass(frozen=True)
class ExtendPlan:
    """Who attends to what in one step: the same in every layer."""

    tails: list[Tail]
    segments: list[Segment]

    @cached_property
    def batches(self) -> list[Tails]:
        """All of `tails`, like sizes together, where that costs less than it spares."""
        alone = [[tail] for tail in self.tails if tail.window or not tail.causal]
        others = [tail for tail in self.tails if tail.causal and not tail.window]
        batches: list[list[Tail]] = []
        for tail in sorted(others, key=lambda tail: (tail.has_prefix, tail.num_scores)):
            together = [*batches[-1], tail] if batches else [tail]
            prefix, width = _common_sizes(together)
            padded = len(together) * width * (prefix + width)
            apart = sum(tail.num_scores + APART for tail in together)
            is_near = padded <= min(apart, MOST_SCORES)
            if len(together) > 1 and tail.has_prefix == together[0].has_prefix and is_near:
                batches[-1].append(tail)
            else:
                batches.append([tail])
        return [Tails.of(tails) for tails in alone + batches]


def _common_sizes(tails: Sequence[Tail]) -> tuple[int, int]:
    """(P, n) of all of them, padded."""
    prefix, width = (max(map(len, each)) for each in ([t.slots for t in tails], tails))
    width = -(-width // ROUND_NEW) * ROUND_NEW
    return (-(-(prefix + width) // ROUND) * ROUND - width if prefix else 0), width


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
    for batch in plan.batches:
        first, *others = batch.tails
        # Flash attention leaves unused what multiplies bfloat16 so much faster than float32.
        is_fast = q.dtype == torch.bfloat16 and batch.width >= MANY and not first.window
        if others or is_fast:
            _attend_tails(q, kv, pool, batch, scale, out, lse)
        else:
            _attend_tail(q, kv, pool, first, scale, out, lse)
    for segment in plan.segments:
        assert lse is not None
        k, v = pool.index_select(0, segment.slots).to(q.dtype).permute(1, 2, 0, 3)  # [KV, P, D]
        part = shared_attention(q[segment.tokens], k, v, scale)
        merged = merge(out[segment.tokens], lse[segment.tokens], *part)
        out[segment.tokens], lse[segment.tokens] = merged
    return out


def _attend_tail(
    q: torch.Tensor,
    kv: torch.Tensor,
    pool: torch.Tensor,
    tail: Tail,
    scale: float,
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    """Fill in `out` [T, H, D] and, if there is one, `lse` [T, H] of the tail's new tokens."""
    tokens = slice(tail.start, tail.stop)
    keys = kv[tokens].to(pool.dtype).to(q.dtype)  # counts as what the pool will hold of it
    if len(tail.slots):
        keys = torch.cat([pool.index_select(0, tail.slots).to(q.dtype), keys])
    k, v = keys.permute(1, 2, 0, 3).unsqueeze(1)  # [1, KV, P + n, D]
    # The operator behind F.scaled_dot_product_attention, which gives the lse as well.
    attend = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    is_causal = tail.causal and tail.mask is None
    queries = q[tokens].transpose(0, 1).unsqueeze(0)  # [1, H, n, D]
    o, its_lse = attend(queries, k, v, 0.0, is_causal, attn_mask=tail.mask, scale=scale)
    out[tokens] = o[0].transpose(0, 1)
    if lse is not None:
        lse[tokens] = its_lse[0].t()


def _attend_tails(
    q: torch.Tensor,
    kv: torch.Tensor,
    pool: torch.Tensor,
    tails: Tails,
    scale: float,
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    """As `_attend_tail`: a block of queries at a time sees all its keys in two products with a
    softmax between them."""
    B, P, n = len(tails.tails), tails.prefix, tails.width
    causal = tails.tails[0].causal
    (_, H, D), KV = q.shape, kv.shape[2]
    L, G = P + n, H // KV
    keys = torch.empty((2, B, KV, L, D), dtype=q.dtype)
    new = kv[tails.tokens].to(pool.dtype)  # counts as what the pool will hold of it
    keys[..., P:, :] = new.view(B, n, 2, KV, D).permute(2, 0, 3, 1, 4)
    if P:
        cached = pool.index_select(0, tails.slots)
        keys[..., :P, :] = cached.view(B, P, 2, KV, D).permute(2, 0, 3, 1, 4)
    k, v = keys.flatten(1, 2)  # [B · KV, L, D]
    rows = q[tails.tokens].reshape(B, n, KV, G, D).permute(0, 2, 3, 1, 4)  # [B, KV, G, n, D]
    o = torch.empty((B, n, H, D), dtype=q.dtype)
    its_lse = None if lse is None else torch.empty((B, n, H))
    for start in range(0, n, BLOCK):
        block = slice(start, min(start + BLOCK, n))
        m = block.stop - start
        seen = P + block.stop if causal else L
        queries = rows[..., block, :].reshape(B * KV, G * m, D)
        scores = attention_scores(queries, k[:, :seen], None, scale)
        each = scores.view(B, KV, G, m, seen)
        if causal:
            each[..., seen - m :] += _later(m, q.dtype)
        if tails.padding is not None:
            each[..., :P] += tails.padding
        if its_lse is None:
            sums = torch.bmm(torch.softmax(scores, dim=-1), v[:, :seen])
        else:
            sums, sums_lse = weighted_sum_(scores, v[:, :seen])
            its_lse[:, block] = sums_lse.view(B, H, m).transpose(1, 2)
        o[:, block] = sums.view(B, H, m, D).transpose(1, 2)
    where = tails.tokens if isinstance(tails.tokens, slice) else tails.tokens[tails.real]
    out[where] = o.flatten(0, 1)[tails.real]
    if lse is not None and its_lse is not None:
        lse[where] = its_lse.flatten(0, 1)[tails.real]


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
    end = start + (stop - start) // ROUND * ROUND
    if end - start >= MIN_SHARED:
        yield members, start, end
        start = end
    branches = defaultdict[int, list[int]](list)
    for b in members:
        if prefixes[b] > stop:
            branches[int(table[b, stop])].append(b)
    for branch in branches.values():
        yield from _common_runs(table, prefixes, branch, start, stop)

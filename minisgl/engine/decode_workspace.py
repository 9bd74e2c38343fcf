"""Running requests' keys and values once more, contiguous: what a CPU decodes from.

The pool of single-token slots stays the source of truth; a request that starts to decode is
gathered from it once into a row of a slab, and each step appends one token to the row.  Slabs have
capacities 256, 512, 1024, ... tokens: a request moves up when it outgrows its slab, so a long
request pays for its own length and nobody else's, and the rows of a slab are one batched product.

    slab of capacity C, one tensor per layer:  [2 (K, V), rows, KV, C, D]        (slab.py)

A prefix that many of the requests share (`Segment`) is held once, beside the slabs, and the rows of
its members begin where it ends.  It is attended with the queries of all members as the rows of one
product, and the parts of a request's attention are merged (kernels/slab_attention.py).

    segment of P tokens, one tensor per layer:  [2 (K, V), KV, P, D]

The copy costs memory: at most `budget` tokens of it, segments included.  A request that does not
fit decodes from the pool.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from minisgl.cache.tree_node import TreeNode
from minisgl.engine.segments import Segment
from minisgl.engine.slab import Slab
from minisgl.kernels.slab_attention import (
    merge,
    shared_attention,
    slab_attention,
    slab_attention_lse,
)

FIRST_CAPACITY = 256

Owner = TypeVar("Owner", bound=Hashable)


@dataclass(frozen=True)
class SlabPlan(Generic[Owner]):
    """One slab in one step."""

    slab: Slab[Owner]
    start: int  # its n requests are rows [start, start + n) of the step's queries
    longest: int
    target: torch.Tensor  # [n · 2 · KV]: where the new K and V heads go
    mask: torch.Tensor | None  # [n · KV, 1, longest], added to the scores; None: equally long


class DecodeWorkspace(Generic[Owner]):
    """Slabs of growing capacity, shared segments, and which request sits where.

    `arrange()` when a request starts or stops decoding; one step is `plan()` then, for every layer,
    `attend()`.  `plan` says in which order the requests' query rows must come.
    """

    def __init__(self, pool: list[torch.Tensor], budget: int, dtype: torch.dtype) -> None:
        self.pool = pool  # per layer [S, 2, KV, D]
        self.budget = budget
        self.dtype = dtype  # of activations: rows are kept as the products take them
        self.slabs: dict[int, Slab[Owner]] = {}
        self.place: dict[Owner, Slab[Owner]] = {}
        self.first: dict[Owner, int] = {}  # position of the first token in the owner's row
        self.segments: list[Segment[Owner]] = []  # outermost first
        self.shared: dict[tuple[int, TreeNode], list[torch.Tensor]] = {}  # their K and V, by `key`
        self._slab_plans: list[SlabPlan[Owner]] = []
        # per segment: its layers, and its members' rows of the step's queries (None: all of them)
        self._shared_plans: list[tuple[list[torch.Tensor], torch.Tensor | None]] = []

    @property
    def used(self) -> int:
        """Tokens of memory that segments and the rows in use take."""
        rows = sum(len(s.owners) * s.capacity for s in self.slabs.values())
        return rows + sum(map(len, self.segments))

    def __contains__(self, owner: Owner) -> bool:
        return owner in self.place

    def arrange(
        self, slots: Mapping[Owner, torch.Tensor], segments: Sequence[Segment[Owner]]
    ) -> None:
        """Seat every request that fits, with `segments` held once for all of their members.

        slots: of every request that decodes, where its tokens are in the pool, [kv_len] integers.
        segments: outermost first, as `find_segments` gives them.  What stays as it was is not
        copied again.
        """
        first = dict.fromkeys(slots, 0)
        for segment in segments:
            first.update(dict.fromkeys(segment.members, segment.stop))
        for owner in [o for o in self.place if self.first[o] != first.get(o)]:
            self.leave(owner)  # gone, or its row has to begin elsewhere
        old, self.shared, self.segments = self.shared, {}, []
        unseated: set[Owner] = set()  # a segment of theirs finds no room
        for segment in segments:
            if unseated.isdisjoint(segment.members) and self.used + len(segment) <= self.budget:
                self.segments.append(segment)
                its = slots[segment.members[0]][segment.start : segment.stop]
                self.shared[segment.key] = old.get(segment.key) or self._gather(its)
            else:
                unseated.update(segment.members)
        for owner in unseated:
            self.leave(owner)
        used, newcomers = self.used, defaultdict[int, list[Owner]](list)  # by capacity
        for owner in [o for o in slots if o not in self and o not in unseated]:
            capacity = FIRST_CAPACITY
            while capacity <= len(slots[owner]) - first[owner]:
                capacity *= 2
            if used + capacity <= self.budget:
                used += capacity
                newcomers[capacity].append(owner)
        for capacity, owners in newcomers.items():
            self._slab(capacity).reserve(len(owners))
            for owner in owners:
                self._seat(owner, slots[owner], first[owner], self._slab(capacity))

    def leave(self, owner: Owner) -> None:
        """Give the row back; nothing happens if there is none."""
        slab = self.place.pop(owner, None)
        if slab is not None:
            del self.first[owner]
            slab.remove(slab.owners.index(owner))

    def scrub(self, owner: Owner) -> None:
        """Zero `owner`'s row, if there is one: it holds NaN, and its next owner would read that as
        hidden keys, which are multiplied by 0."""
        slab = self.place.get(owner)
        if slab is not None:
            row = slab.owners.index(owner)
            for layer in slab.layers:
                layer[:, row] = 0

    def plan(self, owners: Sequence[Owner]) -> list[Owner]:
        """Make room for one more token of each of `owners`; their order in the coming step.

        Every owner that has a row must be among `owners`; those without one are left out, and so is
        one that outgrew its slab and found no larger room (it then decodes from the pool).
        """
        for owner in owners:
            slab = self.place.get(owner)
            if slab is not None and slab.lengths[slab.owners.index(owner)] == slab.capacity:
                self._move_up(owner, slab)
        self._slab_plans = []
        order: list[Owner] = []
        for slab in self.slabs.values():
            if slab.owners:
                self._slab_plans.append(self._plan_slab(slab, len(order)))
                order += slab.owners
                slab.lengths = [length + 1 for length in slab.lengths]
        self._shared_plans = []
        at = {owner: i for i, owner in enumerate(order)}
        for segment in self.segments:
            rows = [at[m] for m in segment.members if m in at]
            if rows:
                members = None if len(rows) == len(order) else torch.tensor(rows)
                self._shared_plans.append((self.shared[segment.key], members))
        return order

    def attend(self, layer: int, q: torch.Tensor, kv: torch.Tensor, scale: float) -> torch.Tensor:
        """q [B, H, D], kv [B, 2, KV, D] in `plan`'s order -> [B, H, D]."""
        if self.pool[0].dtype != self.dtype:
            kv = kv.to(self.pool[0].dtype).to(self.dtype)  # rounded as in the pool
        outs, lses = [], []
        for p in self._slab_plans:
            n, D = len(p.slab.owners), p.slab.head_dim
            data = p.slab.layers[layer]
            stop = p.start + n
            data.view(-1, D).index_copy_(0, p.target, kv[p.start : stop].reshape(-1, D))
            k, v = data.view(2, -1, p.slab.capacity, D)[:, : n * p.slab.num_kv_heads, : p.longest]
            if self._shared_plans:
                out, lse = slab_attention_lse(q[p.start : stop], k, v, p.mask, scale)
                lses.append(lse)
            else:
                out = slab_attention(q[p.start : stop], k, v, p.mask, scale)
            outs.append(out)
        o = outs[0] if len(outs) == 1 else torch.cat(outs)
        if not self._shared_plans:
            return o
        lse = lses[0] if len(lses) == 1 else torch.cat(lses)
        for layers, members in self._shared_plans:
            k, v = layers[layer]
            if members is None:
                o, lse = merge(o, lse, *shared_attention(q, k, v, scale))
            else:
                part = shared_attention(q[members], k, v, scale)
                merged = merge(o[members], lse[members], *part)
                o.index_copy_(0, members, merged[0])
                lse.index_copy_(0, members, merged[1])
        return o

    def _seat(self, owner: Owner, slots: torch.Tensor, first: int, slab: Slab[Owner]) -> None:
        """Copy the tokens from position `first` on into a row."""
        n = len(slots) - first
        row = slab.add(owner, n)
        for layer, source in zip(slab.layers, self.pool, strict=True):
            layer[:, row, :, :n] = _read(source, slots[first:])
        self.place[owner], self.first[owner] = slab, first

    def _gather(self, slots: torch.Tensor) -> list[torch.Tensor]:
        return [_read(layer, slots).to(self.dtype).contiguous() for layer in self.pool]

    def _plan_slab(self, slab: Slab[Owner], start: int) -> SlabPlan[Owner]:
        n, KV, C = len(slab.owners), slab.num_kv_heads, slab.capacity
        lengths = torch.tensor(slab.lengths, dtype=torch.int64)  # before the new token
        heads = torch.arange(2)[:, None] * (slab.rows * KV) + torch.arange(KV)  # [2, KV]
        rows = torch.arange(n) * KV
        # where each row's new K and V heads go, in [2 · rows · KV · C] tokens
        target = (heads + rows[:, None, None]) * C + lengths[:, None, None]  # [n, 2, KV]
        longest = max(slab.lengths) + 1
        mask = None
        if min(slab.lengths) + 1 < longest:
            hidden = torch.arange(longest) > lengths[:, None]  # [n, L]
            mask = torch.zeros(n, 1, longest, dtype=self.dtype)
            mask = mask.masked_fill_(hidden[:, None], float("-inf")).repeat_interleave(KV, dim=0)
        return SlabPlan(slab, start, longest, target.flatten(), mask)

    def _slab(self, capacity: int) -> Slab[Owner]:
        if capacity not in self.slabs:
            self.slabs[capacity] = Slab(capacity, self.pool, self.dtype)
        return self.slabs[capacity]

    def _move_up(self, owner: Owner, slab: Slab[Owner]) -> None:
        old, n = slab.owners.index(owner), slab.capacity
        if self.used + n <= self.budget:
            larger = self._slab(2 * n)
            row = larger.add(owner, n)
            for target, source in zip(larger.layers, slab.layers, strict=True):
                target[:, row, :, :n] = source[:, old]
            self.place[owner] = larger
        else:
            del self.place[owner], self.first[owner]
        slab.remove(old)

    def check(self) -> None:
        """Every owner sits in exactly one row, which begins where its segments end; no row is over
        its slab; the budget holds."""
        seated = [o for s in self.slabs.values() for o in s.owners]
        assert sorted(map(id, seated)) == sorted(map(id, self.place)), "owner lost or doubled"
        for slab in self.slabs.values():
            assert len(slab.owners) == len(slab.lengths) <= slab.rows
            assert all(0 < n <= slab.capacity for n in slab.lengths)
        assert self.used <= self.budget
        ends = dict.fromkeys(self.place, 0)
        for segment in self.segments:
            assert all(x.shape[2] == len(segment) for x in self.shared[segment.key])
            for owner in ends.keys() & set(segment.members):
                assert ends[owner] == segment.start, "a position is read twice, or by nobody"
                ends[owner] = segment.stop
        assert ends == self.first, "a row does not begin where its owner's segments end"
        assert len(self.shared) == len(self.segments)


def _read(layer: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
    """layer [S, 2, KV, D], slots [n] -> [2, KV, n, D]"""
    return layer[slots.to(torch.int64)].permute(1, 2, 0, 3)

"""Running requests' keys and values once more, contiguous: what a CPU decodes from.

The pool of single-token slots stays the source of truth; a request that starts to decode is
gathered from it once into a row of a slab, and each step appends its new tokens to the row.  Slabs
have capacities 256, 512, 1024, ... tokens: a request moves up when it outgrows its slab, so a long
request pays for its own length and nobody else's, and the rows of a slab are one batched product.
A request that jumps forward appends several tokens (slab_part.py).

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
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Generic, TypeVar

import torch

from minisgl.cache.tree_node import TreeNode
from minisgl.engine.segments import Segment
from minisgl.engine.slab import Slab
from minisgl.engine.slab_part import Part, parts_of
from minisgl.kernels.slab_attention import merge, shared_attention

FIRST_CAPACITY = 256

Owner = TypeVar("Owner", bound=Hashable)


class DecodeWorkspace(Generic[Owner]):
    """Slabs of growing capacity, shared segments, and which request sits where.

    `arrange()` when a request starts or stops decoding, `cut()` before it appends several tokens;
    one step is `plan()` then, for every layer, `attend()`.  `plan` says in which order the tokens
    must come.
    """

    def __init__(
        self, pool: list[torch.Tensor], budget: int, dtype: torch.dtype, group: int
    ) -> None:
        self.pool = pool  # per layer [S, 2, KV, D]
        self.budget = budget
        self.dtype = dtype  # of activations: rows are kept as the products take them
        self.group = group  # query heads of a KV head
        self.slabs: dict[int, Slab[Owner]] = {}
        self.place: dict[Owner, Slab[Owner]] = {}
        self.first: dict[Owner, int] = {}  # position of the first token in the owner's row
        self.segments: list[Segment[Owner]] = []  # outermost first
        self.shared: dict[tuple[int, TreeNode], list[torch.Tensor]] = {}  # their K and V, by `key`
        self._parts: list[Part[Owner]] = []
        # per segment: its layers, and its members' tokens of the step (None: all of them)
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

        slots: of every request that decodes, or is to keep the row that it has, where its tokens
        are in the pool, [kv_len] integers.
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

    def cut(self, owner: Owner, position: int) -> None:
        """`owner` goes on from `position`, where its row, if it has one, is to end; if the row
        begins later, or ends earlier, it is given back."""
        if owner not in self:
            return
        length, lengths = position - self.first[owner], self.place[owner].lengths
        if 0 <= length <= lengths[row := self._row(owner)]:
            lengths[row] = length
        else:
            self.leave(owner)

    def scrub(self, owner: Owner) -> None:
        """Zero `owner`'s row, if there is one: it holds NaN, and its next owner would read that as
        hidden keys, which are multiplied by 0."""
        if owner in self:
            row = self._row(owner)
            for layer in self.place[owner].layers:
                layer[:, row] = 0

    def plan(self, decodes: Collection[Owner], extends: Mapping[Owner, int]) -> list[Owner]:
        """Make room for one more token of each of `decodes`, and for as many as `extends` says;
        whose tokens `attend` is to get, in order.

        Those without a row are left out, and so is one that finds no larger room (it then reads the
        pool).  Whoever else has a row keeps it.
        """
        for owner in decodes:
            self._make_room(owner, 1)
        for owner, count in extends.items():
            self._make_room(owner, count)

        self._parts, total = [], 0
        tokens: dict[Owner, range] = {}  # of the step
        new = dict.fromkeys(decodes, 1) | dict(extends)
        for slab in self.slabs.values():
            counts = {i: new[owner] for i, owner in enumerate(slab.owners) if owner in new}
            for part, rows in parts_of(slab, counts, self.group):
                self._parts.append(part)
                for row in rows:
                    tokens[slab.owners[row]] = range(total, total + counts[row])
                    total += counts[row]
        for owner, its in tokens.items():
            self.place[owner].lengths[self._row(owner)] += len(its)

        self._shared_plans = []
        for segment in self.segments:
            among = [i for member in segment.members for i in tokens.get(member, ())]
            if among:
                members = None if len(among) == total else torch.tensor(among)
                self._shared_plans.append((self.shared[segment.key], members))
        return list(tokens)

    def attend(self, layer: int, q: torch.Tensor, kv: torch.Tensor, scale: float) -> torch.Tensor:
        """q [W, H, D], kv [W, 2, KV, D] of the W tokens in `plan`'s order -> [W, H, D]."""
        if self.pool[0].dtype != self.dtype:
            kv = kv.to(self.pool[0].dtype).to(self.dtype)  # rounded as in the pool
        theirs = zip(self._parts, self._split(q), self._split(kv), strict=True)
        if not self._shared_plans:
            return _cat([part.attend(layer, q, kv, scale) for part, q, kv in theirs])
        results = [part.attend_lse(layer, q, kv, scale) for part, q, kv in theirs]
        o, lse = _cat([o for o, _ in results]), _cat([lse for _, lse in results])
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

    def _split(self, x: torch.Tensor) -> Sequence[torch.Tensor]:
        """x [W, ...] -> what each part has of it."""
        if len(self._parts) == 1:
            return (x,)
        return x.split_with_sizes([part.count for part in self._parts])

    def _row(self, owner: Owner) -> int:
        return self.place[owner].owners.index(owner)

    def _make_room(self, owner: Owner, count: int) -> None:
        """`owner` moves up if its slab has no room for `count` more tokens, or else leaves."""
        if owner not in self:
            return
        slab, row = self.place[owner], self._row(owner)
        needed = slab.lengths[row] + count
        if needed <= slab.capacity:
            return
        capacity = slab.capacity
        while capacity < needed:
            capacity *= 2
        if self.used - slab.capacity + capacity > self.budget:
            self.leave(owner)
            return
        n, larger = slab.lengths[row], self._slab(capacity)
        target_row = larger.add(owner, n)
        for target, source in zip(larger.layers, slab.layers, strict=True):
            target[:, target_row, :, :n] = source[:, row, :, :n]
        self.place[owner] = larger
        slab.remove(row)

    def _seat(self, owner: Owner, slots: torch.Tensor, first: int, slab: Slab[Owner]) -> None:
        """Copy the tokens from position `first` on into a row."""
        n = len(slots) - first
        row = slab.add(owner, n)
        for layer, source in zip(slab.layers, self.pool, strict=True):
            layer[:, row, :, :n] = _read(source, slots[first:])
        self.place[owner], self.first[owner] = slab, first

    def _gather(self, slots: torch.Tensor) -> list[torch.Tensor]:
        return [_read(layer, slots).to(self.dtype).contiguous() for layer in self.pool]

    def _slab(self, capacity: int) -> Slab[Owner]:
        if capacity not in self.slabs:
            self.slabs[capacity] = Slab(capacity, self.pool, self.dtype)
        return self.slabs[capacity]

    def check(self) -> None:
        """Every owner sits in exactly one row, which begins where its segments end; no row is over
        its slab; the budget holds."""
        seated = [o for s in self.slabs.values() for o in s.owners]
        assert len(seated) == len(self.place), "owner doubled or lost"
        assert set(seated) == set(self.place)
        for slab in self.slabs.values():
            assert len(slab.owners) == len(slab.lengths) <= slab.rows
            assert all(0 <= n <= slab.capacity for n in slab.lengths)
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


def _cat(parts: list[torch.Tensor]) -> torch.Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)

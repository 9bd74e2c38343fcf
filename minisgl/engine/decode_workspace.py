"""Running requests' keys and values once more, contiguous: what a CPU decodes from.

The pool of single-token slots stays the source of truth; a request that starts to decode is
gathered from it once into a row of a slab, and each step appends one token to the row.  Slabs have
capacities 256, 512, 1024, ... tokens: a request moves up when it outgrows its slab, so a long
request pays for its own length and nobody else's, and the rows of a slab are one batched product.

    slab of capacity C, one tensor per layer:  [2 (K, V), rows, KV, C, D]
    rows [0, n) are in use; the last row moves into the gap when a request leaves

The copy costs memory: at most `budget` tokens of it.  A request that does not fit decodes from the
pool.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Generic, TypeVar

import torch

from minisgl.kernels.slab_attention import slab_attention

FIRST_CAPACITY = 256

Owner = TypeVar("Owner", bound=Hashable)


class Slab(Generic[Owner]):
    """Rows of one capacity.  Appending and attending touch rows [0, n) only."""

    def __init__(self, capacity: int, like: torch.Tensor, num_layers: int) -> None:
        self.capacity = capacity
        _, _, self.num_kv_heads, self.head_dim = like.shape
        # subtle: zeros, not empty: masked keys are multiplied by 0, and 0 · NaN would be NaN
        shape = (2, 0, self.num_kv_heads, capacity, self.head_dim)
        self.layers = [like.new_zeros(shape) for _ in range(num_layers)]
        self.owners: list[Owner] = []  # request of each row
        self.lengths: list[int] = []  # tokens in each row

    @property
    def rows(self) -> int:
        """How many rows there is memory for."""
        return self.layers[0].shape[1]

    def add(self, owner: Owner, length: int) -> int:
        """A free row, its `length` tokens still to be written."""
        if len(self.owners) == self.rows:
            n = self.rows
            for i, old in enumerate(self.layers):
                self.layers[i] = old.new_zeros((2, max(1, 2 * n), *old.shape[2:]))
                self.layers[i][:, :n] = old
        self.owners.append(owner)
        self.lengths.append(length)
        return len(self.owners) - 1

    def remove(self, row: int) -> None:
        """Give `row` back; the last row moves into it."""
        last = len(self.owners) - 1
        if row != last:
            n = self.lengths[last]
            for layer in self.layers:
                layer[:, row, :, :n] = layer[:, last, :, :n]
            self.owners[row], self.lengths[row] = self.owners[last], self.lengths[last]
        self.owners.pop()
        self.lengths.pop()
        if not self.owners:  # an idle slab gives its memory back
            self.layers = [x[:, :0].clone() for x in self.layers]


class DecodeWorkspace(Generic[Owner]):
    """Slabs of growing capacity and which request sits where.

    One step is `plan()` then, for every layer, `attend()`; `plan` says in which order the requests'
    query rows must come.
    """

    def __init__(self, pool: list[torch.Tensor], budget: int) -> None:
        self.pool = pool  # per layer [S, 2, KV, D]
        self.budget = budget
        self.slabs: dict[int, Slab[Owner]] = {}
        self.place: dict[Owner, Slab[Owner]] = {}
        self._plan: list[tuple[Slab[Owner], int, int, torch.Tensor, torch.Tensor | None]] = []

    @property
    def used(self) -> int:
        """Tokens of memory that the rows in use take."""
        return sum(len(s.owners) * s.capacity for s in self.slabs.values())

    def __contains__(self, owner: Owner) -> bool:
        return owner in self.place

    def admit(self, owner: Owner, slots: Sequence[int]) -> bool:
        """Copy the tokens at `slots` into a row; False (and nothing done) if it does not fit."""
        capacity = FIRST_CAPACITY
        while capacity <= len(slots):
            capacity *= 2
        if self.used + capacity > self.budget:
            return False
        slab = self._slab(capacity)
        row = slab.add(owner, len(slots))
        index = torch.tensor(slots, dtype=torch.int64)
        for layer, pool in zip(slab.layers, self.pool, strict=True):
            # [n, 2, KV, D] -> [2, KV, n, D]
            layer[:, row, :, : len(slots)] = pool[index].permute(1, 2, 0, 3)
        self.place[owner] = slab
        return True

    def leave(self, owner: Owner) -> None:
        """Give the row back; nothing happens if there is none."""
        slab = self.place.pop(owner, None)
        if slab is not None:
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
        self._plan = []
        order: list[Owner] = []
        start = 0
        for slab in self.slabs.values():
            n = len(slab.owners)
            if n == 0:
                continue
            KV, C = slab.num_kv_heads, slab.capacity
            lengths = torch.tensor(slab.lengths, dtype=torch.int64)  # before the new token
            heads = torch.arange(2)[:, None] * (slab.rows * KV) + torch.arange(KV)  # [2, KV]
            rows = torch.arange(n) * KV
            # where each row's new K and V heads go, in [2 · rows · KV · C] tokens
            target = (heads + rows[:, None, None]) * C + lengths[:, None, None]  # [n, 2, KV]
            longest = max(slab.lengths) + 1
            mask = None
            if min(slab.lengths) + 1 < longest:
                hidden = torch.arange(longest) > lengths[:, None]  # [n, L]
                mask = torch.zeros(n, 1, longest, dtype=self.pool[0].dtype)
                mask.masked_fill_(hidden[:, None], float("-inf"))
            self._plan.append((slab, start, longest, target.flatten(), mask))
            order += slab.owners
            slab.lengths = [length + 1 for length in slab.lengths]
            start += n
        return order

    def attend(self, layer: int, q: torch.Tensor, kv: torch.Tensor, scale: float) -> torch.Tensor:
        """q [B, H, D], kv [B, 2, KV, D] in `plan`'s order -> [B, H, D]."""
        parts = []
        for slab, start, longest, target, mask in self._plan:
            n, D = len(slab.owners), slab.head_dim
            data = slab.layers[layer]
            stop = start + n
            data.view(-1, D).index_copy_(0, target, kv[start:stop].reshape(-1, D))
            heads = data.view(2, -1, slab.capacity, D)[:, : n * slab.num_kv_heads, :longest]
            parts.append(slab_attention(q[start:stop], heads[0], heads[1], mask, scale))
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _slab(self, capacity: int) -> Slab[Owner]:
        if capacity not in self.slabs:
            self.slabs[capacity] = Slab(capacity, self.pool[0], len(self.pool))
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
            del self.place[owner]
        slab.remove(old)

    def check(self) -> None:
        """Every owner sits in exactly one row, no row is over its slab, the budget holds."""
        seated = [o for s in self.slabs.values() for o in s.owners]
        assert sorted(map(id, seated)) == sorted(map(id, self.place)), "owner lost or doubled"
        for slab in self.slabs.values():
            assert len(slab.owners) == len(slab.lengths) <= slab.rows
            assert all(0 < n <= slab.capacity for n in slab.lengths)
        assert self.used <= self.budget

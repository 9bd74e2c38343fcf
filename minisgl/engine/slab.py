"""`Slab`: running requests' keys and values, one row for each, all rows of one capacity.

    one tensor per layer:  [2 (K, V), rows, KV, C, D]
    rows [0, n) are in use, so that they are one batch of matrix products; the last row moves into
    the gap when a request leaves

A row has room for C tokens and holds those of its request from the front; what is behind them is
finite, and hidden by a mask.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Generic, TypeVar

import torch

from minisgl.cache.kv_pool import untouched_zeros

Owner = TypeVar("Owner", bound=Hashable)


class Slab(Generic[Owner]):
    """Rows of one capacity.  Appending and attending touch rows [0, n) only."""

    def __init__(self, capacity: int, pool: list[torch.Tensor], dtype: torch.dtype) -> None:
        self.capacity = capacity
        self.dtype = dtype
        _, _, self.num_kv_heads, self.head_dim = pool[0].shape
        shape = (2, 0, self.num_kv_heads, capacity, self.head_dim)
        self.layers = [torch.empty(shape, dtype=dtype) for _ in pool]
        self.owners: list[Owner] = []  # request of each row
        self.lengths: list[int] = []  # tokens in each row

    @property
    def rows(self) -> int:
        """How many rows there is memory for."""
        return self.layers[0].shape[1]

    def reserve(self, count: int) -> None:
        """Memory for `count` more rows."""
        n = len(self.owners)
        if n + count <= self.rows:
            return
        rows, longest = max(n + count, 2 * self.rows), max(self.lengths, default=0)
        for i, old in enumerate(self.layers):
            # subtle: zeros, not empty: masked keys are multiplied by 0, and 0 · NaN would be NaN
            self.layers[i] = untouched_zeros((2, rows, *old.shape[2:]), old.dtype)
            self.layers[i][:, :n, :, :longest] = old[:, :n, :, :longest]

    def add(self, owner: Owner, length: int) -> int:
        """A free row, its `length` tokens still to be written."""
        self.reserve(1)
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

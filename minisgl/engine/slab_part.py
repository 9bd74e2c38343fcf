"""`Part`: one product of a step: what some tokens of it append to a slab, and then attend to.

    decode   one token of each of several requests, rows of one slab: a batch of products
    extend   several tokens of one request: the rows of one product, each seeing those before it

Rows between those that decode are multiplied too, with zeros, and nobody reads their answer: that
costs less than moving rows together.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from minisgl.engine.slab import Slab
from minisgl.kernels.slab_attention import slab_attention, slab_attention_lse

Owner = TypeVar("Owner", bound=Hashable)
ROUND = 32  # tokens


@dataclass(frozen=True)
class Part(Generic[Owner]):
    """`count` tokens of a step, and rows [first, last) of a slab."""

    slab: Slab[Owner]
    count: int
    first: int
    last: int
    longest: int  # tokens of the longest of the rows, the new ones included, rounded up
    target: torch.Tensor  # [count · 2 · KV]: where the new K and V heads go
    mask: torch.Tensor | None  # added to the scores [rows · KV, M, longest]; None: all are seen
    decoding: torch.Tensor | None = None  # the rows that decode; None: each of them
    is_extend: bool = False

    @classmethod
    def decode(cls, slab: Slab[Owner], rows: Sequence[int]) -> Part[Owner]:
        """One more token of each of `rows`, ascending."""
        lengths = torch.tensor(slab.lengths[: rows[-1] + 1])  # before the new token
        decoding = None if len(rows) == len(lengths) else torch.tensor(rows)
        new = lengths if decoding is None else lengths[decoding]
        longest = _rounded(int(new.max()) + 1, slab)
        mask = None
        if int(lengths.min()) + 1 < longest:
            hidden = torch.arange(longest) > lengths[:, None]  # [rows, longest]
            mask = _mask(hidden[:, None], slab).repeat_interleave(slab.num_kv_heads, dim=0)
        target = _target(slab, torch.tensor(rows), new)
        return cls(slab, len(rows), 0, len(lengths), longest, target, mask, decoding)

    @classmethod
    def extend(cls, slab: Slab[Owner], row: int, count: int, group: int) -> Part[Owner]:
        """`count` more tokens of `row`; `group` query heads share a KV head."""
        length = slab.lengths[row]
        longest = _rounded(length + count, slab)
        position = torch.arange(length, length + count)
        mask = None
        if length + 1 < longest:
            hidden = torch.arange(longest) > position[:, None]  # [count, longest]
            mask = _mask(hidden, slab).repeat_interleave(group, dim=0)[None]
        target = _target(slab, torch.full((count,), row), position)
        return cls(slab, count, row, row + 1, longest, target, mask, is_extend=True)

    def attend(self, layer: int, q: torch.Tensor, kv: torch.Tensor, scale: float) -> torch.Tensor:
        """q [count, H, D] and kv [count, 2, KV, D] of its tokens -> [count, H, D]."""
        return self._tokens(slab_attention(*self._operands(layer, q, kv), self.mask, scale))

    def attend_lse(
        self, layer: int, q: torch.Tensor, kv: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """`attend`, and the lse [count, H] to merge it by (kernels/slab_attention.py)."""
        o, lse = slab_attention_lse(*self._operands(layer, q, kv), self.mask, scale)
        return self._tokens(o), self._tokens(lse)

    def _operands(
        self, layer: int, q: torch.Tensor, kv: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Append; q [rows, heads, D], and k and v [rows · KV, longest, D]."""
        KV, C, D = self.slab.num_kv_heads, self.slab.capacity, self.slab.head_dim
        data = self.slab.layers[layer]
        data.view(-1, D).index_copy_(0, self.target, kv.reshape(-1, D))
        k, v = data.view(2, -1, C, D)[:, self.first * KV : self.last * KV, : self.longest]
        if self.is_extend:
            q = _fold(q, KV)
        elif self.decoding is not None:
            q = q.new_zeros(self.last, *q.shape[1:]).index_copy_(0, self.decoding, q)
        return q, k, v

    def _tokens(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, heads, ...] -> [count, H, ...]"""
        if self.is_extend:
            return _unfold(x, self.slab.num_kv_heads, self.count)
        return x if self.decoding is None else x[self.decoding]


def _mask(hidden: torch.Tensor, slab: Slab[Owner]) -> torch.Tensor:
    return torch.zeros(hidden.shape, dtype=slab.dtype).masked_fill_(hidden, float("-inf"))


def _rounded(length: int, slab: Slab[Owner]) -> int:
    """`length`, rounded up: to oneDNN a product of a new shape costs as much as many of a known."""
    return min(-(-length // ROUND) * ROUND, slab.capacity)


def _target(slab: Slab[Owner], rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Where tokens' K and V heads go, in the [2 · rows · KV · C] of a slab: [tokens · 2 · KV]"""
    KV = slab.num_kv_heads
    heads = torch.arange(2)[:, None] * (slab.rows * KV) + torch.arange(KV)  # [2, KV]
    head = heads + (rows * KV)[:, None, None]  # [tokens, 2, KV]
    return (head * slab.capacity + positions[:, None, None]).flatten()


def _fold(q: torch.Tensor, KV: int) -> torch.Tensor:
    """Tokens become heads: q [tokens, KV · G, D] -> [1, KV · tokens · G, D]"""
    tokens, H, D = q.shape
    return q.view(tokens, KV, H // KV, D).transpose(0, 1).reshape(1, KV * tokens * (H // KV), D)


def _unfold(x: torch.Tensor, KV: int, tokens: int) -> torch.Tensor:
    """And back: x [1, KV · tokens · G, ...] -> [tokens, KV · G, ...]"""
    return x.view(KV, tokens, -1, *x.shape[2:]).transpose(0, 1).flatten(1, 2)

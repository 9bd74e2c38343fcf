"""`Part`: one product of a step: what some rows of a slab append in it, and then attend to.

    row 0    . . . . . a                a request that decodes
    row 1    . . b c d                  one that jumps forward by three tokens
    row 2    . . . . . . . .            one that waits
    row 3    . . . e f

Each row gets as many queries as the one with the most, so that all are one batch of products; rows
that wait are multiplied too, since that costs less than moving rows together.  Nobody reads the
answers of queries that stand for no token.  Where they would be most of all, rows with like numbers
of tokens are parts of their own (`parts_of`).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch

from minisgl.engine.slab import Slab
from minisgl.kernels.slab_attention import ROUND, slab_attention, slab_attention_lse

Owner = TypeVar("Owner", bound=Hashable)
MOST_QUERIES = 4  # for each new token


@dataclass(frozen=True)
class Part(Generic[Owner]):
    """`count` tokens of a step, and rows [first, last) of a slab."""

    slab: Slab[Owner]
    count: int
    first: int
    last: int
    width: int  # queries of each row
    longest: int  # tokens of the longest of the rows, the new ones included, rounded up
    target: torch.Tensor  # [count · 2 · KV]: where the new K and V heads go
    mask: torch.Tensor | None  # added to the scores [rows · KV, M, longest]; None: all are seen
    token_of: torch.Tensor | None  # [rows · width]: of each query, any where it is nobody's ...
    query_of: torch.Tensor | None  # [count]: ... and back; None: query i is token i's

    @classmethod
    def of(cls, slab: Slab[Owner], counts: Mapping[int, int], group: int) -> Part[Owner]:
        """`counts` more tokens of each of these rows; `group` query heads share a KV head."""
        first, last, width = min(counts), max(counts) + 1, max(counts.values())
        lengths = torch.tensor(slab.lengths[first:last])  # before the new tokens
        new = torch.tensor([counts.get(row, 0) for row in range(first, last)])
        position = lengths[:, None] + torch.arange(width)  # [rows, width]
        is_token = torch.arange(width) < new[:, None]
        longest = _rounded(int((lengths + new).max()), slab)
        mask = None
        if int(lengths.min()) + 1 < longest:
            mask = _mask(torch.arange(longest) > position[..., None], slab, group)
        query_of = token_of = None
        if not is_token.all():
            query_of = is_token.flatten().nonzero().squeeze(1)
            token_of = (is_token.flatten().cumsum(0) - 1).clamp_(min=0)
        row = torch.arange(first, last)[:, None].expand_as(position)
        return cls(
            slab,
            int(new.sum()),
            first,
            last,
            width,
            longest,
            _target(slab, row[is_token], position[is_token]),
            mask,
            token_of,
            query_of,
        )

    def attend(self, layer: int, q: torch.Tensor, kv: torch.Tensor, scale: float) -> torch.Tensor:
        """q [count, H, D] and kv [count, 2, KV, D], row after row -> [count, H, D]."""
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
        """Append; q [rows, KV · width · G, D], and k and v [rows · KV, longest, D]."""
        KV, C, D = self.slab.num_kv_heads, self.slab.capacity, self.slab.head_dim
        data = self.slab.layers[layer]
        data.view(-1, D).index_copy_(0, self.target, kv.reshape(-1, D))
        k, v = data.view(2, -1, C, D)[:, self.first * KV : self.last * KV, : self.longest]
        if self.token_of is not None:
            q = q.index_select(0, self.token_of)
        if self.width > 1:  # a row's queries become heads
            q = q.view(-1, self.width, KV, q.shape[1] // KV, D).transpose(1, 2)
            q = q.reshape(q.shape[0], -1, D)
        return q, k, v

    def _tokens(self, x: torch.Tensor) -> torch.Tensor:
        """x [rows, KV · width · G, ...] -> [count, H, ...]"""
        if self.width > 1:
            x = x.view(x.shape[0], self.slab.num_kv_heads, self.width, -1, *x.shape[2:])
            x = x.transpose(1, 2).reshape(x.shape[0] * self.width, -1, *x.shape[4:])
        return x if self.query_of is None else x.index_select(0, self.query_of)


def parts_of(
    slab: Slab[Owner], counts: Mapping[int, int], group: int
) -> Iterator[tuple[Part[Owner], list[int]]]:
    """Parts for `counts` more tokens of each of these rows, and whose tokens each has, in order.

    All are one part, unless most of its queries would be nobody's: then the rows with most tokens
    go first, together or each alone.
    """
    rest = dict(sorted(counts.items()))
    while rest:
        most = max(rest.values())
        alike = rest if _is_dense(rest) else {row: n for row, n in rest.items() if 2 * n > most}
        rest = {row: n for row, n in rest.items() if row not in alike}
        for its in [alike] if _is_dense(alike) else [{row: n} for row, n in alike.items()]:
            yield Part.of(slab, its, group), list(its)


def _is_dense(counts: Mapping[int, int]) -> bool:
    width, rows = max(counts.values()), max(counts) + 1 - min(counts)
    return width == 1 or rows * width <= MOST_QUERIES * sum(counts.values())


def _mask(hidden: torch.Tensor, slab: Slab[Owner], group: int) -> torch.Tensor:
    """hidden [rows, width, longest] -> what to add for each KV head and query head of its group,
    [rows · KV, width · G, longest]; of one query all heads have the same, [rows · KV, 1, longest].
    """
    rows, width, longest = hidden.shape
    mask = torch.zeros(hidden.shape, dtype=slab.dtype).masked_fill_(hidden, float("-inf"))
    heads = (slab.num_kv_heads, width, group if width > 1 else 1)
    return (
        mask[:, None, :, None]
        .expand(rows, *heads, longest)
        .reshape(-1, heads[1] * heads[2], longest)
    )


def _rounded(length: int, slab: Slab[Owner]) -> int:
    """`length`, rounded up, as far as the slab goes."""
    return min(-(-length // ROUND) * ROUND, slab.capacity)


def _target(slab: Slab[Owner], rows: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Where tokens' K and V heads go, in the [2 · rows · KV · C] of a slab: [tokens · 2 · KV]"""
    KV = slab.num_kv_heads
    heads = torch.arange(2)[:, None] * (slab.rows * KV) + torch.arange(KV)  # [2, KV]
    head = heads + (rows * KV)[:, None, None]  # [tokens, 2, KV]
    return (head * slab.capacity + positions[:, None, None]).flatten()

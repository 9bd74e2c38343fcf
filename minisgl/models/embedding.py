"""Token embedding and LM head, the vocabulary split over ranks (Megatron-LM)."""

from __future__ import annotations

import torch
from torch import nn

from minisgl.kernels.embedding import embedding
from minisgl.models.linear import Linear
from minisgl.models.loader import WeightSlot
from minisgl.parallel import Parallel


def vocab_shard(vocab_size: int, parallel: Parallel) -> tuple[int, int]:
    """First id of this rank's shard, and the shard's rows: the same on every rank, so that the last
    may reach past the vocabulary (its surplus rows are zero and cut off after the gather).

    >>> vocab_shard(10, Parallel(3, 4))
    (9, 3)
    """
    rows = -(-vocab_size // parallel.size)
    return parallel.rank * rows, rows


class VocabParallelEmbedding(nn.Module):
    """ids [T] -> [T, D].  A rank gives zeros for ids of another rank; the sum is the row."""

    def __init__(self, vocab_size: int, hidden: int, parallel: Parallel) -> None:
        super().__init__()
        self.first, rows = vocab_shard(vocab_size, parallel)
        self.valid = max(0, min(rows, vocab_size - self.first))
        self.weight = nn.Parameter(torch.zeros(rows, hidden), requires_grad=False)
        self.parallel = parallel

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.parallel.all_reduce(embedding(ids, self.weight, self.first))

    def weight_slots(self, name: str) -> dict[str, WeightSlot]:
        p = self.parallel
        return {name: WeightSlot(self.weight.data[: self.valid], 0, p.rank, p.size)}


class LMHead(Linear):
    """Hidden states to scores: x [L, D] -> logits [L, V].  `tied` shares the embedding's rows."""

    def __init__(
        self,
        vocab_size: int,
        hidden: int,
        parallel: Parallel,
        tied: VocabParallelEmbedding | None,
    ) -> None:
        first, rows = vocab_shard(vocab_size, parallel)
        super().__init__(hidden, 0 if tied is not None else rows, bias=False)
        if tied is not None:
            self.weight = tied.weight
        self.vocab_size = vocab_size
        self.valid = max(0, min(rows, vocab_size - first))
        self.parallel = parallel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.parallel.all_gather(self.multiply(x))[:, : self.vocab_size]

    def weight_slots(self, name: str) -> dict[str, WeightSlot]:
        p = self.parallel
        return {name: WeightSlot(self.weight.data[: self.valid], 0, p.rank, p.size)}

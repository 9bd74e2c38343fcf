"""Tensor parallelism as one small object: which shard am I, and how do shards talk.

A layer asks its `Parallel` for collectives and never for a process group; at size 1 every
collective is the identity, so single-process code pays nothing and reads the same.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch.distributed import ProcessGroup


@dataclass
class Traffic:
    """Bytes that this rank has handed to collectives: the size of each `x`.

    Attributes:
        broadcast: features of images, which rank 0 sends.  What else a step is told, its token ids
            and slots, is not counted: some integers for each token.
    """

    all_reduce: int = 0
    all_gather: int = 0
    broadcast: int = 0


@dataclass(frozen=True)
class Parallel:
    """Rank `rank` of `size` tensor-parallel workers (Megatron-LM's scheme).

    `group` is where the layers talk, device to device; `control` is the same ranks from host to
    host.
    """

    rank: int = 0
    size: int = 1
    group: ProcessGroup | None = None
    control: ProcessGroup | None = None
    traffic: Traffic = field(default_factory=Traffic, compare=False)

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.rank < self.size:
            raise ValueError(f"rank {self.rank} of size {self.size}: need 0 <= rank < size")

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        """The sum of every rank's `x` (same shape everywhere), in place."""
        if self.size > 1:
            import torch.distributed as dist

            self.traffic.all_reduce += x.nbytes
            dist.all_reduce(x, group=self.group)
        return x

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Every rank's `x` [T, N], side by side in rank order: [T, N * size]."""
        if self.size == 1:
            return x
        import torch
        import torch.distributed as dist

        self.traffic.all_gather += x.nbytes
        parts = [torch.empty_like(x) for _ in range(self.size)]
        dist.all_gather(parts, x.contiguous(), group=self.group)
        return torch.cat(parts, dim=-1)

    def split(self, count: int, what: str) -> int:
        """This rank's share of `count` equal things; an error in words where they don't divide."""
        if count % self.size:
            raise ValueError(
                f"{count} {what} can't be split over {self.size} tensor-parallel ranks"
            )
        return count // self.size

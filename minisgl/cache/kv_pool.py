"""The K/V memory: one buffer for each layer, and the slots that are free.

A *slot* is the place of one token: row `slot` of every layer's buffer. Which slot a token got says
nothing about its position; `ReqToToken` remembers that. So slots never need to be next to each
other, memory has no fragments, and a prefix in the tree is shared by writing the same slot numbers
into two requests' tables (page size 1, as in the paper, arXiv 2312.07104; the idea of paging K/V is
vLLM's, arXiv 2309.06180).

Left out: pages of more than one token, and K/V in types of 8 bits.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch


class PoolFull(RuntimeError):
    """Not enough left to hand out: says how many are needed, are free, and exist."""

    def __init__(self, what: str, needed: int, available: int, total: int) -> None:
        super().__init__(f"{needed} {what} needed, but only {available} of {total} are free")
        self.needed = needed
        self.available = available
        self.total = total


class KVPool:
    """K and V of every cached or running token, and the free list of their slots.

    Shapes: `layers[i]` is [S+1, 2, KV, D]: S slots, K and V, KV heads, head_dim. Row S is the
    *padding slot*: never handed out, it takes the writes of the unused rows of a padded batch.

    >>> pool = KVPool(8, 2, num_kv_heads=1, head_dim=4, dtype=torch.float32, device="cpu")
    >>> pool.alloc(3), pool.available_size
    ([0, 1, 2], 5)
    >>> pool.free([1])
    >>> pool.available_size
    6
    """

    def __init__(
        self,
        num_slots: int,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> None:
        if num_slots < 1:
            raise ValueError(f"num_slots must be at least 1, got {num_slots}")
        self.num_slots = num_slots
        # Zeros, not empty: a masked key has probability 0, but 0 times a NaN of old memory is NaN.
        shape = (num_slots + 1, 2, num_kv_heads, head_dim)
        self.layers = [untouched_zeros(shape, dtype, device) for _ in range(num_layers)]
        self._used = np.zeros(num_slots, dtype=np.bool_)  # the truth: is the slot handed out?
        self._num_used = 0
        self._ready = np.arange(num_slots)  # free slots in ascending order, as of the last scan ...
        self._next = 0  # ... of which those before this index are handed out since

    @property
    def padding_slot(self) -> int:
        """The slot that takes the writes of padding."""
        return self.num_slots

    @property
    def available_size(self) -> int:
        """How many slots are free."""
        return self.num_slots - self._num_used

    def alloc(self, num_tokens: int) -> list[int]:
        """Hand out `num_tokens` slots, ascending, so that long prompts land in long runs of memory.

        Raises PoolFull, with nothing taken, if there are not as many. O(num_tokens), but for a scan
        over the pool (about 0.1 ms for a million slots) each time that all the slots found by the
        scan before are handed out.
        """
        if num_tokens < 0:
            raise ValueError(f"num_tokens must not be negative, got {num_tokens}")
        if num_tokens > self.available_size:
            raise PoolFull("K/V slots", num_tokens, self.available_size, self.num_slots)
        if num_tokens > len(self._ready) - self._next:
            self._ready, self._next = np.flatnonzero(~self._used), 0
        taken = self._ready[self._next : self._next + num_tokens]
        self._next += num_tokens
        self._used[taken] = True
        self._num_used += num_tokens
        slots: list[int] = taken.tolist()
        return slots

    def free(self, slots: Sequence[int]) -> None:
        """Take slots back. Raises ValueError, with nothing freed, for a slot not handed out."""
        if not slots:
            return
        index = np.asarray(slots, dtype=np.int64)
        if index.min() < 0 or index.max() >= self.num_slots:
            wrong = index[(index < 0) | (index >= self.num_slots)]
            raise ValueError(
                f"no such slot: {wrong[:8].tolist()}; slots are 0 to {self.num_slots - 1}"
            )
        if not self._used[index].all():
            raise ValueError(f"slot freed twice: {index[~self._used[index]][:8].tolist()}")
        if len(set(slots)) < len(slots):
            raise ValueError(f"one free names a slot twice: {sorted(slots)[:8]}")
        self._used[index] = False
        self._num_used -= len(index)
        if not self._num_used:  # begin anew at the front, whose memory is resident
            self._ready, self._next = np.arange(self.num_slots), 0

    def check(self) -> None:
        """Verify the accounts of the pool. Raises AssertionError that says which one is wrong."""
        used = int(np.count_nonzero(self._used))
        if used != self._num_used:
            raise AssertionError(
                f"{used} slots are marked as used, but {self._num_used} are counted"
            )
        ready = self._ready[self._next :]
        if self._used[ready].any():
            raise AssertionError("a slot waits to be handed out that is in use already")
        if (np.diff(ready) <= 0).any():
            raise AssertionError("the slots that wait to be handed out are not ascending")

    @staticmethod
    def bytes_per_token(
        num_layers: int, num_kv_heads: int, head_dim: int, dtype: torch.dtype
    ) -> int:
        """The memory that one slot costs, in bytes, over all layers: K and V.

        Llama 3 8B pays 128 KiB for each token:

        >>> KVPool.bytes_per_token(32, num_kv_heads=8, head_dim=128, dtype=torch.bfloat16)
        131072
        """
        return num_layers * 2 * num_kv_heads * head_dim * dtype.itemsize


def untouched_zeros(
    shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str = "cpu"
) -> torch.Tensor:
    """Like `torch.zeros`, but on a CPU untouched: pages become resident as slots are first written,
    so gigabytes cost nothing until they are used."""
    if torch.device(device).type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    raw = np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)  # calloc: the system's zeros
    return torch.from_numpy(raw).view(dtype).view(shape)

"""A step's numbers go to the device in one copy that the host does not wait for.

A copy from ordinary memory to a GPU makes the host wait until everything queued before it has run.
Pinned (page-locked) memory needs no such wait, and PyTorch keeps a pinned tensor's memory until its
copy is done.  Many small lists are packed into one tensor, so a step pays for one transfer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

ALIGNMENT = 16  # bytes: Triton compiles a second variant for a pointer that is aligned to less


def on_host(values: Sequence[Any], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """A tensor of nested lists, in memory from which `device` can copy without a wait."""
    return torch.tensor(values, dtype=dtype, pin_memory=device.type == "cuda")


def send(
    device: torch.device, dtype: torch.dtype, *columns: Sequence[float | None]
) -> list[torch.Tensor]:
    """Each column as a tensor on `device`, all of them by one copy.

    >>> send(torch.device("cpu"), torch.int64, [1, 2, 3], [], [4])
    [tensor([1, 2, 3]), tensor([], dtype=torch.int64), tensor([4])]
    """
    unit = ALIGNMENT // dtype.itemsize
    packed: list[float | None] = []
    starts = []
    for column in columns:
        packed += [0] * (-len(packed) % unit)
        starts.append(len(packed))
        packed += column
    sent = on_host(packed, dtype, device).to(device, non_blocking=True)
    return [
        sent[start : start + len(column)] for start, column in zip(starts, columns, strict=True)
    ]

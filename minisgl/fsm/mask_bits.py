"""A mask as it is put together: a bit for each id, eight to a byte, low bits first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

FEW = 64  # ids that are set one by one; more, all at once, which takes the same time for any


def set_bits(mask: bytearray, ids: Sequence[int] | npt.NDArray[np.int64]) -> None:
    """Allow some ids.

    >>> mask = bytearray(2)
    >>> set_bits(mask, [0, 9])
    >>> mask.hex()
    '0102'
    """
    if len(ids) > FEW:
        bits = np.zeros(8 * len(mask), np.uint8)
        bits[ids] = 1
        packed = np.frombuffer(mask, np.uint8)
        packed |= np.packbits(bits, bitorder="little")
        return
    for i in ids if isinstance(ids, Sequence) else ids.tolist():
        mask[i >> 3] |= 1 << (i & 7)


def clear_bits(mask: bytearray, ids: Sequence[int]) -> None:
    """Forbid some ids."""
    for i in ids:
        mask[i >> 3] &= ~(1 << (i & 7))

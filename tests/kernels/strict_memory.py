"""The memory of a kernel launch as the strict interpreter sees it: who may touch what, and who did.

`Launch.access` is asked at every load, store and atomic. It raises IndexError outside the tensors
of the launch, and `Race` where two accesses have no defined order on a GPU.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

UNTOUCHED = 0  # owner of an element that no program has touched
MANY = -1  # owner of an element that several programs have read
ATOMIC = -2  # owner of an element that was changed by an atomic operation
EXACT_LIMIT = 1 << 24  # elements of a storage up to which every element is tracked


class Race(RuntimeError):
    """Two accesses to one address whose order a GPU does not define."""


@dataclasses.dataclass
class Checks:
    """Switches for the two checks that a test may need to turn off."""

    races: bool = True
    shuffle: bool = True


checks = Checks()


@contextlib.contextmanager
def relaxed(**switches: bool) -> Iterator[None]:
    """Change `checks` inside a `with`: ``with relaxed(races=False): ...``."""
    global checks
    saved, checks = checks, dataclasses.replace(checks, **switches)
    try:
        yield
    finally:
        checks = saved


class Buffer:
    """One storage as a launch sees it: what its tensors cover, and which program touched what.

    Storages of more than `EXACT_LIMIT` elements are checked by their outer bounds alone, and not
    for races: a test of int32 offsets allocates gigabytes that it never touches.
    """

    def __init__(self, name: str, tensors: list[torch.Tensor]):
        self.name = name
        self.unit = min(t.element_size() for t in tensors)
        spans = [_span(t) for t in tensors]
        self.start = min(lo for lo, _ in spans)
        self.end = max(hi for _, hi in spans)
        storage = tensors[0].untyped_storage()
        self.storage_start = storage.data_ptr()
        units = storage.nbytes() // self.unit
        self.exact = units <= EXACT_LIMIT
        if self.exact:
            covered = torch.zeros(units, dtype=torch.bool)
            for tensor in tensors:
                _mark(covered, tensor, self.unit)
            self.covered = covered.numpy()
            self.writer = np.zeros(units, np.int32)
            self.reader = np.zeros(units, np.int32)

    def elements(self, pointers: np.ndarray, size: int) -> np.ndarray:
        """The units of this storage that accesses of `size` bytes at `pointers` touch."""
        offset = (pointers - np.uint64(self.storage_start)).astype(np.int64)
        first = offset // self.unit
        if size == self.unit:
            return first
        return (first[:, None] + np.arange(size // self.unit)).ravel()


def _span(tensor: torch.Tensor) -> tuple[int, int]:
    """First byte of a tensor and the byte after its last element."""
    last = sum((n - 1) * stride for n, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (last + 1) * tensor.element_size()


def _mark(covered: torch.Tensor, tensor: torch.Tensor, unit: int) -> None:
    """Set the units of `covered` (the whole storage) that belong to `tensor`."""
    k = tensor.element_size() // unit
    size = [
        1 if stride == 0 else n for n, stride in zip(tensor.shape, tensor.stride(), strict=True)
    ]
    strides = [stride * k for stride in tensor.stride()]
    covered.as_strided([*size, k], [*strides, 1], tensor.storage_offset() * k).fill_(True)


class Launch:
    """The memory of one kernel launch, and the program that runs now."""

    def __init__(self, arguments: list[tuple[str, Any]]):
        self.grid = (1, 1, 1)
        self.program = (0, 0, 0)
        by_storage: dict[int, list[tuple[str, torch.Tensor]]] = {}
        for name, tensor in _tensors(arguments):
            if tensor.numel():
                key = tensor.untyped_storage().data_ptr()
                by_storage.setdefault(key, []).append((name, tensor))
        self.buffers = [
            Buffer("/".join(name for name, _ in group), [tensor for _, tensor in group])
            for group in by_storage.values()
        ]

    @property
    def me(self) -> int:
        """The running program as a number from 1."""
        x, y, z = self.program
        return (x * self.grid[1] + y) * self.grid[2] + z + 1

    def name_of(self, owner: int) -> str:
        if owner == MANY:
            return "several programs"
        if owner == ATOMIC:
            return "an atomic"
        rest, z = divmod(owner - 1, self.grid[2])
        return f"program {(*divmod(rest, self.grid[1]), z)}"

    def access(self, kind: str, ptrs: Any, mask: np.ndarray) -> None:
        """Check the unmasked lanes of a load, a store or an atomic, and remember who made it."""
        lanes, mask = np.broadcast_arrays(ptrs.data, mask)
        pointers = lanes[mask].astype(np.uint64)
        size = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
        found = np.zeros(pointers.shape, bool)
        for buffer in self.buffers:
            inside = (pointers >= np.uint64(buffer.start)) & (pointers < np.uint64(buffer.end))
            inside &= pointers + np.uint64(size) <= np.uint64(buffer.end)
            found |= inside
            if buffer.exact and inside.any():
                self._touch(kind, buffer, buffer.elements(pointers[inside], size))
        if not found.all():
            self._out_of_bounds(kind, int(pointers[~found][0]), int((~found).sum()))

    def _out_of_bounds(self, kind: str, pointer: int, lanes: int) -> None:
        where = "no tensor was passed"
        if self.buffers:
            near = min(
                self.buffers, key=lambda b: min(abs(pointer - b.start), abs(pointer - b.end))
            )
            where = f"byte {pointer - near.start} of {near.name} ({near.end - near.start} bytes)"
        raise IndexError(
            f"out-of-bounds {kind} by program {self.program}: {lanes} lanes, first {where}"
        )

    def _touch(self, kind: str, buffer: Buffer, index: np.ndarray) -> None:
        gaps = ~buffer.covered[index]
        if gaps.any():
            byte = int(index[gaps][0]) * buffer.unit + buffer.storage_start - buffer.start
            raise IndexError(
                f"out-of-bounds {kind} by program {self.program}: {int(gaps.sum())} lanes "
                f"between the rows of {buffer.name}, first byte {byte}"
            )
        if not checks.races:
            return
        writer = buffer.writer[index]
        if kind == "load":
            self._conflict(writer, {UNTOUCHED}, "reads what {} wrote", buffer)
            reader = buffer.reader[index]
            buffer.reader[index] = np.where(
                (reader == UNTOUCHED) | (reader == self.me), self.me, MANY
            )
            return
        self._conflict(buffer.reader[index], {UNTOUCHED, self.me}, "writes what {} reads", buffer)
        if kind == "atomic":
            self._conflict(writer, {UNTOUCHED, ATOMIC}, "changes atomically what {} wrote", buffer)
            buffer.writer[index] = ATOMIC
            return
        self._conflict(writer, {UNTOUCHED, self.me}, "writes what {} also writes", buffer)
        if np.unique(index).size != index.size:
            raise Race(
                f"program {self.program} names an address of {buffer.name} twice in one store"
            )
        buffer.writer[index] = self.me

    def _conflict(self, owners: np.ndarray, allowed: set[int], verb: str, buffer: Buffer) -> None:
        bad = ~np.isin(owners, list(allowed))
        if bad.any():
            owner = int(owners[bad][0])
            other = "the same program" if owner == self.me else self.name_of(owner)
            raise Race(f"program {self.program} {verb.format(other)} in {buffer.name}")


def _tensors(arguments: list[tuple[str, Any]]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors among launch arguments, also inside tuples and tensor descriptors."""
    for name, value in arguments:
        if isinstance(value, tuple):
            yield from _tensors([(f"{name}[{i}]", item) for i, item in enumerate(value)])
        elif hasattr(value, "base") and hasattr(value, "block_shape"):
            yield name, value.base
        elif isinstance(value, torch.Tensor):
            yield name, value

"""A CUDA graph for machines without CUDA: what a step ran is recorded, and replayed op by op.

Recorded are the torch operators (below autograd and Python) and the launches of interpreted Triton
kernels, each with the very tensors it had.  A replay runs no other Python: it calls the same
operators on the same memory, so an address that moved, a length that the host read and a buffer
that nobody refilled give wrong answers here, as they would on a GPU.  Fresh memory holds NaN at
every replay.  Reading a value while recording is an error, as it is under CUDA.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves

from minisgl.kernels.dispatch import INTERPRETED

aten = torch.ops.aten
WAITS = (aten.item, aten.is_nonzero, aten.nonzero, aten.masked_select, aten.equal)
EMPTY = (aten.empty, aten.empty_like, aten.new_empty, aten.empty_strided, aten.new_empty_strided)


class RecordedGraphs:
    """`capture` for a `CudaGraphRunner`; counts the replays."""

    def __init__(self) -> None:
        self.replays = 0
        self.calls: list[Callable[[], None]] = []

    def __call__(self, step: Callable[[], None]) -> Callable[[], None]:
        step()  # the warm-up
        recording = _Recording()
        with ExitStack() as patches:
            patches.enter_context(mock.patch.object(torch.Tensor, "tolist", _refuse))
            if INTERPRETED:
                patches.enter_context(_record_kernels(recording))
            patches.enter_context(recording)
            step()

        def replay() -> None:
            self.replays += 1
            for call in recording.calls:
                call()

        return replay


class _Recording(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Callable[[], None]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        packet = func.overloadpacket
        tensors = _tensors((args, kwargs))
        by_mask = packet is aten.index and any(t.dtype == torch.bool for t in tensors[1:])
        if packet in WAITS or by_mask:
            raise RuntimeError(f"{func} waits for the device: it can't be recorded")
        given = [_storage(t) for t in tensors]
        result = func(*args, **kwargs)
        fresh = [t for t in _tensors(result) if _storage(t) not in given]
        writes = any(a.alias_info and a.alias_info.is_write for a in func._schema.arguments)
        if packet in EMPTY:
            self.calls.append(lambda: _poison(result))
        elif fresh or writes:  # a view is only another name for memory
            self.calls.append(lambda: _again(func, args, kwargs, result))
        return result


def _refuse(self: torch.Tensor) -> None:
    raise RuntimeError("Tensor.tolist waits for the device: it can't be recorded")


def _again(func: Any, args: Any, kwargs: dict[str, Any], recorded: Any) -> None:
    for old, new in zip(_tensors(recorded), _tensors(func(*args, **kwargs)), strict=True):
        if _storage(old) != _storage(new):
            old.copy_(new)


def _poison(x: torch.Tensor) -> None:
    x.fill_(float("nan") if x.is_floating_point() else -(2**30))


def _tensors(nested: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(nested) if isinstance(x, torch.Tensor)]


def _storage(x: torch.Tensor) -> int:
    # oneDNN's packed weights have no storage of their own
    return x.untyped_storage().data_ptr() if x.layout == torch.strided else id(x)


def _record_kernels(recording: _Recording) -> Any:
    """Launches of interpreted kernels join the record, and are opaque to it."""
    from triton.runtime.interpreter import InterpretedFunction

    run = InterpretedFunction.run

    def record(self: Any, *args: Any, **kwargs: Any) -> None:
        def launch() -> None:
            run(self, *args, **kwargs)

        with _disable_current_modes():
            launch()
        recording.calls.append(launch)

    return mock.patch.object(InterpretedFunction, "run", record)

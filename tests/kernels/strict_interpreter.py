"""A strict Triton interpreter for tests: what a GPU would do wrong must fail here, on a CPU.

With ``TRITON_INTERPRET=1`` Triton runs kernels in Python, but it forgives what a GPU does not, and
it computes bfloat16 on raw bit patterns. `install` patches the interpreter so that

- bfloat16 is exact: casts round to nearest even, `tl.dot` accumulates in fp32; any other bf16
  arithmetic is a TypeError;
- a float32 `tl.dot` left at the default precision (tf32) loses the 13 low bits of its operands, as
  on the GPU;
- an access outside the tensors given to the launch, or between the rows of a strided one, is an
  IndexError;
- masked lanes of a `tl.load` without `other` hold NaN (floats) or a huge number (integers);
- programs that race are a `Race`: two write one address, one reads what another writes, one reads
  back what it stored itself (its threads are not synchronised), one store names an address twice;
- programs run in a shuffled order, so no result can lean on the order of the grid;
- a grid over CUDA's limits and a `tl.dot` with K < 16 are ValueErrors;
- `tl.device_assert` and the check for int32 overflow are on.

It leaves out what only a compiler knows: shared memory, registers, layouts (compile_driver.py asks
the compiler). Each launch takes one lock, since the stock interpreter patches `triton.language`
globally while it runs.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.errors import InterpreterError

from tests.kernels import strict_memory
from tests.kernels.strict_memory import Launch, Race, relaxed

Builder = interpreter.InterpreterBuilder
TensorHandle = interpreter.TensorHandle

__all__ = ["Race", "install", "relaxed"]

MAX_GRID = (2**31 - 1, 65535, 65535)

launch = Launch([])
_launch_lock = threading.RLock()


def bf16_to_fp32(bits: np.ndarray) -> np.ndarray:
    """bfloat16 bit patterns (uint16) -> float32."""
    return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


def fp32_to_bf16(values: np.ndarray) -> np.ndarray:
    """float32 -> bfloat16 bit patterns (uint16), rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    half_up = np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    rounded = ((bits + half_up) >> np.uint32(16)).astype(np.uint16)
    return np.where(np.isnan(values), np.uint16(0x7FC0), rounded).reshape(np.shape(values))


def _is_bf16(*handles: Any) -> bool:
    return any(handle.dtype.scalar == tl.bfloat16 for handle in handles)


def _poison(dtype: Any, like: np.ndarray) -> Any:
    """What a lane holds that was masked out without `other`: nothing a kernel may use."""
    if dtype.scalar == tl.bfloat16:
        return np.uint16(0x7FC1)
    if like.dtype.kind == "f":
        return np.nan
    return True if like.dtype.kind == "b" else np.iinfo(like.dtype).max // 3


def _refuse_bf16(stock: Any) -> Any:
    def operation(self: Any, *operands: Any, **kwargs: Any) -> Any:
        if _is_bf16(*(x for x in operands if isinstance(x, TensorHandle))):
            raise TypeError(
                "arithmetic on bfloat16: widen with .to(tl.float32) first; only tl.dot takes it"
            )
        return stock(self, *operands, **kwargs)

    return operation


def _refuse_bf16_reduction(stock: Any) -> Any:
    def check_tensor(self: Any, inputs: Any) -> None:
        if any(x.dtype.scalar == tl.bfloat16 for x in inputs):
            raise TypeError("reduction of bfloat16: widen with .to(tl.float32) first")
        stock(self, inputs)

    return check_tensor


def _cast(stock: Any) -> Any:
    def cast_impl(self: Any, source: Any, target: Any) -> Any:
        old, new = source.dtype.scalar, target.scalar
        if old == new or tl.bfloat16 not in (old, new):
            return stock(self, source, target)
        if new == tl.bfloat16:
            return TensorHandle(fp32_to_bf16(source.data.astype(np.float32)), new)
        return TensorHandle(
            bf16_to_fp32(source.data).astype(interpreter._get_np_dtype(target)), new
        )

    return cast_impl


def _float_to_float(stock: Any) -> Any:
    def create_fp_to_fp(self: Any, source: Any, target: Any, rounding: Any) -> Any:
        types = (source.dtype.scalar, target.scalar)
        nearest = rounding is None or str(rounding).endswith("RTNE")
        if nearest and tl.bfloat16 in types and all(t.primitive_bitwidth >= 16 for t in types):
            return self.cast_impl(source, target)
        return stock(self, source, target, rounding)

    return create_fp_to_fp


def _dot(stock: Any) -> Any:
    def operand(handle: Any, precision: str) -> Any:
        if _is_bf16(handle):
            return TensorHandle(bf16_to_fp32(handle.data), tl.float32)
        if handle.data.dtype == np.float32 and precision.endswith("TF32"):
            bits = np.ascontiguousarray(handle.data).view(np.uint32) & np.uint32(0xFFFFE000)
            return TensorHandle(bits.view(np.float32), tl.float32)
        return handle

    def create_dot(self: Any, a: Any, b: Any, acc: Any, precision: Any, *rest: Any) -> Any:
        depth, least = a.data.shape[-1], 32 if a.dtype.primitive_bitwidth == 8 else 16
        if depth < least:
            raise ValueError(f"tl.dot with K = {depth}: tensor cores need K >= {least}")
        name = str(precision)
        return stock(self, operand(a, name), operand(b, name), acc, precision, *rest)

    return create_dot


def _load(stock: Any) -> Any:
    def create_masked_load(
        self: Any, ptrs: Any, mask: Any, other: Any, *rest: Any, **kwargs: Any
    ) -> Any:
        launch.access("load", ptrs, mask.data)
        loaded = stock(self, ptrs, mask, other, *rest, **kwargs)
        if other is not None or mask.data.all():
            return loaded
        data = np.where(mask.data, loaded.data, _poison(loaded.dtype, loaded.data))
        return TensorHandle(data.astype(loaded.data.dtype), loaded.dtype)

    return create_masked_load


def _store(stock: Any) -> Any:
    def create_masked_store(
        self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any, **kwargs: Any
    ) -> Any:
        launch.access("store", ptrs, mask.data)
        return stock(self, ptrs, value, mask, *rest, **kwargs)

    return create_masked_store


def _atomic_rmw(stock: Any) -> Any:
    def create_atomic_rmw(self: Any, op: Any, ptr: Any, value: Any, mask: Any, *rest: Any) -> Any:
        if _is_bf16(value):
            raise TypeError("atomic on bfloat16: accumulate in a float32 workspace")
        launch.access("atomic", ptr, mask.data)
        return stock(self, op, ptr, value, mask, *rest)

    return create_atomic_rmw


def _atomic_cas(stock: Any) -> Any:
    def create_atomic_cas(self: Any, ptr: Any, *rest: Any) -> Any:
        launch.access("atomic", ptr, np.ones(ptr.data.shape, bool))
        return stock(self, ptr, *rest)

    return create_atomic_cas


def _init_args(stock: Any) -> Any:
    def _init_args_hst(self: Any, args: Any, kwargs: Any) -> Any:
        global launch
        host_args, host_kwargs = stock(self, args, kwargs)
        launch = Launch([*zip(self.arg_names, host_args, strict=False), *host_kwargs.items()])
        return host_args, host_kwargs

    return _init_args_hst


def _grid_dim(stock: Any) -> Any:
    def set_grid_dim(self: Any, *grid: int) -> None:
        for axis, n, most in zip("xyz", grid, MAX_GRID, strict=True):
            if n > most:
                raise ValueError(f"grid {grid}: {n} programs on axis {axis}, CUDA allows {most}")
        launch.grid = grid  # type: ignore[assignment]
        stock(self, *grid)

    return set_grid_dim


def _grid_idx(stock: Any) -> Any:
    def set_grid_idx(self: Any, x: int, y: int, z: int) -> None:
        _, ny, nz = launch.grid
        if strict_memory.checks.shuffle:
            n = math.prod(launch.grid)
            step = next(s for s in range(int(n * 0.618) + 1, 2 * n + 2) if math.gcd(s, n) == 1)
            place = (
                ((x * ny + y) * nz + z) * step + n // 2
            ) % n  # one to one, since gcd(step, n) = 1
            x, y, z = place // (ny * nz), place // nz % ny, place % nz
        launch.program = (x, y, z)
        stock(self, x, y, z)

    return set_grid_idx


def _call(stock: Any) -> Any:
    def __call__(self: Any, *args: Any, **kwargs: Any) -> None:
        with _launch_lock, np.errstate(all="ignore"):
            try:
                stock(self, *args, **kwargs)
            except InterpreterError as error:
                cause: BaseException = error
                while isinstance(cause, InterpreterError) and cause.__cause__:
                    cause = cause.__cause__
                raise cause from None

    return __call__


def install() -> None:
    """Patch the interpreter of this process; a second call does nothing."""
    if getattr(Builder, "strict", False):
        return
    executor, reduction = interpreter.GridExecutor, interpreter.ReduceScanOpInterface
    for owner, name, wrap in [
        (Builder, "cast_impl", _cast),
        (Builder, "create_fp_to_fp", _float_to_float),
        (Builder, "create_dot", _dot),
        (Builder, "binary_op", _refuse_bf16),
        (Builder, "unary_op", _refuse_bf16),
        (Builder, "create_fma", _refuse_bf16),
        (Builder, "create_clampf", _refuse_bf16),
        (Builder, "create_masked_load", _load),
        (Builder, "create_masked_store", _store),
        (Builder, "create_atomic_rmw", _atomic_rmw),
        (Builder, "create_atomic_cas", _atomic_cas),
        (Builder, "set_grid_dim", _grid_dim),
        (Builder, "set_grid_idx", _grid_idx),
        (reduction, "check_tensor", _refuse_bf16_reduction),
        (executor, "_init_args_hst", _init_args),
        (executor, "__call__", _call),
    ]:
        setattr(owner, name, wrap(getattr(owner, name)))
    Builder.get_bf16 = lambda self, value: self.cast_impl(self.get_fp32(value), tl.bfloat16)
    builder = interpreter.interpreter_builder
    builder.options = dataclasses.replace(builder.options, debug=True)
    Builder.strict = True

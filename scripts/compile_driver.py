"""Compile every Triton kernel that a launcher launches, for a GPU that is not here.

`compile_only(arch)` gives Triton a driver that names an architecture and owns no device. Inside it
the real launchers run on CPU tensors: each ``kernel[grid](...)`` is specialised on its true
arguments and compiled down to a cubin, and nothing is launched. `resources` then reads from the
cubin what decides whether the kernel can run fast, or at all.
"""

from __future__ import annotations

import contextlib
import functools
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from minisgl.kernels import dispatch

SHARED_LIMIT = {80: 163 * 1024, 86: 99 * 1024, 90: 227 * 1024}  # bytes of shared memory per block
MULTIPROCESSORS = {80: 108, 86: 84, 90: 132}  # A100, A10 and 3090-like, H100 and H200
INSTRUCTIONS = ("HGMMA", "HMMA", "LDGSTS", "LDG.E.128", "LDG.E.U16", "LDL", "STL")


@dataclass(frozen=True)
class CompiledLaunch:
    """One launch that a launcher made: which kernel, on which grid, and the cubin it got."""

    kernel: str
    grid: tuple[int, ...]
    compiled: Any  # triton.compiler.CompiledKernel

    @property
    def cubin(self) -> bytes:
        return self.compiled.asm["cubin"]


@dataclass(frozen=True)
class Resources:
    """What one cubin needs: shared memory and stack in bytes, registers, counts of instructions."""

    shared: int
    registers: int
    stack: int
    instructions: dict[str, int]


class _Driver:
    """As much of a Triton driver as compiling needs."""

    launcher_cls = None

    def __init__(self, arch: int):
        self.arch = arch
        self.utils = SimpleNamespace(get_device_properties=self.get_device_properties)

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {
            "max_shared_mem": SHARED_LIMIT[self.arch],
            "max_num_regs": 65536,
            "multiprocessor_count": MULTIPROCESSORS[self.arch],
            "warpSize": 32,
        }

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", self.arch, 32)

    def get_current_device(self) -> int:
        return self.arch  # kernels are cached per device: this keeps the architectures apart

    def get_current_stream(self, device: int) -> int:
        return 0

    def set_current_device(self, device: int) -> None:
        pass

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, name: str) -> str:
        return name


@contextlib.contextmanager
def compile_only(arch: int) -> Iterator[list[CompiledLaunch]]:
    """Make launchers compile for `arch` (80, 86, 90) instead of launching; yields their launches.

    Only in a process without ``TRITON_INTERPRET``, where kernels were decorated for compiling.
    """
    if arch not in SHARED_LIMIT:
        raise ValueError(f"arch {arch}: known are {sorted(SHARED_LIMIT)}")
    if dispatch.INTERPRETED:
        raise RuntimeError("TRITON_INTERPRET=1 is set: interpreted kernels do not compile")
    from triton.runtime import driver
    from triton.runtime.jit import JITFunction

    launches: list[CompiledLaunch] = []
    run = JITFunction.run

    def record(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if callable(grid):
            grid = grid(dict(zip(self.arg_names, args, strict=False)) | kwargs)
        compiled = run(self, *args, grid=grid, warmup=True, **kwargs)
        launches.append(CompiledLaunch(self.fn.__name__, tuple(grid), compiled))
        return compiled

    saved = driver._active
    driver.set_active(_Driver(arch))
    capability = divmod(arch, 10)
    properties = SimpleNamespace(
        multi_processor_count=MULTIPROCESSORS[arch], major=capability[0], minor=capability[1]
    )
    with contextlib.ExitStack() as patches:
        patches.callback(setattr, driver, "_active", saved)
        patches.enter_context(mock.patch.object(JITFunction, "run", record))
        for name, value in [
            ("get_device_capability", capability),
            ("get_device_properties", properties),
        ]:
            patches.enter_context(mock.patch.object(torch.cuda, name, lambda *_, v=value: v))
        for module in _kernel_modules():
            patches.enter_context(mock.patch.object(module, "use_triton", lambda x: True))
        yield launches


@contextlib.contextmanager
def no_synchronisation() -> Iterator[None]:
    """Fail where a launcher reads a tensor's value: on a GPU the host would wait for the device.

    >>> with no_synchronisation():
    ...     torch.zeros(1).item()
    Traceback (most recent call last):
    RuntimeError: a launcher calls Tensor.item, which waits for the GPU
    """

    def refuse(name: str) -> Any:
        def refused(self: torch.Tensor, *_: Any, **__: Any) -> Any:
            raise RuntimeError(f"a launcher calls Tensor.{name}, which waits for the GPU")

        return refused

    names = ("item", "tolist", "cpu", "numpy", "nonzero", "__bool__", "__int__", "__float__")
    with contextlib.ExitStack() as patches:
        for name in names:
            patches.enter_context(mock.patch.object(torch.Tensor, name, refuse(name)))
        yield


def _kernel_modules() -> list[Any]:
    """The modules that ask `use_triton`, each under the name it imported."""
    modules = list(sys.modules.values())
    return [m for m in modules if getattr(m, "use_triton", None) is dispatch.use_triton]


def resources(launch: CompiledLaunch) -> Resources:
    """What a launch's cubin needs, read with NVIDIA's tools, which come with Triton."""
    registers, stack, instructions = _disassemble(launch.cubin)
    return Resources(launch.compiled.metadata.shared, registers, stack, dict(instructions))


@functools.cache
def _disassemble(cubin: bytes) -> tuple[int, int, tuple[tuple[str, int], ...]]:
    import triton

    tools = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()

        def ask(tool: str, *options: str) -> str:
            command = [str(tools / tool), *options, file.name]
            return subprocess.run(command, capture_output=True, text=True, check=True).stdout

        usage = dict(re.findall(r"(REG|STACK):(\d+)", ask("cuobjdump", "--dump-resource-usage")))
        sass = ask("nvdisasm", "--print-code")
    counts = ((name, len(re.findall(rf"\b{re.escape(name)}\b", sass))) for name in INSTRUCTIONS)
    return int(usage["REG"]), int(usage["STACK"]), tuple(c for c in counts if c[1])

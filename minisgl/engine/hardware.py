"""What the machine is: device, the dtype it is fast at, and how much memory there is to use."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

import torch

from minisgl.config import EngineConfig


@dataclass(frozen=True)
class Placement:
    """Where and in what numbers a model runs.

    dtype, kv_dtype: of weights and activations, and of the keys and values in the pool.
    half_weights: float32 weights are multiplied as float16 (kernels/cpu_linear.py).
    """

    device: torch.device
    dtype: torch.dtype
    kv_dtype: torch.dtype
    half_weights: bool = False
    notice: str | None = None


def place(config: EngineConfig, checkpoint_dtype: torch.dtype, local_rank: int = 0) -> Placement:
    """Resolve "auto" for this machine and, of a tensor-parallel engine, its GPU `local_rank`.  A
    float32 checkpoint runs in half precision too, as is the field's habit; dtype="float32" asks for
    the full one.

    On a GPU: the checkpoint's half precision, bfloat16 for float32; on parts without bfloat16,
    float16 instead, with a notice.
    On a CPU: bfloat16 where the processor multiplies it in hardware; elsewhere float32, with
    the weights of linear layers in float16.

    Raises:
        ValueError: a GPU is asked for and there is none, or not so many.
    """
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ValueError("device='cuda': PyTorch sees no GPU here; use device='cpu' or 'auto'")
    asked = None if config.dtype == "auto" else getattr(torch, config.dtype)
    kv_asked = None if config.kv_dtype == "auto" else getattr(torch, config.kv_dtype)
    if takes_gpu(config):
        device = _gpu(config.tp_size, local_rank)
        dtype = asked or (torch.float16 if checkpoint_dtype == torch.float16 else torch.bfloat16)
        kv_dtype = kv_asked or dtype
        if torch.bfloat16 not in (dtype, kv_dtype) or torch.cuda.get_device_capability() >= (8, 0):
            return Placement(device, dtype, kv_dtype)
        dtype, kv_dtype = (
            torch.float16 if each == torch.bfloat16 else each for each in (dtype, kv_dtype)
        )
        notice = "this GPU has no bfloat16: running in float16"
        return Placement(device, dtype, kv_dtype, notice=notice)
    cpu = torch.device("cpu")
    dtype = asked or (torch.bfloat16 if cpu_multiplies_bfloat16() else torch.float32)
    is_rounded = asked is None and dtype == torch.float32
    return Placement(cpu, dtype, kv_asked or dtype, half_weights=is_rounded)


def takes_gpu(config: EngineConfig) -> bool:
    """Whether it will run on a GPU: it may, and there is one."""
    return config.device != "cpu" and torch.cuda.is_available()


def _gpu(tp_size: int, local_rank: int) -> torch.device:
    if tp_size == 1:
        return torch.device("cuda")  # the current one
    if local_rank >= (count := torch.cuda.device_count()):
        raise ValueError(f"tp_size={tp_size}: this host has {count} GPUs, and each rank needs one")
    return torch.device("cuda", local_rank)


def cpu_multiplies_bfloat16() -> bool:
    """Whether the processor has bfloat16 dot products (AVX512-BF16 or AMX)."""
    probe = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return bool(probe and probe())


def free_memory(device: torch.device) -> int:
    """Bytes that can be used now on `device`."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    if sys.platform == "linux":
        with open("/proc/meminfo") as f:
            for line in f:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    return 4 << 30  # Windows has no answer in the standard library: assume 4 GiB

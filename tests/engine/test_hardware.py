"""Which device and dtype "auto" means, on machines that this one is not."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from minisgl import Engine
from minisgl.config import EngineConfig
from minisgl.engine import hardware
from minisgl.engine.hardware import Placement, free_memory, place


def on(monkeypatch: pytest.MonkeyPatch, *, gpu: tuple[int, int] | None, bf16: bool = False) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu is not None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: gpu)
    monkeypatch.setattr(hardware, "cpu_multiplies_bfloat16", lambda: bf16)


CUDA, CPU = torch.device("cuda"), torch.device("cpu")
F32, F16, BF16 = torch.float32, torch.float16, torch.bfloat16


@pytest.mark.parametrize(
    ("gpu", "bf16", "settings", "checkpoint", "expected"),
    [
        ((9, 0), False, {}, BF16, (CUDA, BF16, False)),
        ((9, 0), False, {}, F16, (CUDA, F16, False)),
        ((9, 0), False, {}, F32, (CUDA, BF16, False)),
        ((9, 0), False, {"dtype": "float32"}, BF16, (CUDA, F32, False)),
        ((7, 5), False, {}, BF16, (CUDA, F16, False)),
        ((7, 5), False, {"dtype": "bfloat16"}, BF16, (CUDA, F16, False)),
        ((7, 0), False, {}, BF16, (CUDA, F16, False)),
        ((9, 0), False, {"device": "cpu"}, BF16, (CPU, F32, True)),
        (None, True, {}, BF16, (CPU, BF16, False)),
        (None, True, {}, F32, (CPU, BF16, False)),
        (None, False, {}, BF16, (CPU, F32, True)),
        (None, False, {"dtype": "float32"}, BF16, (CPU, F32, False)),
        (None, False, {"dtype": "float16"}, BF16, (CPU, F16, False)),
    ],
)
def test_placement(monkeypatch, gpu, bf16, settings, checkpoint, expected) -> None:
    on(monkeypatch, gpu=gpu, bf16=bf16)
    got: Placement = place(EngineConfig(**settings), checkpoint)
    assert (got.device, got.dtype, got.half_weights) == expected
    assert got.kv_dtype == got.dtype
    assert (got.notice is not None) == (gpu in ((7, 0), (7, 5)))


@pytest.mark.parametrize(
    ("gpu", "dtype", "kv_dtype", "expected", "is_told"),
    [
        ((9, 0), "float32", "bfloat16", (F32, BF16), False),
        ((7, 5), "float32", "bfloat16", (F32, F16), True),
        ((7, 5), "float32", "float32", (F32, F32), False),
        ((7, 5), "bfloat16", "float32", (F16, F32), True),
        (None, "float32", "bfloat16", (F32, BF16), False),
        (None, "auto", "bfloat16", (F32, BF16), False),
    ],
)
def test_keys_and_values_have_a_type_that_the_gpu_has(
    monkeypatch, gpu, dtype, kv_dtype, expected, is_told
) -> None:
    on(monkeypatch, gpu=gpu)
    got = place(EngineConfig(dtype=dtype, kv_dtype=kv_dtype), BF16)
    assert (got.dtype, got.kv_dtype) == expected
    assert (got.notice is not None) == is_told


def test_the_engine_tells_once_that_it_runs_in_float16(
    monkeypatch: pytest.MonkeyPatch, tiny_model_dir: Path
) -> None:
    on_cpu = Placement(CPU, F16, F16, notice="this GPU has no bfloat16: running in float16")
    monkeypatch.setattr("minisgl.engine.share.place", lambda *_: on_cpu)
    with (
        pytest.warns(UserWarning, match="no bfloat16: running in float16") as told,
        Engine(str(tiny_model_dir), kv_tokens=64),
    ):
        pass
    assert len(told) == 1


def test_a_gpu_that_is_not_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, gpu=None)
    with pytest.raises(ValueError, match="no GPU"):
        place(EngineConfig(device="cuda"), BF16)


def test_each_rank_has_a_gpu_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    on(monkeypatch, gpu=(9, 0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    config = EngineConfig(tp_size=4)
    assert place(config, BF16, local_rank=1).device == torch.device("cuda", 1)
    with pytest.raises(ValueError, match="tp_size=4: this host has 2 GPUs"):
        place(config, BF16, local_rank=2)


def test_free_memory_is_a_sensible_number() -> None:
    assert 1 << 20 < free_memory(CPU) < 1 << 50

"""Which device and dtype "auto" means, on machines that this one is not."""

from __future__ import annotations

import pytest
import torch

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
    assert (got.notice is not None) == (gpu == (7, 5))


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

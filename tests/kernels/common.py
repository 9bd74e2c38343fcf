"""Shared by the kernel tests: devices, dtypes, poisoned outputs, and what counts as equal.

Every test calls the launcher, so one file tests the reference (`pytest tests/kernels`), the Triton
kernels interpreted (`TRITON_INTERPRET=1 pytest tests/kernels`) and compiled (on a GPU).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.float16, torch.bfloat16]

# ||out - exact|| / ||exact||, and the largest error as a multiple of the largest exact value
RELATIVE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}


def tensor(data: Any, dtype: torch.dtype | None = None) -> torch.Tensor:
    return torch.tensor(data, dtype=dtype, device=DEVICE)


def randn(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


def assert_near(out: torch.Tensor, exact: torch.Tensor) -> None:
    """`out` is `exact` (float64), as near as its dtype allows."""
    assert out.shape == exact.shape
    assert bool(torch.isfinite(out).all()), "the output holds NaN or infinity"
    error = out.double() - exact
    bound = RELATIVE[out.dtype]
    assert float(error.norm()) <= bound * float(exact.norm()) + 1e-12
    assert float(error.abs().max()) <= 2 * bound * max(1.0, float(exact.abs().max()))


@pytest.fixture(autouse=True)
def poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever a kernel does not write is NaN, or an absurd integer."""
    empty, empty_like = torch.empty, torch.empty_like

    def poison(x: torch.Tensor) -> torch.Tensor:
        return x.fill_(torch.nan if x.is_floating_point() else -(2**30))

    monkeypatch.setattr(torch, "empty", lambda *a, **k: poison(empty(*a, **k)))
    monkeypatch.setattr(torch, "empty_like", lambda *a, **k: poison(empty_like(*a, **k)))
    yield

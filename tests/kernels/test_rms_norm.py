from __future__ import annotations

import pytest
import torch

from minisgl.kernels.rms_norm import add_rms_norm, rms_norm
from tests.kernels.common import (
    DEVICE,
    DTYPES,
    assert_near,
    poisoned_outputs,  # noqa: F401
    randn,
)

EPS = 1e-5


def exact(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    x64 = x.double()
    return x64 / (x64.pow(2).mean(dim=-1, keepdim=True) + EPS).sqrt() * w.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("T", "D"), [(1, 16), (3, 48), (40, 33), (2, 576), (70, 33)])
def test_rms_norm_is_exact(T: int, D: int, dtype: torch.dtype) -> None:
    x, w = randn(T, D, dtype=dtype), randn(D, dtype=dtype)
    assert_near(rms_norm(x, w, EPS), exact(x, w))


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_rms_norm_normalises_the_rounded_sum(dtype: torch.dtype) -> None:
    x, residual = randn(5, 33, dtype=dtype), randn(5, 33, dtype=dtype, seed=1)
    w = randn(33, dtype=dtype)
    kept = x.clone(), residual.clone()
    normed, total = add_rms_norm(x, residual, w, EPS)
    assert torch.equal(total, x + residual)
    assert_near(normed, exact(x + residual, w))
    assert torch.equal(x, kept[0])
    assert torch.equal(residual, kept[1])


def test_rows_of_a_wider_tensor() -> None:
    wide, w = randn(7, 64), randn(33)
    view = wide[::2, :33]
    assert torch.equal(rms_norm(view, w, EPS), rms_norm(view.contiguous(), w, EPS))


def test_a_row_does_not_depend_on_its_company() -> None:
    x, w = randn(9, 40, dtype=torch.float16), randn(40, dtype=torch.float16)
    together = rms_norm(x, w, EPS)
    for t in (0, 4, 8):
        assert torch.equal(rms_norm(x[t : t + 1], w, EPS)[0], together[t])


def test_the_rms_of_equal_values_is_their_size() -> None:
    x = torch.full((2, 24), -4.0, device=DEVICE)
    assert_near(rms_norm(x, torch.ones(24, device=DEVICE), 0.0), torch.full_like(x, -1.0).double())


@pytest.mark.parametrize("rows", [1, 70])
def test_large_values_do_not_overflow_in_half_precision(rows: int) -> None:
    x = torch.full((rows, 64), 300.0, dtype=torch.float16, device=DEVICE)  # 300² > 65504
    w = torch.ones(64, dtype=torch.float16, device=DEVICE)
    assert_near(rms_norm(x, w, EPS), torch.ones((rows, 64), dtype=torch.float64, device=DEVICE))


def test_no_rows() -> None:
    assert rms_norm(randn(0, 8), randn(8), EPS).shape == (0, 8)
    assert [t.shape for t in add_rms_norm(randn(0, 8), randn(0, 8), randn(8), EPS)] == [(0, 8)] * 2

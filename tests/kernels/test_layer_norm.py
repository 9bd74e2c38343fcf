from __future__ import annotations

import pytest
import torch

from minisgl.kernels.layer_norm import add_layer_norm, layer_norm
from tests.kernels.common import (
    DEVICE,
    DTYPES,
    assert_near,
    poisoned_outputs,  # noqa: F401
    randn,
)

EPS = 1e-5


def exact(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    centred = x.double() - x.double().mean(dim=-1, keepdim=True)
    return centred / (centred.pow(2).mean(-1, keepdim=True) + EPS).sqrt() * w.double() + b.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("T", "D"), [(1, 16), (3, 48), (40, 33), (2, 1024)])
def test_layer_norm_is_exact(T: int, D: int, dtype: torch.dtype) -> None:
    x, w, b = randn(T, D, dtype=dtype), randn(D, dtype=dtype), randn(D, dtype=dtype, seed=1)
    assert_near(layer_norm(x, w, b, EPS), exact(x, w, b))


@pytest.mark.parametrize("dtype", DTYPES)
def test_add_layer_norm_normalises_the_rounded_sum(dtype: torch.dtype) -> None:
    x, residual = randn(5, 33, dtype=dtype), randn(5, 33, dtype=dtype, seed=1)
    w, b = randn(33, dtype=dtype), randn(33, dtype=dtype, seed=2)
    kept = x.clone(), residual.clone()
    normed, total = add_layer_norm(x, residual, w, b, EPS)
    assert torch.equal(total, x + residual)
    assert_near(normed, exact(x + residual, w, b))
    assert torch.equal(x, kept[0])
    assert torch.equal(residual, kept[1])


def test_a_mean_far_from_zero_costs_no_accuracy() -> None:
    """Two sums, of x and of x², would lose three digits of the variance here."""
    x, ones = 64.0 + randn(3, 40), torch.ones(40, device=DEVICE)
    assert_near(layer_norm(x, ones, 0 * ones, EPS), exact(x, ones, 0 * ones))


def test_equal_values_give_the_shift() -> None:
    x, w, b = torch.full((2, 24), 7.0, device=DEVICE), randn(24), randn(24, seed=1)
    assert_near(layer_norm(x, w, b, EPS), b.double().expand(2, 24))


def test_large_values_do_not_overflow_in_half_precision() -> None:
    x = (300.0 * randn(5, 64)).to(torch.float16)  # 300² > 65504
    one = torch.ones(64, dtype=torch.float16, device=DEVICE)
    assert_near(layer_norm(x, one, 0 * one, EPS), exact(x, one, 0 * one))


def test_rows_of_a_wider_tensor() -> None:
    wide, w, b = randn(7, 64), randn(33), randn(33, seed=1)
    view = wide[::2, :33]
    assert torch.equal(layer_norm(view, w, b, EPS), layer_norm(view.contiguous(), w, b, EPS))


def test_a_row_does_not_depend_on_its_company() -> None:
    x, w, b = (randn(*s, dtype=torch.float16) for s in ((9, 40), (40,), (40,)))
    together = layer_norm(x, w, b, EPS)
    for t in (0, 4, 8):
        assert torch.equal(layer_norm(x[t : t + 1], w, b, EPS)[0], together[t])


def test_no_rows() -> None:
    x, w = randn(0, 8), randn(8)
    assert layer_norm(x, w, w, EPS).shape == (0, 8)
    assert [t.shape for t in add_layer_norm(x, x, w, w, EPS)] == [(0, 8)] * 2

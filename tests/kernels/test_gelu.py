from __future__ import annotations

import math

import pytest
import torch

from minisgl.kernels.gelu import gelu
from tests.kernels.common import (
    DTYPES,
    assert_near,
    poisoned_outputs,  # noqa: F401
    randn,
    tensor,
)

QUICK = pytest.mark.parametrize("quick", [False, True], ids=["exact", "quick"])


def exact(x: torch.Tensor, quick: bool) -> torch.Tensor:
    x = x.double()
    if quick:
        return x / (1 + torch.exp(-1.702 * x))
    return x * (1 + torch.erf(x / math.sqrt(2))) / 2


@QUICK
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("T", "width"), [(1, 1), (3, 17), (2, 48), (9, 33)])
def test_gelu_is_exact(T: int, width: int, dtype: torch.dtype, quick: bool) -> None:
    x = randn(T, width, dtype=dtype) * 3
    assert_near(gelu(x, quick=quick), exact(x, quick))


def test_the_two_are_not_the_same() -> None:
    x = tensor([[-1.0, 2.0]])
    assert_near(gelu(x, quick=False), tensor([[-0.158655254, 1.954499736]]).double())
    assert_near(gelu(x, quick=True), tensor([[-0.154204234, 1.935658623]]).double())


@QUICK
def test_far_values_saturate(quick: bool) -> None:
    x = tensor([[1e4, -1e4, 100.0, -100.0]])
    assert_near(gelu(x, quick=quick), tensor([[1e4, 0.0, 100.0, 0.0]]).double())


@QUICK
def test_rows_of_a_wider_tensor(quick: bool) -> None:
    view = randn(8, 64)[1::2, :34]
    before = view.clone()
    assert_near(gelu(view, quick=quick), exact(view, quick))
    assert torch.equal(view, before)


def test_no_tokens() -> None:
    assert gelu(randn(0, 8), quick=True).shape == (0, 8)

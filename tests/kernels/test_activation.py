from __future__ import annotations

import pytest
import torch

from minisgl.kernels.activation import silu_and_mul
from tests.kernels.common import (
    DTYPES,
    assert_near,
    poisoned_outputs,  # noqa: F401
    randn,
    tensor,
)


def exact(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.double().chunk(2, dim=-1)
    return gate / (1 + torch.exp(-gate)) * up


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("T", "width"), [(1, 1), (3, 17), (2, 48), (9, 33)])
def test_silu_and_mul_is_exact(T: int, width: int, dtype: torch.dtype) -> None:
    x = randn(T, 2 * width, dtype=dtype) * 3
    assert_near(silu_and_mul(x), exact(x))


def test_rows_of_a_wider_tensor() -> None:
    wide = randn(8, 64)
    view = wide[1::2, :34]
    assert torch.equal(silu_and_mul(view), silu_and_mul(view.contiguous()))


def test_far_gates_saturate() -> None:
    x = tensor([[1e4, -1e4, 100.0, -100.0, 2.0, 2.0, 2.0, 2.0]])
    assert_near(silu_and_mul(x), tensor([[2e4, 0.0, 200.0, 0.0]]).double())


def test_the_input_is_left_alone() -> None:
    x = randn(2, 8)
    before = x.clone()
    silu_and_mul(x)
    assert torch.equal(x, before)


def test_no_tokens() -> None:
    assert silu_and_mul(randn(0, 8)).shape == (0, 4)

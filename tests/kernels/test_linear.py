from __future__ import annotations

import pytest
import torch

from minisgl.kernels import linear as module
from minisgl.kernels.dispatch import INTERPRETED
from minisgl.kernels.linear import linear, split_of
from tests.kernels.common import (
    DTYPES,
    assert_near,
    poisoned_outputs,  # noqa: F401
    randn,
)


def exact(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    y = x.double() @ w.double().T
    return y if bias is None else y + bias.double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize(
    ("T", "N", "K"),
    [
        (1, 1, 1),
        (3, 17, 33),  # one slice of K
        (2, 19, 300),  # K is split, unevenly
        (17, 16, 128),  # two row tiles, K is split
        (65, 18, 20),  # many rows
        (150, 33, 16),  # many rows, the last group of tiles is smaller
    ],
)
def test_linear_is_exact(T: int, N: int, K: int, with_bias: bool, dtype: torch.dtype) -> None:
    x, w = randn(T, K, dtype=dtype), randn(N, K, dtype=dtype)
    bias = randn(N, dtype=dtype) if with_bias else None
    assert_near(linear(x, w, bias), exact(x, w, bias))


def test_rows_of_wider_tensors() -> None:
    x, w = randn(6, 80)[::2, 16:50], randn(40, 90)[::2, :34]
    assert_near(linear(x, w), exact(x, w))


@pytest.mark.skipif(not INTERPRETED and not torch.cuda.is_available(), reason="torch's own matmul")
def test_a_row_does_not_depend_on_its_company() -> None:
    x, w = randn(9, 160, dtype=torch.bfloat16), randn(20, 160, dtype=torch.bfloat16)
    together = linear(x, w)
    for t in (0, 8):
        assert torch.equal(linear(x[t : t + 1], w)[0], together[t])
    assert torch.equal(linear(x.flip(0), w).flip(0), together)


def test_the_split_depends_on_the_weight_only_and_covers_it() -> None:
    assert split_of(128, 64, 32, 128) == 1  # too short to cut
    assert split_of(32, 2**20, 32, 128) == 512  # as many as fill the GPU, no more
    for N, K in ((576, 576), (4096, 14336), (1, 1000)):
        split = split_of(N, K, 32, 128)
        assert split & (split - 1) == 0
        assert split == 1 or K // split >= 4 * 128


def test_no_rows() -> None:
    assert linear(randn(0, 8), randn(5, 8)).shape == (0, 5)


def test_cublas_is_there_to_be_compared_with(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w, b = randn(3, 20), randn(7, 20), randn(7)
    monkeypatch.setattr(module, "BACKEND", "cublas")
    assert torch.equal(linear(x, w, b), torch.nn.functional.linear(x, w, b))


@pytest.mark.skipif(
    not INTERPRETED and not torch.cuda.is_available(), reason="torch checks its own"
)
def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\(2, 8\).*\(5, 9\)"):
        linear(randn(2, 8), randn(5, 9))
    with pytest.raises(ValueError, match="unit last strides"):
        linear(randn(8, 2).T, randn(5, 8))

from __future__ import annotations

import pytest
import torch

from minisgl.kernels.pool_grid import Mode, pool_grid
from tests.kernels.common import (
    DTYPES,
    assert_near,
    poisoned_outputs,  # noqa: F401
    randn,
)


def exact(x: torch.Tensor, side: int, stride: int, mode: Mode) -> torch.Tensor:
    """Window by window, in float64."""
    out = side // stride
    grid = x.double().unflatten(1, (side, side))
    rows = []
    for i in range(out):
        for j in range(out):
            window = grid[:, i * stride : (i + 1) * stride, j * stride : (j + 1) * stride]
            window = window.flatten(1, 2)
            rows.append(window.mean(1) if mode == "average" else window.amax(1))
    return torch.stack(rows, dim=1)


@pytest.mark.parametrize("mode", ["average", "max"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("frames", "side", "stride", "width"),
    [(1, 2, 2, 1), (2, 4, 2, 33), (3, 5, 2, 16), (1, 7, 3, 40)],
)
def test_pool_grid_is_exact(
    frames: int, side: int, stride: int, width: int, dtype: torch.dtype, mode: Mode
) -> None:
    x = randn(frames, side * side, width, dtype=dtype) - 3  # all windows of the first are negative
    assert_near(pool_grid(x, side, stride, mode), exact(x, side, stride, mode))


@pytest.mark.parametrize("mode", ["average", "max"])
def test_features_within_a_wider_tensor(mode: Mode) -> None:
    """Without the class token, and without the end of each row."""
    view = randn(2, 17, 40)[:, 1:, :33]
    assert torch.equal(pool_grid(view, 4, 2, mode), pool_grid(view.contiguous(), 4, 2, mode))


def test_a_stride_of_one_changes_nothing() -> None:
    x = randn(2, 9, 20)
    assert torch.equal(pool_grid(x, 3, 1, "average"), x)


def test_no_frames() -> None:
    assert pool_grid(randn(0, 16, 8), 4, 2, "max").shape == (0, 4, 8)


def test_a_grid_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match="side 5 and stride 2"):
        pool_grid(randn(1, 16, 8), 5, 2, "max")

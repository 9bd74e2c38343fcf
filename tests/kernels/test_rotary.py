from __future__ import annotations

import pytest
import torch

from minisgl.kernels.rotary import rotary_
from tests.kernels.common import DTYPES, assert_near, randn


def tables(T: int, D: int) -> tuple[torch.Tensor, torch.Tensor]:
    angle = randn(T, D // 2, seed=7) * 3
    cos, sin = angle.cos(), angle.sin()
    return torch.cat([cos, cos], dim=1), torch.cat([-sin, sin], dim=1)


def exact(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """The complex product (a + ib)(cos + i sin), pair by pair."""
    half = x.shape[-1] // 2
    a, b = x[..., :half].double(), x[..., half:].double()
    c, s = cos[:, None, :half].double(), sin[:, None, half:].double()
    return torch.cat([a * c - b * s, b * c + a * s], dim=-1)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("D", [16, 64, 80, 96, 128])
def test_heads_of_the_fused_projection(D: int, dtype: torch.dtype) -> None:
    """Queries and keys are turned in place; the values beside them are not touched."""
    T, H, KV = 3, 3, 1
    qkv = randn(T, H + 2 * KV, D, dtype=dtype)
    before = qkv.clone()
    cos, sin = tables(T, D)
    rotary_(qkv[:, : H + KV], cos, sin)
    assert_near(qkv[:, : H + KV], exact(before[:, : H + KV], cos, sin))
    assert torch.equal(qkv[:, H + KV :], before[:, H + KV :])


@pytest.mark.parametrize("dtype", DTYPES)
def test_position_0_changes_nothing(dtype: torch.dtype) -> None:
    x = randn(2, 3, 16, dtype=dtype)
    before = x.clone()
    rotary_(x, torch.ones(2, 16, device=x.device), torch.zeros(2, 16, device=x.device))
    assert torch.equal(x, before)


def test_layout_does_not_matter() -> None:
    cos, sin = tables(5, 16)
    x = randn(5, 4, 16, dtype=torch.float16)
    strided = x.new_zeros(10, 4, 32)[::2, :, :16]
    strided.copy_(x)
    transposed = x.transpose(0, 1).contiguous().transpose(0, 1)
    rotary_(x, cos, sin)
    for other in (strided, transposed):
        rotary_(other, cos, sin)
        assert torch.equal(other, x)


def test_turning_keeps_the_length_and_turning_back_restores() -> None:
    x = randn(4, 2, 64)
    before = x.clone()
    cos, sin = tables(4, 64)
    rotary_(x, cos, sin)
    assert_near(x.norm(dim=-1), before.double().norm(dim=-1))
    rotary_(x, cos, -sin)
    assert_near(x, before.double())


def test_a_token_does_not_depend_on_its_company() -> None:
    x = randn(6, 3, 16, dtype=torch.bfloat16)
    alone = x[4:5].clone()
    cos, sin = tables(6, 16)
    rotary_(x, cos, sin)
    rotary_(alone, cos[4:5], sin[4:5])
    assert torch.equal(x[4:5], alone)


def test_no_tokens() -> None:
    x = randn(0, 3, 16)
    rotary_(x, *tables(0, 16))
    assert x.shape == (0, 3, 16)

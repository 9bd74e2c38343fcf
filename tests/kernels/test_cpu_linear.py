"""Weights laid out for a CPU: every layout gives F.linear's product."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from minisgl.kernels import cpu_linear
from minisgl.kernels.cpu_linear import LARGEST_HALF, CPULinear

LAYOUTS = ("half", "packed", "packed, single rows in bfloat16", "plain")


def lay_out(w: torch.Tensor, layout: str, monkeypatch: pytest.MonkeyPatch) -> CPULinear:
    """As on a machine that has this layout; skipped if this one lacks it."""
    if layout == "half" and not cpu_linear._can_halve():
        pytest.skip("no FBGEMM here")
    if layout.startswith("packed") and not cpu_linear._can_pack(w.dtype):
        pytest.skip("no oneDNN here")
    with monkeypatch.context() as patch:
        patch.setattr(cpu_linear, "_can_halve", lambda: layout == "half")
        patch.setattr(cpu_linear, "_can_pack", lambda dtype: layout.startswith("packed"))
        return CPULinear(w, half_weights=layout not in ("packed", "plain"))


@pytest.mark.parametrize("layout", LAYOUTS)
@given(
    rows=st.integers(0, 70),
    inner=st.integers(1, 600),
    columns=st.integers(1, 100),
    seed=st.integers(0, 2**31),
)
@settings(max_examples=25, deadline=None)
def test_the_product_is_that_of_f_linear(
    layout: str, rows: int, inner: int, columns: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    w = torch.randn(columns, inner, generator=generator)
    x = torch.randn(rows, inner, generator=generator)
    with pytest.MonkeyPatch.context() as patch:
        linear = lay_out(w, layout, patch)
    if layout == "half":  # only the weight is rounded: sums and rows are float32
        w = w.half().float()
    y, expected = linear(x), F.linear(x, w)
    assert y.shape == (rows, columns) and y.dtype == torch.float32
    tolerance = 5e-2 if linear.single is not None and rows == 1 else 2e-5
    torch.testing.assert_close(y, expected, atol=tolerance * inner**0.5, rtol=tolerance)


def test_a_bfloat16_checkpoint_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    w = torch.randn(64, 32).bfloat16().float()
    w[w.abs() < 2**-14] = 0
    x = torch.eye(32)  # the product is the weight itself
    assert torch.equal(lay_out(w, "half", monkeypatch)(x), w.t())


def test_the_smallest_numbers_lose_at_most_half_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    w = (torch.randn(64, 32) * 2**-16).bfloat16().float()
    got = lay_out(w, "half", monkeypatch)(torch.eye(32)).t()
    assert float((got - w).abs().max()) <= 2**-25


@pytest.mark.parametrize("bad", [2 * LARGEST_HALF, -float("inf"), float("nan")])
def test_what_float16_cannot_hold_stays_float32(bad: float) -> None:
    w = torch.ones(16, 8)
    w[3, 4] = bad
    linear = CPULinear(w, half_weights=True)
    assert linear.half is None
    x = torch.ones(2, 8)
    torch.testing.assert_close(linear(x), F.linear(x, w), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays_what_it_is(dtype: torch.dtype) -> None:
    w, x = torch.randn(16, 8).to(dtype), torch.randn(2, 8).to(dtype)
    linear = CPULinear(w, half_weights=True)
    assert linear.half is None and linear.single is None
    assert linear.nbytes == 2 * w.numel()
    assert linear(x).dtype == dtype
    torch.testing.assert_close(linear(x), F.linear(x, w), atol=5e-2, rtol=5e-2)


def test_rows_that_do_not_lie_together(monkeypatch: pytest.MonkeyPatch) -> None:
    w, x = torch.randn(16, 8), torch.randn(8, 5).t()
    for layout in ("half", "packed"):
        got = lay_out(w, layout, monkeypatch)(x)
        torch.testing.assert_close(got, F.linear(x, w), atol=1e-2, rtol=1e-2)

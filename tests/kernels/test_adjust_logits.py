from __future__ import annotations

import pytest
import torch

from minisgl.kernels.adjust_logits import adjust_logits
from tests.kernels.common import (
    DTYPES,
    assert_near,
    poisoned_outputs,  # noqa: F401
    randn,
    tensor,
)

INF = float("inf")


def changes(*columns: tuple[float, float, float]) -> torch.Tensor:
    """One (divisor, penalty, bias) per entry -> [3, N]."""
    return tensor(list(columns), torch.float32).T.contiguous()


def test_the_formula_by_hand() -> None:
    logits = tensor([[2.0, -2.0, 0.0, 1.0], [2.0, -2.0, 0.0, 1.0]])
    rows, ids = tensor([0, 0, 0, 1, 1]), tensor([0, 1, 3, 2, 0])
    entries = [(1.3, 0.0, 0.0), (1.3, 0.0, 0.0), (2.0, 0.25, -1.0), (3.0, 0.5, 0.0), (1, 0, -INF)]
    adjust_logits(logits, rows, ids, changes(*entries))
    expected = tensor([[2 / 1.3, -2 * 1.3, 0.0, -0.75], [-INF, -2.0, -0.5, 1.0]])
    torch.testing.assert_close(logits, expected)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("N", [1, 63, 64, 65, 200])
def test_many_entries_change_their_tokens_and_no_other(N: int, dtype: torch.dtype) -> None:
    B, V = 3, 100
    logits = randn(B, V, dtype=dtype) * 4
    places = torch.randperm(B * V, generator=torch.Generator().manual_seed(N))[:N]
    rows, ids = (places // V).to(logits.device), (places % V).to(logits.device)
    change = torch.stack([randn(N).abs() + 0.5, randn(N, seed=1), randn(N, seed=2)])
    x, exact = logits.double()[rows, ids], logits.double()
    divisor, penalty, bias = change.double()
    exact[rows, ids] = torch.where(x > 0, x / divisor, x * divisor) - penalty + bias
    untouched = torch.ones_like(logits, dtype=torch.bool)
    untouched[rows, ids] = False
    before = logits.clone()
    adjust_logits(logits, rows, ids, change)
    assert torch.equal(logits[untouched], before[untouched])
    assert_near(logits, exact)


def test_a_forbidden_token_stays_forbidden() -> None:
    logits = tensor([[-INF, -INF, -INF]])
    adjust_logits(
        logits, tensor([0, 0]), tensor([0, 1]), changes((1.5, 1.0, 2.0), (1.0, 0.0, -INF))
    )
    assert logits.tolist() == [[-INF] * 3]


def test_rows_of_a_padded_vocabulary() -> None:
    padded = randn(4, 100)
    before = padded.clone()
    adjust_logits(padded[1::2, :70], tensor([1]), tensor([69]), changes((1.0, 1.0, 0.0)))
    expected = before.clone()
    expected[3, 69] -= 1.0
    assert torch.equal(padded, expected)


def test_no_entries() -> None:
    logits = randn(2, 9)
    before = logits.clone()
    none = tensor([], torch.int64)
    adjust_logits(logits, none, none, torch.zeros(3, 0, device=logits.device))
    assert torch.equal(logits, before)

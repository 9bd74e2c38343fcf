from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minisgl.kernels.top_tokens import top_tokens
from tests.kernels.common import (
    DTYPES,
    poisoned_outputs,  # noqa: F401
    randn,
    tensor,
)


def obvious(logits: torch.Tensor, k: int) -> list[list[int]]:
    """Sorted by logit, largest first; equal ones stay in the order of the vocabulary."""
    return [sorted(range(len(row)), key=lambda v: -row[v])[:k] for row in logits.tolist()]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("V", "k"), [(1, 1), (33, 5), (64, 20), (200, 1), (200, 20), (70, 70)])
def test_likeliest_first(V: int, k: int, dtype: torch.dtype) -> None:
    logits = randn(3, V, dtype=dtype) * 4
    assert top_tokens(logits, k).tolist() == obvious(logits, k)


def test_equal_logits_come_in_the_order_of_the_vocabulary() -> None:
    logits = torch.zeros(2, 150, device=tensor([0]).device)
    logits[1, 100] = 1.0
    logits[0, 3] = -0.0  # equals 0.0
    assert top_tokens(logits, 5).tolist() == [[0, 1, 2, 3, 4], [100, 0, 1, 2, 3]]


def test_infinities_have_their_place() -> None:
    logits = randn(1, 130)
    logits[0, 5:] = float("-inf")
    logits[0, 3] = float("inf")
    assert top_tokens(logits, 7).tolist() == obvious(logits, 7)


def test_rows_of_a_padded_vocabulary() -> None:
    padded = randn(4, 100)
    padded[:, 70:] = 100.0
    view = padded[1::2, :70]
    assert top_tokens(view, 9).tolist() == obvious(view, 9)


@settings(max_examples=15)
@given(
    st.lists(
        st.lists(st.sampled_from([-2.0, -0.0, 0.0, 1.0, 2.5]), min_size=9, max_size=9),
        min_size=1,
        max_size=3,
    ),
    st.integers(1, 9),
)
def test_any_ties(rows: list[list[float]], k: int) -> None:
    logits = tensor(rows)
    assert top_tokens(logits, k).tolist() == obvious(logits, k)


def test_no_rows() -> None:
    assert top_tokens(randn(0, 9), 3).shape == (0, 3)


@pytest.mark.parametrize("k", [0, 10])
def test_k_is_checked(k: int) -> None:
    with pytest.raises(ValueError, match=f"k={k} of a vocabulary of 9"):
        top_tokens(randn(1, 9), k)

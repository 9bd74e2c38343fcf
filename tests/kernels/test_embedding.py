from __future__ import annotations

import pytest
import torch

from minisgl.kernels.embedding import embedding
from tests.kernels.common import (
    DEVICE,
    DTYPES,
    poisoned_outputs,  # noqa: F401
    randn,
    tensor,
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("D", [1, 33, 64])
def test_rows_are_copied(D: int, ids_dtype: torch.dtype, dtype: torch.dtype) -> None:
    w = randn(11, D, dtype=dtype)
    ids = tensor([10, 0, 3, 3, 7], ids_dtype)
    assert torch.equal(embedding(ids, w), w[ids.long()])


def test_ids_of_another_rank_give_zero_rows() -> None:
    """Two halves of a vocabulary add up to the whole, and padding ids give zeros in both."""
    w = randn(10, 7)
    ids = tensor([0, 4, 5, 9, 10, -1, 2**31 - 1])
    low, high = embedding(ids, w[:5], first=0), embedding(ids, w[5:], first=5)
    assert torch.equal((low + high)[:4], w[ids[:4]])
    assert not (low + high)[4:].any()


def test_rows_of_a_wider_table() -> None:
    w = randn(12, 40)[::2, :33]
    ids = tensor([5, 0, 2])
    assert torch.equal(embedding(ids, w), w[ids])


def test_every_second_id() -> None:
    w, ids = randn(6, 5), tensor([1, 9, 2, 9, 5, 9])
    assert torch.equal(embedding(ids[::2], w), w[tensor([1, 2, 5])])


def test_no_tokens() -> None:
    assert embedding(tensor([], torch.int64), randn(4, 8)).shape == (0, 8)


def test_an_offset_past_2_31_elements() -> None:
    """Row 2^21 of width 1,024 starts past 2^31 elements; the table is mapped, never filled."""
    w = torch.zeros((1, 1), dtype=torch.float16, device=DEVICE)
    w = w.set_(torch.UntypedStorage(2 * 1024 * (2**21 + 1), device=DEVICE), 0, (2**21 + 1, 1024))
    w[2**21] = randn(1024, dtype=torch.float16)
    assert torch.equal(embedding(tensor([2**21]), w)[0], w[2**21])

from __future__ import annotations

import math

import pytest
import torch

from minisgl.kernels.logprob import logprob
from tests.kernels.common import (
    DTYPES,
    assert_near,
    poisoned_outputs,  # noqa: F401
    randn,
    tensor,
)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("ids_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("V", [1, 33, 64, 200])
def test_logprob_is_exact(V: int, ids_dtype: torch.dtype, dtype: torch.dtype) -> None:
    logits = randn(3, V, dtype=dtype) * 4
    ids = tensor([[0, V // 3, V - 1], [V - 1, 0, 0], [V // 2, V // 2, 0]], ids_dtype)
    exact = torch.log_softmax(logits.double(), dim=-1).gather(1, ids.long())
    assert_near(logprob(logits, ids), exact)


def test_forbidden_tokens_get_minus_infinity_and_weigh_nothing() -> None:
    logits = randn(2, 130)
    logits[:, :128] = float("-inf")  # whole tiles without a finite logit
    out = logprob(logits, tensor([[5, 128], [129, 5]]))
    assert out[0, 0] == out[1, 1] == float("-inf")
    exact = torch.log_softmax(logits[:, 128:].double(), dim=-1)
    assert_near(out[0, 1:], exact[0, :1])
    assert_near(out[1, :1], exact[1, 1:])


def test_huge_logits_do_not_overflow() -> None:
    logits = tensor([[1e30, 1e30, -1e30]])
    assert_near(logprob(logits, tensor([[1]])), tensor([[-math.log(2)]]).double())


def test_rows_of_a_padded_vocabulary() -> None:
    padded = randn(4, 100)
    view = padded[1::2, :70]
    ids = tensor([[69, 3], [0, 42]])
    assert torch.equal(logprob(view, ids), logprob(view.contiguous(), ids))


def test_nan_stays_in_its_row() -> None:
    logits = randn(2, 70)
    logits[0, 66] = float("nan")
    out = logprob(logits, tensor([[1], [1]]))
    assert out[0, 0].isnan()
    assert out[1, 0].isfinite()


def test_no_rows() -> None:
    assert logprob(randn(0, 9), tensor([], torch.int64).view(0, 3)).shape == (0, 3)
    assert logprob(randn(2, 9), tensor([], torch.int64).view(2, 0)).shape == (2, 0)

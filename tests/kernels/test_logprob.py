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
    ids = tensor([0, V - 1, V // 2], ids_dtype)
    exact = torch.log_softmax(logits.double(), dim=-1).gather(1, ids.long()[:, None])[:, 0]
    assert_near(logprob(logits, ids), exact)


def test_forbidden_tokens_get_minus_infinity_and_weigh_nothing() -> None:
    logits = randn(2, 130)
    logits[:, :128] = float("-inf")  # whole tiles without a finite logit
    out = logprob(logits, tensor([5, 129]))
    assert out[0] == float("-inf")
    assert_near(out[1:], torch.log_softmax(logits[1:, 128:].double(), dim=-1)[:, 1])


def test_huge_logits_do_not_overflow() -> None:
    logits = tensor([[1e30, 1e30, -1e30]])
    assert_near(logprob(logits, tensor([1])), tensor([-math.log(2)]).double())


def test_rows_of_a_padded_vocabulary() -> None:
    padded = randn(4, 100)
    view = padded[1::2, :70]
    ids = tensor([69, 3])
    assert torch.equal(logprob(view, ids), logprob(view.contiguous(), ids))


def test_nan_stays_in_its_row() -> None:
    logits = randn(2, 70)
    logits[0, 66] = float("nan")
    out = logprob(logits, tensor([1, 1]))
    assert out[0].isnan()
    assert out[1].isfinite()


def test_no_rows() -> None:
    assert logprob(randn(0, 9), tensor([], torch.int64)).shape == (0,)

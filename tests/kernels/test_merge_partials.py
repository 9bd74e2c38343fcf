from __future__ import annotations

import pytest
import torch

from minisgl.kernels.merge_partials import merge_partials
from tests.kernels.common import (
    assert_near,
    poisoned_outputs,  # noqa: F401
    randn,
    tensor,
)


def scores_and_values(P: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """P sets of 5 keys: their scores [2, 3, P, 5] (base 2), values, and the attention over each."""
    s, v = randn(2, 3, P, 5) * 4, randn(2, 3, P, 5, 16, seed=1)
    o = torch.softmax(s * 0.6931471805599453, dim=-1).unsqueeze(-2) @ v
    return s, v, o.squeeze(-2)


@pytest.mark.parametrize("P", [1, 2, 5, 65])
def test_merging_parts_is_attending_to_their_union(P: int) -> None:
    s, v, o = scores_and_values(P)
    lse = torch.logsumexp(s * 0.6931471805599453, dim=-1) / 0.6931471805599453
    out, total = merge_partials(o, lse)
    p = torch.softmax(s.double().flatten(2) * 0.6931471805599453, dim=-1)
    assert_near(out, (p.unsqueeze(-2) @ v.double().flatten(2, 3)).squeeze(-2))
    assert_near(total, torch.log2(torch.exp2(s.double()).flatten(2).sum(dim=-1)))


def test_merging_empty_parts() -> None:
    """An empty part weighs nothing, whatever its output holds; all empty is (0, -inf)."""
    o, lse = randn(1, 2, 2, 16), tensor([[[float("-inf"), 3.0], [float("-inf")] * 2]])
    o[:, :, 0] = torch.nan
    out, total = merge_partials(o, lse)
    assert torch.equal(out[0, 0], o[0, 0, 1])
    assert total[0, 0] == 3.0
    assert not out[0, 1].any()
    assert total[0, 1] == float("-inf")


def test_merging_parts_that_do_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\(1, 2, 3\)"):
        merge_partials(randn(1, 2, 2, 16), randn(1, 2, 3))

"""Attention over contiguous keys against float64: whole, and in parts that are merged."""

from __future__ import annotations

from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minisgl.kernels import slab_attention as slab
from minisgl.kernels.slab_attention import (
    MANY_ROWS,
    merge,
    shared_attention,
    slab_attention,
    slab_attention_lse,
)


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """q [B, H, D], k and v [B, KV, L, D], in float64."""
    B, H, D = q.shape
    KV = k.shape[1]
    q, k, v = q.double().view(B, KV, H // KV, D), k.double(), v.double()
    return (torch.softmax(q @ k.mT * scale, dim=-1) @ v).view(B, H, D)


# dtype, how far scores lie apart, and what rounding scores of that size does to the answer
CASES = [
    (torch.float32, 0.1, 2e-5),
    (torch.float32, 1.0, 2e-5),
    (torch.float32, 100.0, 2e-3),
    (torch.bfloat16, 0.1, 5e-2),
    (torch.bfloat16, 1.0, 5e-2),
]


@given(
    B=st.integers(1, 5),
    KV=st.integers(1, 3),
    G=st.integers(1, 4),
    own=st.integers(1, 20),
    runs=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    case=st.sampled_from(CASES),
    many=st.sampled_from([1, 100, 2**14]),
    block=st.integers(1, 10),
)
def test_segments_and_tail_merge_to_the_whole(
    B: int,
    KV: int,
    G: int,
    own: int,
    runs: list[int],
    case: tuple[torch.dtype, float, float],
    many: int,
    block: int,
) -> None:
    """As near to float64 as attention that is not split, whatever the parts weigh."""
    D = 8
    dtype, sharpness, near = case
    g = torch.Generator().manual_seed(own)
    q = (torch.randn(B, KV * G, D, generator=g) * sharpness).to(dtype)
    shared = [torch.randn(2, KV, n, D, generator=g).to(dtype) for n in runs]
    tail = torch.randn(2, B, KV, own, D, generator=g).to(dtype)
    k, v = torch.cat([*(s[:, None].expand(2, B, *s.shape[1:]) for s in shared), tail], dim=3)

    o, lse = slab_attention_lse(q, *tail.flatten(1, 2), None, 1.0)
    with mock.patch.multiple(slab, MANY_SCORES=many, BLOCK=block):
        for segment in shared:
            o, lse = merge(o, lse, *shared_attention(q, *segment, 1.0))
    whole = slab_attention(q, k.flatten(0, 1), v.flatten(0, 1), None, 1.0)
    expected = attention(q, k, v, 1.0)
    assert o.dtype == dtype
    torch.testing.assert_close(whole.double(), expected, atol=near, rtol=near)
    torch.testing.assert_close(o.double(), expected, atol=near, rtol=near)


@pytest.mark.parametrize("score", [-1e4, 1e4])
def test_a_part_that_weighs_nothing_or_everything(score: float) -> None:
    q = torch.ones(1, 1, 1)
    keys, one, two = torch.full((1, 3, 1), score), torch.ones(1, 3, 1), torch.full((1, 3, 1), 2.0)
    tail = slab_attention_lse(q, torch.zeros(1, 3, 1), one, None, 1.0)
    o, lse = merge(*tail, *shared_attention(q, keys, two, 1.0))
    assert o.item() == (1.0 if score < 0 else 2.0)
    assert lse.item() == pytest.approx(max(score, 0.0) + torch.tensor(3.0).log().item())


def test_masked_keys_are_not_read() -> None:
    g = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 2, 4, generator=g) for _ in range(3))  # B = 2, KV = 1, L = 2
    mask = torch.tensor([[[0.0, float("-inf")]], [[0.0, 0.0]]])
    o, lse = slab_attention_lse(q, k, v, mask, 0.5)
    torch.testing.assert_close(o[0], v[:1, 0].expand(2, 4))
    torch.testing.assert_close(lse[0], q[0] @ k[0, 0] * 0.5)
    torch.testing.assert_close(o, slab_attention(q, k, v, mask, 0.5))


@given(
    B=st.integers(1, 3),
    KV=st.integers(1, 3),
    M=st.sampled_from([1, 3, MANY_ROWS - 1, MANY_ROWS, 2 * MANY_ROWS]),
    L=st.integers(1, 40),
    per=st.sampled_from(["row", "query"]),
    case=st.sampled_from(CASES),
)
def test_few_and_many_queries_of_a_key_see_what_the_mask_leaves(
    B: int, KV: int, M: int, L: int, per: str, case: tuple[torch.dtype, float, float]
) -> None:
    dtype, sharpness, near = case
    g = torch.Generator().manual_seed(B + M + L)
    q = (torch.randn(B, KV * M, 8, generator=g) * sharpness).to(dtype)
    k, v = torch.randn(2, B * KV, L, 8, generator=g).to(dtype)
    shape = (B * KV, 1, L) if per == "row" else (1, M, L)
    hidden = torch.rand(shape, generator=g) < 0.5
    hidden[..., 0] = False  # there is a key to read
    mask = torch.zeros(shape, dtype=dtype).masked_fill_(hidden, float("-inf"))
    scores = (q.double().view(B * KV, M, 8) @ k.double().mT * 0.5).masked_fill(hidden, -torch.inf)
    expected = torch.softmax(scores, dim=-1) @ v.double()
    o, lse = slab_attention_lse(q, k, v, mask, 0.5)
    torch.testing.assert_close(slab_attention(q, k, v, mask, 0.5), o, atol=near, rtol=near)
    torch.testing.assert_close(o.double().view(B * KV, M, 8), expected, atol=near, rtol=near)
    found = lse.double().view(B * KV, M)
    torch.testing.assert_close(found, scores.logsumexp(dim=-1), atol=near, rtol=near)

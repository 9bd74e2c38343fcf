"""Route, sort by expert, and the experts' products: together a mixture of experts."""

from __future__ import annotations

import itertools

import pytest
import torch

from minisgl.kernels import moe as moe_module
from minisgl.kernels.block_sizes import moe_blocks
from minisgl.kernels.cpu_linear import CPULinear
from minisgl.kernels.dispatch import INTERPRETED
from minisgl.kernels.moe import moe
from minisgl.kernels.moe_route import route
from minisgl.kernels.moe_sort import most_tiles, sort_by_expert
from tests.kernels.common import (
    DEVICE,
    DTYPES,
    assert_near,
    poisoned_outputs,  # noqa: F401
    randn,
    tensor,
)

kernels_only = pytest.mark.skipif(
    not INTERPRETED and not torch.cuda.is_available(), reason="torch's own products"
)
Experts = tuple[torch.Tensor, torch.Tensor]  # gate_up [E, 2I, D], down [E, D, I]


def mlps(E: int, D: int, inner: int, dtype: torch.dtype = torch.float32) -> Experts:
    gate_up, down = randn(E, 2 * inner, D, dtype=dtype), randn(E, D, inner, dtype=dtype)
    return gate_up * D**-0.5, down * inner**-0.5


def choose(T: int, E: int, K: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random weights [T, K], and K different experts of each token."""
    score = randn(T, E, seed=5)
    weights, experts = score.sigmoid().topk(K)
    return weights.contiguous(), experts.int()


def exact(
    x: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
) -> torch.Tensor:
    """Token by token and expert by expert, in float64."""
    y = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for t, k in itertools.product(range(x.shape[0]), range(experts.shape[1])):
        e = int(experts[t, k])
        gate, up = (gate_up[e].double() @ x[t].double()).chunk(2)
        h = gate * torch.sigmoid(gate) * up
        y[t] += float(weights[t, k]) * (down[e].double() @ h)
    return y


# ---- route


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("T", "D", "E", "K"),
    [(1, 16, 2, 1), (3, 40, 3, 2), (9, 33, 7, 3), (10, 70, 8, 2), (2, 5, 1, 1), (4, 8, 6, 6)],
)
def test_route_is_softmax_and_the_k_best(
    T: int, D: int, E: int, K: int, dtype: torch.dtype
) -> None:
    x, router = randn(T, D, dtype=dtype), randn(E, D, dtype=dtype) * D**-0.5
    weights, experts = route(x, router, K)
    p = (x.double() @ router.double().T).softmax(-1)
    best = p.sort(descending=True, stable=True)
    assert (weights.dtype, experts.dtype) == (torch.float32, torch.int32)
    assert torch.equal(experts, best.indices[:, :K].int())
    kept = best.values[:, :K]
    assert_near(weights, kept / kept.sum(-1, keepdim=True))


def test_of_equally_good_experts_the_lower_comes_first() -> None:
    x = tensor([[0.0] * 16, [1.0] * 16, [-1.0] * 16])
    router = torch.ones(5, 16, device=DEVICE)
    router[2] = router[4] = 2.0  # better for the second token, worse for the third
    weights, experts = route(x, router, 3)
    assert experts.tolist() == [[0, 1, 2], [2, 4, 0], [0, 1, 3]]
    assert weights[0].tolist() == pytest.approx([1 / 3] * 3)
    assert weights[1].tolist() == pytest.approx([0.5, 0.5, 0.0], abs=1e-6)


def test_an_expert_whose_probability_is_zero_is_still_an_expert() -> None:
    """Three experts in a block of four: the lane beside them has probability 0 too."""
    router = tensor([[0.0] * 8, [900.0] * 8, [0.0] * 8])
    weights, experts = route(torch.ones(1, 8, device=DEVICE), router, 3)
    assert experts.tolist() == [[1, 0, 2]]
    assert weights.tolist() == [[1.0, 0.0, 0.0]]


def test_a_nan_stays_in_its_row_of_the_routing() -> None:
    x, router = randn(4, 24), randn(6, 24)
    clean = route(x, router, 2)
    x[2, 7] = torch.nan
    weights, experts = route(x, router, 2)
    assert experts[2].tolist() == [0, 1] and bool(weights[2].isnan().all())
    others = [0, 1, 3]
    assert torch.equal(weights[others], clean[0][others])
    assert torch.equal(experts[others], clean[1][others])


@kernels_only
def test_a_token_is_routed_alike_in_any_company() -> None:
    x, router = randn(20, 48)[:, 3:40], randn(8, 90)[:, :37]  # rows of wider tensors
    weights, experts = route(x, router, 2)
    for t in (0, 7, 8, 19):
        alone = route(x[t : t + 1], router, 2)
        assert torch.equal(alone[0][0], weights[t]) and torch.equal(alone[1][0], experts[t])


def test_route_refuses() -> None:
    for top_k in (0, 4):
        with pytest.raises(ValueError, match=rf"top_k is {top_k}; it must be 1 to 3"):
            route(randn(2, 8), randn(3, 8), top_k)
    with pytest.raises(ValueError, match=r"\(2, 8\), \(3, 9\)"):
        route(randn(2, 8), randn(3, 9), 1)


# ---- sort


@pytest.mark.parametrize(
    ("experts", "E"),
    [
        ([[2, 0], [0, 1], [0, 2]], 3),
        ([[1], [1], [1], [1], [1]], 4),  # one expert has all, the others none
        ([[6, 0]], 7),  # the first and the last
        ([[0]], 1),
        ([[4, 3, 2, 1, 0]] * 17, 5),  # whole tiles, and one more row of each
        ([[t * 7 % 5, (t * 7 + 2) % 5] for t in range(40)], 6),  # more than one chunk of pairs
    ],
)
@pytest.mark.parametrize("block", [1, 16])
def test_every_pair_is_in_a_tile_of_its_expert(
    experts: list[list[int]], E: int, block: int
) -> None:
    pairs, tiles = sort_by_expert(tensor(experts, torch.int32), E, block)
    flat = [e for row in experts for e in row]
    by_expert: dict[int, list[int]] = {}
    found = pairs.view(-1, block).tolist()
    for e, tile in zip(tiles.tolist(), found, strict=True):
        if e >= 0:
            by_expert.setdefault(e, []).extend(tile)
    used = len(tiles) - tiles.tolist().count(-1)
    assert tiles[:used].tolist() == sorted(tiles[:used].tolist())
    assert tiles[used:].tolist() == [-1] * (len(tiles) - used)
    assert list(by_expert) == sorted(set(flat))
    for e, mine in by_expert.items():
        expected = [p for p, other in enumerate(flat) if other == e]
        padding = -len(expected) % block
        assert mine == expected + [len(flat)] * padding


def test_there_are_never_more_tiles_and_sometimes_as_many() -> None:
    """Of all ways to share out the pairs, the worst fills exactly `most_tiles`."""
    for N, E, block in itertools.product(range(1, 9), range(1, 5), (1, 2, 4)):
        shares = (s for s in itertools.product(range(N + 1), repeat=E) if sum(s) == N)
        worst = max(sum(-(-n // block) for n in share) for share in shares)
        assert worst == most_tiles(N, E, block), (N, E, block)


@kernels_only
def test_sort_refuses_what_it_would_misread() -> None:
    with pytest.raises(ValueError, match="int64"):
        sort_by_expert(tensor([[0, 1]]), 2, 16)


# ---- the experts


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("T", "D", "inner", "E", "K"),
    [
        (1, 16, 16, 2, 1),
        (3, 40, 24, 3, 2),
        (5, 33, 17, 8, 2),  # odd everywhere
        (19, 20, 35, 5, 3),  # an expert with more than one tile
        (2, 18, 20, 7, 7),  # every expert
    ],
)
def test_moe_is_exact(T: int, D: int, inner: int, E: int, K: int, dtype: torch.dtype) -> None:
    x, (weights, experts), (gate_up, down) = (
        randn(T, D, dtype=dtype), choose(T, E, K), mlps(E, D, inner, dtype),
    )  # fmt: skip
    assert_near(moe(x, weights, experts, gate_up, down), exact(x, weights, experts, gate_up, down))


@pytest.mark.parametrize("chosen", [[1], [3, 1]])
def test_experts_that_no_token_chose_are_not_read(chosen: list[int]) -> None:
    """Each token's first choice is the same expert: it has all, and the others have none."""
    x, (gate_up, down) = randn(18, 24), mlps(4, 24, 16)
    experts = tensor([chosen] * 18, torch.int32)
    weights = torch.full((18, len(chosen)), 1 / len(chosen), device=DEVICE)
    expected = exact(x, weights, experts, gate_up, down)
    for e in {0, 1, 2, 3} - {*chosen}:
        gate_up[e] = down[e] = torch.nan
    assert_near(moe(x, weights, experts, gate_up, down), expected)


def test_a_nan_stays_in_its_row() -> None:
    x, (weights, experts), (gate_up, down) = randn(6, 24), choose(6, 3, 2), mlps(3, 24, 16)
    clean = moe(x, weights, experts, gate_up, down)
    x[4, 5] = torch.nan
    dirty = moe(x, weights, experts, gate_up, down)
    assert bool(dirty[4].isnan().all())
    others = [0, 1, 2, 3, 5]
    assert torch.equal(dirty[others], clean[others])


@kernels_only
def test_a_token_does_not_depend_on_its_company() -> None:
    x, (weights, experts) = randn(9, 60, dtype=torch.bfloat16)[:, 4:44], choose(9, 5, 2)
    gate_up, down = mlps(5, 40, 20, torch.bfloat16)
    together = moe(x, weights, experts, gate_up, down)
    assert torch.equal(moe(x, weights, experts, gate_up, down), together)
    backwards = moe(x.flip(0), weights.flip(0), experts.flip(0), gate_up, down)
    assert torch.equal(backwards.flip(0), together)
    alone = moe(x[8:], weights[8:], experts[8:], gate_up, down)
    assert torch.equal(alone[0], together[8])


def test_no_tokens() -> None:
    weights, experts = route(randn(0, 8), randn(3, 8), 2)
    assert moe(randn(0, 8), weights, experts, *mlps(3, 8, 4)).shape == (0, 8)


@pytest.mark.skipif(INTERPRETED, reason="thousands of programs; test_launch_plans has the grids")
def test_more_than_65536_tokens() -> None:
    T = 70_000
    x, (weights, experts), (gate_up, down) = randn(T, 4), choose(T, 3, 2), mlps(3, 4, 2)
    y = moe(x, weights, experts, gate_up, down)
    some = [0, 65_535, 65_536, T - 1]
    parts = (t[some] for t in (x, weights, experts))
    assert_near(y[some], exact(*parts, gate_up, down))


@kernels_only
def test_the_last_of_experts_past_2_31_elements() -> None:
    """Expert 2^23 times 2·8·16 elements is 2^31: int32 would wrap.  Memory isn't filled."""
    last, D, inner = 2**23, 16, 8
    stack = torch.zeros(1, dtype=torch.float16, device=DEVICE)
    stack.untyped_storage().resize_((last + 1) * 2 * inner * D * 2)
    w = stack.as_strided((last + 1, 2 * inner, D), (2 * inner * D, D, 1))
    w[last] = randn(2 * inner, D, dtype=torch.float16)
    x, h = randn(1, D, dtype=torch.float16), randn(1, inner, dtype=torch.float16)
    tile = tensor([last], torch.int32)
    pairs = tensor([0] + [1] * 15, torch.int32)  # one pair, and padding
    blocks = {**moe_blocks(torch.float16, 1, 1), "BLOCK_M": 16}
    moe_module._moe_up_kernel[(1,)](x, w, pairs, tile, h, D, 1, 1, D, inner, K=1, **blocks)
    gate, up = (w[last].double() @ x[0].double()).chunk(2)
    assert_near(h[0], gate * torch.sigmoid(gate) * up)


def test_packed_weights_give_the_same() -> None:
    """What a model on a CPU passes: each expert's weights laid out by `CPULinear`."""
    if INTERPRETED or torch.cuda.is_available():
        pytest.skip("for the reference")
    x, (weights, experts), (gate_up, down) = randn(7, 32), choose(7, 3, 2), mlps(3, 32, 24)
    packed = [[CPULinear(w) for w in stack] for stack in (gate_up, down)]
    torch.testing.assert_close(
        moe(x, weights, experts, *packed), moe(x, weights, experts, gate_up, down)
    )


@kernels_only
def test_shapes_that_do_not_fit_are_refused() -> None:
    x, (weights, experts), (gate_up, down) = randn(2, 8), choose(2, 3, 2), mlps(3, 8, 4)
    for wrong in (
        (x[:, :7], weights, experts, gate_up, down),
        (x, weights[:, :1], experts, gate_up, down),
        (x, weights, experts, gate_up[:2], down),
        (x, weights, experts, gate_up[:, :6], down),
        (x.half(), weights, experts, gate_up, down),
    ):
        with pytest.raises(ValueError, match="moe needs x"):
            moe(*wrong)
    with pytest.raises(ValueError, match="contiguous"):
        moe(x, weights, experts, gate_up, down.mT.contiguous().mT)

from __future__ import annotations

import math

import pytest
import torch

from minisgl.kernels.dispatch import use_triton
from minisgl.kernels.sample import sample
from tests.kernels.common import (
    DEVICE,
    poisoned_outputs,  # noqa: F401
    randn,
    tensor,
)

INF = float("inf")
WIDE = {"BLOCK_V": 8192, "num_warps": 8, "num_stages": 1}  # few tiles, for the interpreter


def draw(
    logits: torch.Tensor,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    uniform: float = 0.5,
    blocks: dict[str, int] | None = None,
) -> list[int]:
    """The same parameters for every row."""
    B = logits.shape[0]

    def column(value: float) -> torch.Tensor:
        return torch.full((B,), value, dtype=torch.float32, device=DEVICE)

    k = torch.full((B,), top_k, dtype=torch.int32, device=DEVICE)
    return sample(
        logits, column(temperature), k, column(top_p), column(min_p), column(uniform), blocks
    ).tolist()


def kept(logits: torch.Tensor, **parameters: float) -> set[int]:
    """The tokens of one row that five draws find: enough for each share in these tests."""
    uniform = tensor([0.05, 0.15, 0.6, 0.8, 0.95])
    B = len(uniform)
    rows = logits.expand(B, -1)
    values = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | parameters
    columns = {k: torch.full((B,), float(v), device=DEVICE) for k, v in values.items()}
    columns["top_k"] = columns["top_k"].int()
    return set(sample(rows, *columns.values(), uniform).tolist())


LOGITS = torch.log(torch.tensor([[0.5, 0.25, 0.15, 0.10]])).to(DEVICE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("V", [1, 33, 64, 130])
def test_greedy_is_argmax(V: int, dtype: torch.dtype) -> None:
    logits = randn(5, V, dtype=dtype)
    assert draw(logits, temperature=0.0) == logits.float().argmax(dim=-1).tolist()


def test_greedy_takes_the_first_of_equals() -> None:
    logits = torch.zeros(2, 130, device=DEVICE)
    logits[0, [70, 129]] = 1.0
    logits[1, [3, 67]] = 1.0
    assert draw(logits, temperature=0.0) == [70, 3]


def test_a_tiny_temperature_does_not_overflow() -> None:
    """fp16 logits over 1e-5 would be infinite; temperatures about the limit agree with argmax."""
    logits = tensor([[2.0, 11.0]], torch.float16)
    for temperature in (0.0, 9e-6, 1e-5, 1.1e-5, 1e-3):
        assert draw(logits, temperature=temperature, uniform=0.999) == [1]


def test_greedy_and_sampled_rows_in_one_batch() -> None:
    logits = LOGITS.repeat(3, 1)
    ids = sample(
        logits,
        tensor([0.0, 0.8, 0.0]),
        tensor([0, 0, 0]),
        tensor([1.0, 1.0, 1.0]),
        tensor([0.0, 0.0, 0.0]),
        tensor([0.999, 0.999, 0.999]),
    )
    assert ids.tolist() == [0, 3, 0]
    assert ids.dtype == torch.int64


def test_uniform_walks_the_distribution_in_vocabulary_order() -> None:
    for uniform, token in ((0.0, 0), (0.49, 0), (0.51, 1), (0.74, 1), (0.76, 2), (0.91, 3)):
        assert draw(LOGITS, uniform=uniform) == [token]
    assert draw(LOGITS, uniform=1 - 2**-24) == [3]


@pytest.mark.parametrize(
    ("top_p", "tokens"),
    [
        (1e-6, {0}),
        (0.49, {0}),
        (0.6, {0, 1}),
        (0.74, {0, 1}),
        (0.8, {0, 1, 2}),
        (1.0, {0, 1, 2, 3}),
    ],
)
def test_top_p_keeps_the_token_that_crosses_it(top_p: float, tokens: set[int]) -> None:
    assert kept(LOGITS, top_p=top_p) == tokens


def test_top_p_that_is_met_exactly_keeps_no_more() -> None:
    logits = tensor([[1.0, 0.0, 0.0]]) * 1e3  # weights 1, 0, 0
    assert kept(logits, top_p=0.5) == {0}
    assert kept(tensor([[0.0, 0.0, 0.0, 0.0]]), top_p=0.5) == {0, 1}


@pytest.mark.parametrize(
    ("top_k", "size"), [(-1, 4), (0, 4), (1, 1), (2, 2), (3, 3), (4, 4), (10**6, 4)]
)
def test_top_k(top_k: int, size: int) -> None:
    assert kept(LOGITS, top_k=top_k) == set(range(size))


def test_top_k_of_equals_takes_the_first_in_the_vocabulary() -> None:
    logits = torch.zeros(1, 70, device=DEVICE)
    logits[0, 68] = 2.0
    logits[0, 1] = -2.0
    assert kept(logits, top_k=3) == {68, 0, 2}


def test_top_p_is_a_share_of_what_top_k_left() -> None:
    """After top_k = 2 the shares are 2/3 and 1/3: the first alone holds 0.6 of them."""
    assert kept(LOGITS, top_k=2, top_p=0.6) == {0}
    assert kept(LOGITS, top_k=2, top_p=0.7) == {0, 1}
    assert kept(LOGITS, top_k=3, top_p=0.99) == {0, 1, 2}


@pytest.mark.parametrize(
    ("min_p", "tokens"), [(0.1, {0, 1, 2, 3}), (0.25, {0, 1, 2}), (0.45, {0, 1}), (1.0, {0})]
)
def test_min_p_is_a_share_of_the_largest(min_p: float, tokens: set[int]) -> None:
    assert kept(LOGITS, min_p=min_p) == tokens


def test_all_filters_together() -> None:
    assert kept(LOGITS, top_k=3, top_p=0.95, min_p=0.4) == {0, 1}


def test_rows_do_not_mix() -> None:
    """Each row uses its own order and its own parameters; another order gives the same ids."""
    logits = torch.cat([LOGITS, LOGITS.flip(1), randn(1, 4), LOGITS])
    columns = [
        tensor([1.0, 1.0, 0.7, 0.0]),
        tensor([0, 2, 3, 1]),
        tensor([0.9, 1.0, 0.8, 0.1]),
        tensor([0.0, 0.0, 0.1, 0.0]),
        tensor([0.99, 0.01, 0.4, 0.5]),
    ]
    ids = sample(logits, *columns)
    assert ids[:2].tolist() == [2, 2]
    assert ids[3] == 0
    backwards = sample(logits.flip(0), *(c.flip(0) for c in columns))
    assert torch.equal(backwards.flip(0), ids)
    for b in range(4):
        alone = sample(logits[b : b + 1], *(c[b : b + 1] for c in columns))
        assert torch.equal(alone, ids[b : b + 1])


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_a_broken_row_is_minus_1_and_the_others_are_served(temperature: float) -> None:
    logits = randn(5, 70)
    logits[0, 66] = math.nan
    logits[1, 2] = INF
    logits[2] = -INF
    logits[3, :69] = -INF
    ids = draw(logits, temperature=temperature)
    assert ids[:3] == [-1, -1, -1]
    assert ids[3] == 69
    assert 0 <= ids[4] < 70


@pytest.mark.parametrize("parameters", [{}, {"top_p": 0.99}, {"top_k": 60}, {"min_p": 1e-9}])
def test_forbidden_tokens_are_never_drawn(parameters: dict[str, float]) -> None:
    logits = randn(1, 100)
    allowed = {0, 63, 64, 99}
    logits[0, [v for v in range(100) if v not in allowed]] = -INF
    assert kept(logits, **parameters) <= allowed
    for uniform in (0.0, 1 - 2**-24):
        assert set(draw(logits, uniform=uniform, **parameters)) <= allowed  # type: ignore[arg-type]


def test_rows_of_a_padded_vocabulary() -> None:
    padded = torch.full((4, 80), INF, device=DEVICE)
    padded[:, :70] = randn(4, 70)
    view = padded[::2, :70]
    for temperature in (0.0, 1.0):
        assert draw(view, temperature) == draw(view.contiguous(), temperature)


@pytest.mark.parametrize("top_p", [0.9999999, 1.0 - 2**-24, 0.5])
def test_a_flat_vocabulary_never_gives_an_id_beyond_it(top_p: float) -> None:
    """32,000 equal logits: the running sum in fp32 may never reach top_p, or the draw."""
    logits = torch.zeros(1, 32_000, device=DEVICE)
    for uniform in (0.0, 0.5, 1 - 2**-24):
        (token,) = draw(logits, top_p=top_p, uniform=uniform, blocks=WIDE)
        assert abs(token - uniform * top_p * 32_000) < 8
        assert token < 32_000


def test_draws_follow_the_distribution() -> None:
    """Evenly spaced draws fall on each token as often as its probability says."""
    logits, V, n = randn(1, 20) * 2, 20, 32 if use_triton(LOGITS) else 4096
    uniform = (torch.arange(n, device=DEVICE) + 0.5) / n
    ones = torch.ones(n, device=DEVICE)
    ids = sample(logits.expand(n, V), ones * 0.8, ones.int() * 0, ones, ones * 0, uniform)
    share = torch.bincount(ids, minlength=V) / n
    exact = torch.softmax(logits[0].double() / 0.8, dim=-1)
    assert float((share - exact).abs().max()) < 1.5 / n


def test_a_row_that_the_heaviest_few_do_not_decide() -> None:
    """top_p of 0.9 over 3,000 nearly equal weights keeps 2,700 of them."""
    logits = torch.linspace(0.0, 1e-3, 3000, device=DEVICE).unsqueeze(0)
    (lowest,) = draw(logits, top_p=0.9, uniform=0.0, blocks=WIDE)
    assert abs(lowest - 300) <= 2


def test_no_rows() -> None:
    assert draw(randn(0, 9)) == []

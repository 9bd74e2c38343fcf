"""What the launchers would launch, with nothing launched: grids that CUDA accepts.

A GPU counts 2³¹ blocks on grid x and 65,535 on y and z, and refuses a launch beyond (or, with some
compilers, silently does nothing).  So whatever may be large, tokens above all, lies on x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

pytest.importorskip("triton")

from minisgl.kernels import (
    activation,
    adjust_logits,
    block_sizes,
    cascade_attention,
    decode_attention,
    embedding,
    extend_attention,
    gelu,
    kv_store,
    layer_norm,
    linear,
    logprob,
    merge_partials,
    moe,
    moe_route,
    moe_sort,
    pool_grid,
    rms_norm,
    rotary,
    sample,
    top_tokens,
    vocab_mask,
)

TOKENS = 70_000
MODULES = [
    activation, adjust_logits, cascade_attention, decode_attention, embedding, extend_attention,
    gelu, kv_store, layer_norm, linear, logprob, merge_partials, moe, moe_route, moe_sort,
    pool_grid, rms_norm, rotary, sample, top_tokens, vocab_mask,
]  # fmt: skip


class Recorder:
    """Stands in for a kernel: `kernel[grid](...)` notes the grid and its keyword arguments."""

    def __init__(self, plans: list[tuple[int, ...]]) -> None:
        self.plans = plans

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def launch(*args: Any, **kwargs: Any) -> None:
            self.plans.append(grid)

        return launch


@pytest.fixture(params=[80, 86, 90])
def plans(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    plans: list[tuple[int, ...]] = []
    monkeypatch.setattr(block_sizes, "INTERPRETED", False)
    monkeypatch.setattr(block_sizes, "generation", lambda: request.param)
    for module in MODULES:
        monkeypatch.setattr(module, "use_triton", lambda x: True)
        for name in vars(module).copy():
            if name.endswith("_kernel"):
                monkeypatch.setattr(module, name, Recorder(plans))
    return plans


def wide(*shape: int, dtype: torch.dtype = torch.bfloat16) -> torch.Tensor:
    """A tensor of any number of rows that takes one row of memory."""
    return torch.zeros((1, *shape[1:]), dtype=dtype).expand(*shape)


def assert_cuda_accepts(plans: list[tuple[int, ...]]) -> None:
    assert plans, "nothing was launched"
    for grid in plans:
        x, y, z = (*grid, 1, 1)[:3]
        assert 0 < x < 2**31
        assert 0 < y <= 65_535
        assert 0 < z <= 65_535


def test_many_tokens(plans: list[tuple[int, ...]]) -> None:
    T = TOKENS
    x, w = wide(T, 64), torch.zeros(64, dtype=torch.bfloat16)
    rms_norm.rms_norm(x, w, 1e-5)
    rms_norm.add_rms_norm(x, x, w, 1e-5)
    layer_norm.layer_norm(x, w, w, 1e-5)
    layer_norm.add_layer_norm(x, x, w, w, 1e-5)
    activation.silu_and_mul(x)
    gelu.gelu(x, quick=True)
    pool_grid.pool_grid(wide(T, 4, 64), 2, 2, "average")
    embedding.embedding(wide(T, dtype=torch.int64), torch.zeros(8, 64))
    linear.linear(x, torch.zeros(8, 64, dtype=torch.bfloat16))
    table = wide(T, 64, dtype=torch.float32)
    rotary.rotary_(wide(T, 2, 64), table, table)
    pool, ids = torch.zeros(4, 2, 1, 64, dtype=torch.bfloat16), wide(T, dtype=torch.int32)
    kv_store.kv_store(wide(T, 2, 1, 64), pool, ids)
    assert len(plans) == 11
    assert_cuda_accepts(plans)


@pytest.mark.parametrize("E", [2, 7, 8, 64])
def test_many_tokens_through_experts(plans: list[tuple[int, ...]], E: int) -> None:
    x, D, inner = wide(TOKENS, 64), 64, 32
    weights, experts = moe_route.route(x, wide(E, D), 2)
    moe.moe(
        x,
        weights,
        experts,
        torch.empty(E, 2 * inner, D).bfloat16(),
        torch.empty(E, D, inner).bfloat16(),
    )
    assert len(plans) == 5
    assert_cuda_accepts(plans)


def test_one_prompt_of_many_tokens(plans: list[tuple[int, ...]]) -> None:
    T, one = TOKENS, torch.zeros(1, dtype=torch.int32)
    pool, table = torch.zeros(4, 2, 1, 16), torch.zeros(1, 4, dtype=torch.int32)
    extend_attention.extend_attention(
        wide(T, 2, 16, dtype=torch.float32), wide(T, 2, 1, 16, dtype=torch.float32), pool, table,
        one, one, torch.tensor([0, T]), T, 0.25,
    )  # fmt: skip
    assert_cuda_accepts(plans)


def test_many_rows_of_logits(plans: list[tuple[int, ...]]) -> None:
    logits, ids = wide(TOKENS, 8, dtype=torch.float32), torch.zeros(TOKENS, dtype=torch.int64)
    logprob.logprob(logits, ids.unsqueeze(1))
    top_tokens.top_tokens(logits, 2)
    adjust_logits.adjust_logits(logits, ids, ids, torch.zeros(3, TOKENS))
    vocab_mask.vocab_mask(logits, torch.zeros(1, 1, dtype=torch.int32), ids)
    column = torch.zeros(TOKENS)
    sample.sample(logits, column, column.int(), column, column, column)
    assert_cuda_accepts(plans)


def test_a_large_batch_of_long_contexts(plans: list[tuple[int, ...]]) -> None:
    B, longest = 512, 2**20
    lens = torch.ones(B, dtype=torch.int32)
    table = wide(B, longest, dtype=torch.int32)
    q, pool = wide(B, 32, 16, dtype=torch.float32), torch.zeros(4, 2, 8, 16)
    decode_attention.decode_attention(q, pool, table, lens, lens, 0.25)
    assert_cuda_accepts(plans)
    attend, merge = plans
    assert attend[2] <= decode_attention.MAX_PARTS
    assert merge == (B, 32)


def test_a_large_tree(plans: list[tuple[int, ...]]) -> None:
    """As many segments and members as will ever run together: they lie on x."""
    B, N = 4096, TOKENS
    one, lens = wide(N, dtype=torch.int32), wide(B, dtype=torch.int32)
    segments = cascade_attention.Segments(
        one, one, one, wide(2 * N, dtype=torch.int32), wide(N + 1, dtype=torch.int32), one, lens,
        num_depths=30, max_members=B,
    )  # fmt: skip
    q, pool = wide(B, 32, 16, dtype=torch.float32), torch.zeros(4, 2, 8, 16)
    table = torch.zeros(1, 2**10, dtype=torch.int32)
    cascade_attention.cascade_attention(q, pool, table, lens, lens, segments, 0.25)
    assert_cuda_accepts(plans)
    assert len(plans) == 3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("head_dim", [16, 64, 80, 96, 128, 192, 256])
@pytest.mark.parametrize("generation", [0, 80, 86, 90])
def test_every_head_dim_has_a_row(
    generation: int, head_dim: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_sizes, "generation", lambda: generation)
    extend = block_sizes.extend_blocks(dtype, head_dim)
    decode = block_sizes.decode_blocks(dtype, head_dim)
    few, many = (block_sizes.cascade_blocks(dtype, head_dim, rows) for rows in (16, 17))
    assert few["BLOCK_M"] == 16
    for blocks in (extend, decode, few, many):
        for size in (v for name, v in blocks.items() if name.startswith("BLOCK")):
            assert size >= 16  # the least that tensor cores multiply
            assert size & (size - 1) == 0
    for blocks in (decode, few, many):
        assert decode_attention.MIN_SPLIT % blocks["BLOCK_N"] == 0
    assert block_sizes.linear_blocks(dtype)["BLOCK_K"] >= 16
    assert block_sizes.linear_small_blocks(dtype)["BLOCK_K"] >= 16


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("generation", [0, 80, 86, 90])
def test_every_number_of_pairs_has_a_row(
    generation: int, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_sizes, "generation", lambda: generation)
    for pairs in (1, 16 * 8, 16 * 8 + 1, 64 * 8 + 1, 2**20):
        blocks = block_sizes.moe_blocks(dtype, pairs, 8)
        for size in (v for name, v in blocks.items() if name.startswith("BLOCK")):
            assert size >= 16
            assert size & (size - 1) == 0


def test_a_head_dim_beyond_256_is_refused() -> None:
    with pytest.raises(ValueError, match="head_dim 320"):
        block_sizes.extend_blocks(torch.float16, 320)


@pytest.mark.parametrize(
    ("arch", "row"), [(75, 86), (80, 80), (86, 86), (89, 86), (90, 90), (100, 90), (120, 86)]
)
def test_each_gpu_finds_its_generation(
    arch: int, row: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Driver:
        class active:
            @staticmethod
            def get_current_target() -> Any:
                return type("Target", (), {"arch": arch})

    monkeypatch.setattr(block_sizes, "INTERPRETED", False)
    monkeypatch.setattr(block_sizes.triton.runtime, "driver", Driver)
    assert block_sizes.generation() == row

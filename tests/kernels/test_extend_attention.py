from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from minisgl.kernels.dispatch import use_triton
from minisgl.kernels.extend_attention import extend_attention
from tests.kernels.common import (
    DEVICE,
    DTYPES,
    assert_near,
    poisoned_outputs,  # noqa: F401
    randn,
    tensor,
)


class Case(NamedTuple):
    """A step: the fused projection, the pool, and who owns what."""

    qkv: torch.Tensor  # [T, H + 2 KV, D]
    pool: torch.Tensor  # [S, 2, KV, D]
    table: torch.Tensor  # [R, C]
    rows: torch.Tensor  # [B]
    prefix_lens: torch.Tensor  # [B]
    cu_seqlens: torch.Tensor  # [B + 1]
    H: int
    KV: int

    @property
    def q(self) -> torch.Tensor:
        return self.qkv[:, : self.H]

    @property
    def kv(self) -> torch.Tensor:
        return self.qkv[:, self.H :].unflatten(1, (2, self.KV))


def make(
    prefixes: list[int],
    extends: list[int],
    H: int = 2,
    KV: int = 1,
    D: int = 16,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
) -> Case:
    """Random slots in a random order; every slot that no request owns holds NaN."""
    kv_dtype = kv_dtype or dtype
    B, S, C = len(prefixes), sum(prefixes) + 5, max(prefixes) + 3
    slots = torch.randperm(S, generator=torch.Generator().manual_seed(S)).tolist()
    table = torch.full((B + 2, C), 2**30, dtype=torch.int32)  # an absurd slot, never to be read
    pool = torch.full((S, 2, KV, D), torch.nan, dtype=kv_dtype, device=DEVICE)
    rows = list(range(B, 0, -1))  # not the order of the batch
    for row, prefix in zip(rows, prefixes, strict=True):
        own = [slots.pop() for _ in range(prefix)]
        table[row, :prefix] = torch.tensor(own, dtype=torch.int32)
        pool[own] = randn(prefix, 2, KV, D, dtype=kv_dtype, seed=row)
    bounds = [sum(extends[:b]) for b in range(B + 1)]
    qkv = randn(bounds[-1], H + 2 * KV, D, dtype=dtype)
    return Case(
        qkv, pool, table.to(DEVICE), tensor(rows), tensor(prefixes, torch.int32),
        tensor(bounds, torch.int32), H, KV,
    )  # fmt: skip


def run(case: Case, causal: bool = True, window: int = 0) -> torch.Tensor:
    longest = int(case.cu_seqlens.diff().max())
    return extend_attention(
        case.q, case.kv, case.pool, case.table, case.rows, case.prefix_lens, case.cu_seqlens,
        longest, case.q.shape[-1] ** -0.5, causal=causal, window=window,
    )  # fmt: skip


def exact(case: Case, causal: bool = True, window: int = 0) -> torch.Tensor:
    """Query by query, head by head, in float64."""
    out = torch.zeros(case.q.shape, dtype=torch.float64, device=DEVICE)
    scale, G = case.q.shape[-1] ** -0.5, case.H // case.KV
    for b, row in enumerate(case.rows.tolist()):
        prefix = int(case.prefix_lens[b])
        start, end = case.cu_seqlens[b : b + 2].tolist()
        slots = case.table[row, :prefix].long()
        new = case.kv[start:end].to(case.pool.dtype)
        keys = torch.cat([case.pool[slots], new]).double()  # [L, 2, KV, D]
        for i in range(end - start):
            last = prefix + i + 1 if causal else len(keys)
            first = max(0, last - window) if window else 0
            for h in range(case.H):
                k, v = keys[first:last, 0, h // G], keys[first:last, 1, h // G]
                p = torch.softmax(k @ case.q[start + i, h].double() * scale, dim=0)
                out[start + i, h] = p @ v
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("D", [16, 64, 80, 96, 128, 192, 256])
def test_head_dims(D: int, dtype: torch.dtype) -> None:
    case = make([5], [7], D=D, dtype=dtype)
    assert_near(run(case), exact(case))


@pytest.mark.parametrize(("H", "KV"), [(1, 1), (3, 1), (4, 1), (7, 1), (8, 1), (6, 2)])
def test_grouped_heads(H: int, KV: int) -> None:
    case = make([2], [3], H=H, KV=KV, dtype=torch.float16)
    assert_near(run(case), exact(case))


@pytest.mark.parametrize("extend", [1, 15, 16, 17, 33])
@pytest.mark.parametrize("prefix", [0, 1, 16, 31])
def test_lengths_around_the_block_size(prefix: int, extend: int) -> None:
    case = make([prefix], [extend], H=1)
    assert_near(run(case), exact(case))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_mixed_batch(dtype: torch.dtype) -> None:
    """Cold, warm, one new token, and a request that has nothing to do in this step."""
    case = make([0, 18, 3, 4], [17, 2, 1, 0], H=4, KV=2, dtype=dtype)
    assert_near(run(case), exact(case))


@pytest.mark.parametrize("window", [1, 2, 7, 16, 40])
@pytest.mark.parametrize(("prefix", "extend"), [(0, 20), (19, 18), (33, 1)])
def test_sliding_window(prefix: int, extend: int, window: int) -> None:
    case = make([prefix], [extend], H=1)
    assert_near(run(case, window=window), exact(case, window=window))


@pytest.mark.parametrize("extend", [1, 16, 21])
def test_not_causal(extend: int) -> None:
    case = make([0, 3], [extend, 4])
    assert_near(run(case, causal=False), exact(case, causal=False))


@pytest.mark.parametrize("dtype", DTYPES)
def test_images_need_no_pool(dtype: torch.dtype) -> None:
    """As a vision tower calls it: nothing is cached, and the pool is no slot of the new keys."""
    case = make([0, 0], [17, 17], H=2, KV=2, dtype=dtype)
    bare = case._replace(pool=case.kv[:0], table=torch.zeros_like(case.table[:, :1]))
    assert_near(run(bare, causal=False), exact(case, causal=False))


def test_which_slots_hold_the_prefix_does_not_matter() -> None:
    case = make([18, 3], [5, 2], dtype=torch.float16)
    order = torch.randperm(len(case.pool)).to(DEVICE)
    where = torch.empty_like(order)
    where[order] = torch.arange(len(order), device=DEVICE)
    used = case.table < len(case.pool)
    table = torch.where(used, where[case.table.long() * used], case.table).int()
    moved = case._replace(pool=case.pool[order].contiguous(), table=table)
    assert torch.equal(run(moved), run(case))


def test_a_request_does_not_depend_on_its_company() -> None:
    case = make([18, 3, 0], [5, 2, 3], dtype=torch.bfloat16)
    together = run(case)
    for b in range(3):
        start, end = case.cu_seqlens[b : b + 2].tolist()
        alone = case._replace(
            qkv=case.qkv[start:end],
            rows=case.rows[b : b + 1],
            prefix_lens=case.prefix_lens[b : b + 1],
            cu_seqlens=tensor([0, end - start], torch.int32),
        )
        if use_triton(alone.qkv):
            assert torch.equal(run(alone), together[start:end])
        else:  # torch's batched matmul promises no bits
            torch.testing.assert_close(run(alone), together[start:end], rtol=2e-2, atol=5e-3)


@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_pool_may_have_another_dtype(dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    """Computed with in q's dtype, on new keys and values as the pool will hold them."""
    case = make([18, 0], [5, 20], H=4, KV=2, dtype=dtype, kv_dtype=kv_dtype)
    out = run(case)
    assert out.dtype == dtype
    assert_near(out, exact(case))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("split", [1, 15, 16, 20])
def test_where_the_prefix_ends_does_not_matter(split: int, dtype: torch.dtype) -> None:
    """A prompt in one piece, or its tail over the cached head of it, kept in half precision."""
    whole = make([0], [21], dtype=dtype, kv_dtype=torch.float16)
    table = torch.zeros((1, 24), dtype=torch.int32, device=DEVICE)
    table[0, :split] = torch.arange(split, device=DEVICE).flip(0)
    tail = whole._replace(
        qkv=whole.qkv[split:],
        pool=whole.kv[:split].flip(0).half(),
        table=table,
        rows=tensor([0]),
        prefix_lens=tensor([split], torch.int32),
        cu_seqlens=tensor([0, 21 - split], torch.int32),
    )
    assert_near(run(tail), exact(whole)[split:])


def test_grouped_heads_equal_repeated_heads() -> None:
    grouped = make([6], [5], H=6, KV=2, dtype=torch.float16)
    kv = grouped.kv.repeat_interleave(3, dim=2)
    repeated = grouped._replace(
        qkv=torch.cat([grouped.q, kv.flatten(1, 2)], dim=1),
        pool=grouped.pool.repeat_interleave(3, dim=2),
        KV=6,
    )
    if use_triton(kv):
        assert torch.equal(run(repeated), run(grouped))
    assert_near(run(repeated), exact(grouped))


def test_layout_does_not_matter() -> None:
    case = make([9], [6], H=4, KV=2)
    wide = case.qkv.new_full((12, 8, 48), torch.nan)[::2, :, 16:32]
    wide.copy_(case.qkv)
    pools = case.pool.new_full((len(case.pool), 3, 2, 2, 16), torch.nan)
    pools[:, 1] = case.pool
    assert torch.equal(run(case._replace(qkv=wide, pool=pools[:, 1])), run(case))


def test_large_scores_do_not_overflow() -> None:
    case = make([17], [18], H=1)
    case.qkv[:, 0] *= 1e4
    assert_near(run(case), exact(case))


def test_a_slot_past_2_31_elements() -> None:
    """The same values at a low and at a far slot give the same answer; memory is only mapped."""
    low = make([1], [2], H=8, KV=8, D=128, dtype=torch.float16)
    slot = 2**20 + 1
    far = torch.empty((1,), dtype=torch.float16, device=DEVICE).set_(
        torch.UntypedStorage(2 * 2048 * (slot + 1), device=DEVICE), 0, (slot + 1, 2, 8, 128)
    )
    far[slot] = low.pool[low.table[1, 0].long()]
    table = torch.full_like(low.table, slot)
    assert torch.equal(run(low._replace(pool=far, table=table)), run(low))


def test_nothing_to_do() -> None:
    assert run(make([3, 0], [0, 0])).shape == (0, 2, 16)


def test_arguments_that_do_not_fit_are_refused() -> None:
    case = make([2], [3], H=3, KV=2)
    with pytest.raises(ValueError, match="multiple of KV"):
        run(case)
    case = make([2], [3])
    with pytest.raises(ValueError, match="window=-1"):
        run(case, window=-1)
    with pytest.raises(ValueError, match="window=4"):
        run(case, causal=False, window=4)

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from minisgl.kernels.decode_attention import decode_attention, split_size
from minisgl.kernels.dispatch import use_triton
from tests.kernels.common import (
    DEVICE,
    DTYPES,
    assert_near,
    poisoned_outputs,  # noqa: F401
    randn,
    tensor,
)


class Case(NamedTuple):
    q: torch.Tensor  # [B, H, D], a view of the fused projection
    pool: torch.Tensor  # [S, 2, KV, D]
    table: torch.Tensor  # [R, C]
    rows: torch.Tensor  # [B]
    seq_lens: torch.Tensor  # [B]


def make(
    seq_lens: list[int],
    H: int = 2,
    KV: int = 1,
    D: int = 16,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
) -> Case:
    """Random slots in a random order; every slot that no request owns holds NaN."""
    kv_dtype = kv_dtype or dtype
    B, S = len(seq_lens), sum(seq_lens) + 5
    slots = torch.randperm(S, generator=torch.Generator().manual_seed(S)).tolist()
    table = torch.full((B + 2, max(seq_lens) + 3), 2**30, dtype=torch.int32)
    pool = torch.full((S, 2, KV, D), torch.nan, dtype=kv_dtype, device=DEVICE)
    rows = list(range(B, 0, -1))
    for row, length in zip(rows, seq_lens, strict=True):
        own = [slots.pop() for _ in range(length)]
        table[row, :length] = torch.tensor(own, dtype=torch.int32)
        pool[own] = randn(length, 2, KV, D, dtype=kv_dtype, seed=row)
    q = randn(B, H + 2 * KV, D, dtype=dtype)[:, :H]
    return Case(q, pool, table.to(DEVICE), tensor(rows), tensor(seq_lens, torch.int32))


def run(case: Case, window: int = 0, split: int = 16) -> torch.Tensor:
    scale = case.q.shape[-1] ** -0.5
    return decode_attention(
        case.q, case.pool, case.table, case.rows, case.seq_lens, scale, window, split=split
    )


def exact(case: Case, window: int = 0) -> torch.Tensor:
    """Request by request, head by head, in float64."""
    _, H, D = case.q.shape
    G = H // case.pool.shape[2]
    out = torch.zeros(case.q.shape, dtype=torch.float64, device=DEVICE)
    for b, (row, length) in enumerate(zip(case.rows.tolist(), case.seq_lens.tolist(), strict=True)):
        first = max(0, length - window) if window else 0
        keys = case.pool[case.table[row, first:length].long()].double()
        for h in range(H if length else 0):
            p = torch.softmax(keys[:, 0, h // G] @ case.q[b, h].double() * D**-0.5, dim=0)
            out[b, h] = p @ keys[:, 1, h // G]
    return out


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("D", [16, 64, 80, 96, 128, 192, 256])
def test_head_dims(D: int, dtype: torch.dtype) -> None:
    case = make([5, 18], D=D, dtype=dtype)
    assert_near(run(case), exact(case))


@pytest.mark.parametrize(
    ("H", "KV"), [(1, 1), (3, 1), (4, 1), (7, 1), (8, 1), (17, 1), (24, 1), (6, 2)]
)
def test_grouped_heads(H: int, KV: int) -> None:
    """More than 16 query heads per KV head take several programs, the last one part empty."""
    case = make([9], H=H, KV=KV, dtype=torch.float16)
    assert_near(run(case), exact(case))


@pytest.mark.parametrize("length", [1, 15, 16, 17, 33, 64, 65])
def test_lengths_around_the_part_size(length: int) -> None:
    case = make([length], H=1)
    assert_near(run(case), exact(case))


@pytest.mark.parametrize("window", [1, 2, 7, 16, 40])
@pytest.mark.parametrize("length", [1, 17, 50])
def test_sliding_window(length: int, window: int) -> None:
    case = make([length], H=1)
    assert_near(run(case, window), exact(case, window))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_padding_row_gives_0_and_leaves_the_others_alone(dtype: torch.dtype) -> None:
    case = make([7, 0, 33], H=4, KV=2, dtype=dtype)
    out = run(case)
    assert_near(out, exact(case))
    assert not out[1].any()
    kept = tensor([0, 2])
    without = case._replace(q=case.q[kept], rows=case.rows[kept], seq_lens=case.seq_lens[kept])
    if use_triton(out):
        assert torch.equal(run(without), out[kept])
    assert_near(run(without), exact(case)[kept])


def test_only_padding_rows() -> None:
    assert not run(make([0, 0])).any()


def test_a_request_does_not_depend_on_its_company() -> None:
    """Bit for bit: alone, in another order, or beside a request with a far longer context."""
    case = make([3, 50, 17], H=3, dtype=torch.bfloat16)
    together = run(case)
    if not use_triton(together):
        pytest.skip("torch's batched matmul promises no bits")
    for picked in ([0], [1], [2], [2, 0, 1]):
        b = tensor(picked)
        part = case._replace(q=case.q[b], rows=case.rows[b], seq_lens=case.seq_lens[b])
        assert torch.equal(run(part), together[b])


def test_which_slots_hold_the_keys_does_not_matter() -> None:
    case = make([18, 3], dtype=torch.float16)
    order = torch.randperm(len(case.pool)).to(DEVICE)
    where = torch.empty_like(order)
    where[order] = torch.arange(len(order), device=DEVICE)
    used = case.table < len(case.pool)
    table = torch.where(used, where[case.table.long() * used], case.table).int()
    moved = case._replace(pool=case.pool[order].contiguous(), table=table)
    assert torch.equal(run(moved), run(case))


def test_the_size_of_a_part_does_not_matter() -> None:
    case = make([40, 5], H=1)
    for split in (16, 32, 64):
        assert_near(run(case, split=split), exact(case))


def test_split_size_grows_with_the_table_not_with_the_batch() -> None:
    assert split_size(1) == split_size(64 * 256) == 256
    assert split_size(64 * 256 + 1) == 512


def test_grouped_heads_equal_repeated_heads() -> None:
    grouped = make([21], H=6, KV=2, dtype=torch.float16)
    repeated = grouped._replace(pool=grouped.pool.repeat_interleave(3, dim=2))
    assert_near(run(repeated), exact(grouped))
    if use_triton(grouped.q):
        assert torch.equal(run(repeated), run(grouped))


def test_layout_does_not_matter() -> None:
    case = make([9, 4], H=4, KV=2)
    wide = case.q.new_full((4, 8, 48), torch.nan)[::2, :4, 16:32]
    wide.copy_(case.q)
    pools = case.pool.new_full((len(case.pool), 3, 2, 2, 16), torch.nan)
    pools[:, 1] = case.pool
    assert torch.equal(run(case._replace(q=wide, pool=pools[:, 1])), run(case))


@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_pool_may_have_another_dtype(dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    """Computed with in q's dtype: float32 queries lose nothing over a bfloat16 pool."""
    case = make([5, 18], H=4, KV=2, dtype=dtype, kv_dtype=kv_dtype)
    out = run(case)
    assert out.dtype == dtype
    assert_near(out, exact(case))


def test_large_scores_do_not_overflow() -> None:
    case = make([40], H=1)
    case.q.mul_(1e4)
    assert_near(run(case), exact(case))


def test_a_slot_past_2_31_elements() -> None:
    low = make([1], H=8, KV=8, D=128, dtype=torch.float16)
    slot = 2**20 + 1
    far = torch.empty((1,), dtype=torch.float16, device=DEVICE).set_(
        torch.UntypedStorage(2 * 2048 * (slot + 1), device=DEVICE), 0, (slot + 1, 2, 8, 128)
    )
    far[slot] = low.pool[low.table[1, 0].long()]
    table = torch.full_like(low.table, slot)
    assert torch.equal(run(low._replace(pool=far, table=table)), run(low))


def test_no_rows() -> None:
    case = make([3])
    none = case._replace(q=case.q[:0], rows=case.rows[:0], seq_lens=case.seq_lens[:0])
    assert run(none).shape == (0, 2, 16)


def test_heads_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of KV"):
        run(make([3], H=3, KV=2))

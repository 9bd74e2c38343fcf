"""Cascade attention is plain decode attention, computed in another order.

Trees are written as `(members, length)`: each run of positions extends what its members have.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from minisgl.kernels.cascade_attention import Segments, cascade_attention
from minisgl.kernels.decode_attention import decode_attention
from minisgl.kernels.dispatch import INTERPRETED, use_triton
from tests.kernels import test_decode_attention as plain
from tests.kernels.common import (
    DEVICE,
    DTYPES,
    assert_near,
    poisoned_outputs,  # noqa: F401
    randn,
    tensor,
)

Shared = list[tuple[list[int], int]]
ABSURD = 2**30  # a slot that must not be read


class Case(NamedTuple):
    batch: plain.Case
    segments: Segments


def make(
    tails: list[int],
    shared: Shared,
    H: int = 2,
    KV: int = 1,
    D: int = 16,
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype | None = None,
) -> Case:
    """Random slots in a random order; every slot that no request owns holds NaN.

    A request that is not the first member of a segment has absurd slots there in its own row: the
    segment is read by its row, for all.  Tail 0 with no segment: a padding row.
    """
    B, S = len(tails), sum(tails) + sum(n for _, n in shared) + 5
    free = torch.randperm(S, generator=torch.Generator().manual_seed(S)).tolist()
    owned: list[list[int]] = [[] for _ in range(B)]
    depth = [0] * B
    runs = []  # (row, start, stop, members, depth)
    rows = list(range(B, 0, -1))  # not the order of the batch
    for members, length in shared:
        first, *others = members
        start = len(owned[first])
        assert all(len(owned[b]) == start for b in others)
        level = max(depth[b] for b in members)
        owned[first] += [free.pop() for _ in range(length)]
        for b in others:
            owned[b] += [ABSURD] * length
        for b in members:
            depth[b] = level + 1
        runs.append((rows[first], start, start + length, members, level))
    starts = [len(own) for own in owned]
    for own, tail in zip(owned, tails, strict=True):
        own += [free.pop() for _ in range(tail)]
    table = torch.full((B + 2, max(map(len, owned)) + 3), ABSURD, dtype=torch.int32)
    for row, own in zip(rows, owned, strict=True):
        table[row, : len(own)] = torch.tensor(own, dtype=torch.int32)
    used = [slot for own in owned for slot in own if slot != ABSURD]
    pool = torch.full((S, 2, KV, D), torch.nan, dtype=kv_dtype or dtype, device=DEVICE)
    pool[used] = randn(len(used), 2, KV, D, dtype=kv_dtype or dtype, seed=1)
    q = randn(B, H + 2 * KV, D, dtype=dtype)[:, :H]
    bounds = [sum(len(r[3]) for r in runs[:i]) for i in range(len(runs) + 1)]
    segments = Segments(
        rows=tensor([r[0] for r in runs], torch.int32),
        starts=tensor([r[1] for r in runs], torch.int32),
        stops=tensor([r[2] for r in runs], torch.int32),
        members=tensor([b for r in runs for b in r[3]], torch.int32),
        cu_members=tensor(bounds, torch.int32),
        depths=tensor([r[4] for r in runs], torch.int32),
        tails=tensor(starts, torch.int32),
        num_depths=max([0, *depth]),
        max_members=max([0, *(len(r[3]) for r in runs)]),
    )
    seq_lens = tensor([len(own) for own in owned], torch.int32)
    return Case(plain.Case(q, pool, table.to(DEVICE), tensor(rows), seq_lens), segments)


def run(case: Case, split: int = 16) -> torch.Tensor:
    batch = case.batch
    return cascade_attention(
        batch.q, batch.pool, batch.table, batch.rows, batch.seq_lens, case.segments,
        batch.q.shape[-1] ** -0.5, split=split,
    )  # fmt: skip


def alone(case: Case) -> plain.Case:
    """The same batch for plain decode: each request's own row holds its shared slots as well."""
    table, segments = case.batch.table.clone(), case.segments
    bounds = segments.cu_members.tolist()
    for n, row in enumerate(segments.rows.tolist()):
        span = slice(int(segments.starts[n]), int(segments.stops[n]))
        for b in segments.members[bounds[n] : bounds[n + 1]].tolist():
            table[case.batch.rows[b], span] = case.batch.table[row, span]
    return case.batch._replace(table=table)


def check(case: Case) -> None:
    assert_near(run(case), plain.exact(alone(case)))


NESTED: Shared = [([0, 1, 2, 3], 21), ([1, 2], 14), ([3, 0], 3), ([2, 1], 1)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("D", [16, 64, 80, 96, 128, 192, 256])
def test_head_dims(D: int, dtype: torch.dtype) -> None:
    check(make([3, 1], [([0, 1], 18)], D=D, dtype=dtype))


@pytest.mark.parametrize(
    ("H", "KV"), [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (7, 1), (8, 1), (17, 1), (6, 2)]
)
def test_grouped_heads(H: int, KV: int) -> None:
    """Two members with G heads each: one tile of rows, part of one, or more than one."""
    check(make([2, 9], [([1, 0], 5)], H=H, KV=KV, dtype=torch.float16))


@pytest.mark.parametrize("shared", [1, 15, 16, 17, 32, 33])
@pytest.mark.parametrize("tail", [1, 15, 16, 17])
def test_lengths_around_the_part_size(shared: int, tail: int) -> None:
    check(make([tail, 1], [([0, 1], shared)], H=1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_nested_segments(dtype: torch.dtype) -> None:
    check(make([5, 1, 17, 2], NESTED, H=4, KV=2, dtype=dtype))


def test_every_boundary_in_one_part() -> None:
    """Four pieces and a tail of the same part of one request: each has a place of its own."""
    check(make([1, 1], [([0, 1], 2), ([0, 1], 3), ([1, 0], 1), ([0, 1], 2)]))


def test_more_members_than_a_tile_has_rows_and_segments_with_fewer() -> None:
    many = list(range(19))
    check(make([1] * 21, [(many, 5), ([19, 20], 7), (many[4:], 2)], H=2))


def test_a_segment_of_one_request_and_a_request_of_no_segment() -> None:
    check(make([3, 20, 1], [([2], 18)]))


def test_a_missing_depth() -> None:
    case = make([2, 3], [([0, 1], 18), ([0, 1], 4)])
    spread = replace(case.segments, depths=case.segments.depths * 2, num_depths=3)
    check(case._replace(segments=spread))


@pytest.mark.parametrize("num_depths", [0, 2])
def test_without_segments_it_is_plain_decode(num_depths: int) -> None:
    case = make([18, 1, 40], [], H=3)
    case = case._replace(segments=replace(case.segments, num_depths=num_depths))
    check(case)
    if num_depths == 0 and use_triton(case.batch.q):
        assert torch.equal(run(case), plain.run(case.batch))


def test_a_padding_row_gives_0_and_leaves_the_others_alone() -> None:
    dtype = torch.bfloat16
    case = make([7, 0, 18], [([0, 2], 20)], H=4, KV=2, dtype=dtype)
    out = run(case)
    check(case)
    assert not out[1].any()
    without = make([7, 18], [([0, 1], 20)], H=4, KV=2, dtype=dtype)
    kept = tensor([0, 2])
    rows, lens = case.batch.rows[kept], case.batch.seq_lens[kept]
    batch = case.batch._replace(q=case.batch.q[kept], rows=rows, seq_lens=lens)
    without = without._replace(
        batch=batch, segments=replace(without.segments, rows=case.segments.rows)
    )
    if use_triton(out):
        assert torch.equal(run(without), out[kept])
    assert_near(run(without), plain.exact(alone(case))[kept])


def test_which_slots_hold_the_keys_does_not_matter() -> None:
    case = make([18, 3, 1, 1], NESTED, dtype=torch.float16)
    batch = case.batch
    order = torch.randperm(len(batch.pool)).to(DEVICE)
    where = torch.empty_like(order)
    where[order] = torch.arange(len(order), device=DEVICE)
    used = batch.table < len(batch.pool)
    table = torch.where(used, where[batch.table.long() * used], batch.table).int()
    moved = batch._replace(pool=batch.pool[order].contiguous(), table=table)
    assert torch.equal(run(case._replace(batch=moved)), run(case))


def test_layout_does_not_matter() -> None:
    case = make([9, 4, 1, 1], NESTED, H=4, KV=2)
    q, pool = case.batch.q, case.batch.pool
    wide = q.new_full((8, 8, 48), torch.nan)[::2, :4, 16:32]
    wide.copy_(q)
    pools = pool.new_full((len(pool), 3, 2, 2, 16), torch.nan)
    pools[:, 1] = pool
    other = case._replace(batch=case.batch._replace(q=wide, pool=pools[:, 1]))
    assert torch.equal(run(other), run(case))


def test_the_size_of_a_part_does_not_matter() -> None:
    case = make([5, 1, 17, 2], NESTED)
    for split in (16, 32, 64):
        assert_near(run(case, split), plain.exact(alone(case)))


@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_pool_may_have_another_dtype(dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
    check(make([5, 1, 17, 2], NESTED, dtype=dtype, kv_dtype=kv_dtype))


def test_large_scores_do_not_overflow() -> None:
    case = make([9, 18], [([0, 1], 20)], H=1)
    case.batch.q.mul_(1e4)
    check(case)


def test_a_slot_past_2_31_elements() -> None:
    low = make([1], [([0], 1)], H=8, KV=8, D=128, dtype=torch.float16)
    slot = 2**20 + 1
    far = torch.empty((1,), dtype=torch.float16, device=DEVICE).set_(
        torch.UntypedStorage(2 * 2048 * (slot + 2), device=DEVICE), 0, (slot + 2, 2, 8, 128)
    )
    table = low.batch.table.clone()
    for i in range(2):
        far[slot + i] = low.batch.pool[table[1, i].long()]
        table[1, i] = slot + i
    assert torch.equal(run(low._replace(batch=low.batch._replace(pool=far, table=table))), run(low))


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], Shared]:
    """(tails, shared): the requests are split again and again, with or without a segment."""
    B = draw(st.integers(1, 6))
    lengths = st.sampled_from([1, 2, 15, 16, 17, 31, 40])
    shared: Shared = []

    def grow(members: list[int], depth: int) -> None:
        if depth == 4 or not draw(st.booleans()):
            return
        shared.append((members, draw(lengths)))
        cut = draw(st.integers(0, len(members)))
        for group in (members[:cut], members[cut:]):
            if group:
                grow(group, depth + 1)

    grow(draw(st.permutations(range(B))), 0)
    return [draw(lengths) for _ in range(B)], shared


@given(trees(), st.sampled_from([(1, 1), (3, 1), (8, 1), (4, 2)]), st.sampled_from(DTYPES))
@settings(max_examples=12 if INTERPRETED else 100)
def test_any_tree_equals_plain_decode(
    tree: tuple[list[int], Shared], heads: tuple[int, int], dtype: torch.dtype
) -> None:
    case = make(*tree, *heads, dtype=dtype)
    batch = alone(case)
    out = run(case)
    assert_near(out, plain.exact(batch))
    same = decode_attention(*batch, batch.q.shape[-1] ** -0.5, split=16)
    assert_near(out, same.double())


def test_no_requests() -> None:
    case = make([3], [])
    batch = case.batch._replace(
        q=case.batch.q[:0], rows=case.batch.rows[:0], seq_lens=case.batch.seq_lens[:0]
    )
    segments = replace(case.segments, tails=case.segments.tails[:0])
    assert run(Case(batch, segments)).shape == (0, 2, 16)


def test_arguments_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="multiple of KV"):
        run(make([3, 1], [([0, 1], 2)], H=3, KV=2))
    case = make([3, 1], [([0, 1], 2)])
    with pytest.raises(ValueError, match=r"tails \[B\]; got .*\(1,\)"):
        run(case._replace(segments=replace(case.segments, tails=case.segments.tails[:1])))
    with pytest.raises(ValueError, match="window=8"):
        cascade_attention(*case.batch, case.segments, 0.25, window=8)


def test_segments_that_do_not_fit_are_refused() -> None:
    segments = make([3, 1], [([0, 1], 2)]).segments
    for name in ("starts", "stops", "depths", "cu_members"):
        longer = torch.cat([getattr(segments, name)] * 2)
        with pytest.raises(ValueError, match=f"{name} of 1 segments has the shape"):
            replace(segments, **{name: longer})
    for name in ("num_depths", "max_members"):
        with pytest.raises(ValueError, match="of at least 1"):
            replace(segments, **{name: 0})

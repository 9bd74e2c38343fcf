"""Extend attention on a CPU against float64 and the reference: who shares what is found, each key
is read once by each new token, and one plan serves all layers."""

from __future__ import annotations

import random
from itertools import accumulate, combinations
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from minisgl import Engine, SamplingParams
from minisgl.kernels import extend_on_cpu as cpu
from minisgl.kernels.dispatch import use_triton
from minisgl.kernels.extend_attention import extend_attention, extend_attention_ref
from minisgl.kernels.extend_on_cpu import ExtendPlan, plan_extends
from minisgl.models import attention as layers
from tests.kernels.common import assert_near
from tests.kernels.test_extend_attention import Case, exact

DTYPES = st.sampled_from([torch.float32, torch.float16, torch.bfloat16])
HEADS = st.sampled_from([(1, 1), (3, 1), (4, 2)])


def make(
    prefixes: list[list[int]],
    extends: list[int],
    heads: tuple[int, int] = (4, 2),
    dtype: torch.dtype = torch.float32,
    kv_dtype: torch.dtype = torch.float32,
) -> Case:
    """Requests whose cached tokens lie in these slots; every slot that none of them has is NaN."""
    (H, KV), D = heads, 8
    generator = torch.Generator().manual_seed(sum(extends))
    pool = torch.full((max(map(max, filter(None, prefixes)), default=0) + 3, 2, KV, D), torch.nan)
    used = sorted({slot for prefix in prefixes for slot in prefix})
    pool[used] = torch.randn(len(used), 2, KV, D, generator=generator)
    table = torch.full((len(prefixes) + 1, max(map(len, prefixes)) + 2), 2**30, dtype=torch.int32)
    rows = list(range(len(prefixes), 0, -1))  # not the order of the batch
    for row, prefix in zip(rows, prefixes, strict=True):
        table[row, : len(prefix)] = torch.tensor(prefix, dtype=torch.int32)
    qkv = torch.randn(sum(extends), H + 2 * KV, D, generator=generator).to(dtype)
    bounds = [0, *accumulate(extends)]
    lengths = torch.tensor([len(prefix) for prefix in prefixes])
    return Case(
        qkv, pool.to(kv_dtype), table, torch.tensor(rows), lengths, torch.tensor(bounds), H, KV
    )


def plan(case: Case, causal: bool = True, window: int = 0) -> ExtendPlan:
    return plan_extends(case.table, case.rows, case.prefix_lens, case.cu_seqlens, causal, window)


@st.composite
def steps(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    """Prefixes and numbers of new tokens.  Each request begins as an earlier one does, for a while,
    and goes on in slots of its own."""
    fresh = iter(random.Random(0).sample(range(150), 150))
    prefixes: list[list[int]] = [[]]
    for _ in range(draw(st.integers(1, 5))):
        parent = draw(st.sampled_from(prefixes))
        shared = parent[: draw(st.integers(0, 30))]
        own = draw(st.integers(0, 3) | st.integers(0, 12))
        prefixes.append(shared + [next(fresh) for _ in range(own)])
    extends = [draw(st.integers(0, 9)) for _ in prefixes[1:]]
    assume(any(extends))
    return prefixes[1:], extends


@given(
    step=steps(),
    heads=HEADS,
    dtype=DTYPES,
    kv_dtype=DTYPES,
    sight=st.one_of(st.just((False, 0)), st.tuples(st.just(True), st.integers(0, 40))),
    shortest=st.sampled_from([1, 4, 128]),
    many=st.sampled_from([1, 4, 128]),
    block=st.integers(1, 10),
    rounds=st.tuples(st.integers(1, 8), st.integers(1, 4)),
    most=st.tuples(st.sampled_from([0, 100, 2**13]), st.sampled_from([1, 200, 2**17])),
)
def test_equals_float64_and_so_does_the_reference(
    step: tuple[list[list[int]], list[int]],
    heads: tuple[int, int],
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    sight: tuple[bool, int],
    shortest: int,
    many: int,
    block: int,
    rounds: tuple[int, int],
    most: tuple[int, int],
) -> None:
    case = make(*step, heads, dtype, kv_dtype)
    scale = 8**-0.5
    sizes: dict[str, Any] = {"MIN_SHARED": shortest, "MANY": many, "BLOCK": block}
    sizes |= dict(zip(("ROUND", "ROUND_NEW", "APART", "MOST_SCORES"), rounds + most, strict=True))
    with mock.patch.multiple(cpu, **sizes):
        how = plan(case, *sight)
        mine = cpu.extend_on_cpu(case.q, case.kv, case.pool, how, scale)
    reference = extend_attention_ref(
        case.q, case.kv, case.pool, case.table, case.rows, case.prefix_lens, case.cu_seqlens,
        scale, *sight,
    )  # fmt: skip
    want = exact(case, *sight).cpu()
    assert mine.dtype == reference.dtype == dtype
    assert_near(mine, want)
    assert_near(reference, want)


@given(steps(), st.integers(1, 4), st.integers(1, 4))
def test_each_slot_of_a_prefix_is_read_once_and_what_is_shared_by_all(
    step: tuple[list[list[int]], list[int]], shortest: int, round_to: int
) -> None:
    prefixes, extends = step
    case = make(prefixes, extends)
    with mock.patch.multiple(cpu, MIN_SHARED=shortest, ROUND=round_to):
        how = plan(case)
    read: list[list[int]] = [[] for _ in range(sum(extends))]  # by each new token
    for segment in how.segments:
        for token in torch.arange(len(read))[segment.tokens].tolist():
            read[token] += segment.slots.tolist()
    for tail in how.tails:
        for token in range(tail.start, tail.stop):
            read[token] += tail.slots.tolist()
    owners = [prefix for prefix, n in zip(prefixes, extends, strict=True) for _ in range(n)]
    assert read == owners  # in the order of the positions, too
    lengths = [len(segment.slots) for segment in how.segments]
    assert all(n >= shortest and n % round_to == 0 for n in lengths)
    for one, other in combinations(how.tails, 2):  # what is left in common is not worth a segment
        left = len({*one.slots.tolist()} & {*other.slots.tolist()})
        assert left // round_to * round_to < shortest


def test_a_prefix_that_is_shared_by_some_and_a_part_of_it_by_all() -> None:
    common, more = list(range(200)), list(range(300, 430))
    case = make([common + more, common, [500], common + more + [501]], [2, 1, 3, 4])
    with mock.patch.object(cpu, "ROUND", 10):
        how = plan(case)
    told = [(s.slots.tolist(), s.tokens) for s in how.segments]
    assert [slots for slots, _ in told] == [common, more]
    assert [torch.arange(10)[tokens].tolist() for _, tokens in told] == [
        [0, 1, 2, 6, 7, 8, 9], [0, 1, 6, 7, 8, 9],
    ]  # fmt: skip
    assert [tail.slots.tolist() for tail in how.tails] == [[], [], [500], [501]]
    assert [tail.mask is None for tail in how.tails] == [True, True, False, False]


def test_numbers_that_are_not_finite_stay_with_their_request() -> None:
    prefixes = [[3], [0, 1, 2], [], [4, 5]]
    case = make(prefixes, [2, 9, 3, 1])
    whole = cpu.extend_on_cpu(case.q, case.kv, case.pool, plan(case), 0.3)
    assert len(plan(case).batches) == 2
    for b, its in enumerate([range(2), range(2, 11), range(11, 14), range(14, 15)]):
        pool, kv = case.pool.clone(), case.kv.clone()
        pool[prefixes[b]], kv[its] = torch.nan, torch.inf
        other = cpu.extend_on_cpu(case.q, kv, pool, plan(case), 0.3)
        kept = [t for t in range(15) if t not in its]
        assert torch.equal(other[kept], whole[kept]) and not other[list(its)].isfinite().any()


def test_tails_of_like_sizes_are_one_batch_and_all_are_in_one() -> None:
    sizes = [(3, 9), (200, 60), (4, 8), (220, 61), (400, 80), (150, 2), (5, 10), (0, 1000), (0, 9)]
    slots = iter(range(1000))
    case = make([[next(slots) for _ in range(P)] for P, _ in sizes], [n for _, n in sizes])
    how = plan(case)
    assert len(how.tails) == len(sizes)
    told = [
        (len(b.tails), b.prefix, b.width, [(len(t.slots), len(t)) for t in b.tails])
        for b in how.batches
    ]
    assert told == [
        (1, 0, 9, [(0, 9)]),
        (1, 0, 1000, [(0, 1000)]),
        (4, 176, 16, [(4, 8), (3, 9), (5, 10), (150, 2)]),
        (2, 224, 64, [(200, 60), (220, 61)]),
        (1, 400, 80, [(400, 80)]),
    ]
    assert [len(torch.arange(2000)[b.real]) for b in how.batches[2:4]] == [29, 121]
    with mock.patch.object(cpu, "MOST_SCORES", 63):
        assert [len(b.tails) for b in plan(case).batches] == [1] * len(sizes)
    each_alone = plan(case, window=100).batches, plan(case, causal=False).batches
    assert [[len(b.tails) for b in batches] for batches in each_alone] == [[1] * 9] * 2


def test_under_a_window_nothing_is_shared_unless_it_holds_everything() -> None:
    case = make([list(range(200))] * 2, [3, 5])
    assert len(plan(case, window=205).segments) == 1
    how = plan(case, window=204)
    assert how.segments == []
    assert [len(tail.slots) for tail in how.tails] == [200, 200]
    assert [len(tail.slots) for tail in plan(case, window=10).tails] == [9, 9]


@pytest.mark.skipif(use_triton(torch.empty(0)), reason="kernels read the table themselves")
def test_a_plan_stands_for_the_table() -> None:
    case = make([list(range(150))] * 2, [3, 5])
    arguments = (case.rows, case.prefix_lens, case.cu_seqlens)
    whole = extend_attention(case.q, case.kv, case.pool, case.table, *arguments, 5, 0.3)
    planned = extend_attention(
        case.q, case.kv, case.pool, torch.full_like(case.table, -1), *arguments, 5, 0.3,
        plan=plan(case),
    )  # fmt: skip
    assert torch.equal(planned, whole)


@pytest.mark.skipif(use_triton(torch.empty(0)), reason="kernels have no plan")
def test_a_step_is_planned_once_for_all_layers(tiny_model_dir: Path) -> None:
    with (
        Engine(str(tiny_model_dir), device="cpu", dtype="float32") as engine,
        mock.patch.object(layers, "plan_extends", wraps=plan_extends) as planned,
    ):
        assert engine.loop.runner.model.config.num_layers > 1
        for steps_so_far, prompt in enumerate(["a prompt", "another one"], start=1):
            engine.generate([prompt], SamplingParams(max_tokens=1))
            assert planned.call_count == steps_so_far

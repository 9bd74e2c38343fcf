"""Slots are neither lost nor handed out twice."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minisgl.cache.kv_pool import KVPool, PoolFull


def make_pool(num_slots: int) -> KVPool:
    return KVPool(num_slots, 2, 3, 4, torch.float32, "cpu")


def test_the_buffers_have_a_padding_row() -> None:
    pool = make_pool(5)
    assert [layer.shape for layer in pool.layers] == [(6, 2, 3, 4)] * 2
    assert pool.padding_slot == 5
    assert pool.alloc(5) == [0, 1, 2, 3, 4]
    assert all(bool((layer == 0).all()) for layer in pool.layers)


def test_pool_full_says_the_numbers_and_takes_nothing() -> None:
    pool = make_pool(5)
    pool.alloc(3)
    with pytest.raises(PoolFull, match="3 K/V slots needed, but only 2 of 5 are free") as error:
        pool.alloc(3)
    assert (error.value.needed, error.value.available, error.value.total) == (3, 2, 5)
    assert pool.available_size == 2 and pool.alloc(2) == [3, 4]


def test_slots_come_in_ascending_runs_again_after_use() -> None:
    pool = make_pool(10)
    first = pool.alloc(10)
    pool.free(first[6:9])
    pool.free(first[2:5][::-1])
    assert pool.alloc(6) == [2, 3, 4, 6, 7, 8]
    pool.check()


@pytest.mark.parametrize(
    ("slots", "words"),
    [
        ([3], "freed twice"),
        ([0, 3], "freed twice"),
        ([1, 1], "twice"),
        ([5], "no such"),
        ([-1], "no such"),
    ],
)
def test_a_wrong_free_is_refused_as_a_whole(slots: list[int], words: str) -> None:
    pool = make_pool(5)
    pool.alloc(3)
    with pytest.raises(ValueError, match=words):
        pool.free(slots)
    assert pool.available_size == 2
    pool.check()


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="at least 1, got 0"):
        make_pool(0)
    with pytest.raises(ValueError, match="got -1"):
        make_pool(1).alloc(-1)
    pool = make_pool(1)
    assert pool.alloc(0) == []
    pool.free([])
    pool.check()


def test_check_finds_what_does_not_add_up() -> None:
    pool = make_pool(4)
    taken = pool.alloc(2)
    pool._used[taken[0]] = False
    with pytest.raises(AssertionError, match="1 slots are marked as used, but 2 are counted"):
        pool.check()
    pool = make_pool(4)
    pool._used[3], pool._num_used = True, 1
    with pytest.raises(AssertionError, match="in use already"):
        pool.check()
    pool = make_pool(4)
    pool._ready = pool._ready[::-1]
    with pytest.raises(AssertionError, match="not ascending"):
        pool.check()


@given(st.lists(st.integers(0, 9), max_size=60), st.randoms())
def test_slots_are_conserved(sizes: list[int], rng) -> None:  # type: ignore[no-untyped-def]
    pool = make_pool(20)
    held: list[int] = []
    for size in sizes:
        if size <= pool.available_size:
            slots = pool.alloc(size)
            assert slots == sorted(set(slots)) and len(slots) == size
            assert not set(slots) & set(held) and set(slots) <= set(range(20))
            held += slots
        else:
            rng.shuffle(held)
            returned, held = held[:size], held[size:]
            pool.free(returned)
        assert pool.available_size + len(held) == 20
        pool.check()


def test_an_empty_pool_begins_anew_at_the_front() -> None:
    pool = make_pool(8)
    pool.free(pool.alloc(3))
    assert pool.alloc(2) == [0, 1]
    pool.free([0])
    assert pool.alloc(2) == [2, 3]  # it was not empty


def test_bytes_per_token_is_what_the_buffers_take() -> None:
    pool = KVPool(7, num_layers=3, num_kv_heads=2, head_dim=8, dtype=torch.bfloat16, device="cpu")
    taken = sum(layer.numel() * layer.element_size() for layer in pool.layers)
    assert KVPool.bytes_per_token(3, 2, 8, torch.bfloat16) * (7 + 1) == taken

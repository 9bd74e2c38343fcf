"""`Engine.stats()`: every number against what was really done."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisgl import Engine, SamplingParams
from minisgl.engine.stats import Histogram, percentile

PROMPT = "What is the capital of France?"


def greedy(max_tokens: int) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)


def test_counters_say_what_was_done(tiny_model_dir: Path) -> None:
    began = time.perf_counter()
    with Engine(str(tiny_model_dir), kv_tokens=200) as engine:
        fresh = engine.stats()
        assert (fresh.hit_rate, fresh.tokens_per_second) == (0.0, 0.0)  # not a division by zero
        numbers = {v for v in vars(fresh).values() if not isinstance(v, Histogram)}
        assert numbers == {0, 200}
        assert sum(fresh.first_token.counts) == sum(fresh.inter_token.counts) == 0
        done = [engine.generate(PROMPT, greedy(5)) for _ in range(3)]
        s = engine.stats()
    assert (s.requests, s.output_tokens, s.steps) == (3, 15, 15)
    n = done[0].prompt_tokens
    assert s.prompt_tokens == 3 * n
    assert s.cached_tokens == 2 * (n - 1)  # the last prompt token is always computed anew
    assert s.hit_rate == pytest.approx(2 * (n - 1) / (3 * n))
    assert (s.waiting, s.running, s.retractions) == (0, 0, 0)
    assert (s.free_slots, s.tree_slots, s.request_slots) == (200 - n - 4, n + 4, 0)
    assert 0 < s.busy_seconds < time.perf_counter() - began
    assert s.tokens_per_second == pytest.approx(15 / s.busy_seconds)
    assert 0 < s.step_p50 <= s.step_p99 < s.busy_seconds
    assert 0 < s.ttft_p50 <= s.ttft_p99
    assert (sum(s.first_token.counts), sum(s.inter_token.counts)) == (3, 12)
    assert 0 < s.first_token.sum + s.inter_token.sum < time.perf_counter() - began


def test_the_queue_and_the_slots_of_those_who_run(tiny_model_dir: Path) -> None:
    with Engine(str(tiny_model_dir), max_running=2, kv_tokens=300) as engine:
        handles = [engine.submit(PROMPT, greedy(60)) for _ in range(5)]
        next(handles[0])
        seen = []
        while not all(handle.is_done for handle in handles):
            seen.append(engine.stats())
        last = engine.stats()
    for s in seen:
        assert s.free_slots + s.tree_slots + s.request_slots == s.pool_slots == 300
        assert s.running <= 2
    assert max(s.waiting for s in seen) == 3 and max(s.running for s in seen) == 2
    assert max(s.request_slots for s in seen) > 0
    assert all(0 <= s.locked_slots <= s.tree_slots for s in seen)
    assert max(s.locked_slots for s in seen) >= handles[0].result().prompt_tokens - 1
    # A prompt that still waits is no miss.
    assert all(s.cached_tokens <= s.prompt_tokens for s in seen)
    assert all(s.hit_rate == 0 for s in seen if s.prompt_tokens == 0)
    assert (last.waiting, last.running, last.request_slots, last.locked_slots) == (0, 0, 0, 0)


def test_who_left_the_queue_is_no_miss(tiny_model_dir: Path) -> None:
    with Engine(str(tiny_model_dir), max_running=1) as engine:
        first, second = engine.submit(PROMPT, greedy(50)), engine.submit(PROMPT, greedy(50))
        second.abort()
        assert second.result().finish_reason == "abort"
        first.abort()
        n = first.result().prompt_tokens
        s = engine.stats()
    assert (s.requests, s.cached_tokens) == (2, 0)
    assert s.prompt_tokens in (0, n)  # 0: the abort came before the first step


@given(st.lists(st.floats(0, 100), max_size=30), st.integers(1, 100))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(
    values: list[float], p: int
) -> None:
    found = percentile(deque(values), p)
    if not values:
        assert found == 0.0
        return
    enough = [v for v in values if sum(w <= v for w in values) * 100 >= p * len(values)]
    assert found == min(enough)

"""Where requests go, and how uneven that may become."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisgl.router.policy import POLICIES, Policy, cache_aware

loads = st.dictionaries(st.integers(0, 7), st.integers(0, 1000), min_size=1)


@given(loads, st.integers(1, 500), st.data())
def test_cache_aware_keeps_its_bound(
    loads: dict[int, int], length: int, data: st.DataObject
) -> None:
    cached = data.draw(st.dictionaries(st.integers(0, 9), st.integers(0, length)))
    affinity = data.draw(st.sampled_from([0.0, 1.0, 2.0, 10.0]))
    choice = cache_aware(length, cached, loads, affinity)
    assert choice.cached == cached.get(choice.worker, 0)
    assert loads[choice.worker] <= min(loads.values()) + affinity * length
    # and nobody would be done with it sooner, as it counts
    cost = {w: loads[w] + affinity * (length - cached.get(w, 0)) for w in loads}
    assert cost[choice.worker] == min(cost.values())


def test_of_equals_a_prefix_decides_and_then_load() -> None:
    assert cache_aware(10, {1: 5}, {0: 7, 1: 7}).worker == 1
    assert cache_aware(10, {}, {0: 7, 1: 6}).worker == 1
    assert cache_aware(10, {7: 9}, {0: 1, 1: 1}).worker == 0  # worker 7 can't be chosen


@pytest.mark.parametrize("name", POLICIES)
def test_every_policy_chooses_among_those_that_can_be(name: str) -> None:
    policy = Policy(name)
    chosen = Counter(policy.choose(10, {5: 10}, {2: 0, 4: 0}).worker for _ in range(40))
    assert set(chosen) <= {2, 4}
    if name in ("round-robin", "random"):
        assert min(chosen[2], chosen[4]) >= 5


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "best"}, "policy='best': choose one of cache-aware, round-robin"),
        ({"affinity": -1.0}, "affinity=-1.0: give a number of at least 0"),
        ({"affinity": float("nan")}, "affinity=nan: give a number of at least 0"),
    ],
)
def test_what_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Policy(**given)

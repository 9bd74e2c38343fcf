"""The offline optimum (paper, theorem 3.1): each edge of the tree of prompts is computed once.

For a batch known in advance no order can compute fewer tokens than its radix tree has on its edges.
One rule of any engine comes on top: the last token of a prompt is computed for its logits' sake
even where its K/V is cached.  So the prompts here end in a token of their own, whose edge nobody
shares, and a prompt that is asked again costs one more token.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisgl.config import POLICIES
from tests.reference.prefix_model import PrefixModel, distinct_prefixes, make_req

bodies = st.lists(st.lists(st.integers(0, 2), max_size=12), min_size=1, max_size=14)


def batch_of(bodies: list[list[int]]) -> list[list[int]]:
    return [[*body, 100 + i] for i, body in enumerate(bodies)]


@given(
    bodies=bodies,
    policy=st.sampled_from(POLICIES),
    rows=st.integers(1, 16),
    budget=st.integers(1, 40),
    max_tokens=st.integers(0, 4),
)
def test_with_room_for_all_every_edge_is_computed_once(
    bodies: list[list[int]], policy: str, rows: int, budget: int, max_tokens: int
) -> None:
    batch = batch_of(bodies)
    model = PrefixModel(1000, rows=rows, policy=policy, prefill_budget=budget)
    for prompt in batch:
        model.submit(prompt, max_tokens)
    model.run()
    assert model.tally.prefilled == distinct_prefixes(batch)


@given(bodies=bodies, budget=st.integers(1, 40))
def test_lpm_reaches_it_where_the_cache_holds_the_longest_prompt_and_no_more(
    bodies: list[list[int]], budget: int
) -> None:
    batch = batch_of(bodies)
    longest = max(map(len, batch))
    model = PrefixModel(longest, rows=1, policy="lpm", prefill_budget=budget)
    for prompt in batch:
        model.submit(prompt)
    model.run()
    assert model.tally.prefilled == distinct_prefixes(batch)


@given(bodies=bodies, budget=st.integers(1, 40), data=st.data())
def test_so_does_any_order_that_walks_the_tree_depth_first(
    bodies: list[list[int]], budget: int, data: st.DataObject
) -> None:
    """The theorem itself: the order is given, and the scheduler keeps it."""
    letters = {i: place for place, i in enumerate(data.draw(st.permutations(range(3))))}
    batch = sorted(batch_of(bodies), key=lambda prompt: [letters.get(t, t) for t in prompt])
    model = PrefixModel(max(map(len, batch)), rows=1, policy="fcfs", prefill_budget=budget)
    for prompt in batch:
        model.submit(prompt)
    model.run()
    assert model.tally.prefilled == distinct_prefixes(batch)


@given(
    bodies=bodies,
    policy=st.sampled_from(POLICIES),
    prefix_cache=st.sampled_from(["tree", "table", "none"]),
    more=st.integers(0, 40),
    rows=st.integers(1, 16),
    budget=st.integers(1, 40),
)
def test_nobody_computes_less(
    bodies: list[list[int]], policy: str, prefix_cache: str, more: int, rows: int, budget: int
) -> None:
    batch = batch_of(bodies)
    slots = max(map(len, batch)) + more
    settings = {"policy": policy, "prefix_cache": prefix_cache, "prefill_budget": budget}
    model = PrefixModel(slots, rows=rows, **settings)
    for prompt in batch:
        model.submit(prompt)
    model.run()
    assert model.tally.prefilled >= distinct_prefixes(batch)


def test_first_come_first_served_does_not() -> None:
    families = [[0] * 10, [1] * 10]
    batch = [[*families[i % 2], 100 + i] for i in range(6)]
    prefilled = {}
    for policy in ("lpm", "fcfs"):
        model = PrefixModel(11, rows=1, policy=policy)
        for prompt in batch:
            model.submit(prompt)
        model.run()
        prefilled[policy] = model.tally.prefilled
    assert prefilled == {"lpm": 2 * 10 + 6, "fcfs": 6 * 11}


@given(bodies=st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=8), min_size=1))
def test_lpm_walks_a_cold_batch_depth_first_within_one_step(bodies: list[list[int]]) -> None:
    model = PrefixModel(2000, rows=100)
    for prompt in bodies:
        model.submit(prompt)
    order = [e.req.key for e in model.step().extends]
    assert len(order) == len(bodies)
    for prefix in {key[:n] for key in order for n in range(1, len(key) + 1)}:
        places = [i for i, key in enumerate(order) if key[: len(prefix)] == prefix]
        assert places == list(range(places[0], places[-1] + 1)), f"{prefix} is left and revisited"


@pytest.mark.parametrize("copies", [2, 5])
def test_a_prompt_asked_again_costs_its_last_token(copies: int) -> None:
    model = PrefixModel(100)
    for _ in range(copies):
        model.scheduler.submit(make_req([1, 2, 3, 4]))
    model.run()
    assert model.tally.prefilled == 4 + (copies - 1)
    assert model.scheduler.tree.total_size == 4, "and in the end there is one copy"

"""Whose turn it is: the policies, and the bound on how often a request can be overtaken."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisgl.cache.radix_cache import RadixCache
from minisgl.config import POLICIES
from minisgl.engine.policy import ORDERS, dfs_weight, lpm, shuffled
from minisgl.engine.req import Req
from minisgl.engine.waiting import WINDOW, WaitingQueue
from tests.reference.prefix_model import PrefixModel, make_req


def queue_of(count: int, policy: str = "fcfs", max_overtakes: int = 1000) -> WaitingQueue:
    queue = WaitingQueue(policy, max_overtakes)
    for _ in range(count):
        queue.add(make_req([1]))
    return queue


def tree_of(*prompts: str) -> RadixCache:
    tree = RadixCache()
    for prompt in prompts:
        tree.insert(prompt, range(len(prompt)))  # type: ignore[arg-type]  # a letter is a token
    return tree


class TestPolicies:
    def test_the_setting_offers_what_there_is(self) -> None:
        assert set(POLICIES) == set(ORDERS)

    def test_lpm_looks_again_after_each_choice(self) -> None:
        tree = tree_of("ab")
        order = lpm(["xyz", "abc", "abd", "xyy"], tree.peek)  # type: ignore[arg-type]
        taken = []
        for prompt in order:
            taken.append(prompt)
            tree.insert(prompt, range(len(prompt)))  # as admission does
        assert taken == ["abc", "abd", "xyz", "xyy"]

    def test_dfs_weight_goes_where_most_wait_and_stays_there(self) -> None:
        tree = tree_of("aab", "aac", "ad", "b")
        waiting = ["b1", "aab1", "ad1", "b2", "aac1", "b3", "aac2", "x"]
        assert dfs_weight(waiting, tree.peek) == [  # type: ignore[arg-type]
            *("aac1", "aac2", "aab1", "ad1"),  # under a: 4 wait, 3 of them under aa
            *("b1", "b2", "b3"),
            "x",
        ]

    def test_dfs_weight_keeps_the_order_of_arrival_among_equals(self) -> None:
        tree = tree_of("a", "b", "c")
        waiting = ["c1", "a1", "b1", "x", "y"]
        assert dfs_weight(waiting, tree.peek) == waiting  # type: ignore[arg-type]
        assert dfs_weight([], tree.peek) == []

    @given(
        cached=st.lists(st.text("ab", min_size=1, max_size=6), max_size=6),
        waiting=st.lists(st.text("ab", min_size=1, max_size=6), max_size=10),
    )
    def test_dfs_weight_leaves_no_subtree_before_it_is_used_up(
        self, cached: list[str], waiting: list[str]
    ) -> None:
        tree = tree_of(*cached)
        order = dfs_weight(waiting, tree.peek)  # type: ignore[arg-type]
        assert sorted(order) == sorted(waiting)
        ends = [tree.peek(prompt).node for prompt in order]  # type: ignore[arg-type]
        for node in tree.nodes():
            places = [i for i, end in enumerate(ends) if node in end.path()]
            if places:
                assert places == list(range(places[0], places[-1] + 1))

    def test_random_is_random_and_stays_as_it_is(self) -> None:
        reqs = [make_req([1]) for _ in range(30)]
        order = shuffled(reqs, RadixCache().peek)  # type: ignore[arg-type]
        assert sorted(order, key=lambda req: req.id) == reqs != order
        # Each keeps its place when others come or go.
        assert (
            shuffled(reqs[5:], RadixCache().peek)
            == [  # type: ignore[arg-type]
                req for req in order if req in reqs[5:]
            ]
        )

    @pytest.mark.parametrize("policy", POLICIES)
    def test_every_policy_names_everyone_once(self, policy: str) -> None:
        tree = RadixCache()
        tree.insert([0, 1, 2], [0, 1, 2])
        queue = WaitingQueue(policy, 1000)
        for i in range(50):
            queue.add(make_req([i % 3, i % 2, 9]))
        order = list(queue.candidates(lambda req: tree.peek(req.tokens)))
        assert sorted(order, key=lambda req: req.id) == list(queue)


class TestQueue:
    def test_a_place_is_by_arrival_not_by_when_it_was_added(self) -> None:
        first, second, third = (make_req([1]) for _ in range(3))
        queue = WaitingQueue("fcfs", 1000)
        for req in (second, third, first):
            queue.add(req)
        assert list(queue) == [first, second, third]

    def test_only_the_earliest_are_shown_to_the_policy(self) -> None:
        queue = queue_of(WINDOW + 10, "random")
        assert set(queue.candidates(RadixCache().peek)) == set(list(queue)[:WINDOW])  # type: ignore[arg-type]

    def test_who_was_retracted_or_overtaken_goes_first(self) -> None:
        queue = queue_of(5, "random", max_overtakes=3)
        reqs = list(queue)
        reqs[4].retractions = 1
        reqs[2].overtakes = 3
        assert list(queue.candidates(RadixCache().peek))[:2] == [reqs[2], reqs[4]]  # type: ignore[arg-type]

    def test_an_admission_counts_for_all_that_came_earlier(self) -> None:
        queue = queue_of(4, max_overtakes=2)
        reqs = list(queue)
        assert not queue.admitted(reqs[2])
        assert [req.overtakes for req in reqs] == [1, 1, 0, 0]
        assert queue.admitted(reqs[3]), "the first two are overdue now"
        assert [req.overtakes for req in reqs] == [2, 2, 0, 0]
        assert not queue.admitted(reqs[0])

    def test_check_names_who_was_passed_over_too_often(self) -> None:
        queue = queue_of(2, max_overtakes=2)
        next(iter(queue)).overtakes = 3
        with pytest.raises(AssertionError, match="overtaken 3 times, more than 2"):
            queue.check()


def flood(model: PrefixModel, victim: Req, most_steps: int) -> int:
    """Requests with a cached prefix keep coming; the step in which `victim` was admitted."""
    for i in range(most_steps):
        model.submit([*range(10), 60 + i])
        model.step()
        if victim.was_admitted:
            return i
    return most_steps


class TestBound:
    @pytest.mark.parametrize("most", [0, 1, 3, 20])
    def test_nobody_is_overtaken_more_often_than_allowed(self, most: int) -> None:
        model = PrefixModel(60, rows=1, max_overtakes=most)
        model.submit(range(10))
        model.run()
        victim = model.submit([50, 51, 52])
        flood(model, victim, 100)
        assert victim.overtakes == most

    def test_without_a_bound_lpm_starves(self) -> None:
        model = PrefixModel(60, rows=1, max_overtakes=10**9)
        model.submit(range(10))
        model.run()
        victim = model.submit([50, 51, 52])
        assert flood(model, victim, 300) == 300

    def test_the_bound_holds_within_one_step_too(self) -> None:
        model = PrefixModel(400, max_overtakes=3, rows=16)
        model.submit(range(10))
        model.run()
        victim = model.submit([50, 51, 52])
        for i in range(10):
            model.submit([*range(10), 60 + i])
        assert len(model.step().extends) == 3  # and no more, although there is room for all
        assert model.step().extends[0].req is victim

    def test_nobody_is_admitted_past_an_overdue_request_that_does_not_fit(self) -> None:
        model = PrefixModel(40, max_overtakes=1, rows=8)
        model.submit(range(10))
        model.run()
        runner = model.submit([70], 20)
        model.step()
        victim = model.submit([50] * 25)
        model.submit([*range(10), 60])
        model.step()
        assert victim.overtakes == 1
        small = model.submit([*range(10), 61])  # would fit
        while runner not in model.ended:
            model.step()
            assert not small.was_admitted or victim.was_admitted
        model.run()
        assert victim in model.ended

    @given(
        bodies=st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=6), min_size=2),
        policy=st.sampled_from(POLICIES),
        most=st.integers(0, 4),
        rows=st.integers(1, 3),
        gap=st.integers(0, 2),
    )
    def test_no_more_than_those_ahead_and_the_bound_are_served_before_it(
        self, bodies: list[list[int]], policy: str, most: int, rows: int, gap: int
    ) -> None:
        """Who is q-th in the queue when it arrives is admitted after at most q + bound others."""
        model = PrefixModel(40, rows=rows, policy=policy, max_overtakes=most, look_ahead=1)
        ahead: dict[Req, int] = {}
        admitted: list[Req] = []

        def step() -> None:
            before = set(admitted)
            step = model.step()
            admitted.extend(e.req for e in step.extends if e.req not in before)

        for body in bodies:
            req = model.submit(body, 3)
            ahead[req] = len(admitted) + len(model.scheduler.waiting) - 1
            for _ in range(gap):
                step()
        while not model.scheduler.is_idle:
            step()
        for place, req in enumerate(admitted):
            assert place <= ahead[req] + most

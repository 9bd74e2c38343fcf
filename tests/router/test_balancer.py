"""What is counted when questions are sent, answered, refused, and when workers come and go."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minisgl.router.balancer import Balancer, Question, Ticket, in_namespace
from minisgl.router.policy import Policy

prompts = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=6), min_size=1, max_size=3)


def balancer(workers: int, capacity: int | None = None) -> Balancer:
    made = Balancer(Policy())
    for worker in range(workers):
        made.join(worker, capacity)
    return made


def sent(balancer: Balancer, *prompts: list[int], output: int = 0) -> Ticket:
    ticket = balancer.send(Question(prompts, output))
    assert ticket is not None
    return ticket


@given(st.lists(st.tuples(prompts, st.integers(0, 5), st.integers(0, 9)), max_size=10))
def test_a_load_is_what_is_under_way(asked: list[tuple[list[list[int]], int, int]]) -> None:
    b = balancer(3)
    tickets = []
    for each, output, written in asked:
        ticket = sent(b, *each, output=output)
        to_prefill = sum(map(len, each)) - sum(ticket.cached)
        before = ticket.seat.load
        ticket.answers()
        assert ticket.seat.load == before - to_prefill
        ticket.answers()  # nothing is taken off twice, nor more than there is
        ticket.wrote(written)
        assert ticket.seat.load == before - to_prefill - min(written, output)
        tickets.append(ticket)
    for ticket in tickets:
        with ticket:
            pass
    assert all(seat.load == 0 for seat in b.seats.values())
    b.tree.check()


@given(prompts, prompts)
def test_what_is_refused_is_believed_no_more(
    first: list[list[int]], second: list[list[int]]
) -> None:
    b = balancer(1)
    sent(b, *first)
    known = {tuple(p): b.tree.match(p) for p in first + second}
    b.refused(sent(b, *second))
    assert {tuple(p): b.tree.match(p) for p in first + second} == known
    b.tree.check()


def test_a_batch_counts_what_its_prompts_share_once() -> None:
    b = balancer(1)
    ticket = sent(b, [1, 2, 3], [1, 2, 4], [1, 2, 3], output=5)
    assert ticket.cached == [0, 2, 3] and b.seats[0].load == 4 + 5


def test_a_worker_that_comes_back_owes_nothing_of_before() -> None:
    b = balancer(1)
    with sent(b, [1, 2], output=3) as old:
        b.join(0)
        assert b.seats[0].load == 0 and b.tree.match([1, 2]) == {}
        with sent(b, [5]):
            b.refused(old)  # which says nothing of the new one's cache
            assert b.tree.match([5]) == {0: 1}
    assert b.seats[0].load == 0


def test_who_is_to_be_avoided_is_and_nobody_is_left() -> None:
    b = balancer(2)
    first = sent(b, [1, 2, 3])
    second = b.send(first.question, avoid={first.worker})
    assert second is not None and second.worker != first.worker
    assert b.send(first.question, avoid={0, 1}) is None
    b.leave(0)
    b.leave(1)
    assert b.send(first.question) is None


def test_no_more_is_believed_than_fits() -> None:
    b = balancer(1, capacity=20)
    for i in range(30):
        sent(b, [i, 1, 2])
        assert b.tree.sizes[0] <= 20
    assert b.tree.match([29, 1, 2]) == {0: 3} and b.tree.match([0, 1, 2]) == {}


def test_evictions_are_of_a_namespace() -> None:
    b = balancer(1)
    sent(b, in_namespace("a", [1, 2]), [1, 2])
    b.evicted(0, [("a", [1])])
    assert b.tree.match([1, 2]) == {0: 2} and b.tree.match(in_namespace("a", [1, 2])) == {0: 1}
    b.forget(0)
    assert b.tree.match([1, 2]) == {}

"""Which prefixes are shared: against plain lists of tokens and slots."""

from __future__ import annotations

from itertools import count

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minisgl.cache.radix_cache import RadixCache, TreeNode
from minisgl.engine.segments import (
    WORTH_ON_CPU,
    Segment,
    find_segments,
    pack,
    tokens_worth_sharing,
)

Prompts = dict[str, list[int]]

PROMPTS = st.dictionaries(
    st.sampled_from("abcdefgh"), st.lists(st.integers(0, 2), max_size=12), max_size=8
)


class Running:
    """Requests that stand on a tree: where, and in which slots their tokens are."""

    def __init__(self, prompts: Prompts) -> None:
        self.tree = RadixCache()
        fresh = count()
        self.nodes: dict[str, TreeNode] = {}
        self.slots: dict[str, list[int]] = {}
        for owner, tokens in prompts.items():
            self.tree.insert(tokens, [next(fresh) for _ in tokens])
            self.nodes[owner] = self.tree.match_prefix(tokens).node
            self.tree.lock(self.nodes[owner])
        for owner, tokens in prompts.items():
            self.slots[owner] = self.tree.match_prefix(tokens).slots


def shape(segments: list[Segment[str]]) -> list[tuple[int, int, set[str], int]]:
    """Everything but the node."""
    found = [(s.start, s.stop, set(s.members), s.depth) for s in segments]
    return sorted(found, key=lambda s: (s[0], s[1], sorted(s[2])))


def reads(prompts: Prompts, segments: list[Segment[str]]) -> int:
    """Keys that one step reads: each segment once, and each tail."""
    return sum(map(len, segments)) + sum(
        len(tokens) - max((s.stop for s in segments if owner in s.members), default=0)
        for owner, tokens in prompts.items()
    )


@given(PROMPTS, st.integers(1, 20))
def test_segments_are_what_their_members_share(prompts: Prompts, min_saved: int) -> None:
    running = Running(prompts)
    segments = find_segments(running.nodes, min_saved)
    for s in segments:
        begins = prompts[s.members[0]][: s.stop]
        assert set(s.members) == {o for o, t in prompts.items() if t[: s.stop] == begins}
        assert len(s) >= 1
        assert len(s.members) >= 2
        for owner in s.members:
            its, other = running.slots[owner], running.slots[s.members[0]]
            assert its[s.start : s.stop] == other[s.start : s.stop]
    for owner, tokens in prompts.items():
        stop = 0
        for depth, s in enumerate(s for s in segments if owner in s.members):
            assert (s.start, s.depth) == (stop, depth), "one after another, from position 0 on"
            stop = s.stop
        assert stop <= len(tokens)


@given(PROMPTS, st.integers(1, 20))
def test_every_segment_saves_what_it_must(prompts: Prompts, min_saved: int) -> None:
    segments = find_segments(Running(prompts).nodes, min_saved)
    alone = sum(map(len, prompts.values()))
    assert reads(prompts, segments) + min_saved * len(segments) <= alone


@given(PROMPTS)
def test_where_everything_pays_each_key_is_read_once(prompts: Prompts) -> None:
    running = Running(prompts)
    different = {slot for slots in running.slots.values() for slot in slots}
    assert reads(prompts, find_segments(running.nodes, 1)) == len(different)


@given(PROMPTS, st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=5), st.integers(1, 9))
def test_a_split_of_the_tree_changes_nothing(
    prompts: Prompts, others: list[list[int]], min_saved: int
) -> None:
    running = Running(prompts)
    before = find_segments(running.nodes, min_saved)
    for tokens in others:
        running.tree.match_prefix(tokens)
    after = find_segments(running.nodes, min_saved)
    assert shape(after) == shape(before)
    assert {s.key for s in after} == {s.key for s in before}


def nested() -> Running:
    return Running(
        {
            "a": [*range(40), *range(100, 110), 1],
            "b": [*range(40), *range(100, 110), 2],
            "c": [*range(40), *range(200, 230)],
        }
    )


@pytest.mark.parametrize(
    ("min_saved", "expected"),
    [
        (10, [(0, 40, {"a", "b", "c"}, 0), (40, 50, {"a", "b"}, 1)]),
        # [40, 50) would save 10: then a, b and c each read on from 40
        (11, [(0, 40, {"a", "b", "c"}, 0)]),
        (80, [(0, 40, {"a", "b", "c"}, 0)]),
        (81, []),
    ],
)
def test_the_threshold(min_saved: int, expected: list[tuple[int, int, set[str], int]]) -> None:
    assert shape(find_segments(nested().nodes, min_saved)) == expected


def test_what_does_not_pay_alone_is_read_with_what_follows() -> None:
    """Two groups of three begin with the same two tokens."""
    running = Running({f"{g}{i}": [7, 7, *[g] * 30, i] for g in (1, 2) for i in range(3)})
    segments = find_segments(running.nodes, 10)
    assert shape(segments) == [
        (0, 32, {"10", "11", "12"}, 0),
        (0, 32, {"20", "21", "22"}, 0),
    ]


def test_a_present_segment_stays_while_it_saves_half_as_much() -> None:
    running = nested()
    outer = find_segments(running.nodes, 80)[0].node
    del running.nodes["b"]  # now it saves 40, and a and c part where the three did
    assert find_segments(running.nodes, 80) == []
    assert shape(find_segments(running.nodes, 80, {outer})) == [(0, 40, {"a", "c"}, 0)]
    assert find_segments(running.nodes, 81, {outer}) != []
    assert find_segments(running.nodes, 82, {outer}) == []


def test_a_present_segment_stays_although_its_members_now_part_further_on() -> None:
    running = nested()
    outer = find_segments(running.nodes, 80)[0].node
    del running.nodes["c"]
    assert shape(find_segments(running.nodes, 40)) == [(0, 50, {"a", "b"}, 0)]
    assert shape(find_segments(running.nodes, 40, {outer})) == [(0, 40, {"a", "b"}, 0)]
    del running.nodes["b"]
    assert find_segments(running.nodes, 1, {outer}) == []  # nobody to share it with


def test_a_chat_of_thousands_of_turns_is_no_recursion() -> None:
    tree = RadixCache()
    tokens: list[int] = []
    for i in range(3000):
        tokens.append(i)
        tree.insert(tokens, range(len(tokens)))
    nodes = {turn: tree.match_prefix(range(turn)).node for turn in (2000, 2500, 3000)}
    for node in nodes.values():
        tree.lock(node)
    segments = find_segments(nodes, 1)
    assert [(s.start, s.stop, len(s.members)) for s in segments] == [(0, 2000, 3), (2000, 2500, 2)]


def test_packed_for_the_kernel() -> None:
    running = nested()
    packed = pack(find_segments(running.nodes, 10), ["c", "a", "b"], [5, 6, 7], torch.device("cpu"))
    assert packed.starts.tolist() == [0, 40]
    assert packed.stops.tolist() == [40, 50]
    assert packed.depths.tolist() == [0, 1]
    assert packed.cu_members.tolist() == [0, 3, 5]
    assert sorted(packed.members[:3].tolist()) == [0, 1, 2]
    assert sorted(packed.members[3:].tolist()) == [1, 2]
    assert packed.rows.tolist() == [(5, 6, 7)[packed.members[i]] for i in (0, 3)]
    assert packed.tails.tolist() == [40, 50, 50]
    assert (packed.num_depths, packed.max_members) == (2, 3)


def test_what_is_worth_sharing_is_counted_in_bytes() -> None:
    layer = torch.zeros(4, 2, 3, 64, dtype=torch.float32)  # 1,536 bytes a token
    assert tokens_worth_sharing(layer) == WORTH_ON_CPU // 1536
    assert tokens_worth_sharing(layer.to(torch.bfloat16)) == WORTH_ON_CPU // 768

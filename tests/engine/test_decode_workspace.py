"""The decode workspace against attention over each request's own keys, one request at a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minisgl.cache.tree_node import TreeNode
from minisgl.engine.decode_workspace import FIRST_CAPACITY, DecodeWorkspace
from minisgl.engine.segments import Segment
from minisgl.engine.slab import Slab
from minisgl.engine.slab_part import MOST_QUERIES, parts_of
from minisgl.kernels.slab_attention import ROUND

LAYERS, KV, G, D = 2, 3, 2, 8
SLOTS = 4096


class Model:
    """The obvious model: each owner's keys and values as a growing tensor."""

    def __init__(
        self,
        budget: int = 8192,
        kv_dtype: torch.dtype = torch.float32,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.g = torch.Generator().manual_seed(0)
        self.pool = [self.random(SLOTS, 2, KV, D).to(kv_dtype) for _ in range(LAYERS)]
        self.dtype, self.near = dtype, 1e-5 if dtype == torch.float32 else 3e-2
        self.workspace: DecodeWorkspace[str] = DecodeWorkspace(self.pool, budget, dtype, G)
        self.slots: dict[str, list[int]] = {}  # of every running owner, in the pool
        self.free = iter(reversed(range(SLOTS)))

    def random(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.g)

    def admit(self, owner: str, slots: list[int]) -> None:
        self.slots[owner] = list(slots)

    def leave(self, owner: str) -> None:
        self.workspace.leave(owner)
        del self.slots[owner]

    def arrange(self, segments: list[Segment[str]] | None = None) -> None:
        slots = {owner: torch.tensor(s, dtype=torch.int32) for owner, s in self.slots.items()}
        self.workspace.arrange(slots, segments or [])

    def step(
        self, extends: Mapping[str, tuple[int, int]] | None = None, idle: Collection[str] = ()
    ) -> list[str]:
        """One token of everybody but `extends`, owner -> (tokens taken back, tokens added), and
        `idle`.  Those in the workspace are compared, the others' tokens are stored."""
        extends = extends or {}
        for owner, (back, _) in extends.items():
            self.slots[owner] = self.slots[owner][: len(self.slots[owner]) - back]
        counts = {o: extends[o][1] if o in extends else 1 for o in self.slots if o not in idle}
        starts = {owner: len(self.slots[owner]) for owner in counts}
        for owner in extends:
            self.workspace.cut(owner, starts[owner])
        order = self.workspace.plan(
            counts.keys() - extends.keys(), {owner: counts[owner] for owner in extends}
        )
        assert set(order) <= set(counts)
        for owner, n in counts.items():
            self.slots[owner] += [next(self.free) for _ in range(n)]
        for layer in range(LAYERS):
            new = {o: self.random(n, 2, KV, D).to(self.dtype) for o, n in counts.items()}
            for owner, its in new.items():
                self.pool[layer][self.slots[owner][starts[owner] :]] = its.to(
                    self.pool[layer].dtype
                )
            if not order:
                continue  # then nothing attends
            q = {o: self.random(counts[o], KV * G, D).to(self.dtype) for o in order}
            out = self.workspace.attend(
                layer,
                torch.cat([q[owner] for owner in order]),
                torch.cat([new[owner] for owner in order]),
                D**-0.5,
            )
            answers = out.split([counts[owner] for owner in order])
            for owner, answer in zip(order, answers, strict=True):
                kv = self.pool[layer][self.slots[owner]].float()  # [n, 2, KV, D]
                k, v = kv.repeat_interleave(G, dim=2).unbind(1)  # [n, H, D]
                scores = torch.einsum("thd,nhd->thn", q[owner].float(), k) * D**-0.5
                position = torch.arange(starts[owner], len(k))
                hidden = torch.arange(len(k)) > position[:, None]  # [t, n]
                p = torch.softmax(scores.masked_fill(hidden[:, None], -torch.inf), dim=-1)
                expected = torch.einsum("thn,nhd->thd", p, v)
                near = self.near
                torch.testing.assert_close(answer.float(), expected, atol=near, rtol=near)
        self.workspace.check()
        return order


def test_rows_of_many_lengths_come_and_go() -> None:
    m = Model()
    m.admit("a", list(range(10)))
    m.arrange()
    assert m.step() == ["a"]
    m.admit("b", list(range(100, 400)))  # another slab
    m.admit("c", [7, 3, 900])
    m.arrange()
    assert sorted(m.step()) == ["a", "b", "c"]
    m.leave("a")  # its row is filled by another
    m.step()
    m.leave("b")
    m.step()
    m.admit("a", list(range(30)))
    m.arrange()
    m.step()
    for owner in ("a", "c"):
        m.leave(owner)
    assert m.workspace.used == 0


def test_a_row_moves_up_when_its_slab_is_full() -> None:
    m = Model()
    m.admit("short", [1, 2])
    m.admit("long", list(range(FIRST_CAPACITY - 1)))
    m.arrange()
    for _ in range(3):
        m.step()
    assert m.workspace.place["long"].capacity == 2 * FIRST_CAPACITY
    assert m.workspace.place["short"].capacity == FIRST_CAPACITY


def test_over_the_budget_a_request_is_refused_or_let_go_and_others_go_on() -> None:
    m = Model(budget=FIRST_CAPACITY)
    m.admit("a", list(range(FIRST_CAPACITY - 2)))
    m.admit("b", [1])
    m.arrange()
    assert m.step() == ["a"]
    assert m.step() == ["a"]
    assert m.step() == []  # "a" outgrew its slab and found no larger room
    m.arrange()
    assert m.step() == ["b"]


def test_leaving_twice_is_harmless() -> None:
    m = Model()
    m.admit("a", [1])
    m.arrange()
    m.workspace.leave("a")
    m.workspace.leave("a")
    assert m.workspace.used == 0


def test_keys_of_a_narrower_pool_are_rounded_as_the_pool_rounds_them() -> None:
    m = Model(kv_dtype=torch.float16)
    m.admit("a", list(range(300)))
    m.admit("b", [*range(260), 500])
    m.arrange([Segment(TreeNode(), 0, 260, ("a", "b"), 0)])
    for _ in range(3):
        assert len(m.step()) == 2


def test_in_bfloat16_alone_together_and_while_others_jump() -> None:
    m = Model(kv_dtype=torch.bfloat16, dtype=torch.bfloat16)
    m.admit("a", list(range(ROUND - 3)))
    m.arrange()
    for _ in range(5):  # past the length that is rounded up to
        assert m.step() == ["a"]
    m.admit("b", list(range(100, 140)))
    m.admit("c", list(range(200, 203)))
    m.arrange()
    for _ in range(3):
        assert len(m.step({"b": (1, 9)})) == 3
    assert len(m.step()) == 3


class TestJumps:
    """Requests that append several tokens, or take some back first."""

    def model(self, budget: int = 8192) -> Model:
        m = Model(budget)
        for i, owner in enumerate("abc"):
            m.admit(owner, list(range(100 * i, 100 * i + 10 + 7 * i)))
        m.arrange()
        return m

    @pytest.mark.parametrize("jumping", ["a", "b", "c", "ab", "ac", "abc"])
    def test_beside_others_that_decode(self, jumping: str) -> None:
        m = self.model()
        rows = {owner: m.workspace.place[owner] for owner in "abc"}
        m.step()
        m.step(dict.fromkeys(jumping, (0, 4)))
        m.step(dict.fromkeys(jumping, (3, 5)))
        m.step(dict.fromkeys(jumping, (2, 1)))
        m.step()
        assert {owner: m.workspace.place[owner] for owner in "abc"} == rows  # nobody moved

    def test_who_does_nothing_in_a_step_keeps_its_row(self) -> None:
        m = self.model()
        for idle in ("a", "bc", "abc", "b", ""):
            assert set(m.step(idle=idle)) == set("abc") - set(idle)
            m.step({"c": (0, 3)}, idle="a")
        assert sorted(m.step()) == ["a", "b", "c"]

    def test_into_a_larger_slab(self) -> None:
        m = self.model()
        m.step({"b": (1, 3 * FIRST_CAPACITY)})
        assert m.workspace.place["b"].capacity == 4 * FIRST_CAPACITY
        assert len(m.step()) == 3

    def test_without_room_for_that_it_reads_the_pool(self) -> None:
        m = self.model(budget=3 * FIRST_CAPACITY)
        assert sorted(m.step({"b": (0, FIRST_CAPACITY)})) == ["a", "c"]
        assert sorted(m.step()) == ["a", "c"]

    def test_a_row_that_begins_later_or_ends_earlier_goes(self) -> None:
        m = self.model()
        m.admit("d", [*range(10), 900])  # begins like a
        m.arrange([Segment(TreeNode(), 0, 10, ("a", "d"), 0)])
        assert "d" not in m.step({"d": (3, 5)})  # into the segment
        assert "d" not in m.workspace
        m.slots["b"] += [700, 701]  # two tokens that somebody else computed
        assert "b" not in m.step({"b": (0, 5)})
        m.arrange()
        assert len(m.step()) == 4


class TestSegments:
    """Requests a, b, c begin with slots [0, 300); a and b go on with [300, 340)."""

    def model(self, budget: int = 8192) -> Model:
        m = Model(budget)
        m.admit("a", [*range(340), 1000])
        m.admit("b", [*range(340), *range(1100, 1400)])
        m.admit("c", [*range(300), *range(1500, 1510)])
        self.outer, self.inner = TreeNode(), TreeNode()
        return m

    def nested(self) -> list[Segment[str]]:
        return [
            Segment(self.outer, 0, 300, ("a", "b", "c"), 0),
            Segment(self.inner, 300, 340, ("a", "b"), 1),
        ]

    def test_nested_segments_are_held_once(self) -> None:
        m = self.model()
        m.arrange(self.nested())
        assert m.workspace.used == 340 + 2 * FIRST_CAPACITY + 2 * FIRST_CAPACITY
        for _ in range(3):
            assert len(m.step()) == 3
        assert m.workspace.first == {"a": 340, "b": 340, "c": 300}

    def test_the_grouping_changes_while_they_run(self) -> None:
        m = self.model()
        for segments in (
            [],
            self.nested(),
            [Segment(self.inner, 0, 340, ("a", "b"), 0)],
            [Segment(self.outer, 0, 300, ("a", "b", "c"), 0)],
            self.nested(),
            [],
        ):
            m.arrange(segments)
            assert len(m.step()) == 3
            assert len(m.step()) == 3

    def test_what_stays_is_not_copied_again(self) -> None:
        m = self.model()
        m.arrange(self.nested())
        held = {key: layers[0].data_ptr() for key, layers in m.workspace.shared.items()}
        m.step()
        row = m.workspace.place["c"]
        m.admit("d", [*range(300), 7])
        outer, inner = self.nested()
        m.arrange([Segment(self.outer, 0, 300, (*outer.members, "d"), 0), inner])
        assert {k: v[0].data_ptr() for k, v in m.workspace.shared.items()} == held
        assert m.workspace.place["c"] is row
        assert row.lengths[row.owners.index("c")] == 11
        assert len(m.step()) == 4

    def test_members_leave_one_after_another(self) -> None:
        m = self.model()
        m.arrange(self.nested())
        for owner in ("b", "c", "a"):
            m.step()
            m.leave(owner)
        assert m.step() == []
        m.arrange()
        assert (m.workspace.used, m.workspace.shared) == (0, {})

    def test_a_tail_moves_to_a_larger_slab_and_the_segments_stay(self) -> None:
        m = self.model()
        m.arrange(self.nested())
        before = m.workspace.place["a"]
        for _ in range(FIRST_CAPACITY):
            m.step()
        assert m.workspace.place["a"].capacity == 2 * before.capacity
        assert m.workspace.first["a"] == 340

    def test_a_segment_without_room_leaves_its_members_to_the_pool(self) -> None:
        m = self.model(budget=300 + FIRST_CAPACITY + 20)
        outer, inner = self.nested()
        a, b = m.slots.pop("a"), m.slots.pop("b")
        m.arrange([Segment(self.outer, 0, 300, ("c",), 0)])
        m.slots |= {"a": a, "b": b}
        m.arrange([outer, inner])
        assert m.step() == ["c"]  # no room for 40 tokens more
        assert [s.node for s in m.workspace.segments] == [self.outer]
        m.leave("c")
        m.arrange([Segment(self.inner, 0, 340, ("a", "b"), 0)])
        assert m.step() == []  # there is room for it, but for no row beside it


@st.composite
def groupings(draw: st.DrawFn) -> list[tuple[set[str], list[Segment[str]], int]]:
    """Who runs, with which segments, for how many steps; and that several times.

    Owners a..e share slots [0, 60); a, b, c share [60, 90); a and b share [90, 100).
    """
    runs = [(60, "abcde"), (90, "abc"), (100, "ab")]
    nodes = [TreeNode() for _ in runs]
    result = []
    for _ in range(draw(st.integers(1, 4))):
        start = dict.fromkeys("abcde", 0)
        depth = dict.fromkeys("abcde", 0)
        segments = []
        running = draw(st.sets(st.sampled_from("abcde"), min_size=1))
        for (stop, among), node in zip(runs, nodes, strict=True):
            members = tuple(o for o in among if o in running)
            if draw(st.booleans()) and members:
                first = members[0]
                segments.append(Segment(node, start[first], stop, members, depth[first]))
                for o in members:
                    start[o], depth[o] = stop, depth[o] + 1
        result.append((running, segments, draw(st.integers(0, 3))))
    return result


@given(groupings(), st.integers(300, 3000), st.data())
def test_any_grouping_any_budget(
    groupings: list[tuple[set[str], list[Segment[str]], int]], budget: int, data: st.DataObject
) -> None:
    m = Model(budget)
    shared = {"a": 100, "b": 100, "c": 90, "d": 60, "e": 60}
    for running, segments, steps in groupings:
        for owner in set(m.slots) - running:
            m.leave(owner)
        for i, owner in enumerate("abcde"):
            if owner in running and owner not in m.slots:
                own = range(200 + 100 * i, 205 + 101 * i)
                m.admit(owner, [*range(shared[owner]), *own])
        m.arrange(segments)
        for _ in range(steps):
            jumping = data.draw(st.sets(st.sampled_from(sorted(running))))
            idle = data.draw(st.sets(st.sampled_from(sorted(running)))) - jumping
            extends = {}
            for owner in sorted(jumping):
                back = data.draw(st.integers(0, len(m.slots[owner]) - shared[owner]))
                extends[owner] = back, data.draw(st.integers(1, 9))
            m.step(extends, idle)


def parts(counts: dict[int, int]) -> list[list[int]]:
    """The rows of each part, of a slab whose rows hold 10 tokens each."""
    slab = Slab[str](64, [torch.zeros(0, 2, KV, D)], torch.float32)
    for row in range(max(counts) + 1):
        slab.add(str(row), 10)
    found = list(parts_of(slab, counts, G))
    for part, rows in found:
        each = [counts[row] for row in rows]
        assert (part.first, part.last, part.width) == (rows[0], rows[-1] + 1, max(each))
        assert part.count == sum(each) == len(part.target) // (2 * KV)
    return [rows for _, rows in found]


def test_rows_that_go_on_by_like_numbers_of_tokens_are_one_part() -> None:
    assert parts({0: 1, 1: 1, 5: 1, 9: 1}) == [[0, 1, 5, 9]]  # waiting rows are multiplied as well
    assert parts({0: 1, 1: 3, 2: 4, 3: 1}) == [[0, 1, 2, 3]]
    assert parts(dict.fromkeys(range(8), 1) | {3: 20}) == [[3], [0, 1, 2, 4, 5, 6, 7]]
    assert parts(dict.fromkeys(range(16), 1) | {3: 20, 4: 15}) == [
        [3, 4],
        [0, 1, 2, *range(5, 16)],
    ]
    assert parts({0: 20, 15: 20, 7: 1}) == [[0], [15], [7]]


@given(st.dictionaries(st.integers(0, 15), st.integers(1, 40), min_size=1))
def test_each_row_is_in_one_part_and_few_queries_are_nobodys(counts: dict[int, int]) -> None:
    found = parts(counts)
    assert sorted(row for rows in found for row in rows) == sorted(counts)
    for rows in found:
        width = max(counts[row] for row in rows)
        queries = (rows[-1] + 1 - rows[0]) * width
        assert width == 1 or queries <= MOST_QUERIES * sum(counts[row] for row in rows)

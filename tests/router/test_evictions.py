"""What workers tell of what they forgot: a router that hears all of it believes just what is so."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minisgl.cache.radix_cache import RadixCache
from minisgl.engine.evictions import Evictions, News, Report
from minisgl.router.meta_tree import MetaTree

tokens = st.lists(st.integers(0, 2), min_size=1, max_size=8)
steps = st.one_of(
    st.tuples(st.just("insert"), tokens),
    st.tuples(st.just("evict"), st.integers(1, 6)),
    st.tuples(st.just("drop"), tokens),
    st.tuples(st.just("reset"), st.none()),
)


@given(st.lists(steps, max_size=30), st.lists(tokens, max_size=5))
def test_a_meta_tree_that_hears_everything_is_right(
    steps: list[tuple[str, object]], prompts: list[list[int]]
) -> None:
    cache, tree, evictions = RadixCache(), MetaTree(), Evictions()
    cache.on_evict = evictions.add
    read = evictions.since(0).last
    for step in steps:
        match step:
            case "insert", list(ids):
                cache.insert(ids, range(len(ids)))
                tree.add(ids, worker=0)
                prompts.append(ids)
            case "evict", int(count):
                cache.evict(count)
            case "drop", list(ids):
                cache.drop(cache.match_prefix(ids).node)
            case _:
                cache.reset()
        news = evictions.since(read)
        assert not news.missing
        read = news.last
        for report in news.reports:
            tree.evicted(report.tokens, worker=0, keep=len(report.tokens) - 1)
        tree.check()
        for ids in prompts:
            assert tree.match(ids).get(0, 0) == cache.peek(ids).num_tokens
        assert tree.sizes.get(0, 0) == cache.total_size


def test_reports_are_numbered_and_bounded() -> None:
    evictions = Evictions(most_tokens=5, start=10)
    assert evictions.since(10) == News(10, missing=False, reports=[])
    evictions.add("a", [1, 2, 3], keep=1)
    evictions.add(None, [4, 5, 6], keep=0)
    first, second = Report("a", (1, 2)), Report(None, (4,))
    assert evictions.since(10) == News(12, missing=False, reports=[first, second])
    assert evictions.since(11) == News(12, missing=False, reports=[second])
    assert evictions.since(12) == News(12, missing=False, reports=[])
    evictions.add(None, [7, 8, 9], keep=2)  # 2 + 1 + 3 tokens: the first report has to go
    third = Report(None, (7, 8, 9))
    assert evictions.since(11) == News(13, missing=False, reports=[second, third])
    assert evictions.since(10) == News(13, missing=True, reports=[second, third])
    assert evictions.since(14).missing, "a number of some other engine's"
    assert evictions.since(0).missing


def test_a_namespace_is_reported() -> None:
    cache, told = RadixCache(), []
    cache.on_evict = lambda *report: told.append(report)
    cache.insert([1, 2], [0, 1], "mine")
    cache.insert([1, 2], [2, 3])
    cache.match_prefix([1], "mine")  # which cuts it, and uses the upper half
    cache.evict(1)
    assert told == [("mine", (1, 2), 1)]
    cache.reset()
    assert told[1:] == [("mine", (1,), 0), (None, (1, 2), 0)]
    cache.insert([5], [0])
    cache.evict(1)
    assert told[3:] == [(None, (5,), 0)], "it is still told after a reset"

"""The table cache against the obvious model: a dict from every entry to its slots.

An entry is written as its runs: what the request that left it was computed on, and what it added.
"""

from __future__ import annotations

from itertools import chain

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from minisgl.cache.table_cache import TableCache
from minisgl.cache.tree_node import TreeNode

Runs = tuple[tuple[int, ...], ...]
Key = tuple[str | None, Runs]

sequences = st.lists(st.sampled_from("ab").map(ord), max_size=6).map(tuple)
namespaces = st.sampled_from([None, None, None, "adapter"])


def runs_of(node: TreeNode) -> Runs:
    return tuple(step.key for step in node.path())


class TableAgainstDict(RuleBasedStateMachine):
    """One state kept twice: in `cache`, and in `slots`, `used_at` and `locks`."""

    locked = Bundle("locked")

    @initialize()
    def start(self) -> None:
        self.cache = TableCache()
        self.slots: dict[Key, list[int]] = {}
        self.used_at: dict[Key, int] = {}
        self.locks: list[Key] = []
        self.now = 0
        self.next_slot = 0

    def use(self, namespace: str | None, runs: Runs) -> None:
        """An entry, and all that it stands on."""
        self.now += 1
        for n in range(1, len(runs) + 1):
            self.used_at[namespace, runs[:n]] = self.now

    def longest(self, tokens: tuple[int, ...], namespace: str | None, below: Runs = ()) -> int:
        """Tokens of the longest entry on `below` that `tokens` begin with."""
        found = [0]
        for of, runs in self.slots:
            if of == namespace and runs[: len(below)] == below:
                whole = tuple(chain.from_iterable(runs[len(below) :]))
                if tokens[: len(whole)] == whole:
                    found.append(len(whole))
        return max(found)

    def protected(self) -> set[Key]:
        return {(ns, runs[:n]) for ns, runs in self.locks for n in range(1, len(runs) + 1)}

    def new_slots(self, tokens: tuple[int, ...]) -> list[int]:
        self.next_slot += len(tokens)
        return list(range(self.next_slot - len(tokens), self.next_slot))

    def insert_below(
        self, tokens: tuple[int, ...], namespace: str | None, node: TreeNode | None
    ) -> None:
        below = runs_of(node) if node else ()
        slots, known = self.new_slots(tokens), self.longest(tokens, namespace, below)
        runs = runs_of(self.cache.match_prefix(tokens, namespace, below=node).node)
        self.use(namespace, runs)
        assert self.cache.insert(tokens, slots, namespace, below=node) == known
        if known < len(tokens):
            runs = (*runs, tokens[known:])
            self.slots[namespace, runs] = slots[known:]
        self.use(namespace, runs)

    @rule(tokens=sequences, namespace=namespaces)
    def insert(self, tokens: tuple[int, ...], namespace: str | None) -> None:
        self.insert_below(tokens, namespace, None)

    @rule(tokens=sequences, namespace=namespaces)
    def look(self, tokens: tuple[int, ...], namespace: str | None) -> None:
        found = self.cache.peek(tokens, namespace)
        assert found.num_tokens == self.longest(tokens, namespace)
        longer = self.cache.peek((*tokens, ord("a")), namespace, found)
        assert longer.num_tokens == self.longest((*tokens, ord("a")), namespace)

    @rule(target=locked, tokens=sequences, namespace=namespaces)
    def lock(self, tokens: tuple[int, ...], namespace: str | None) -> tuple[TreeNode, Key]:
        match = self.cache.match_prefix(tokens, namespace)
        runs = runs_of(match.node)
        assert len(match.slots) == self.longest(tokens, namespace)
        assert tuple(chain.from_iterable(runs)) == tokens[: len(match.slots)]
        held = [self.slots[namespace, runs[:n]] for n in range(1, len(runs) + 1)]
        assert match.slots == list(chain.from_iterable(held))
        self.use(namespace, runs)
        self.cache.lock(match.node)
        self.locks.append((namespace, runs))
        return match.node, (namespace, runs)

    @rule(held=consumes(locked), tokens=sequences)
    def leave(self, held: tuple[TreeNode, Key], tokens: tuple[int, ...]) -> None:
        """As a request does that ends: what it computed becomes an entry, and its lock ends."""
        node, (namespace, runs) = held
        self.insert_below(tokens, namespace, node)
        self.cache.unlock(node)
        self.locks.remove((namespace, runs))

    @rule(num_tokens=st.integers(0, 12))
    def evict(self, num_tokens: int) -> None:
        standing_on = {(ns, runs[:n]) for ns, runs in self.slots for n in range(1, len(runs))}
        oldest = [k for k in self.slots if k not in standing_on and k not in self.protected()]
        evictable = sum(
            len(slots) for key, slots in self.slots.items() if key not in self.protected()
        )
        freed = set(self.cache.evict(num_tokens))
        gone = [key for key, slots in self.slots.items() if freed & set(slots)]
        assert freed == set(chain.from_iterable(self.slots.pop(key) for key in gone))
        assert len(freed) >= min(num_tokens, evictable), "as much as was asked for, if it is there"
        assert not set(gone) & self.protected(), "what is locked stays"
        if gone:
            assert min(oldest, key=self.used_at.__getitem__) in gone, "the oldest first"
        for ns, runs in self.slots:
            assert all((ns, runs[:n]) in self.slots for n in range(1, len(runs)))

    @invariant()
    def they_agree(self) -> None:
        self.cache.check()
        found = {(node.namespace, runs_of(node)): node for node in self.cache.nodes()}
        assert {key: node.slots for key, node in found.items()} == self.slots
        assert {key: node.last_used for key, node in found.items()} == {
            key: self.used_at[key] for key in self.slots
        }
        assert self.cache.protected_size == sum(len(self.slots[k]) for k in self.protected())


TestTableAgainstDict = TableAgainstDict.TestCase


def test_a_request_is_in_the_table_when_it_has_ended_and_not_before() -> None:
    cache = TableCache()
    assert cache.append(cache.root, [1, 2], [0, 1]) is None
    assert cache.match_prefix([1, 2, 3]).slots == []
    with pytest.raises(ValueError, match="one slot each"):
        cache.append(cache.root, [1, 2], [0])


def test_entries_that_begin_alike_share_nothing_but_a_whole_entry() -> None:
    cache = TableCache()
    cache.insert([1, 2], [0, 1])
    cache.insert([1, 2, 3, 4], [90, 91, 2, 3])
    cache.insert([1, 2, 3, 5], [92, 93, 4, 5])
    assert cache.total_size == 6
    assert cache.match_prefix([1, 2, 3, 9]).slots == [0, 1]
    assert cache.match_prefix([1, 2, 3, 5, 9]).slots == [0, 1, 4, 5]

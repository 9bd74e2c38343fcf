"""The radix tree against the obvious model: a dict from every cached prefix to a slot."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from minisgl.cache.radix_cache import RadixCache, TreeNode

Prefix = tuple[str | None, tuple[int, ...]]

MAX_LEN = 8
# Three letters, so that prefixes collide all the time.
sequences = st.lists(st.sampled_from("abc").map(ord), max_size=MAX_LEN).map(tuple)
namespaces = st.sampled_from([None, None, None, "adapter"])


def prefixes_of(tokens: tuple[int, ...], namespace: str | None) -> list[Prefix]:
    return [(namespace, tokens[:n]) for n in range(1, len(tokens) + 1)]


class RadixAgainstDict(RuleBasedStateMachine):
    """One state kept twice: as a tree in `cache`, as prefixes in `slot_of`, `used_at`, `locks`."""

    locked = Bundle("locked")

    @initialize()
    def start(self) -> None:
        self.cache = RadixCache()
        self.slot_of: dict[Prefix, int] = {}
        self.used_at: dict[Prefix, int] = {}
        self.locks: list[list[Prefix]] = []
        self.now = 0
        self.next_slot = 0

    def cached_prefixes(self, tokens: tuple[int, ...], namespace: str | None) -> list[Prefix]:
        return [prefix for prefix in prefixes_of(tokens, namespace) if prefix in self.slot_of]

    def use(self, prefixes: list[Prefix]) -> None:
        self.now += 1
        self.used_at.update(dict.fromkeys(prefixes, self.now))

    def protected(self) -> set[Prefix]:
        return {prefix for prefixes in self.locks for prefix in prefixes}

    @rule(tokens=sequences, namespace=namespaces)
    def insert(self, tokens: tuple[int, ...], namespace: str | None) -> None:
        slots = list(range(self.next_slot, self.next_slot + len(tokens)))
        self.next_slot += len(tokens)
        before = len(self.cached_prefixes(tokens, namespace))
        assert self.cache.insert(tokens, slots, namespace) == before
        prefixes = prefixes_of(tokens, namespace)
        self.slot_of.update(list(zip(prefixes, slots, strict=True))[before:])
        self.use(prefixes)

    @rule(tokens=sequences, namespace=namespaces)
    def look(self, tokens: tuple[int, ...], namespace: str | None) -> None:
        expected = len(self.cached_prefixes(tokens, namespace))
        assert self.cache.peek(tokens, namespace).num_tokens == expected

    @rule(tokens=sequences, namespace=namespaces)
    def match(self, tokens: tuple[int, ...], namespace: str | None) -> None:
        self.match_and_compare(tokens, namespace)

    @rule(target=locked, tokens=sequences, namespace=namespaces)
    def lock(self, tokens: tuple[int, ...], namespace: str | None) -> tuple[TreeNode, list[Prefix]]:
        node = self.match_and_compare(tokens, namespace)
        prefixes = self.cached_prefixes(tokens, namespace)
        self.cache.lock(node)
        self.locks.append(prefixes)
        return node, prefixes

    @rule(held=consumes(locked))
    def unlock(self, held: tuple[TreeNode, list[Prefix]]) -> None:
        node, prefixes = held
        self.cache.unlock(node)
        self.locks.remove(prefixes)

    @rule(num_tokens=st.integers(0, 12))
    def evict(self, num_tokens: int) -> None:
        evictable = set(self.slot_of) - self.protected()
        freed = self.cache.evict(num_tokens)
        gone = {prefix for prefix, slot in self.slot_of.items() if slot in set(freed)}
        assert len(gone) == len(freed), "only cached slots are freed, each once"
        assert gone <= evictable, "what is locked stays"
        assert len(freed) >= min(num_tokens, len(evictable)), (
            "as much as was asked for, if it is there"
        )
        assert len(freed) < num_tokens + MAX_LEN, "and less than one leaf more"
        for prefix in gone:
            del self.slot_of[prefix]
        parents = {(namespace, tokens[:-1]) for namespace, tokens in self.slot_of}
        assert not gone & parents, "a prefix goes after all that continues it"
        leaves = set(self.slot_of) - parents - self.protected()
        if gone and leaves:
            youngest_gone = max(self.used_at[prefix] for prefix in gone)
            assert youngest_gone <= min(self.used_at[leaf] for leaf in leaves), "oldest first"

    @invariant()
    def tree_and_dict_agree(self) -> None:
        self.cache.check()
        assert self.cache.protected_size == len(self.protected())
        assert self.cache.total_size == len(self.slot_of)
        times = {}
        for node in self.cache.nodes():
            path = tuple(token for step in node.path() for token in step.key)
            first = len(path) - len(node.key)
            for prefix in prefixes_of(path, node.namespace)[first:]:
                times[prefix] = node.last_used
        assert times == {prefix: self.used_at[prefix] for prefix in self.slot_of}

    def match_and_compare(self, tokens: tuple[int, ...], namespace: str | None) -> TreeNode:
        match = self.cache.match_prefix(tokens, namespace)
        prefixes = self.cached_prefixes(tokens, namespace)
        assert match.slots == [self.slot_of[prefix] for prefix in prefixes]
        on_path = [token for step in match.node.path() for token in step.key]
        assert on_path == list(tokens[: len(prefixes)]), "the node ends where the match ends"
        self.use(prefixes)
        return match.node


TestRadixAgainstDict = RadixAgainstDict.TestCase

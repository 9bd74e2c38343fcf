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

from minisgl.cache.radix_cache import Peek, RadixCache, TreeNode

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
        self.looks: dict[Prefix, Peek] = {}  # what the last look at these tokens found

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
        found = self.cache.peek(tokens, namespace)
        assert found.num_tokens == expected
        self.looks[namespace, tokens] = found

    @rule(tokens=sequences, namespace=namespaces)
    def touch(self, tokens: tuple[int, ...], namespace: str | None) -> None:
        """A use of the whole node in which the look ended."""
        found = self.cache.peek(tokens, namespace)
        self.cache.touch(found)
        on_path = tuple(token for step in found.node.path() for token in step.key)
        assert on_path[: found.num_tokens] == tokens[: found.num_tokens]
        self.use(prefixes_of(on_path, namespace))

    @invariant()
    def an_earlier_look_is_never_out_of_date(self) -> None:
        for (namespace, tokens), last in self.looks.items():
            again = self.cache.peek(tokens, namespace, last)
            assert again.num_tokens == len(self.cached_prefixes(tokens, namespace))
            longer = (*tokens, ord("a"))  # the request went on, and was retracted
            again = self.cache.peek(longer, namespace, last)
            assert again.num_tokens == len(self.cached_prefixes(longer, namespace))

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

    @rule(target=locked, held=consumes(locked), tokens=sequences, namespace=namespaces)
    def append(
        self,
        held: tuple[TreeNode, list[Prefix]],
        tokens: tuple[int, ...],
        namespace: str | None,
    ) -> tuple[TreeNode, list[Prefix]]:
        """A locked path grows, and its lock with it; or nothing happens."""
        node, prefixes = held
        if prefixes:
            namespace, path = prefixes[-1]
        else:
            path = ()
        tokens = tokens[: MAX_LEN - len(path)]
        if not tokens:
            return held
        slots = list(range(self.next_slot, self.next_slot + len(tokens)))
        self.next_slot += len(tokens)
        leaf = self.cache.append(node, tokens, slots, namespace)
        if (namespace, (*path, tokens[0])) in self.slot_of:
            assert leaf is None
            return held
        assert leaf is not None
        grown = prefixes_of((*path, *tokens), namespace)
        self.slot_of.update(zip(grown[len(path) :], slots, strict=True))
        self.use(grown)
        self.locks.remove(prefixes)
        self.locks.append(grown)
        return leaf, grown

    @rule(held=consumes(locked), tokens=sequences, namespace=namespaces)
    def insert_below(
        self,
        held: tuple[TreeNode, list[Prefix]],
        tokens: tuple[int, ...],
        namespace: str | None,
    ) -> None:
        """As a request that leaves: the rest goes below its node, and the lock ends."""
        node, prefixes = held
        namespace, path = prefixes[-1] if prefixes else (namespace, ())
        tokens = tokens[: MAX_LEN - len(path)]
        slots = list(range(self.next_slot, self.next_slot + len(tokens)))
        self.next_slot += len(tokens)
        grown = prefixes_of((*path, *tokens), namespace)[len(path) :]
        known = sum(prefix in self.slot_of for prefix in grown)
        match = self.cache.match_prefix(tokens, namespace, below=node)
        assert match.slots == [self.slot_of[prefix] for prefix in grown[:known]]
        self.use(prefixes + grown[:known])
        assert self.cache.insert(tokens, slots, namespace, below=node) == known
        self.slot_of.update(list(zip(grown, slots, strict=True))[known:])
        self.use(prefixes + grown)
        self.cache.unlock(node)
        self.locks.remove(prefixes)

    @rule(tokens=sequences, namespace=namespaces)
    def drop(self, tokens: tuple[int, ...], namespace: str | None) -> None:
        """What leads to the end of the match alone goes, up to the first lock or fork."""
        node = self.match_and_compare(tokens, namespace)
        prefixes = self.cached_prefixes(tokens, namespace)
        dropped = set(self.cache.drop(node))
        while prefixes:
            last = prefixes.pop()
            goes_on = any((ns, key[:-1]) == last for ns, key in self.slot_of)
            if goes_on or last in self.protected():
                break
            assert self.slot_of[last] in dropped
            dropped.remove(self.slot_of.pop(last))
        assert not dropped, "nothing else goes"

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

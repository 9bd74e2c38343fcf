"""The cache of the paper's ablation "no tree structure": a table of finished requests.

An entry is what one request left: all its tokens, and their slots.  A new request may use an entry
only where the *whole* of it begins the new prompt; where only a part agrees, nothing is shared.

    entries  A   "You are helpful."
             B   "You are helpful. What is 2+2? 4"     stands on A: it was computed from there
    prompt   "You are helpful. Tell a joke."           finds A
             "You are helpful. What is 2+3?"           finds A: with B it shares a part only

Two things that the tree does, and that a table can't, are what the ablation measures: an entry is
never cut where another prompt leaves it, and a request is in the table only when it has ended, so
requests that run side by side share nothing but entries.

Everything else is the tree's: locks, LRU eviction of what nothing stands on, namespaces, accounts.
An entry keeps slots only for the tokens after the entry that it was computed from, as a `TreeNode`
below it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from minisgl.cache.radix_cache import Peek, RadixCache
from minisgl.cache.tree_node import TreeNode


class Entry(TreeNode):
    """The end of what one request left."""

    __slots__ = ()

    @property
    def edge(self) -> Hashable:
        """All of its tokens: entries on the same one may begin alike."""
        return self.namespace, self.key


class TableCache(RadixCache):
    """A table with the tree's interface, for the same scheduler.

    >>> cache = TableCache()
    >>> cache.insert([1, 2, 3, 4], slots=[10, 11, 12, 13])
    0
    >>> cache.match_prefix([1, 2, 9]).slots  # a part of the entry
    []
    >>> cache.match_prefix([1, 2, 3, 4, 9]).slots
    [10, 11, 12, 13]
    """

    node_type = Entry

    def append(
        self,
        node: TreeNode,
        tokens: Sequence[int],
        slots: Sequence[int],
        namespace: str | None = None,
    ) -> TreeNode | None:
        """Not before the request has ended: the caller keeps its slots until `insert`."""
        self._require_live(node)
        self._require_slots(tokens, slots)
        return None

    def peek(
        self, tokens: Sequence[int], namespace: str | None = None, last: Peek | None = None
    ) -> Peek:
        """As the tree's.  Each look is a new one: a longer entry may have come anywhere, so `last`
        says nothing."""
        node, _, matched = self._walk(tuple(tokens), namespace, self.root)
        return Peek(matched, node, is_whole=True)

    def _walk(
        self, tokens: tuple[int, ...], namespace: str | None, start: TreeNode
    ) -> tuple[TreeNode, int, int]:
        """The longest entry from `start` on that `tokens` begin with, in O(entries that do, and
        those on them)."""
        best, longest = start, 0
        found = [(start, 0)]
        while found:
            node, matched = found.pop()
            if matched > longest:
                best, longest = node, matched
            found += [
                (child, matched + len(child.key))
                for child in node.children.values()
                if child.namespace == namespace
                and child.key == tokens[matched : matched + len(child.key)]
            ]
        return best, len(best.key), longest

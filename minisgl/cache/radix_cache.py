"""RadixAttention's tree: which prefixes are cached, and in which slots (arXiv 2312.07104, sec. 3).

A radix tree is a trie whose edges carry runs of tokens. A path from the root spells a cached
prefix; each node holds the slots where the K/V of its run lives. Requests that begin alike share
the path, so they share the slots.

    root ── "You are helpful." ──┬── " What is 2+2?"     a node:  key    the tokens of its run
                                 └── " Tell a joke."              slots  one K/V slot for each

Four things happen to the tree:

* `match_prefix` finds the longest cached prefix of a new request; `lock` keeps that path while the
  request runs.
* `append` grows a running request's path by what it is about to compute, so that others find it.
* `insert` hands the tree the tokens and slots of a finished (or half finished) request.
* `evict` takes back the least recently used leaf, then the next, until enough slots are free. A
  locked path stays.

The tree knows token ids and slot numbers and nothing else: no tensors, no text, no wall clock. A
token may be any integer however wide, so a 128-bit content hash can stand for an image's tokens
beside ordinary ids.

Left out: pages of more than one token, a second tier of storage for what is evicted, and joining a
node with its only child again once nothing needs the cut.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import chain, count
from typing import NamedTuple

from minisgl.cache.radix_check import check_tree
from minisgl.cache.radix_render import render_tree
from minisgl.cache.tree_node import TreeNode, common_prefix_len

__all__ = ["Match", "Peek", "RadixCache", "TreeNode"]


class Match(NamedTuple):
    """The longest cached prefix of some tokens: its slots, and the node where it ends."""

    slots: list[int]
    node: TreeNode


class Peek(NamedTuple):
    """What a look finds: how many leading tokens are cached, and the node in which they end."""

    num_tokens: int
    node: TreeNode
    is_whole: bool  # they end where the node ends


OnEvict = Callable[[str | None, tuple[int, ...], int], None]
"""(namespace, the tokens of a path, how many of them are still cached)"""


class RadixCache:
    """The tree of cached prefixes.

    Every token in the tree is either *protected* (some running request holds a lock on its path) or
    *evictable*; `protected_size` and `evictable_size` count the two. The tree owns the slots it was
    given until `evict` or `reset` hands them back.

    `namespace` separates what must never be shared although the tokens agree: another adapter's
    weights, or another tenant's salt. Equal tokens in two namespaces are two paths.

    `on_evict`, if somebody sets it, is called with whatever the tree forgets, as it does.

    Not for use by several threads at once: the engine's one thread owns it.

    >>> cache = RadixCache()
    >>> cache.insert([1, 2, 3, 4], slots=[10, 11, 12, 13])
    0
    >>> cache.match_prefix([1, 2, 9]).slots
    [10, 11]
    >>> cache.evict(1)  # the leaf (3, 4): the match split the run after 2
    [12, 13]
    """

    node_type = TreeNode

    def __init__(self) -> None:
        self.root = TreeNode()
        self.evictable_size = 0
        self.protected_size = 0
        self._clock = 0
        # Entries: (the node's last_used when it was queued, a tie breaker, the node). See `evict`.
        self._queue: list[tuple[int, int, TreeNode]] = []
        self._serial = count()
        self.on_evict: OnEvict | None = None

    @property
    def total_size(self) -> int:
        """Tokens (= slots) in the tree."""
        return self.evictable_size + self.protected_size

    # -- the four verbs ---------------------------------------------------------------------------

    def match_prefix(
        self,
        tokens: Sequence[int],
        namespace: str | None = None,
        *,
        below: TreeNode | None = None,
    ) -> Match:
        """Find the longest cached prefix of `tokens`, in O(length), and mark it as just used.

        A match that ends inside a node splits the node there (a copy of that node, at C speed), so
        that `Match.node` ends exactly where the slots end and a lock on it protects the match and
        nothing more. Lock it before anything is evicted.

        A prompt that is cached from end to end matches in full. An engine that needs the logits of
        the last token must compute that token again, so it asks for `tokens[:-1]`.

        `below`: `tokens` are those that follow this node, and so are the slots of the match.
        """
        start = self._start(below)
        node = self._descend(tuple(tokens), namespace, start)[0]
        slots: list[int] = []
        for step in node.path(below=start):
            slots += step.slots
        return Match(slots, node)

    def append(
        self,
        node: TreeNode,
        tokens: Sequence[int],
        slots: Sequence[int],
        namespace: str | None = None,
    ) -> TreeNode | None:
        """Grow a path that the caller holds a lock on: `tokens`, in `slots`, come to follow `node`.

        Returns the new leaf, to which the caller's lock has moved, in O(tokens + depth).  None, and
        nothing is done, where the tree goes on with `tokens[0]` already: then the caller keeps its
        slots, and `insert` sorts them out in the end.
        """
        self._require_live(node)
        self._require_slots(tokens, slots)
        leaf = self.node_type(tuple(tokens), list(slots), node, namespace)
        if leaf.edge in node.children:
            return None
        node.children[leaf.edge] = leaf
        leaf.ref_count = 1  # the path above it is counted already: that was the lock on `node`
        self.protected_size += len(leaf.key)
        self._stamp(leaf)
        return leaf

    def insert(
        self,
        tokens: Sequence[int],
        slots: Sequence[int],
        namespace: str | None = None,
        *,
        below: TreeNode | None = None,
    ) -> int:
        """Cache `tokens`, whose K/V lies in `slots`; return how many of them were cached before.

        The tree takes over `slots[returned:]`. For the tokens before that it keeps the slots it
        has: the caller still owns its own copies, if it has any that differ, and frees them.

        `below`: `tokens` are those that follow this node, and only they are counted.

        Raises ValueError unless there is exactly one slot for each token.
        """
        self._require_slots(tokens, slots)
        tokens = tuple(tokens)
        node, cached = self._descend(tokens, namespace, self._start(below))
        if cached < len(tokens):
            leaf = self.node_type(tokens[cached:], list(slots[cached:]), node, namespace)
            leaf.last_used = self._clock
            node.children[leaf.edge] = leaf
            self.evictable_size += len(leaf.key)
            self._enqueue(leaf)
        return cached

    def evict(self, num_tokens: int) -> list[int]:
        """Drop least recently used leaves until `num_tokens` slots are free; return those slots.

        A leaf goes as a whole, so there may be more slots than asked for; there are fewer only
        where everything that is left is locked. A parent whose last child went is the next leaf in
        line.

        The queue is a heap, and lazy: using a node does not move its entry. An entry that comes up
        is put back with the node's true time if the node was used since, and dropped if the node is
        no longer an unlocked leaf (it is queued anew when it becomes one). Every put-back was paid
        for by a use, so a node costs O(log nodes).
        """
        freed: list[int] = []
        while len(freed) < num_tokens and self._queue:
            queued_at, _, leaf = heapq.heappop(self._queue)
            leaf.queued = False
            if not leaf.evictable:
                continue
            if queued_at < leaf.last_used:
                self._enqueue(leaf)
                continue
            freed += leaf.slots
            self._remove(leaf)
        return freed

    # -- locks ------------------------------------------------------------------------------------

    def lock(self, node: TreeNode) -> None:
        """Protect the path from the root to `node` from eviction until `unlock(node)`. Locks nest.

        Raises ValueError for a node that was evicted since it was matched.
        """
        self._require_live(node)
        for step in node.path():
            if step.ref_count == 0:
                self.evictable_size -= len(step.key)
                self.protected_size += len(step.key)
            step.ref_count += 1

    def unlock(self, node: TreeNode) -> None:
        """Undo one `lock(node)`. Raises ValueError if `node` is not locked."""
        self._require_live(node)
        if node is not self.root and node.ref_count == 0:
            raise ValueError(f"the node ({len(node.key)} tokens, ref_count 0) is not locked")
        for step in node.path():
            step.ref_count -= 1
            if step.ref_count == 0:
                self.protected_size -= len(step.key)
                self.evictable_size += len(step.key)
        self._enqueue(node)

    # -- the rest of the public face --------------------------------------------------------------

    def peek(
        self, tokens: Sequence[int], namespace: str | None = None, last: Peek | None = None
    ) -> Peek:
        """How much of `tokens` is cached, and where. Nothing is split, nothing counts as used.

        `last`: what an earlier look found for these tokens, or for the first of them. Where nothing
        has changed there since, it is the answer, in O(1): a queue of requests can be looked at
        each time that one of them is admitted.
        """
        if last is not None and last.is_whole and self._is_live(last.node):
            # Splitting the node would have kept the object its lower half, which ends there too.
            following = tokens[last.num_tokens : last.num_tokens + 1]
            if not following or (namespace, following[0]) not in last.node.children:
                return last
        node, same, matched = self._walk(tuple(tokens), namespace, self.root)
        return Peek(matched, node, same == len(node.key))

    def touch(self, found: Peek) -> None:
        """What a look found counts as just used, if it is still there."""
        if self._is_live(found.node):
            self._stamp(found.node)

    def drop(self, node: TreeNode) -> list[int]:
        """Forget `node`, then whatever leads to it alone, as far as nothing is locked; the slots.

        For K/V that turned out to be wrong. O(nodes), unlike `evict`: faults are rare.
        """
        freed: list[int] = []
        while node.evictable:
            parent = node.parent
            assert parent is not None
            freed += node.slots
            self._remove(node)
            node = parent
        self._queue = [entry for entry in self._queue if entry[2].parent is not None]
        heapq.heapify(self._queue)
        return freed

    def reset(self) -> list[int]:
        """Empty the tree; return every slot it held. Raises ValueError while a path is locked."""
        if self.protected_size:
            raise ValueError(f"cannot reset: {self.protected_size} tokens are locked")
        listener, self.on_evict = self.on_evict, None
        if listener is not None:  # told once of each path from the root, not of every node
            for node in self.root.children.values():
                listener(node.namespace, node.key, 0)
        freed = self.evict(self.total_size)
        self.on_evict = listener
        return freed

    def nodes(self) -> Iterator[TreeNode]:
        """Every node but the root, parents before children."""
        return self.root.below()

    def render(self, decode: Callable[[Sequence[int]], str]) -> str:
        """Draw the tree, a line for each node: how many tokens, ref_count, how its text begins."""
        return render_tree(self.root, self.protected_size, self.evictable_size, decode)

    def __str__(self) -> str:
        return self.render(lambda tokens: " ".join(map(str, tokens)))

    def check(self) -> None:
        """Verify every invariant, in O(tokens). Raises AssertionError that says which is broken."""
        check_tree(self.root, self._queue, self._clock, self.evictable_size, self.protected_size)

    # -- below the line ---------------------------------------------------------------------------

    def _walk(
        self, tokens: tuple[int, ...], namespace: str | None, start: TreeNode
    ) -> tuple[TreeNode, int, int]:
        """Follow `tokens` from the end of `start` on: (last node, tokens of its key that agree,
        tokens in all)."""
        node, same, matched = start, len(start.key), 0
        while matched < len(tokens) and same == len(node.key):
            child = node.children.get((namespace, tokens[matched]))
            if child is None:
                break
            node, same = child, common_prefix_len(child.key, tokens, matched)
            matched += same
        return node, same, matched

    def _descend(
        self, tokens: tuple[int, ...], namespace: str | None, start: TreeNode
    ) -> tuple[TreeNode, int]:
        """Walk, split the node in which the walk ends, stamp the path: (node, tokens matched)."""
        node, same, matched = self._walk(tokens, namespace, start)
        if same < len(node.key):
            node = self._split(node, same)
        self._stamp(node)
        return node, matched

    def _stamp(self, node: TreeNode) -> None:
        """The path down to `node` is in use now."""
        self._clock += 1
        for step in node.path():
            step.last_used = self._clock

    def _start(self, below: TreeNode | None) -> TreeNode:
        """Where a walk begins."""
        if below is None:
            return self.root
        self._require_live(below)
        return below

    def _split(self, node: TreeNode, at: int) -> TreeNode:
        """Cut `node` in two; return the new upper half.

        The lower half stays the same object: whoever holds a lock on it can still unlock it, and as
        it keeps its place in the eviction queue, nothing there has to move. The upper half is above
        all that was locked below it, so it starts with the same ref_count.
        """
        assert node.parent is not None and 0 < at < len(node.key)
        upper = TreeNode(node.key[:at], node.slots[:at], node.parent, node.namespace)
        upper.ref_count, upper.last_used = node.ref_count, node.last_used
        node.parent.children[upper.edge] = upper
        node.key, node.slots, node.parent = node.key[at:], node.slots[at:], upper
        upper.children[node.edge] = node
        return upper

    def _remove(self, leaf: TreeNode) -> None:
        """Take an evictable leaf out of the tree. Without a parent it can never be locked again."""
        parent = leaf.parent
        assert parent is not None
        if self.on_evict is not None:
            tokens = tuple(chain.from_iterable(node.key for node in leaf.path()))
            self.on_evict(leaf.namespace, tokens, len(tokens) - len(leaf.key))
        del parent.children[leaf.edge]
        leaf.parent = None
        self.evictable_size -= len(leaf.key)
        self._enqueue(parent)

    def _enqueue(self, node: TreeNode) -> None:
        """Queue `node` for eviction if it is an unlocked leaf that is not queued yet."""
        if node.evictable and not node.queued:
            node.queued = True
            heapq.heappush(self._queue, (node.last_used, next(self._serial), node))

    @staticmethod
    def _require_slots(tokens: Sequence[int], slots: Sequence[int]) -> None:
        if len(tokens) != len(slots):
            raise ValueError(
                f"got {len(tokens)} tokens and {len(slots)} slots: one slot each is needed"
            )

    def _is_live(self, node: TreeNode) -> bool:
        return node.parent is not None or node is self.root

    def _require_live(self, node: TreeNode) -> None:
        if not self._is_live(node):
            raise ValueError(f"the node ({len(node.key)} tokens) was evicted: match again")

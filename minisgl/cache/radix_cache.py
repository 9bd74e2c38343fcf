"""RadixAttention's tree: which prefixes are cached, and in which slots (arXiv 2312.07104, sec. 3).

A radix tree is a trie whose edges carry runs of tokens. A path from the root spells a cached
prefix; each node holds the slots where the K/V of its run lives. Requests that begin alike share
the path, so they share the slots.

    root ── "You are helpful." ──┬── " What is 2+2?"     a node:  key    the tokens of its run
                                 └── " Tell a joke."              slots  one K/V slot for each

Three things happen to the tree:

* `match_prefix` finds the longest cached prefix of a new request; `lock` keeps that path while the
  request runs.
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
from itertools import count
from typing import NamedTuple

from minisgl.cache.tree_node import TreeNode, common_prefix_len

__all__ = ["Match", "RadixCache", "TreeNode"]

PREVIEW_TOKENS = 24  # a picture of the tree decodes only the first tokens of each node
PREVIEW_CHARS = 48


class Match(NamedTuple):
    """The longest cached prefix of some tokens: its slots, and the node where it ends."""

    slots: list[int]
    node: TreeNode


class RadixCache:
    """The tree of cached prefixes.

    Every token in the tree is either *protected* (some running request holds a lock on its path) or
    *evictable*; `protected_size` and `evictable_size` count the two. The tree owns the slots it was
    given until `evict` or `reset` hands them back.

    `namespace` separates what must never be shared although the tokens agree: another adapter's
    weights, or another tenant's salt. Equal tokens in two namespaces are two paths.

    Not for use by several threads at once: the engine's one thread owns it.

    >>> cache = RadixCache()
    >>> cache.insert([1, 2, 3, 4], slots=[10, 11, 12, 13])
    0
    >>> cache.match_prefix([1, 2, 9]).slots
    [10, 11]
    >>> cache.evict(1)  # the leaf (3, 4): the match split the run after 2
    [12, 13]
    """

    def __init__(self) -> None:
        self.root = TreeNode()
        self.evictable_size = 0
        self.protected_size = 0
        self._clock = 0
        # Entries: (the node's last_used when it was queued, a tie breaker, the node). See `evict`.
        self._queue: list[tuple[int, int, TreeNode]] = []
        self._serial = count()

    @property
    def total_size(self) -> int:
        """Tokens (= slots) in the tree."""
        return self.evictable_size + self.protected_size

    # -- the three verbs --------------------------------------------------------------------------

    def match_prefix(self, tokens: Sequence[int], namespace: str | None = None) -> Match:
        """Find the longest cached prefix of `tokens`, in O(length), and mark it as just used.

        A match that ends inside a node splits the node there (a copy of that node, at C speed), so
        that `Match.node` ends exactly where the slots end and a lock on it protects the match and
        nothing more. Lock it before anything is evicted.

        A prompt that is cached from end to end matches in full. An engine that needs the logits of
        the last token must compute that token again, so it asks for `tokens[:-1]`.
        """
        node = self._descend(tuple(tokens), namespace)[0]
        slots: list[int] = []
        for step in node.path():
            slots += step.slots
        return Match(slots, node)

    def insert(
        self, tokens: Sequence[int], slots: Sequence[int], namespace: str | None = None
    ) -> int:
        """Cache `tokens`, whose K/V lies in `slots`; return how many of them were cached before.

        The tree takes over `slots[returned:]`. For the tokens before that it keeps the slots it
        has: the caller still owns its own copies, if it has any that differ, and frees them.

        Raises ValueError unless there is exactly one slot for each token.
        """
        if len(tokens) != len(slots):
            raise ValueError(
                f"got {len(tokens)} tokens and {len(slots)} slots: one slot each is needed"
            )
        tokens = tuple(tokens)
        node, cached = self._descend(tokens, namespace)
        if cached < len(tokens):
            leaf = TreeNode(tokens[cached:], list(slots[cached:]), node, namespace)
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

    def prefix_len(self, tokens: Sequence[int], namespace: str | None = None) -> int:
        """How many leading tokens are cached. A look only: nothing is split or counts as used."""
        return self._walk(tuple(tokens), namespace)[2]

    def reset(self) -> list[int]:
        """Empty the tree; return every slot it held. Raises ValueError while a path is locked."""
        if self.protected_size:
            raise ValueError(f"cannot reset: {self.protected_size} tokens are locked")
        return self.evict(self.total_size)

    def nodes(self) -> Iterator[TreeNode]:
        """Every node but the root, parents before children."""
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def render(self, decode: Callable[[Sequence[int]], str]) -> str:
        """Draw the tree, a line for each node: how many tokens, ref_count, how its text begins."""
        sizes = f"{self.protected_size} protected, {self.evictable_size} evictable"
        lines = [f"{self.total_size} tokens in {sum(1 for _ in self.nodes())} nodes ({sizes})"]
        # An explicit stack: a chat of a thousand turns is a thousand nodes deep.
        stack = [(self.root, "", "")]  # a node, what stands before it, what before its children
        while stack:
            node, before, indent = stack.pop()
            if node is not self.root:
                lines.append(before + _label(node, decode))
            for rank, child in enumerate(reversed(node.children.values())):
                branch, space = ("└─ ", "   ") if rank == 0 else ("├─ ", "│  ")
                stack.append((child, indent + branch, indent + space))
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.render(lambda tokens: " ".join(map(str, tokens)))

    def check(self) -> None:
        """Verify every invariant, in O(tokens). Raises AssertionError that says which is broken."""
        root = self.root
        _expect(not (root.key or root.slots or root.parent), "the root carries no tokens")
        _expect(root.ref_count == 0, "the root is never counted: a lock stops below it")
        queued = {node: queued_at for queued_at, _, node in self._queue}
        _expect(len(queued) == len(self._queue), "a node is queued for eviction at most once")

        nodes = list(self.nodes())
        for node in nodes:
            self._check_node(node, queued.pop(node, None))
        _expect(not queued, "the queue holds nodes of the tree only")
        slots = [slot for node in nodes for slot in node.slots]
        _expect(len(set(slots)) == len(slots), "a slot belongs to one token only")
        evictable = sum(len(node.key) for node in nodes if node.ref_count == 0)
        protected = len(slots) - evictable
        sizes = f"evictable_size {self.evictable_size}, protected_size {self.protected_size}"
        _expect(
            (self.evictable_size, self.protected_size) == (evictable, protected),
            f"{sizes}: counted {evictable} and {protected}",
        )

    def _check_node(self, node: TreeNode, queued_at: int | None) -> None:
        """The part of `check` that looks at one node and its children."""
        parent, children = node.parent, node.children.values()
        assert parent is not None, "nodes() does not yield the root"
        _expect(len(node.key) > 0, "every node but the root carries at least one token")
        _expect(len(node.key) == len(node.slots), "a node has one slot for each token")
        _expect(parent.children.get(node.edge) is node, "parent and child point at each other")
        _expect(
            parent is self.root or parent.namespace == node.namespace,
            "a path stays within one namespace",
        )
        _expect(node.ref_count >= 0, "a ref_count is never negative")
        _expect(
            node.ref_count >= sum(child.ref_count for child in children),
            "a lock on a child is also a lock on its parent",
        )
        _expect(
            all(node.last_used >= child.last_used for child in children),
            "a use of a child is also a use of its parent",
        )
        _expect(node.last_used <= self._clock, "no node was used in the future")
        _expect(node.queued == (queued_at is not None), "`queued` tells what is in the queue")
        _expect(node.queued or not node.evictable, "every evictable leaf waits in the queue")
        _expect((queued_at or 0) <= node.last_used, "an entry is never younger than its node")

    # -- below the line ---------------------------------------------------------------------------

    def _walk(self, tokens: tuple[int, ...], namespace: str | None) -> tuple[TreeNode, int, int]:
        """Follow `tokens` down: (last node, tokens of its key that agree, tokens in all)."""
        node, same, matched = self.root, 0, 0
        while matched < len(tokens) and same == len(node.key):
            child = node.children.get((namespace, tokens[matched]))
            if child is None:
                break
            node, same = child, common_prefix_len(child.key, tokens, matched)
            matched += same
        return node, same, matched

    def _descend(self, tokens: tuple[int, ...], namespace: str | None) -> tuple[TreeNode, int]:
        """Walk, split the node in which the walk ends, stamp the path: (node, tokens matched)."""
        node, same, matched = self._walk(tokens, namespace)
        if same < len(node.key):
            node = self._split(node, same)
        self._clock += 1
        for step in node.path():
            step.last_used = self._clock
        return node, matched

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
        del parent.children[leaf.edge]
        leaf.parent = None
        self.evictable_size -= len(leaf.key)
        self._enqueue(parent)

    def _enqueue(self, node: TreeNode) -> None:
        """Queue `node` for eviction if it is an unlocked leaf that is not queued yet."""
        if node.evictable and not node.queued:
            node.queued = True
            heapq.heappush(self._queue, (node.last_used, next(self._serial), node))

    def _require_live(self, node: TreeNode) -> None:
        if node.parent is None and node is not self.root:
            raise ValueError(f"the node ({len(node.key)} tokens) was evicted: match again")


def _label(node: TreeNode, decode: Callable[[Sequence[int]], str]) -> str:
    """One node in one line; line breaks of its text are shown as \\n."""
    text = decode(node.key[:PREVIEW_TOKENS])
    more = "…" if len(node.key) > PREVIEW_TOKENS or len(text) > PREVIEW_CHARS else ""
    namespace = "" if node.namespace is None else f" [{node.namespace}]"
    size = f"{len(node.key)} tok · ref {node.ref_count}{namespace}"
    return f"{size} · {text[:PREVIEW_CHARS]!r}{more}"


def _expect(condition: bool, invariant: str) -> None:  # noqa: FBT001
    """Raise AssertionError naming the broken invariant; unlike `assert`, also under `python -O`."""
    if not condition:
        raise AssertionError(f"broken invariant: {invariant}")

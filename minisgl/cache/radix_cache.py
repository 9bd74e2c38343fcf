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

Left out: pages of more than one token, and a second tier of storage for what is evicted.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import NamedTuple

PREVIEW_TOKENS = 24  # a picture of the tree decodes only the first tokens of each node
PREVIEW_CHARS = 48


class TreeNode:
    """A run of tokens, the slots that hold them, and the runs that may follow.

    `ref_count` counts the locks on this node and on everything below it. `last_used` is the logical
    time at which a match or an insert last passed through. `queued` says whether the eviction queue
    holds the node.
    """

    __slots__ = (
        "children",
        "key",
        "last_used",
        "namespace",
        "parent",
        "queued",
        "ref_count",
        "slots",
    )

    def __init__(
        self,
        key: tuple[int, ...] = (),
        slots: list[int] | None = None,
        parent: TreeNode | None = None,
        namespace: str | None = None,
        ref_count: int = 0,
        last_used: int = 0,
    ) -> None:
        self.key = key
        self.slots: list[int] = [] if slots is None else slots
        self.children: dict[tuple[str | None, int], TreeNode] = {}
        self.parent = parent
        self.namespace = namespace
        self.ref_count = ref_count
        self.last_used = last_used
        self.queued = False

    @property
    def edge(self) -> tuple[str | None, int]:
        """The label under which the parent holds this node: two siblings never share one."""
        return self.namespace, self.key[0]

    @property
    def evictable(self) -> bool:
        """True for an unlocked leaf of the tree (not the root, not an evicted node)."""
        return self.parent is not None and not self.children and self.ref_count == 0

    def path(self) -> list[TreeNode]:
        """The nodes from just below the root down to this one."""
        nodes = []
        node = self
        while node.parent is not None:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes


class Match(NamedTuple):
    """The longest cached prefix of some tokens: its slots, and the node where it ends."""

    slots: list[int]
    node: TreeNode


def common_prefix_len(key: tuple[int, ...], tokens: tuple[int, ...], start: int = 0) -> int:
    """How many leading tokens of `key` stand in `tokens` from `start` on.

    Slices are compared at C speed: first in blocks that double in size until one differs, then by
    halving that block. The cost is O(answer), not O(len(key)), and the interpreter is asked O(log
    answer) times.

    >>> common_prefix_len((1, 2, 3, 4), (9, 1, 2, 7), start=1)
    2
    """
    limit = min(len(key), len(tokens) - start)
    same, block = 0, 32
    while same < limit and key[same : same + block] == tokens[start + same : start + same + block]:
        same += block
        block *= 2
    while block > 1:
        block //= 2
        if key[same : same + block] == tokens[start + same : start + same + block]:
            same += block
    # subtle: where key and tokens end together, short slices are equal and `same` may overshoot
    return min(same, limit)


class RadixCache:
    """The tree of cached prefixes.

    Every token in the tree is either *protected* (some running request holds a lock on its path) or
    *evictable*; `protected_size` and `evictable_size` count the two. The tree owns the slots it was
    given until `evict` or `reset` hands them back.

    `namespace` separates what must never be shared although the tokens agree: another adapter's
    weights, or another tenant's salt. Equal tokens in two namespaces are two paths.

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

        A match that ends inside a node splits the node there, so that `Match.node` ends exactly
        where the slots end and a lock on it protects the match and nothing more. Lock it before
        anything is evicted.

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
                f"each token needs a slot: got {len(tokens)} tokens and {len(slots)} slots"
            )
        tokens = tuple(tokens)
        node, cached = self._descend(tokens, namespace)
        if cached < len(tokens):
            leaf = TreeNode(
                key=tokens[cached:],
                slots=list(slots[cached:]),
                parent=node,
                namespace=namespace,
                last_used=self._clock,
            )
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
            raise ValueError(
                f"unlock of a node that is not locked ({len(node.key)} tokens, ref_count 0)"
            )
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
            raise ValueError(
                f"cannot reset: {self.protected_size} tokens are locked by running requests"
            )
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
        num_nodes = sum(1 for _ in self.nodes())
        lines = [
            f"{self.total_size} tokens in {num_nodes} nodes "
            f"({self.protected_size} protected, {self.evictable_size} evictable)"
        ]
        # An explicit stack: a chat of a thousand turns is a thousand nodes deep.
        stack = [
            (node, "", rank == 0) for rank, node in enumerate(reversed(self.root.children.values()))
        ]
        while stack:
            node, indent, is_last = stack.pop()
            space = (
                f" [{node.namespace}]"
                if node.namespace is not None and node.parent is self.root
                else ""
            )
            branch = "└─" if is_last else "├─"
            label = f"{len(node.key)} tok · ref {node.ref_count}{space}"
            lines.append(f"{indent}{branch} {label} · {_preview(node.key, decode)}")
            indent += "   " if is_last else "│  "
            stack += [
                (child, indent, rank == 0)
                for rank, child in enumerate(reversed(node.children.values()))
            ]
        return "\n".join(lines)

    def __str__(self) -> str:
        return self.render(lambda tokens: " ".join(map(str, tokens)))

    def check(self) -> None:
        """Verify every invariant, in O(tokens). Raises AssertionError that says which is broken."""
        _expect(
            self.root.parent is None and not self.root.key and not self.root.slots,
            "the root carries no tokens",
        )
        _expect(self.root.ref_count == 0, "the root is never counted: a lock stops below it")
        queued: set[TreeNode] = set()
        for queued_at, _, node in self._queue:
            _expect(node not in queued, "a node is queued for eviction at most once")
            _expect(queued_at <= node.last_used, "a queue entry is never younger than its node")
            queued.add(node)

        evictable = protected = 0
        all_slots: list[int] = []
        live_and_queued: set[TreeNode] = set()
        for node in self.nodes():
            parent = node.parent
            _expect(len(node.key) > 0, "every node but the root carries at least one token")
            _expect(len(node.key) == len(node.slots), "a node has one slot for each token")
            _expect(node.ref_count >= 0, "a ref_count is never negative")
            _expect(
                parent is not None and parent.children.get(node.edge) is node,
                "parent and child point at each other",
            )
            _expect(
                parent is self.root or (parent is not None and parent.namespace == node.namespace),
                "a path stays within one namespace",
            )
            _expect(
                node.ref_count >= sum(child.ref_count for child in node.children.values()),
                "a lock on a child is also a lock on its parent",
            )
            _expect(
                all(node.last_used >= child.last_used for child in node.children.values()),
                "a use of a child is also a use of its parent",
            )
            _expect(node.last_used <= self._clock, "no node was used in the future")
            _expect(
                node.queued == (node in queued), "`queued` tells whether the node is in the queue"
            )
            _expect(node.queued or not node.evictable, "every evictable leaf waits in the queue")
            if node.queued:
                live_and_queued.add(node)
            if node.ref_count > 0:
                protected += len(node.key)
            else:
                evictable += len(node.key)
            all_slots += node.slots
        _expect(live_and_queued == queued, "the queue holds nodes of the tree only")
        _expect(len(set(all_slots)) == len(all_slots), "a slot belongs to one token only")
        _expect(
            self.evictable_size == evictable,
            f"evictable_size is {self.evictable_size}, counted {evictable}",
        )
        _expect(
            self.protected_size == protected,
            f"protected_size is {self.protected_size}, counted {protected}",
        )

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
        upper = TreeNode(
            key=node.key[:at],
            slots=node.slots[:at],
            parent=node.parent,
            namespace=node.namespace,
            ref_count=node.ref_count,
            last_used=node.last_used,
        )
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
            raise ValueError(
                f"the node ({len(node.key)} tokens) was evicted: match again before locking"
            )


def _preview(key: tuple[int, ...], decode: Callable[[Sequence[int]], str]) -> str:
    """The beginning of a node's text in quotes, line breaks shown as \\n."""
    text = decode(key[:PREVIEW_TOKENS])
    more = len(key) > PREVIEW_TOKENS or len(text) > PREVIEW_CHARS
    return repr(text[:PREVIEW_CHARS]) + ("…" if more else "")


def _expect(condition: bool, invariant: str) -> None:  # noqa: FBT001
    """Raise AssertionError naming the broken invariant; unlike `assert`, also under `python -O`."""
    if not condition:
        raise AssertionError(f"broken invariant: {invariant}")

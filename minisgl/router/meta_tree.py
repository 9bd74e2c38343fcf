"""The router's tree of trees: which worker has cached which prefix (the paper's appendix A.4).

    root ── "You are helpful." {0, 1} ──┬── " What is 2+2?" {0}
                                        └── " Tell a joke." {0, 1}

It is what the router believes.  A prompt counts as cached with the worker it was sent to from then
on; what a worker evicts it says later, and until then the belief is wrong (weak consistency): the
price is a prefix that is computed once more, never a wrong answer.

It knows tokens and workers' numbers and nothing else.  Not for several threads at once.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

Tokens = tuple[int, ...]


@dataclass(eq=False)
class MetaNode:
    """A run of tokens, and who has it: `workers[w]` is when it was last sent to worker w.

    Whoever has a node has its parent: a prefix is cached from its beginning.
    """

    key: Tokens = ()
    parent: MetaNode | None = None
    children: dict[int, MetaNode] = field(default_factory=dict)  # by first token
    workers: dict[int, int] = field(default_factory=dict)

    def is_leaf_of(self, worker: int) -> bool:
        """Whether `worker` has this node and none below it."""
        return worker in self.workers and not any(
            worker in child.workers for child in self.children.values()
        )


class MetaTree:
    """What each of several workers has cached.

    >>> tree = MetaTree()
    >>> tree.add([1, 2, 3, 4], worker=0)
    >>> tree.add([1, 2, 9], worker=1)
    >>> tree.match([1, 2, 3, 7])
    {0: 3, 1: 2}
    >>> tree.evicted([1, 2, 3, 4], worker=0, keep=2)
    >>> tree.match([1, 2, 3, 7])
    {0: 2, 1: 2}
    """

    def __init__(self) -> None:
        self.root = MetaNode()
        self.sizes: dict[int, int] = {}  # tokens of each worker
        self._clock = 0

    def match(self, tokens: Sequence[int]) -> dict[int, int]:
        """How many leading tokens each worker has; those that have none are left out."""
        found: dict[int, int] = {}
        depth = 0
        for node, common in self._walk(tuple(tokens)):
            depth += common
            found.update(
                dict.fromkeys(node.workers, depth)
            )  # nobody has a child without its parent
        return found

    def add(self, tokens: Sequence[int], worker: int) -> None:
        """`tokens` were sent to `worker`, which will have them cached."""
        self._clock += 1
        node, rest = self.root, tuple(tokens)
        while rest:
            child = node.children.get(rest[0])
            if child is None:
                child = MetaNode(rest, node)
                node.children[rest[0]] = child
            else:
                child = self._cut(child, _common(child.key, rest))
            if worker not in child.workers:
                self.sizes[worker] = self.sizes.get(worker, 0) + len(child.key)
            child.workers[worker] = self._clock
            node, rest = child, rest[len(child.key) :]

    def evicted(self, tokens: Sequence[int], worker: int, keep: int) -> None:
        """`worker` has only the first `keep` of `tokens` left, and nothing that goes on from the
        rest."""
        depth = 0
        for node, common in list(self._walk(tuple(tokens))):
            if depth + common > keep:
                if depth < keep:
                    node = next(iter(self._cut(node, keep - depth).children.values()))
                self._remove(node, worker)
                return
            depth += common

    def drop(self, worker: int) -> None:
        """`worker` is gone, and all that it had."""
        for child in list(self.root.children.values()):
            self._remove(child, worker)
        self.sizes.pop(worker, None)

    def trim(self, worker: int, capacity: int) -> None:
        """Forget of `worker` what was longest not sent, until it is believed to hold no more than
        `capacity` tokens: it can't hold more, whatever it has reported."""
        if self.sizes.get(worker, 0) <= capacity:
            return
        leaves = [
            (node.workers[worker], i, node)
            for i, node in enumerate(self._nodes_of(worker))
            if node.is_leaf_of(worker)
        ]
        heapq.heapify(leaves)
        count = len(leaves)
        while self.sizes[worker] > capacity:
            _, _, node = heapq.heappop(leaves)
            parent = node.parent
            self._remove(node, worker)
            if parent is not None and parent is not self.root and parent.is_leaf_of(worker):
                count += 1
                heapq.heappush(leaves, (parent.workers[worker], -count, parent))

    def check(self) -> None:
        """AssertionError if a worker has a node without its parent, a run is in two places, or a
        size is wrong."""
        sizes: dict[int, int] = {}
        stack = [self.root]
        while stack:
            node = stack.pop()
            for first, child in node.children.items():
                assert child.parent is node and child.key[0] == first
                assert child.workers, "a node that nobody has"
                assert node is self.root or child.workers.keys() <= node.workers.keys()
                for worker in child.workers:
                    sizes[worker] = sizes.get(worker, 0) + len(child.key)
                stack.append(child)
        assert sizes == {worker: n for worker, n in self.sizes.items() if n}, "sizes are wrong"

    # ------------------------------------------------------------------ inside

    def _walk(self, tokens: Tokens) -> Iterator[tuple[MetaNode, int]]:
        """The nodes that spell a prefix of `tokens`, and how much of each does: all of it, but of
        the last."""
        node = self.root
        while tokens and (child := node.children.get(tokens[0])) is not None:
            common = _common(child.key, tokens)
            yield child, common
            if common < len(child.key):
                return
            node, tokens = child, tokens[common:]

    def _cut(self, node: MetaNode, at: int) -> MetaNode:
        """`node` with its first `at` tokens only; the rest becomes its child."""
        if at == len(node.key):
            return node
        assert node.parent is not None
        head = MetaNode(node.key[:at], node.parent, workers=dict(node.workers))
        node.parent.children[node.key[0]] = head
        node.key, node.parent = node.key[at:], head
        head.children[node.key[0]] = node
        return head

    def _remove(self, node: MetaNode, worker: int) -> None:
        """`worker` has neither `node` nor anything below it."""
        stack = [node]
        while stack:
            node = stack.pop()
            if node.workers.pop(worker, None) is None:
                continue
            self.sizes[worker] -= len(node.key)
            stack.extend(node.children.values())
            if not node.workers:
                assert node.parent is not None
                del node.parent.children[node.key[0]]  # what is below goes with it

    def _nodes_of(self, worker: int) -> Iterator[MetaNode]:
        stack = [c for c in self.root.children.values() if worker in c.workers]
        while stack:
            node = stack.pop()
            yield node
            stack.extend(c for c in node.children.values() if worker in c.workers)


def _common(a: Tokens, b: Tokens) -> int:
    """How many leading tokens are the same.

    >>> _common((1, 2, 3), (1, 2, 9, 9))
    2
    """
    shorter = min(len(a), len(b))
    if a[:shorter] == b[:shorter]:  # in C, and so it is most of the time
        return shorter
    return next(i for i in range(shorter) if a[i] != b[i])

"""In which order waiting requests are admitted (paper section 3, "cache-aware scheduling").

Pure functions: the waiting requests in order of arrival, and a look at what the tree holds of each,
in; an order out.  Which requests they are shown, and who goes before them, is `WaitingQueue`'s.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol, TypeVar

from minisgl.cache.radix_cache import Peek
from minisgl.cache.tree_node import TreeNode
from minisgl.engine.req import Req
from minisgl.engine.sampler import uniform

R = TypeVar("R")


class HasId(Protocol):
    """Something numbered."""

    @property
    def id(self) -> int:
        """Its number."""


N = TypeVar("N", bound=HasId)


def fcfs(waiting: Sequence[R], peek: Callable[[R], Peek]) -> Iterable[R]:
    """First come, first served.

    >>> from minisgl.cache.radix_cache import RadixCache
    >>> fcfs(["ab", "c"], RadixCache().peek)
    ['ab', 'c']
    """
    return waiting


def lpm(waiting: Sequence[R], peek: Callable[[R], Peek]) -> Iterator[R]:
    """Longest prefix match first: who can use what is cached runs while it still is.

    Each choice is made when it is asked for, after the one before it was admitted: what that one is
    about to compute is in the tree by then.  So requests that share a prefix follow each other even
    where all of it is new: a depth-first walk of the tree of prompts (theorem 3.1).  Equals come
    first come, first served.

    >>> from minisgl.cache.radix_cache import RadixCache
    >>> tree = RadixCache()
    >>> known = tree.insert("abc", [0, 1, 2])
    >>> list(lpm(["xa", "ab", "xb", "abc"], tree.peek))
    ['abc', 'ab', 'xa', 'xb']
    """
    left = list(waiting)
    while left:
        best = max(left, key=lambda req: peek(req).num_tokens)  # the first of equals
        left.remove(best)
        yield best


def dfs_weight(waiting: Sequence[R], peek: Callable[[R], Peek]) -> list[R]:
    """Depth first over the tree; at each fork to where most requests wait, so that a subtree is
    used up before the next.  Those that match nothing come last.

    >>> from minisgl.cache.radix_cache import RadixCache
    >>> tree = RadixCache()
    >>> for prompt in ("ab", "ac", "d"):
    ...     known = tree.insert(prompt, range(len(prompt)))
    >>> list(dfs_weight(["x", "abc", "d1", "d2", "acc", "acd"], tree.peek))
    ['acc', 'acd', 'abc', 'd1', 'd2', 'x']
    """
    if not waiting:
        return []
    ends: defaultdict[TreeNode, list[R]] = defaultdict(list)
    below: defaultdict[TreeNode, list[TreeNode]] = defaultdict(list)
    weight: Counter[TreeNode] = Counter()
    for req in waiting:
        node = peek(req).node
        ends[node].append(req)
        while node.parent is not None:
            if node not in weight:
                below[node.parent].append(node)
            weight[node] += 1
            node = node.parent
    stack = [node]  # the root, where every walk up ends
    parents_first: list[TreeNode] = []
    while stack:
        node = stack.pop()
        parents_first.append(node)
        stack += sorted(below[node], key=lambda child: -weight[child])  # the lightest is next
    # Read backwards: the heaviest child first, and every child before its parent.
    return [req for node in reversed(parents_first) for req in ends[node]]


def shuffled(waiting: Sequence[N], peek: Callable[[N], Peek]) -> list[N]:
    """In random order: each request's place is drawn from its number, so that it stays the same
    from step to step and from run to run."""
    return sorted(waiting, key=lambda req: uniform(seed=0, position=req.id))


ORDERS: dict[str, Callable[[Sequence[Req], Callable[[Req], Peek]], Iterable[Req]]] = {
    "lpm": lpm,
    "dfs-weight": dfs_weight,
    "fcfs": fcfs,
    "random": shuffled,
}

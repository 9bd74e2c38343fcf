"""One node of the radix tree, and the one comparison that everything on it is made of."""

from __future__ import annotations

from collections.abc import Hashable, Iterator


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
    ) -> None:
        self.key = key
        self.slots: list[int] = [] if slots is None else slots
        self.children: dict[Hashable, TreeNode] = {}
        self.parent = parent
        self.namespace = namespace
        self.ref_count = 0
        self.last_used = 0
        self.queued = False

    @property
    def edge(self) -> Hashable:
        """The label under which the parent holds this node: no two siblings have the same one.

        The namespace tells apart only children of the root; one rule for every node is simpler.
        """
        return self.namespace, self.key[0]

    @property
    def evictable(self) -> bool:
        """True for an unlocked leaf of the tree (not the root, not an evicted node)."""
        return self.parent is not None and not self.children and self.ref_count == 0

    def path(self, below: TreeNode | None = None) -> list[TreeNode]:
        """The nodes from just below the root, or below an ancestor, down to this one."""
        nodes = []
        node = self
        while node.parent is not None and node is not below:
            nodes.append(node)
            node = node.parent
        nodes.reverse()
        return nodes

    def below(self) -> Iterator[TreeNode]:
        """Every node under this one, parents before children."""
        stack = list(self.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())


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

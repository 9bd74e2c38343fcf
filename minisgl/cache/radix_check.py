"""Every invariant of the radix tree, verified in one walk: what `RadixCache.check` calls."""

from __future__ import annotations

from collections.abc import Sequence

from minisgl.cache.tree_node import TreeNode


def check_tree(
    root: TreeNode,
    queue: Sequence[tuple[int, int, TreeNode]],
    clock: int,
    evictable_size: int,
    protected_size: int,
) -> None:
    """Walk the tree below `root` and compare with what the cache keeps beside it, in O(tokens).

    Args:
        queue: of eviction; entries (last_used when the node was queued, tie breaker, node).
        clock: the logical time.
        evictable_size, protected_size: what the cache has counted.

    Raises:
        AssertionError: says which invariant is broken.
    """
    _expect(not (root.key or root.slots or root.parent), "the root carries no tokens")
    _expect(root.ref_count == 0, "the root is never counted: a lock stops below it")
    queued = {node: queued_at for queued_at, _, node in queue}
    _expect(len(queued) == len(queue), "a node is queued for eviction at most once")

    nodes = list(root.below())
    for node in nodes:
        _check_node(node, root, clock, queued.pop(node, None))
    _expect(not queued, "the queue holds nodes of the tree only")
    slots = [slot for node in nodes for slot in node.slots]
    _expect(len(set(slots)) == len(slots), "a slot belongs to one token only")
    evictable = sum(len(node.key) for node in nodes if node.ref_count == 0)
    protected = len(slots) - evictable
    sizes = f"evictable_size {evictable_size}, protected_size {protected_size}"
    _expect(
        (evictable_size, protected_size) == (evictable, protected),
        f"{sizes}: counted {evictable} and {protected}",
    )


def _check_node(node: TreeNode, root: TreeNode, clock: int, queued_at: int | None) -> None:
    """One node and its children."""
    parent, children = node.parent, node.children.values()
    assert parent is not None, "the walk starts below the root"
    _expect(len(node.key) > 0, "every node but the root carries at least one token")
    _expect(len(node.key) == len(node.slots), "a node has one slot for each token")
    _expect(parent.children.get(node.edge) is node, "parent and child point at each other")
    _expect(
        parent is root or parent.namespace == node.namespace,
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
    _expect(node.last_used <= clock, "no node was used in the future")
    _expect(node.queued == (queued_at is not None), "`queued` tells what is in the queue")
    _expect(node.queued or not node.evictable, "every evictable leaf waits in the queue")
    _expect((queued_at or 0) <= node.last_used, "an entry is never younger than its node")


def _expect(condition: bool, invariant: str) -> None:  # noqa: FBT001
    """Raise AssertionError naming the broken invariant; unlike `assert`, also under `python -O`."""
    if not condition:
        raise AssertionError(f"broken invariant: {invariant}")

"""What the passes share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from minisgl.lang.graph import Block, Graph, Join, Node, Repeat, When


def with_blocks(node: Node, change: Callable[[Block], Block]) -> Node:
    """`node` with its blocks changed, if it has any."""
    match node.op:
        case When(condition, then, otherwise):
            return replace(node, op=When(condition, change(then), change(otherwise)))
        case Repeat(body, at_most, until, entry):
            return replace(node, op=Repeat(change(body), at_most, until, entry))
        case _:
            return node


def join_ends(graph: Graph) -> set[int]:
    """The nodes after which a join takes what a branch has said."""
    joins = [node.op for node in graph.nodes if isinstance(node.op, Join)]
    return {end for join in joins for _, end in join.branches}

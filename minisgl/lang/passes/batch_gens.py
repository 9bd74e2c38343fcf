"""Batching of independent gens: those that become ready at the same moment, as one submission.

A gen is ready when every gen, select, and other node that waits, on which it depends, is done.  So
gens that depend on the same ones are ready together: the first gens of a fork's branches, or a gen
after the fork and theirs.  Sent as one, the model's scheduler sees them at once, and computes what
they have in common once.
"""

from __future__ import annotations

from minisgl.lang import ir
from minisgl.lang.graph import Block, Graph, Join, Repeat, When, needs, previous


def batches(graph: Graph) -> list[tuple[int, ...]]:
    """The gens that can be sent together, two or more each; a gen is in one of them at most."""
    return _batches(graph.body)


def _batches(block: Block) -> list[tuple[int, ...]]:
    before = previous(block)
    waits: dict[int, frozenset[int]] = {}  # of each node, the nodes that wait and come before it
    together: dict[frozenset[int], list[int]] = {}
    found = []
    inside = {node.id for node in block.nodes}
    waiting = {n.id for n in block.nodes if isinstance(n.op, ir.Gen | ir.Select | When | Repeat)}
    for node in block.nodes:
        gathers = isinstance(node.op, Join) and node.op.mode == "gather_variable"
        first = [before[node.id]] if node.id in before else []
        depends = first + ([] if gathers else list(needs(node)))
        sets = [waits[i] | ({i} & waiting) if i in inside else {i} for i in depends]
        waits[node.id] = frozenset().union(*sets)
        if isinstance(node.op, ir.Gen):
            together.setdefault(waits[node.id], []).append(node.id)
        for part in node.blocks:
            found += _batches(part)
    return found + [tuple(ids) for ids in together.values() if len(ids) > 1]

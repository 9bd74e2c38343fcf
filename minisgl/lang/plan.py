"""`Plan`: a graph sorted for running: which stream begins where, and what each node waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from minisgl.lang import graph as g
from minisgl.lang.values import Expression, refs


@dataclass(frozen=True)
class Plan:
    """A block, prepared for running.

    own: the nodes of the stream that it belongs to.
    nested: of each nested program that begins in it.
    branches: of each branch, by its Fork.
    waiting: of each node, the nodes whose values it needs.
    parts: the plans of the blocks in a node.
    kept: the nodes, anywhere, whose context is asked for later.
    batches: of a gen, the number of its batch, and how many are in it.
    loops: the Repeats around the block, whose variables are those of the round before.
    """

    block: g.Block
    own: Sequence[g.Node]
    nested: Sequence[Sequence[g.Node]]
    branches: Mapping[int, Sequence[Sequence[g.Node]]]
    waiting: Mapping[int, Sequence[int]]
    parts: Mapping[int, Sequence[Plan]]
    kept: frozenset[int]
    batches: Mapping[int, tuple[int, int]]
    loops: frozenset[int]


def plan(graph: g.Graph, batches: Sequence[Sequence[int]] = ()) -> Plan:
    """How to run `graph`; the gens of each of `batches` are sent to the model together."""
    kept = {
        i
        for node in graph.nodes
        if isinstance(node.op, g.Join)
        for ends in node.op.branches
        for i in ends
    }
    members = {i: (batch[0], len(batch)) for batch in batches for i in batch}
    return _plan(graph.body, 0, frozenset(kept), members, frozenset())


def _plan(
    block: g.Block,
    stream: int,
    kept: frozenset[int],
    batches: Mapping[int, tuple[int, int]],
    loops: frozenset[int],
) -> Plan:
    streams = g.streams(block)
    own = streams.pop(stream, [])
    branches: dict[int, list[Sequence[g.Node]]] = {}
    nested = []
    for nodes in streams.values():
        begin = nodes[0].op
        if isinstance(begin, g.GetForkItem):
            branches.setdefault(begin.fork, []).append(nodes)
        else:
            nested.append(nodes)
    waiting = {
        node.id: tuple({ref.node for e in _needed_first(node.op) for ref in refs(e)} - loops)
        for node in block.nodes
    }
    parts = {}
    for node in block.nodes:
        around = loops | {node.id} if isinstance(node.op, g.Repeat) else loops
        parts[node.id] = [_plan(part, node.stream, kept, batches, around) for part in node.blocks]
    return Plan(block, own, nested, branches, waiting, parts, kept, batches, loops)


def _needed_first(op: g.Op) -> Iterable[Expression]:
    """The values without which `op` can't begin."""
    return () if isinstance(op, g.Repeat) else g.expressions(op)

"""Constant folding: texts that follow one another in a stream are one node."""

from __future__ import annotations

from dataclasses import replace

from minisgl.lang import ir
from minisgl.lang.graph import Block, Graph, Join, Node
from minisgl.lang.passes.rewrite import join_ends, with_blocks


def fold_text(graph: Graph) -> Graph:
    """The same program with fewer nodes.

    %0 Text('Q: ')  %1 Text('why?')  %2 Gen('x')   ->   %0 Text('Q: why?')  %2 Gen('x')
    """
    return replace(graph, body=_fold(graph.body, join_ends(graph), {}))


def _fold(block: Block, ends: set[int], joined: dict[int, int]) -> Block:
    """
    ends: a text can't grow after a join has taken it.
    joined: a text -> the one that it is a part of now.
    """
    kept: dict[int, Node] = {}
    last: dict[int, Node] = {}  # of each stream, as it is now
    for node in block.nodes:
        before = last.get(node.stream)
        match node.op:
            case ir.Text("") if node.id not in ends:
                continue
            case ir.Text(text) if before and _can_grow(before, ends):
                joined[node.id] = before.id
                if node.id in ends:
                    ends.add(before.id)
                assert isinstance(before.op, ir.Text)
                new = replace(before, op=ir.Text(before.op.text + text))
            case Join(branches, mode):
                now = tuple((begin, joined.get(end, end)) for begin, end in branches)
                new = replace(node, op=Join(now, mode))
            case _:
                new = with_blocks(node, lambda part: _fold(part, ends, joined))
        kept[new.id] = last[new.stream] = new
    return replace(block, nodes=tuple(kept.values()))


def _can_grow(node: Node, ends: set[int]) -> bool:
    return isinstance(node.op, ir.Text) and node.id not in ends

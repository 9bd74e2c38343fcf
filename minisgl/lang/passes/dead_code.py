"""Dead code: what nobody reads is not said, and no model is asked for it.

Read are the program's text, its variables, what it returns, and whatever these need.  A branch that
is never joined has none of it; of one whose values are gathered, what it says after the last value
is not read.
"""

from __future__ import annotations

from dataclasses import replace

from minisgl.lang.graph import Block, Fork, Graph, Join, Node, expressions, needs, previous, walk
from minisgl.lang.passes.rewrite import with_blocks
from minisgl.lang.values import refs


def remove_dead_code(graph: Graph) -> Graph:
    """The same program without what has no effect on it."""
    live = _live(graph)
    left = [node for node in graph.nodes if node.id in live]
    return replace(graph, body=_without(graph.body, live, left))


def _live(graph: Graph) -> set[int]:
    nodes = {node.id: node for node in graph.nodes}
    before = _all_previous(graph.body)
    live: set[int] = set()
    todo = _roots(graph.body, 0) + [ref.node for ref in refs(graph.returns)]
    while todo:
        i = todo.pop()
        if i in live:
            continue
        live.add(i)
        node = nodes[i]
        if i in before:
            todo.append(before[i])
        if not (isinstance(node.op, Join) and node.op.mode == "gather_variable"):
            todo += needs(node)  # of a node with blocks: what they need from outside
        todo += [ref.node for value in expressions(node.op) for ref in refs(value)]
        for block in node.blocks:
            todo += _roots(block, node.stream)
    return live


def _roots(block: Block, stream: int) -> list[int]:
    """What is read of a block that runs: the text of its own stream, and its variables."""
    own = [node.id for node in block.nodes if node.stream == stream]
    return own + [ref.node for value in block.variables.values() for ref in refs(value)]


def _all_previous(block: Block) -> dict[int, int]:
    before = previous(block)
    for node in block.nodes:
        for part in node.blocks:
            before |= _all_previous(part)
    return before


def _without(block: Block, live: set[int], left: list[Node]) -> Block:
    """
    left: the live nodes of the whole graph.
    """
    kept: list[Node] = []
    for node in block.nodes:
        if node.id not in live:
            continue
        new = with_blocks(node, lambda part: _without(part, live, left))
        if isinstance(new.op, Join) and new.op.mode == "gather_variable":
            new = replace(new, op=_gather(new.op, left))
        kept.append(new)
    read = {i for node in kept for inner in _with_inner(node) for i in needs(inner)}
    return replace(block, nodes=tuple(n for n in kept if n.id in read or not _is_empty(n)))


def _is_empty(node: Node) -> bool:
    """A fork or a join of nothing, if nobody needs it."""
    match node.op:
        case Fork():
            return True
        case Join(branches):
            return not branches
        case _:
            return False


def _gather(join: Join, left: list[Node]) -> Join:
    """`join` of what is left of its branches."""
    stream_of = {node.id: node.stream for node in left}
    ends = []
    for begin, end in join.branches:
        if begin in stream_of:
            branch = [i for i, stream in stream_of.items() if stream == stream_of[begin]]
            ends.append((begin, max(i for i in branch if i <= end)))
    return Join(tuple(ends), join.mode)


def _with_inner(node: Node) -> list[Node]:
    return [node, *(inner for block in node.blocks for inner in walk(block))]

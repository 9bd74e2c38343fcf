"""What can be told of a pattern's nodes before anything is matched."""

from __future__ import annotations

from math import inf

from minisgl.fsm.nodes import Chars, Choice, Look, Node, Repeat, Rule, Sequence


def children(node: Node) -> tuple[Node, ...]:
    """Those right below."""
    match node:
        case Chars():
            return ()
        case Sequence(parts):
            return parts
        case Choice(options):
            return options
        case Repeat(body) | Look(body):
            return (body,)
        case Rule():
            assert node.body is not None, f"rule {node.name} has no body"
            return (node.body,)


def all_nodes(root: Node) -> list[Node]:
    """Each once, and below before above (a rule that holds itself aside)."""
    order: list[Node] = []
    seen = {root}
    stack = [(root, iter(children(root)))]
    while stack:
        node, below = stack[-1]
        for child in below:
            if child not in seen:
                seen.add(child)
                if isinstance(child, Chars):  # by far the most, and nothing is below
                    order.append(child)
                    continue
                stack.append((child, iter(children(child))))
                break
        else:
            order.append(node)
            stack.pop()
    return order


def min_lengths(nodes: list[Node], mask: dict[Node, int]) -> dict[Node, float]:
    """The fewest characters that each can match; inf if it can't match at all."""
    length: dict[Node, float] = {
        node: inf if isinstance(node, Rule) else 0 for node in nodes
    }  # fmt: skip
    changed = True
    while changed:  # once, and more often only where rules hold themselves
        changed = False
        for node in nodes:
            match node:
                case Chars():
                    new: float = 1 if mask[node] else inf
                case Sequence(parts):
                    new = sum(map(length.__getitem__, parts))
                case Choice(options):
                    new = min(map(length.__getitem__, options))
                case Repeat(body, low, _):
                    new = low * length[body] if low else 0
                case Rule():
                    new = length[node.body] if node.body is not None else inf
                case Look():
                    new = 0
            if isinstance(node, Rule):
                changed |= new != length[node]
            length[node] = new
    return length


def is_zero_width(node: Node, known: dict[Node, bool]) -> bool:
    """Whether it never matches a character.  A rule that is still open counts as one that may."""
    if node not in known:
        match node:
            case Look():
                known[node] = True
            case Chars() | Rule():
                known[node] = False
            case _:
                known[node] = all(is_zero_width(child, known) for child in children(node))
    return known[node]


def holding_looks(nodes: list[Node]) -> set[Node]:
    """Those with a look-around in them; rules count as such, since that costs nothing."""
    found: set[Node] = set()
    for node in nodes:
        if isinstance(node, Look | Rule) or any(child in found for child in children(node)):
            found.add(node)
    return found


def can_match(root: Node) -> bool:
    """Whether some text matches it, look-around aside."""
    nodes = all_nodes(root)
    sizes: dict[Node, int] = {node: len(node.ranges) for node in nodes if isinstance(node, Chars)}
    return min_lengths(nodes, sizes)[root] < inf

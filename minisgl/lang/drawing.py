"""A graph as a picture: SVG, or text for Graphviz (the paper's figure 14).

A stream is a column, and time goes down.  Grey lines are the order within a stream, violet ones
what a node needs of others.  The parts of a `when` or a `repeat` have a frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from minisgl import svg
from minisgl.lang import ir
from minisgl.lang.graph import (
    Block,
    Fork,
    GetForkItem,
    Graph,
    Join,
    Node,
    Op,
    Repeat,
    Say,
    When,
    label,
    needs,
    previous,
)

WIDTH, HEIGHT, ACROSS, DOWN, EDGE = 172, 22, 196, 40, 16
NEEDED = "#8250df"


def draw(graph: Graph, kind: str) -> str:
    """The picture of `graph`.

    Args:
        kind: "svg" or "dot".
    """
    if kind == "svg":
        return _svg(graph)
    if kind == "dot":
        return _dot(graph)
    raise ValueError(f'kind={kind!r}: give "svg" or "dot"')


@dataclass(frozen=True)
class Edge:
    """needed: a value or a branch's text; otherwise the order within a stream."""

    source: int
    target: int
    needed: bool


@dataclass(frozen=True)
class Frame:
    """Round a part of a program: columns and rows, both ends included."""

    word: str
    left: int
    top: int
    right: int
    bottom: int


@dataclass
class Layout:
    """Where everything is: (column, row) of each node."""

    nodes: dict[int, tuple[Node, int, int]] = field(default_factory=dict)
    frames: list[Frame] = field(default_factory=list)
    edges: list[Edge] = field(default_factory=list)
    columns: int = 1

    def place(self, block: Block, stream: int, column: int, row: int, entry: int | None) -> int:
        """Put `block`, whose own stream is in `column`, below `row`; the last row that it takes.

        entry: the node that it is a part of.
        """
        before = previous(block)
        column_of = {stream: column}
        ends: dict[int, int] = {}  # the last row of each node, with its parts
        last = row
        for node in block.nodes:
            if node.stream not in column_of:
                column_of[node.stream] = self.columns
                self.columns += 1
            above = [i for i in (before.get(node.id), *needs(node)) if i is not None]
            first = max([row, *(ends.get(i, row) + 1 for i in above)])
            at = column_of[node.stream]
            self.nodes[node.id] = (node, at, first)
            if node.id in before:
                self.edges.append(Edge(before[node.id], node.id, needed=False))
            elif entry is not None and node.stream == stream:
                self.edges.append(Edge(entry, node.id, needed=False))
            own = needs(node) if not node.blocks else ()  # the parts draw what they need themselves
            self.edges += [Edge(i, node.id, needed=True) for i in own if i != before.get(node.id)]
            ends[node.id] = self._place_parts(node, at, first)
            last = max(last, ends[node.id])
        return last

    def _place_parts(self, node: Node, column: int, row: int) -> int:
        last = row
        words = {When: ("then", "otherwise"), Repeat: ("repeat",)}.get(type(node.op), ())
        for i, (word, part) in enumerate(zip(words, node.blocks, strict=True)):
            left = column if i == 0 else self.columns
            self.columns = max(self.columns, left + 1)
            if not part.nodes:
                continue
            bottom = self.place(part, node.stream, left, row + 1, node.id)
            self.frames.append(Frame(word, left, row + 1, max(left, self.columns - 1), bottom))
            last = max(last, bottom)
        return last


def layout(graph: Graph) -> Layout:
    """Where everything is."""
    found = Layout()
    found.place(graph.body, 0, 0, 0, None)
    return found


def _svg(graph: Graph) -> str:
    found = layout(graph)
    rows = 1 + max([row for _, _, row in found.nodes.values()], default=0)

    def x(column: int) -> int:
        return EDGE + ACROSS * column

    def y(row: int) -> int:
        return 34 + DOWN * row

    parts = [svg.text(EDGE, 20, str_of(graph), bold=True)]
    for frame in found.frames:
        width = ACROSS * (frame.right - frame.left) + WIDTH + 12
        height = DOWN * (frame.bottom - frame.top) + HEIGHT + 14
        left, top = x(frame.left) - 6, y(frame.top) - 8
        box = svg.rect(left, top, width, height, "none", stroke=svg.FAINT, radius=4, dashed=True)
        word = svg.text(left + width - 4, top - 3, frame.word, fill=svg.FAINT, anchor="end", size=9)
        parts.append(svg.group("part", [box, word]))
    for edge in found.edges:
        _, a, above = found.nodes[edge.source]
        _, b, below = found.nodes[edge.target]
        # A need within a column goes beside the line of the column itself.
        middle = WIDTH / 2 + (24 if edge.needed and a == b else 0)
        to_x, to_y = x(b) + middle, y(below)
        line = f"M {x(a) + middle:g} {y(above) + HEIGHT} L {to_x:g} {to_y}"
        head = f"M {to_x - 3:g} {to_y - 5} L {to_x:g} {to_y} L {to_x + 3:g} {to_y - 5}"
        parts.append(svg.path(f"{line} {head}", NEEDED if edge.needed else svg.FAINT))
    for node, column, row in found.nodes.values():
        box = svg.rect(
            x(column), y(row), WIDTH, HEIGHT, colour_of(node.op), stroke=svg.FAINT, radius=3
        )
        words = svg.printable(short(node.op), 30)
        text = svg.text(x(column) + WIDTH / 2, y(row) + 15, words, anchor="middle", size=10)
        parts.append(svg.group(type(node.op).__name__.lower(), [box, text], title=str(node)))
    width = 2 * EDGE + ACROSS * found.columns - (ACROSS - WIDTH)
    return svg.document(width, y(rows - 1) + HEIGHT + EDGE, parts, str_of(graph))


def _dot(graph: Graph) -> str:
    return "\n".join(_dot_lines(graph)) + "\n"


def _dot_lines(graph: Graph) -> Iterator[str]:
    found = layout(graph)
    yield f"digraph {_quoted(str_of(graph))} {{"
    yield '  node [shape=box, style="rounded,filled", fontname=Helvetica]'
    for node, _, _ in found.nodes.values():
        words, fill = _quoted(svg.printable(short(node.op), 60)), _quoted(colour_of(node.op))
        yield f"  n{node.id} [label={words}, fillcolor={fill}]"
    for edge in found.edges:
        style = f" [style=dashed, color={_quoted(NEEDED)}]" if edge.needed else ""
        yield f"  n{edge.source} -> n{edge.target}{style}"
    yield "}"


def str_of(graph: Graph) -> str:
    """The program with its arguments.

    >>> str_of(Graph("qa", {"question": None}, Block(()), None))
    'qa(question)'
    """
    return f"{graph.name}({', '.join(graph.parameters)})"


def short(op: Op) -> str:
    """A node's words in the picture."""
    match op:
        case ir.Text(text):
            return text
        case ir.Gen(name):
            return f"gen {name}"
        case ir.Select(name, choices):
            return f"select {name}: {' | '.join(choices)}"
        case ir.RoleBegin(role):
            return f"{role}:"
        case ir.RoleEnd(role):
            return f"/{role}"
        case Fork(size):
            return f"fork {size}"
        case GetForkItem(_, index):
            return f"branch {index}"
        case Join(_, mode):
            return "join" if mode == "gather_variable" else "join: append"
        case _:
            return label(op)


def colour_of(op: Op) -> str:
    """By what a node is."""
    match op:
        case ir.Gen():
            return "#8fb8ee"
        case ir.Select():
            return "#e0b040"
        case Say():
            return "#b7dfb9"
        case Fork() | GetForkItem() | Join():
            return "#d9c7f0"
        case When() | Repeat():
            return "#f3c1b0"
        case ir.Text():
            return svg.PAPER
        case _:
            return "#e6e8eb"


def _quoted(words: str) -> str:
    escaped = words.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'

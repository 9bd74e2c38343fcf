"""`Graph`: a program as data.  What it says, and what has to be there before it can be said.

    %0  ConstantText('Q: ')                  s
    %1  Argument(question)                   s    after %0
    %2  Gen('answer')                        s    after %1
    %3  Fork(2)                              s    after %2
    %4  GetForkItem(%3, 0)                   s.0
    %5  Variable(s['answer'])                s.0  after %4, needs %2

A node belongs to a stream, and comes after the node before it there (the intra-stream dependency);
it may need nodes of other streams, too, whose values it says or whose text it appends (inter-stream
dependencies).  Nodes stand in the order in which the program wrote them, so what a node needs is
always further up.  Everything here is frozen; passes make new graphs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from minisgl.lang import ir
from minisgl.lang.values import Argument, Expression, arguments, refs, shown

JoinMode: TypeAlias = Literal["gather_variable", "concate_and_append"]


@dataclass(frozen=True)
class Say:
    """A text that only a run knows: an argument, a variable, or what is computed from them."""

    value: Expression


@dataclass(frozen=True)
class Begin:
    """A nested program begins: a stream with nothing before it.

    settings: those of its run, fields of `SamplingParams`.
    """

    settings: Mapping[str, Any]
    num_api_spec_tokens: int | None = None


@dataclass(frozen=True)
class Fork:
    """What the stream has said here is where `size` branches go on from."""

    size: int


@dataclass(frozen=True)
class GetForkItem:
    """A branch begins."""

    fork: int  # node
    index: int


@dataclass(frozen=True)
class Join:
    """Branches come together.

    branches: of each, its GetForkItem, and its last node until now.
    mode: "concate_and_append" appends what was said between them; "gather_variable" says nothing:
        the lists that it makes are expressions, and wait for their items themselves.
    """

    branches: tuple[tuple[int, int], ...]
    mode: JoinMode


@dataclass(frozen=True)
class Block:
    """Nodes that run together: a whole program, or a part of one that may run or not.

    variables: by name, what they are at its end; of a part, those that it may have changed.
    """

    nodes: tuple[Node, ...]
    variables: Mapping[str, Expression] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True)
class When:
    """One of two blocks runs.  The node's variables are those of the one that ran."""

    condition: Expression
    then: Block
    otherwise: Block


@dataclass(frozen=True)
class Repeat:
    """A block runs until `until` is true after it, but at most so many times.

    entry: what the node's variables are before the first round: those that the block changes.
    until: None: as many rounds as it may.
    """

    body: Block
    at_most: int
    until: Expression | None
    entry: Mapping[str, Expression]


Op: TypeAlias = (
    ir.Text | ir.Gen | ir.Select | ir.Image | ir.Video | ir.RoleBegin | ir.RoleEnd | ir.ScopeBegin
    | ir.ScopeEnd | Say | Begin | Fork | GetForkItem | Join | When | Repeat
)  # fmt: skip


@dataclass(frozen=True)
class Node:
    """One thing that happens.

    id: unique in the graph.
    stream: 0 is the program's own.
    line: of the program, "file:line in function".
    """

    id: int
    stream: int
    op: Op
    line: str = ""

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The parts of the program inside it."""
        match self.op:
            case When(_, then, otherwise):
                return (then, otherwise)
            case Repeat(body):
                return (body,)
            case _:
                return ()

    @property
    def waits(self) -> bool:
        """Whether a model is asked."""
        return isinstance(self.op, ir.Gen | ir.Select)

    def __str__(self) -> str:
        return f"%{self.id} {label(self.op)}"


@dataclass(frozen=True)
class Graph:
    """A program.

    parameters: its arguments, with the expression of each that may be left out.
    returns: what its function returns.
    """

    name: str
    parameters: Mapping[str, Expression | None]
    body: Block
    returns: Expression

    @property
    def nodes(self) -> tuple[Node, ...]:
        """All of them, also those inside others, in the order of the program."""
        return tuple(walk(self.body))

    def __str__(self) -> str:
        return "\n".join(lines(self.body))


def walk(block: Block) -> Iterator[Node]:
    """Every node of `block`, and of the blocks in it: each before what is inside it."""
    for node in block.nodes:
        yield node
        for inner in node.blocks:
            yield from walk(inner)


def needs(node: Node) -> tuple[int, ...]:
    """The nodes, of any stream, whose values or texts `node` itself needs, besides the one before
    it in its stream.  For a node with blocks: what they need from outside."""
    match node.op:
        case GetForkItem(fork):
            needed = [fork]
        case Join(branches):
            needed = [end for _, end in branches]
        case _:
            needed = [ref.node for e in expressions(node.op) for ref in refs(e)]
            for block in node.blocks:
                needed += [n for inner in walk(block) for n in needs(inner)]
                needed += [ref.node for e in block.variables.values() for ref in refs(e)]
    inside = {node.id, *(inner.id for block in node.blocks for inner in walk(block))}
    return tuple(dict.fromkeys(n for n in needed if n not in inside))


def expressions(op: Op) -> Iterator[Expression]:
    """The values that `op` itself needs, not those inside its blocks."""
    match op:
        case Say(value):
            yield value
        case ir.Image(source):
            if isinstance(source, Expression):
                yield source
        case When(condition):
            yield condition
        case Repeat(_, _, until, entry):
            yield from entry.values()
            if until is not None:
                yield until


def previous(block: Block) -> dict[int, int]:
    """The node before each one in its stream; the first of a stream has none."""
    last: dict[int, int] = {}
    before: dict[int, int] = {}
    for node in block.nodes:
        if node.stream in last:
            before[node.id] = last[node.stream]
        last[node.stream] = node.id
    return before


def streams(block: Block) -> dict[int, list[Node]]:
    """The nodes of each stream."""
    found: dict[int, list[Node]] = {}
    for node in block.nodes:
        found.setdefault(node.stream, []).append(node)
    return found


def label(op: Op) -> str:
    """In a word or two."""
    match op:
        case ir.Text(text):
            return f"ConstantText({text!r})"
        case Say(Argument(name)):
            return f"Argument({name})"
        case Say(value):
            return f"Variable({shown(value)})"
        case ir.Gen(name):
            return f"Gen({name!r})"
        case ir.Select(name, choices):
            return f"Select({name!r}, {list(choices)!r})"
        case ir.Image() | ir.Video() | Begin():
            return type(op).__name__
        case ir.RoleBegin(name) | ir.RoleEnd(name) | ir.ScopeBegin(name) | ir.ScopeEnd(name):
            return f"{type(op).__name__}({name!r})"
        case Fork(size):
            return f"Fork({size})"
        case GetForkItem(fork, index):
            return f"GetForkItem(%{fork}, {index})"
        case Join(branches, mode):
            return f"Join({', '.join(f'%{end}' for _, end in branches)}, {mode!r})"
        case When(condition):
            return f"When({shown(condition)})"
        case Repeat(_, at_most, until):
            end = f", until={shown(until)}" if until is not None else ""
            return f"Repeat(at_most={at_most}{end})"


def lines(block: Block, indent: str = "") -> Iterator[str]:
    """`block` for people, a node a line."""
    before = previous(block)
    for node in block.nodes:
        after = f"  after %{before[node.id]}" if node.id in before else ""
        needed = ", ".join(f"%{n}" for n in needs(node))
        yield f"{indent}{node}{after}{'  needs ' * bool(needed)}{needed}"
        match node.op:
            case When():
                for word, inner in zip(("then", "otherwise"), node.blocks, strict=True):
                    yield f"{indent}  {word}:"
                    yield from lines(inner, indent + "    ")
            case Repeat(body):
                yield from lines(body, indent + "    ")


def used_arguments(graph: Graph) -> set[str]:
    """The arguments that it says or looks at."""
    found = [e for node in graph.nodes for e in expressions(node.op)]
    found += [e for node in graph.nodes for b in node.blocks for e in b.variables.values()]
    found += [graph.returns, *graph.body.variables.values()]
    return {argument.name for expression in found for argument in arguments(expression)}


def faults(graph: Graph) -> Iterator[str]:
    """What is wrong with a graph: nothing, whichever pass made it."""
    for name in used_arguments(graph) - set(graph.parameters):
        yield f"the program has no argument {name!r}"
    yield from _faults(graph.body, {}, 0, {0})
    known = {node.id for node in graph.body.nodes}
    for ref in refs(graph.returns):
        if ref.node not in known:
            yield f"it returns a value of %{ref.node}, which is not there"


def _faults(block: Block, outer: Mapping[int, int], own: int, begun: set[int]) -> Iterator[str]:
    """
    outer: the nodes before the block, with their streams.
    own: the stream that the block belongs to.
    begun: every stream that has begun anywhere.
    """
    known, here = dict(outer), {own}
    for node in block.nodes:
        if isinstance(node.op, GetForkItem | Begin):
            if node.stream in begun:
                yield f"{node}: its stream has begun before"
            begun.add(node.stream)
            here.add(node.stream)
        if node.stream not in here:
            yield f"{node}: its stream has not begun here"
        yield from _own_faults(node, known)
        for inner in node.blocks:
            yield from _faults(inner, {**known, node.id: node.stream}, node.stream, begun)
        known[node.id] = node.stream
    for name, expression in block.variables.items():
        for ref in refs(expression):
            if ref.node not in known:
                yield f"variable {name!r} is a value of %{ref.node}, which is not there"


def _own_faults(node: Node, known: Mapping[int, int]) -> Iterator[str]:
    if node.id in known:
        yield f"%{node.id} is there twice"
    for needed in needs(node):
        if needed not in known:
            yield f"{node} needs %{needed}, which does not stand before it"
    if isinstance(node.op, Join):
        for begin, end in node.op.branches:
            if known.get(begin) != known.get(end):
                yield f"{node}: %{begin} and %{end} are not of one branch"

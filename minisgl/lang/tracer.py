"""`Tracer`: a stream that writes down what a program does to it, and does nothing.

    f.trace()  -->  f(state of a Tracer, Value, Value, ...)  -->  Graph

It stands where a `StreamExecutor` stands otherwise, so a program that is traced is the same Python,
run once, on `Value`s in place of its arguments and of whatever is generated.  What does not depend
on them (a loop over three topics, a helper function, a nested program) is done while it is traced.

The constant prefix of a program is a trace, too, which ends where the program needs a model or a
value that only a run has.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NoReturn

from minisgl.lang import graph as g
from minisgl.lang import ir
from minisgl.lang.changes import Changes, Piece
from minisgl.lang.context import Context
from minisgl.lang.outline import Outline
from minisgl.lang.program import Program
from minisgl.lang.source_line import program_line
from minisgl.lang.values import (
    Constant,
    DataDependence,
    Expression,
    Ref,
    Value,
    describe,
    expression_of,
    no_value,
    terms,
)
from minisgl.lang.variables import Failure, Variable

_here = threading.local()


def current_tracer() -> Tracer | None:
    """Of the program that this thread is tracing, if any: a program that it calls joins in."""
    return getattr(_here, "tracer", None)


@contextlib.contextmanager
def traced_by(tracer: Tracer) -> Iterator[None]:
    """Programs that are called in the block are traced by `tracer`."""
    before, _here.tracer = current_tracer(), tracer
    try:
        yield
    finally:
        _here.tracer = before


@dataclass
class Sheet:
    """Where the streams of one trace write.

    blocks: the nodes of each block that is being written, the innermost last.
    until_model: stop where a model, or anything generated, is needed.
    """

    program: Program
    until_model: bool = False
    blocks: list[list[g.Node]] = field(default_factory=lambda: [[]])
    nodes: int = 0  # as many ids are used
    streams: int = 1

    def new_id(self) -> int:
        """Of a node, which stands before those that are written from now on."""
        self.nodes += 1
        return self.nodes - 1


class Tracer:
    """One stream of a program that is traced.

    Attributes:
        outline: what has been written: roles, scopes, and names, whose values are `Value`s.
        returns: what the program's function has returned, on the stream of its own.
    """

    failure: Failure | None = None
    is_idle = True

    def __init__(self, sheet: Sheet, stream: int, outline: Outline | None = None) -> None:
        self.sheet = sheet
        self.stream = stream
        self.changes = Changes()
        self.outline = outline or Outline(sheet.program, self.changes)
        self.returns: Expression = Constant(None)
        self._block = sheet.blocks[-1]  # that it may write to
        self._last: g.Node | None = None
        self._begin: g.Node | None = None  # its GetForkItem

    # ------------------------------------------------------------------ for people

    @property
    def nodes(self) -> list[g.Node]:
        """Of this stream."""
        return [node for node in self.flatten_nodes() if node.stream == self.stream]

    @property
    def last_node(self) -> NodeView:
        """Of this stream; its `print_graph_dfs()` shows what it depends on."""
        if self._last is None:
            raise ValueError("this stream says nothing, so it has no last node")
        return NodeView(self._last, self.block())

    @property
    def variables(self) -> dict[str, Any]:
        """By name: `Value`s, and what the program has set itself."""
        return {name: variable.value() for name, variable in self.outline.variables.items()}

    def flatten_nodes(self) -> list[g.Node]:
        """Of all streams, in the order of the program."""
        return list(g.walk(self.block()))

    def block(self) -> g.Block:
        """What has been written until now."""
        values = {name: expression_of(value) for name, value in self.variables.items()}
        return g.Block(tuple(self.sheet.blocks[0]), values)

    # ------------------------------------------------------------------ as a StreamExecutor

    @property
    def program(self) -> Program:
        """The run that this is not: no backend, no settings."""
        return self.sheet.program

    @property
    def context(self) -> Context:
        """Nobody knows it."""
        raise no_value("what has been said", "with s.var_scope(name): makes a variable of a text")

    def submit(self, value: object) -> None:
        """Write down what is added.  Raises what a `StreamExecutor` would."""
        line = program_line()
        for node in ir.nodes(value):
            self._write(node, line)

    def fork(self, size: int) -> list[Tracer]:
        """`size` new streams."""
        self._needs_model(f"fork({size})")
        line = program_line()
        fork = self._append(g.Fork(size), line)
        return [self._branch(fork, i, line) for i in range(size)]

    def join(self, branches: Sequence[Tracer]) -> None:
        """Append what the branches say up to now."""
        self._append(g.Join(_ends(branches), "concate_and_append"), program_line())

    def gather(self, branches: Sequence[Tracer]) -> None:
        """The branches' variables are about to be gathered."""
        self._append(g.Join(_ends(branches), "gather_variable"), program_line())

    def variable(self, name: str) -> Variable:
        """The latest of that name; KeyError if there is none."""
        self._needs_model(f"variable {name!r}")
        if name in self.outline.variables:
            return self.outline.variables[name]
        known = ", ".join(map(repr, self.outline.variables)) or "none"
        raise KeyError(f"no variable {name!r} in this program; it has {known}")

    def set(self, name: str, value: Any) -> None:
        """A value of the program's own, or one that is computed from others."""
        if isinstance(value, ir.Chain):
            expression_of(value)  # refuses it
        self.outline.variables[name] = _Traced(name, self.changes, value)

    def sync(self) -> None:
        """Nothing runs, so nothing has to be waited for."""

    # ------------------------------------------------------------------ control flow

    def when(
        self, condition: Value, then: Callable[[], None], otherwise: Callable[[], None]
    ) -> None:
        """Write down both parts."""
        self._needs_model("sgl.when")
        line, node = program_line(), self.sheet.new_id()
        known = {name: expression_of(value) for name, value in self.variables.items()}
        parts = [self._part(then), self._part(otherwise)]
        changed = dict.fromkeys(name for part in parts for name in part.variables)
        blocks = []
        for part in parts:
            after = {**known, **part.variables}
            blocks.append(g.Block(part.nodes, {n: after[n] for n in changed if n in after}))
        self._append(g.When(condition.expression, *blocks), line, node)
        self._set_all(changed, node)

    def repeat(
        self, body: Callable[[], None], at_most: int, until: Callable[[], Any] | None
    ) -> None:
        """Write down one round.

        The body is run twice: first to find out which variables it changes, since reading one of
        them means the value that the round before has left.
        """
        self._needs_model("sgl.repeat")
        line, counts = program_line(), (self.sheet.nodes, self.sheet.streams)
        changed = self._part(body).variables
        self.sheet.nodes, self.sheet.streams = counts
        node, before = self.sheet.new_id(), dict(self.outline.variables)
        entry = {n: expression_of(before[n].value()) for n in changed if n in before}
        self._set_all(entry, node)
        ends: list[Expression] = []
        block = self._part(body, lambda: ends.append(expression_of(until())) if until else None)
        self.outline.variables = before
        self._append(g.Repeat(block, at_most, ends[0] if ends else None, entry), line, node)
        self._set_all(changed, node)

    def _part(self, *write: Callable[[], object]) -> g.Block:
        """What `write` adds, and the variables that it changes; here nothing is changed."""
        before = (dict(self.outline.variables), self._block, self._last, self.outline.inside)
        self._block = []
        self.sheet.blocks.append(self._block)
        try:
            for each in write:
                each()
            if self.outline.inside != before[3]:
                raise no_value("who speaks after a part", "end in it the role that begins in it")
            changed = {
                name: expression_of(variable.value())
                for name, variable in self.outline.variables.items()
                if before[0].get(name) is not variable
            }
            return g.Block(tuple(self._block), changed)
        finally:
            self.sheet.blocks.pop()
            self.outline.variables, self._block, self._last, _ = before

    def _set_all(self, names: Iterable[str], node: int) -> None:
        for name in names:
            self.set(name, Value(Ref(node, name)))

    # ------------------------------------------------------------------ writing

    def _write(self, node: ir.Node, line: str) -> None:
        match node:
            case Value():
                for term in terms(node.expression):
                    self._say(term, line)
            case ir.Gen() | ir.Select() | ir.ScopeEnd():
                if not isinstance(node, ir.ScopeEnd):
                    self._needs_model(repr(node))
                    if node.name is None and len(self.sheet.blocks) > 1:
                        raise no_value("the number of a gen in a part of a program", "name it")
                variable = self.outline.add(node)
                assert variable is not None
                written = self._append(replace(node, name=variable.name), line)
                self.set(variable.name, Value(Ref(written.id, variable.name)))
            case ir.Image(source) if isinstance(source, Value):
                self._needs_model(repr(source))
                self.outline.add(node)
                self._append(ir.Image(source.expression), line)
            case ir.Unknown() | ir.When() | ir.Repeat():
                raise AssertionError(f"{node!r} is not submitted")
            case _:
                self.outline.add(node)
                self._append(node, line)

    def _say(self, term: Expression, line: str) -> None:
        match term:
            case Constant(str(text)):
                self._write(ir.Text(text), line)
            case _:
                self._needs_model(describe(term))
                self.outline.require_role(f"the text of {describe(term)}")
                self._append(g.Say(term), line)

    def _append(self, op: g.Op, line: str, node: int | None = None) -> g.Node:
        if self._block is not self.sheet.blocks[-1]:
            raise no_value(
                "which part of a program adds to this state",
                "in when and repeat add only to the state that the part is given, and to its forks",
            )
        number = self.sheet.new_id() if node is None else node
        self._last = g.Node(number, self.stream, op, line)
        self._block.append(self._last)
        return self._last

    def _branch(self, fork: g.Node, index: int, line: str) -> Tracer:
        branch = self._new_stream()
        branch.outline = self.outline.branch(branch.changes)
        branch._begin = branch._append(g.GetForkItem(fork.id, index), line)
        return branch

    def _new_stream(self) -> Tracer:
        self.sheet.streams += 1
        return Tracer(self.sheet, self.sheet.streams - 1)

    def nested(self, settings: Mapping[str, Any], num_api_spec_tokens: int | None) -> Tracer:
        """The stream of a program that this one calls."""
        self._needs_model("a program that is called")
        stream = self._new_stream()
        stream._append(g.Begin(settings, num_api_spec_tokens), program_line())
        return stream

    def _needs_model(self, what: str) -> None:
        if self.sheet.until_model:
            raise DataDependence(f"{what} depends on a run")


class _Traced(Variable):
    """A variable whose value stands for one, or is the program's own."""

    def __init__(self, name: str, changes: Changes, value: Any) -> None:
        super().__init__(name, changes)
        self.set(value, value if isinstance(value, str) else "")

    def meta(self, timeout: float | None = None) -> NoReturn:
        """Nobody has answered yet."""
        raise no_value(
            f"what the backend tells about {self.name!r}", "read it from the run's state"
        )

    def look(self, seen: int) -> Piece | None:
        """Nothing comes."""
        raise no_value(f"the pieces of {self.name!r}", "stream a run of the program itself")


@dataclass(frozen=True)
class NodeView:
    """A node, and the graph around it."""

    node: g.Node
    block: g.Block

    def print_graph_dfs(self) -> str:
        """The node and all that it depends on, each after what it depends on itself."""
        nodes = {node.id: node for node in g.walk(self.block)}
        before = g.previous(self.block)
        found: dict[int, str] = {}
        todo = [self.node.id]
        while todo:
            i = todo[-1]
            needed = [*g.needs(nodes[i]), *([before[i]] if i in before else [])]
            missing = [n for n in needed if n not in found]
            if missing:
                todo += missing
                continue
            after = f"  after {', '.join(f'%{n}' for n in sorted(needed))}" if needed else ""
            found.setdefault(i, f"{nodes[i]}{after}")
            todo.pop()
        return "\n".join(found.values())


def _ends(branches: Sequence[Tracer]) -> tuple[tuple[int, int], ...]:
    """Where each began, and its last node until now."""
    ends = []
    for branch in branches:
        assert branch._begin is not None and branch._last is not None
        ends.append((branch._begin.id, branch._last.id))
    return tuple(ends)

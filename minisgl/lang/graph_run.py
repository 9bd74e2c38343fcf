"""`GraphRun`: one run of a graph, as coroutines on the background's event loop.

Each stream is a coroutine that goes through its nodes.  It waits where a node needs a model, or a
value of another stream that has not come yet; nothing else holds it up.  A program of one stream is
one coroutine.  What goes wrong in a stream ends the run, and is raised with the program's line.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeAlias

from minisgl.lang import graph as g
from minisgl.lang import ir
from minisgl.lang.backends.base import Answer
from minisgl.lang.context import Context
from minisgl.lang.outline import require_role, require_sight
from minisgl.lang.plan import Plan
from minisgl.lang.program import Program
from minisgl.lang.source_line import add_line
from minisgl.lang.steps import generated, said, selected
from minisgl.lang.values import Argument, Expression, Ref, compute, refs
from minisgl.sampling import SamplingParams


@dataclass(frozen=True)
class Result:
    """What a variable is.  text: that was said for it; meta: what the backend tells."""

    value: Any
    text: str = ""
    meta: Any = None


Results: TypeAlias = dict[str, Result]  # by name: those that there are


class MissingVariableError(KeyError):
    """The part of the program that sets it has not run."""


@dataclass
class _Batch:
    """Gens that wait for one another, to be sent together."""

    contexts: list[Context] = field(default_factory=list)
    params: list[SamplingParams] = field(default_factory=list)
    answers: asyncio.Future[list[list[Answer]]] | None = None


@dataclass(frozen=True)
class _Place:
    """Where a stream runs.  tasks: the other streams of the same block."""

    plan: Plan
    program: Program
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)


class GraphRun:
    """One run.  Its coroutines run on one event loop, so nothing here is locked.

    Args:
        arguments: a value for each parameter of the graph.
        program: its backend and its settings.
        params: how its gens sample; runs with the same settings work it out once, together.
    """

    def __init__(
        self,
        plan: Plan,
        arguments: Mapping[str, Any],
        program: Program,
        params: dict[int, SamplingParams],
    ) -> None:
        self._plan = plan
        self._params = params
        self._arguments = arguments
        self._program = program
        self._results: dict[int, Result | Results] = {}  # of nodes that set variables
        self._rounds: dict[int, Results] = {}  # of a Repeat, what the round before has left
        self._contexts: dict[int, Context] = {}  # after nodes that are kept
        self._arrivals: dict[int, asyncio.Future[None]] = {}  # of nodes that somebody waits for
        self._batches: dict[int, _Batch] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._failure: BaseException | None = None

    async def run(self) -> tuple[Context, Results]:
        """What the program has said, and its variables."""
        root = asyncio.current_task()
        assert root is not None
        self._root = root
        context = Context(namespace=self._program.settings.get("namespace"))
        try:
            return await self._run_block(self._plan, context, self._program)
        except asyncio.CancelledError:
            if self._failure is not None:  # another stream has failed, and ended this one
                raise self._failure from None
            raise
        finally:
            for task in self._tasks:
                task.cancel()
            if self._tasks:
                await asyncio.wait(self._tasks)

    def compute(self, expression: Expression) -> Any:
        """The value of an expression whose nodes have run."""
        return compute(expression, self._leaf)

    # ------------------------------------------------------------------ blocks and streams

    async def _run_block(
        self, plan: Plan, context: Context, program: Program
    ) -> tuple[Context, Results]:
        """What is said after `plan`, and the variables that it sets; its branches are at an end."""
        here, nested = _Place(plan, program), []
        for nodes in plan.nested:
            begin = nodes[0].op
            assert isinstance(begin, g.Begin)
            tokens = begin.num_api_spec_tokens
            inner = Program(program.backend, begin.settings, num_api_spec_tokens=tokens)
            nested.append(inner)
            start = Context(namespace=begin.settings.get("namespace"))
            self._start(replace(here, program=inner), nodes, start)
        context = await self._run_stream(here, plan.own, context)
        while running := [task for task in here.tasks if not task.done()]:
            await asyncio.wait(running)
        for task in here.tasks:
            task.result()  # raises what went wrong in it
        for inner in nested:
            program.count(inner.usage().spent, inner.usage().without)
        return context, await self._all(plan.block.variables, plan)

    def _start(self, here: _Place, nodes: Sequence[g.Node], context: Context) -> None:
        task = asyncio.create_task(self._run_stream(here, nodes, context))
        task.add_done_callback(self._look_at)
        here.tasks.append(task)
        self._tasks.append(task)

    def _look_at(self, task: asyncio.Task[Any]) -> None:
        """A stream has ended: if it failed, so does the run."""
        if not task.cancelled() and self._failure is None:
            self._failure = task.exception()
            if self._failure is not None:
                self._root.cancel()

    async def _run_stream(self, here: _Place, nodes: Sequence[g.Node], context: Context) -> Context:
        scopes: list[int] = []  # where those began that have not ended, in the text
        for node in nodes:
            try:
                for needed in here.plan.waiting[node.id]:
                    if needed not in self._results:
                        await self._arrival(needed)
                match node.op:
                    case ir.ScopeBegin():
                        scopes.append(len(context.text))
                    case ir.ScopeEnd():
                        words = context.text[scopes.pop() :]
                        self._set(node, Result(words, words))
                    case g.Fork():
                        for branch in here.plan.branches.get(node.id, ()):
                            self._start(here, branch, context.branched())
                    case _:
                        context = await self._after(here, node, context)
            except Exception as error:
                add_line(error, node.line)
                raise
            if node.id in here.plan.kept:
                self._contexts[node.id] = context
                self._arrived(node.id)
        return context

    async def _after(self, here: _Place, node: g.Node, context: Context) -> Context:
        """The context after a node."""
        op, program, backend = node.op, here.program, here.program.backend
        match op:
            case ir.Text(text):
                return _say(text, context, program)
            case g.Say(value):
                return _say(_text(self.compute(value)), context, program)
            case ir.Gen():
                require_role(backend, context.role, "gen")
                ask = partial(self._ask, here, node)
                if node.id not in self._params:
                    self._params[node.id] = program.params(op)
                step = await generated(op, self._params[node.id], context, program, ask)
            case ir.Select():
                require_role(backend, context.role, "select")
                step = await selected(op, context, program)
            case ir.RoleBegin() | ir.RoleEnd():
                return said(op, context, backend)
            case ir.Image() | ir.Video():
                require_sight(backend)
                return said(self._seen(op), context, backend)
            case g.Join():
                return await self._join(op, context)
            case g.When(condition):
                chosen = here.plan.parts[node.id][0 if self.compute(condition) else 1]
                context, results = await self._run_block(chosen, context, program)
                self._set(node, results)
                return context
            case g.Repeat():
                return await self._repeat(here, node, op, context)
            case _:  # Begin and GetForkItem say nothing, and streams know the others
                return context
        self._set(node, Result(step.value, step.text, step.meta))
        return step.context

    async def _repeat(self, here: _Place, node: g.Node, op: g.Repeat, context: Context) -> Context:
        plan = here.plan.parts[node.id][0]
        results = await self._all(op.entry, here.plan)
        inside = [inner.id for inner in g.walk(plan.block)]
        for _ in range(op.at_most):
            for i in inside:  # what the round before has left
                self._results.pop(i, None)
                self._contexts.pop(i, None)
                self._batches.pop(i, None)
            self._rounds[node.id] = results
            context, changed = await self._run_block(plan, context, here.program)
            results = {**results, **changed}
            if op.until is not None:
                await self._arrivals_of(op.until, plan)
                if self.compute(op.until):
                    break
        self._set(node, results)
        return context

    async def _join(self, op: g.Join, context: Context) -> Context:
        if op.mode == "gather_variable":
            return context
        for begin, end in op.branches:
            for needed in (begin, end):
                if needed not in self._contexts:
                    await self._arrival(needed)
            start = len(self._contexts[begin].text)
            context = context.continued_by(self._contexts[end], start)
        return context

    # ------------------------------------------------------------------ the model

    async def _ask(
        self,
        here: _Place,
        node: g.Node,
        context: Context,
        params: SamplingParams,
        show_until: Sequence[str] = (),  # nothing is shown
    ) -> list[Answer]:
        """Call the backend (see `Ask`); for gens of a batch, the last one calls it for all."""
        backend = here.program.backend
        if node.id not in here.plan.batches:
            return await backend.generate(context, params)
        number, size = here.plan.batches[node.id]
        batch = self._batches.setdefault(number, _Batch())
        batch.contexts.append(context)
        batch.params.append(params)
        place = len(batch.contexts) - 1
        if batch.answers is None:
            batch.answers = asyncio.get_running_loop().create_future()
        if place == size - 1:
            batch.answers.set_result(await backend.generate_all(batch.contexts, batch.params))
        return (await batch.answers)[place]

    # ------------------------------------------------------------------ values

    def _leaf(self, leaf: Argument | Ref) -> Any:
        return self._arguments[leaf.name] if isinstance(leaf, Argument) else self._of(leaf).value

    def _of(self, ref: Ref) -> Result:
        found = self._results.get(ref.node)
        if found is None:  # seen from inside the loop
            found = self._rounds[ref.node]
        if isinstance(found, Result):
            return found
        if ref.name not in found:
            raise MissingVariableError(f"no variable {ref.name!r}: what sets it has not run")
        return found[ref.name]

    async def _all(self, expressions: Mapping[str, Expression], plan: Plan) -> Results:
        """Those that have a value, as soon as it is there, in a block."""
        found = {}
        for name, expression in expressions.items():
            await self._arrivals_of(expression, plan)
            with contextlib.suppress(MissingVariableError):
                found[name] = self._result(expression)
        return found

    async def _arrivals_of(self, expression: Expression, plan: Plan) -> None:
        """Until all that it needs, in a block, is there."""
        for ref in refs(expression):
            if ref.node not in self._results and ref.node not in plan.loops:
                await self._arrival(ref.node)

    def _result(self, expression: Expression) -> Result:
        if isinstance(expression, Ref):
            return self._of(expression)
        value = self.compute(expression)
        return Result(value, value if isinstance(value, str) else "")

    def _set(self, node: g.Node, result: Result | Results) -> None:
        self._results[node.id] = result
        self._arrived(node.id)

    def _arrived(self, node: int) -> None:
        future = self._arrivals.pop(node, None)
        if future is not None:
            future.set_result(None)

    async def _arrival(self, node: int) -> None:
        future = self._arrivals.get(node)
        if future is None:
            future = self._arrivals[node] = asyncio.get_running_loop().create_future()
        await asyncio.shield(future)  # others wait for it, too

    def _seen(self, op: ir.Image | ir.Video) -> ir.Image | ir.Video:
        if isinstance(op, ir.Image) and isinstance(op.source, Expression):
            return replace(op, source=self.compute(op.source))
        return op


def _say(text: str, context: Context, program: Program) -> Context:
    if text.strip():
        require_role(program.backend, context.role, f"the text {text[:40]!r}")
    return context.say(text)


def _text(value: Any) -> str:
    """What a program says of a value.  Raises what `s += value` would."""
    match ir.nodes(value):
        case (ir.Text(text),):
            return text
        case _:
            raise TypeError(f"{value!r}: where a graph says an argument, give it a text")

"""`CompiledProgram`: a program as a graph, which runs without its Python, and can be stored.

    compiled = qa.compile()
    compiled.run(question="Why?")["answer"]        what qa.run(question="Why?") gives
    compiled.save("qa.json"); sgl.CompiledProgram.load("qa.json")
    compiled.draw("qa.svg")

A run needs no thread of its own and calls no function of the program; a batch is one coroutine for
each of its runs.  What a graph can hold is said in `tracer.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import sys
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from minisgl.lang.arguments import of_item, require_settings, split
from minisgl.lang.backends import as_backend
from minisgl.lang.backends.base import Backend
from minisgl.lang.background import background
from minisgl.lang.config import global_config
from minisgl.lang.drawing import draw
from minisgl.lang.graph import Begin, Graph
from minisgl.lang.graph_run import GraphRun
from minisgl.lang.interpreter import StreamExecutor
from minisgl.lang.passes import Passes
from minisgl.lang.passes.batch_gens import batches
from minisgl.lang.passes.code_motion import move_code
from minisgl.lang.passes.dead_code import remove_dead_code
from minisgl.lang.passes.fold_text import fold_text
from minisgl.lang.passes.order_runs import order_runs
from minisgl.lang.plan import Plan, plan
from minisgl.lang.prefix import WORTH_CACHING, constant_prefix
from minisgl.lang.program import Program
from minisgl.lang.settings import settings
from minisgl.lang.state import ProgramState
from minisgl.lang.stored import read, write
from minisgl.lang.values import compute
from minisgl.sampling import SamplingParams

T = TypeVar("T")


class CompiledProgram:
    """A graph, ready to run.

    Args:
        graph: as it was traced; `.graph` is what the passes have made of it.
        passes: which of them.
        backend: what it runs on if a run names none; None: the default one.
        num_api_spec_tokens: see `minisgl.lang.function`.
    """

    def __init__(
        self,
        graph: Graph,
        passes: Passes = Passes(),  # noqa: B008  # frozen
        backend: Any = None,
        num_api_spec_tokens: int | None = None,
    ) -> None:
        self.traced = graph
        self.passes = passes
        self.backend = backend
        self.num_api_spec_tokens = num_api_spec_tokens
        self.graph = optimised(graph, passes)

    # ------------------------------------------------------------------ running

    def run(self, *args: Any, backend: Any = None, **arguments: Any) -> ProgramState:
        """Run the program to its end; arguments and settings as for a `Function`.

        Returns:
            Its state, as that of a `Function` which has run.

        Raises:
            TypeError: the arguments don't fit the program.
            BaseException: what went wrong in it, with the program's line.
        """
        own, given = split(self._signature, arguments)
        start = self._prepare(args, own, settings(given), self._backend(backend), {})
        return background.run(start.run())

    __call__ = run

    async def arun(self, *args: Any, backend: Any = None, **arguments: Any) -> ProgramState:
        """`run` for a coroutine, on any event loop.  Cancelling it ends the program."""
        own, given = split(self._signature, arguments)
        chosen = await asyncio.to_thread(self._backend, backend)
        task = background.start(self._prepare(args, own, settings(given), chosen, {}).run())
        try:
            # Shielded: the future is the background's, which cancels it when the task has ended.
            return await asyncio.shield(asyncio.wrap_future(task.done))
        except asyncio.CancelledError:
            task.cancel()
            task.wait()  # then nothing of it is under way any more
            raise

    def run_batch(
        self,
        batch_kwargs: Sequence[Mapping[str, Any] | Sequence[Any]],
        *,
        backend: Any = None,
        return_exceptions: bool = False,
        **given: Any,
    ) -> list[Any]:
        """Run the program once for each item, all of them together.

        Args:
            batch_kwargs: the arguments of each run: a dict by name, or a tuple.
            return_exceptions: what a run fails with stands in the place of its state; if False, the
                first such error is raised, after all the others are done.
            **given: settings, as for `run`.

        Returns:
            The states, in the order of `batch_kwargs`.
        """
        require_settings(given, "run_batch")
        chosen, common = self._backend(backend), settings(given)
        params: dict[int, SamplingParams] = {}
        runs = [self._prepare(*of_item(item), common, chosen, params) for item in batch_kwargs]
        if not runs:
            return []
        done = background.run(self._run_all(runs))
        failed = [error for error in done if isinstance(error, BaseException)]
        if failed and not return_exceptions:
            raise failed[0]
        return done

    async def _run_all(self, runs: Sequence[_Run]) -> list[ProgramState | BaseException]:
        """What each run gives, in their order."""
        order = list(range(len(runs)))
        if len(runs) > 1:
            if self.passes.cache_prefix and global_config.enable_precache_with_tracing:
                with contextlib.suppress(Exception):  # what is wrong, the runs will say
                    prefix = constant_prefix(self.graph.body, runs[0].program)
                    if len(prefix.text) >= WORTH_CACHING:
                        await runs[0].program.backend.cache_prefix(prefix)
            if self.passes.order_runs:
                order = order_runs(self.graph, [run.arguments for run in runs])
        done = await asyncio.gather(*(runs[i].run() for i in order), return_exceptions=True)
        found = dict(zip(order, done, strict=True))
        return [found[i] for i in range(len(runs))]

    def _backend(self, given: Any) -> Backend:
        return as_backend(self.backend if given is None else given)

    def _prepare(
        self,
        args: Sequence[Any],
        own: Mapping[str, Any],
        common: Mapping[str, Any],
        backend: Backend,
        params: dict[int, SamplingParams],
    ) -> _Run:
        try:
            bound = self._signature.bind(*args, **own).arguments
        except TypeError as error:
            raise TypeError(f"{self}: {error}") from None
        values = {
            name: compute(default, lambda leaf: None)
            for name, default in self.graph.parameters.items()
            if default is not None and name not in bound
        }
        program = Program(backend, common, num_api_spec_tokens=self.num_api_spec_tokens)
        # Gens that are sent together ask exactly; speculation asks for more, one by one.  And a
        # backend that has no way of its own to take them together gains nothing.
        takes_all = type(backend).generate_all is not Backend.generate_all
        chosen = self._batched if takes_all and not self._speculates else self._plain
        run = GraphRun(chosen, {**bound, **values}, program, params)
        return _Run(self.graph, run, {**bound, **values}, program)

    @cached_property
    def _speculates(self) -> bool:
        """Whether it does, or a program that it calls."""
        begun = [node.op for node in self.graph.nodes if isinstance(node.op, Begin)]
        each = (self.num_api_spec_tokens, *(begin.num_api_spec_tokens for begin in begun))
        return any(tokens is not None for tokens in each)

    @cached_property
    def _plain(self) -> Plan:
        return plan(self.graph)

    @cached_property
    def _batched(self) -> Plan:
        return plan(self.graph, batches(self.graph)) if self.passes.batch_gens else self._plain

    @cached_property
    def _signature(self) -> inspect.Signature:
        kind, required = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
        given = self.graph.parameters.items()
        # Those that may be left out are left out here, too: their values are made for each run.
        return inspect.Signature(
            [
                inspect.Parameter(name, kind, default=required if default is None else ...)
                for name, default in sorted(given, key=lambda each: each[1] is not None)
            ]
        )

    # ------------------------------------------------------------------ keeping and showing

    def save(self, path: str | Path) -> None:
        """Write it to a file, as JSON.

        Raises:
            ValueError: it holds what is Python's alone (a type that answers are made into, a method
                of `select` that is the program's own); with the node.
        """
        Path(path).write_text(write(self.traced, self.num_api_spec_tokens), encoding="utf-8")

    @staticmethod
    def load(path: str | Path, passes: Passes = Passes(), backend: Any = None) -> CompiledProgram:  # noqa: B008
        """A program that was saved.

        Raises:
            ValueError: no such program, or one of a version that is not known.
        """
        graph, tokens = read(Path(path).read_text(encoding="utf-8"), str(path))
        return CompiledProgram(graph, passes, backend, tokens)

    def draw(self, path: str | Path | None = None, kind: str = "svg") -> str:
        """A picture of the graph: "svg", or "dot" for Graphviz; written to `path`, if given.

        Raises:
            ValueError: another kind.
        """
        picture = draw(self.graph, kind)
        if path is not None:
            Path(path).write_text(picture, encoding="utf-8")
        return picture

    def print_graph(self) -> None:
        """Print it, a node a line."""
        sys.stdout.write(f"{self.graph}\n")

    def __str__(self) -> str:
        return f"program {self.graph.name}({', '.join(self.graph.parameters)})"


class _Run:
    """A graph with its arguments."""

    def __init__(
        self, graph: Graph, run: GraphRun, arguments: Mapping[str, Any], program: Program
    ) -> None:
        self.arguments, self.program = arguments, program
        self._graph, self._run = graph, run

    async def run(self) -> ProgramState:
        """Its state, at its end."""
        context, variables = await self._run.run()
        stream = StreamExecutor(self.program)
        stream.take_over(context, {n: (r.value, r.text, r.meta) for n, r in variables.items()})
        self.program.has_returned = True
        state = ProgramState(stream)
        state.ret_value = self._run.compute(self._graph.returns)
        return state


def optimised(graph: Graph, passes: Passes) -> Graph:
    """What the passes that change a graph make of it."""
    if passes.code_motion is not None:
        graph = move_code(graph, passes.code_motion)
    if passes.dead_code:
        graph = remove_dead_code(graph)
    if passes.fold_text:
        graph = fold_text(graph)
    return graph

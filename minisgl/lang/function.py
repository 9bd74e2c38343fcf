"""`Function`: a program, and the ways of running it.

@function
def qa(s, question):
    s += "Q: " + question + "\\nA:" + gen("answer")

qa.run("Why is the sky blue?", temperature=0)["answer"]
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import update_wrapper
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar

from minisgl.lang.arguments import of_item, require_settings, split
from minisgl.lang.backends import as_backend
from minisgl.lang.backends.base import Backend
from minisgl.lang.backends.nowhere import Nowhere
from minisgl.lang.background import background
from minisgl.lang.batch import run_all
from minisgl.lang.compiler import CompiledProgram
from minisgl.lang.config import global_config
from minisgl.lang.interpreter import StreamExecutor
from minisgl.lang.passes import Passes
from minisgl.lang.prefix import WORTH_CACHING, constant_prefix
from minisgl.lang.program import Program, ProgramCancelledError
from minisgl.lang.run import Run
from minisgl.lang.settings import settings
from minisgl.lang.speculative import checked_tokens
from minisgl.lang.state import ProgramState
from minisgl.lang.trace import graph_of, state_of, trace
from minisgl.lang.tracer import Tracer, current_tracer
from minisgl.lang.values import TraceError

P = ParamSpec("P")
R = TypeVar("R")


class Function(Generic[P, R]):
    """A program: a Python function whose first argument is its state.

    Args:
        bound: arguments that are given already.
        num_api_spec_tokens: see `minisgl.lang.function`.
    """

    def __init__(
        self,
        func: Callable[Concatenate[ProgramState, P], R],
        *,
        bound: Mapping[str, Any] | None = None,
        num_api_spec_tokens: int | None = None,
    ) -> None:
        self.func = func
        self.num_api_spec_tokens = checked_tokens(num_api_spec_tokens)
        self.bound = dict(bound or {})
        self._signature = _own_signature(func)
        update_wrapper(self, func)

    def run(
        self, *args: Any, backend: Any = None, stream: bool = False, **arguments: Any
    ) -> ProgramState:
        """Run the program to its end; with `stream=True`, start it and return at once.

        Args:
            backend: an `Engine`, a `Runtime` or another backend; None: the default one.
            stream: read it while it runs, with `text_iter` and the like.
            *args, **arguments: the program's own arguments; and settings of its gens, by the fields
                of `SamplingParams` or SGLang's names for them (`max_new_tokens`), which hold where
                a gen does not say otherwise.  A name that the program itself has is the program's.

        Raises:
            TypeError: the arguments don't fit the program; so it is with an unknown setting.
            BaseException: what went wrong in the program; when streaming, whoever reads gets it.
        """
        own, given = split(self._signature, arguments)
        if (tracer := current_tracer()) is not None:
            return self._run_in_a_trace(tracer, args, own, given, backend, stream=stream)
        chosen = as_backend(backend)
        run = self._prepare(
            args, own, settings(given), chosen, is_streaming=stream, until_return=stream
        )
        if stream:
            run.start()
        else:
            run.execute()
            run.wait()
        return run.state

    __call__ = run

    async def arun(self, *args: Any, backend: Any = None, **arguments: Any) -> ProgramState:
        """`run` for a coroutine, on any event loop.  Cancelling it ends the program.

        The function runs in a thread of its own, as it would with `run(..., stream=True)`.
        """
        own, given = split(self._signature, arguments)
        chosen = await asyncio.to_thread(as_backend, backend)
        run = self._prepare(args, own, settings(given), chosen, until_return=True)
        run.start()
        try:
            await run.state.async_sync()
        except asyncio.CancelledError:
            run.program.cancel(ProgramCancelledError("the program was cancelled"))
            raise
        except BaseException as error:
            run.program.cancel(error)  # its branches may still be at work
            raise
        return run.state

    def run_batch(
        self,
        batch_kwargs: Sequence[Mapping[str, Any] | Sequence[Any]],
        *,
        backend: Any = None,
        num_threads: int | Literal["auto"] = "auto",
        progress_bar: bool = False,
        generator_style: bool = False,
        return_exceptions: bool = False,
        **given: Any,
    ) -> Any:
        """Run the program once for each item, all of them together.

        A program that fails stops none of the others.

        Args:
            batch_kwargs: the arguments of each run: a dict by name, or a tuple.
            num_threads: how many of the functions run at a time; "auto": 96, or 16 for each core if
                that is more.  A program that only waits for its last generations needs no thread.
            progress_bar: count the programs that are done, on stderr.
            generator_style: give an iterator instead of a list: each state as soon as it, and all
                before it, are done.  Leaving it early ends the others.
            return_exceptions: what a program fails with stands in the place of its state; if False,
                the first such error is raised, after all the others are done.
            **given: settings, as for `run`.

        Returns:
            The states, in the order of `batch_kwargs`.
        """
        require_settings(given, "run_batch")
        chosen = as_backend(backend)
        common = settings(given)
        runs = [self._prepare(*of_item(item), common, chosen) for item in batch_kwargs]
        if len(runs) > 1 and global_config.enable_precache_with_tracing:
            with contextlib.suppress(Exception):  # what is wrong, the programs will say
                self.cache(chosen, **given)
        states = run_all(
            runs,
            num_threads=num_threads,
            progress_bar=progress_bar,
            return_exceptions=return_exceptions,
        )
        return states if generator_style else list(states)

    def bind(self, **arguments: Any) -> Function[..., R]:
        """The same program with some arguments given.

        Raises:
            ValueError: the program has no such argument.
        """
        for name in arguments:
            if name not in self._signature.parameters:
                raise ValueError(f"{self} has no argument {name!r}")
        return Function(
            self.func,
            bound={**self.bound, **arguments},
            num_api_spec_tokens=self.num_api_spec_tokens,
        )

    def cache(self, backend: Any = None, **given: Any) -> str:
        """Compute what the program says before it needs an argument or a model, and keep it.

        The function is run on arguments that stand for nothing, until it needs one.

        Args:
            **given: settings of the runs that will find it (`namespace`).

        Returns:
            The text; "" if it is too short to be worth it.
        """
        chosen = as_backend(backend)
        program = Program(chosen, settings(given))
        tracer = trace(self.func, self._signature, self.bound, program, until_model=True)
        prefix = constant_prefix(tracer.block(), program)
        if len(prefix.text) < WORTH_CACHING:
            return ""
        background.run(chosen.cache_prefix(prefix))
        return prefix.text

    pin = cache

    def trace(self, backend: Any = None, **given: Any) -> Tracer:
        """Run the function once on arguments that have no value yet, and write down what it does.

        Args:
            backend: whose rules hold (a model that can't see refuses pictures); None: no model's.
            **given: arguments that the program may look at: how many branches, which topics.

        Returns:
            The program's stream: `.nodes`, `.last_node`, `.variables`, `.flatten_nodes()`.

        Raises:
            ValueError: the program has no such argument.
            TraceError: what it does depends on a value that only a run has.
        """
        fixed = self.bind(**given).bound
        program = Program(Nowhere() if backend is None else as_backend(backend))
        return trace(self.func, self._signature, fixed, program)

    def _prepare(
        self,
        args: tuple[Any, ...],
        own: Mapping[str, Any],
        common: Mapping[str, Any],
        backend: Backend,
        *,
        is_streaming: bool = False,
        until_return: bool = False,
    ) -> Run:
        arguments = self._bind(args, own)
        program = Program(backend, common, is_streaming, self.num_api_spec_tokens)
        state = ProgramState(StreamExecutor(program), until_return=until_return)
        return Run(self.func, state, arguments)

    def compile(
        self,
        backend: Any = None,
        passes: Passes = Passes(),  # noqa: B008  # frozen
        **given: Any,
    ) -> CompiledProgram:
        """The program as a graph, which runs without its Python; arguments and errors as `trace`.

        Args:
            backend: what it runs on if a run names none.
            passes: which optimisations are made.
        """
        fixed = self.bind(**given).bound
        tracer = self.trace(backend, **given)
        graph = graph_of(self.func.__name__, self._signature, fixed, tracer)
        return CompiledProgram(graph, passes, backend, self.num_api_spec_tokens)

    def _run_in_a_trace(
        self,
        tracer: Tracer,
        args: tuple[Any, ...],
        own: Mapping[str, Any],
        given: Mapping[str, Any],
        backend: Any,
        *,
        stream: bool,
    ) -> ProgramState:
        """A program that is traced calls this one, which becomes a part of its graph."""
        if backend is not None or stream:
            raise TraceError(
                f"{self} is called by a program that is traced: a graph runs on one backend, and "
                "as a whole, so give no backend= and no stream= there"
            )
        arguments = self._bind(args, own)
        state = state_of(tracer.nested(settings(given), self.num_api_spec_tokens))
        state.ret_value = self.func(state, *arguments.args, **arguments.kwargs)
        return state

    def _bind(self, args: tuple[Any, ...], own: Mapping[str, Any]) -> inspect.BoundArguments:
        try:
            return self._signature.bind(*args, **{**own, **self.bound})
        except TypeError as error:
            raise TypeError(f"{self}: {error}") from None

    def __str__(self) -> str:
        return f"program {self.func.__name__}{self._signature}"


def _own_signature(func: Callable[..., Any]) -> inspect.Signature:
    """The signature of `func` without its state."""
    if inspect.iscoroutinefunction(func) or inspect.isgeneratorfunction(func):
        raise ValueError(
            f"{func.__name__} is a coroutine or a generator: a program is a plain function, which "
            "coroutines can await with arun"
        )
    signature = inspect.signature(func)
    parameters = list(signature.parameters.values())
    if not parameters or parameters[0].kind not in (
        inspect.Parameter.POSITIONAL_ONLY,
        inspect.Parameter.POSITIONAL_OR_KEYWORD,
    ):
        raise ValueError(f"a program's first argument is its state: def {func.__name__}(s, ...)")
    return signature.replace(parameters=parameters[1:])

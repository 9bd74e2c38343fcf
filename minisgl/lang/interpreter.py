"""`StreamExecutor`: a prompt is an asynchronous stream of primitives, run one after another.

    s += ...  -->  queue  -->  simple primitives: at once, wherever we are
                               those that wait (gen, select, another stream): in the background

The program only writes into the queue and goes on; reading a variable waits for it.  A stream whose
queue is empty holds no thread, so a fork costs nothing but a copy of a few names.  What goes wrong
ends the stream, and is raised to everybody who reads, with the program's line.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

from minisgl.lang import ir
from minisgl.lang.backends.base import Answer, Backend
from minisgl.lang.background import Task, background
from minisgl.lang.changes import Changes
from minisgl.lang.config import global_config
from minisgl.lang.context import Context
from minisgl.lang.outline import Outline
from minisgl.lang.primitives import Adopt, HandOver, Item, Join, value_of
from minisgl.lang.program import Program, ProgramCancelledError
from minisgl.lang.source_line import add_line, program_line
from minisgl.lang.steps import generated, said, selected
from minisgl.lang.stops import Trimmer
from minisgl.lang.variables import Failure, Variable
from minisgl.sampling import SamplingParams


class StreamExecutor:
    """One stream.  Any thread may call any method; one at a time executes.

    Attributes:
        context: what has been said, as far as the primitives have run.
        outline: what has been written, which may be ahead.
        failure: what ended it, or None.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.changes = Changes()
        self.context = Context(namespace=program.settings.get("namespace"))
        self.outline = Outline(program, self.changes)
        self.failure: Failure | None = None
        self.origin: Future[Context] | None = None  # where it was forked off
        self._queue: deque[Item] = deque()
        self._is_busy = False  # somebody executes, or will go on when what they wait for comes
        self._item: Item | None = None  # that is executed
        self._task: Task[None] | None = None
        self._scopes: list[int] = []  # where those began that have not ended, in the text
        program.add(self)

    # ------------------------------------------------------------------ for the program

    def submit(self, value: object) -> None:
        """Queue what can be added to a state.  What is wrong with it by itself is raised here.

        Raises:
            ValueError, TypeError: it can't be added.
            BaseException: what has ended this stream before.
        """
        line = program_line()
        for node in ir.nodes(value):
            self._queue_up(Item(node, self.outline.add(node), line))
        if not global_config.enable_parallel_decoding:
            self.sync()

    def fork(self, size: int) -> list[StreamExecutor]:
        """`size` new streams that begin with what this one has said, and know its variables."""
        line = program_line()
        if size > 1 and global_config.enable_fork_hint:
            self._queue_up(Item(HandOver(_hint(self.program.backend)), None, line))
        here: Future[Context] = Future()
        self._queue_up(Item(HandOver(here), None, line))
        return [self._branch(here, line) for _ in range(size)]

    def join(self, branches: Sequence[StreamExecutor]) -> None:
        """Append what the branches say up to now, in their order, once they have said it."""
        line = program_line()
        sources = []
        for branch in branches:
            assert branch.origin is not None
            now: Future[Context] = Future()
            branch._queue_up(Item(HandOver(now), None, line))
            sources.append((branch.origin, now))
        self._queue_up(Item(Join(tuple(sources)), None, line))

    def gather(self, branches: Sequence[StreamExecutor]) -> None:
        """Wait for what the branches say; raises what went wrong in one of them."""
        for branch in branches:
            branch.sync()

    def variable(self, name: str) -> Variable:
        """The latest of that name.

        Raises:
            KeyError: there is none.
            BaseException: there is none, and the stream has failed before there could be.
        """
        if name in self.outline.variables:
            return self.outline.variables[name]
        self._require_intact()
        known = ", ".join(map(repr, self.outline.variables)) or "none"
        raise KeyError(f"no variable {name!r} in this program; it has {known}")

    def set(self, name: str, value: Any) -> None:
        """A value of the program's own."""
        variable = Variable(name, self.changes)
        variable.set(value, value if isinstance(value, str) else "")
        with self.changes:
            self.outline.variables[name] = variable
            self.changes.tell()

    def take_over(self, context: Context, variables: Mapping[str, tuple[Any, str, Any]]) -> None:
        """Go on where a program has ended that ran elsewhere; (value, text, meta) by name."""
        self.context = context
        self.outline.go_on(context.role)
        for name, (value, text, meta) in variables.items():
            variable = Variable(name, self.changes)
            variable.set(value, text, meta)
            self.outline.variables[name] = variable

    def sync(self) -> None:
        """Wait until everything has run; raises what went wrong."""
        self.changes.wait_for(lambda: self.is_idle)
        self._require_intact()

    @property
    def is_idle(self) -> bool:
        """Whether all that was submitted has run, or failed."""
        return not self._is_busy

    def cancel(self, failure: Failure) -> None:
        """End now, whatever it is doing; whoever reads gets `failure`.  Waits for nothing."""
        with self.changes:
            self._fail(failure)
            if self._task is not None:
                self._task.cancel()

    def wait_for_end(self) -> None:
        """Until nothing of it is under way in the background, its backend's call included."""
        if self._task is not None:
            self._task.wait()

    # ------------------------------------------------------------------ submission

    def _branch(self, here: Future[Context], line: str) -> StreamExecutor:
        branch = StreamExecutor(self.program)
        branch.origin = here
        branch.outline = self.outline.branch(branch.changes)
        branch._queue_up(Item(Adopt(here), None, line))
        return branch

    def _queue_up(self, item: Item) -> None:
        with self.changes:
            if self.failure is not None:
                item.fail(self.failure)
                self.failure.reraise()
            self._queue.append(item)
            if self._is_busy:
                return
            self._is_busy = True
        waiting = self._run_simple()
        if waiting is not None:
            with self.changes:
                if self.failure is None:
                    self._task = background.start(self._go_on(waiting))
        else:
            self._require_intact()

    def _require_intact(self) -> None:
        if self.failure is not None:
            self.failure.reraise()

    # ------------------------------------------------------------------ execution

    def _run_simple(self) -> Item | None:
        """Run primitives until one has to wait, and return it; None: all have run, or one failed.

        Whoever calls this is the one who executes (`_is_busy`).
        """
        while True:
            with self.changes:
                if not self._queue:
                    self._is_busy = False
                    self.changes.tell()
                    return None
                item = self._item = self._queue.popleft()
            if item.waits:
                return item
            try:
                self._move_to(self._after(item))
            except BaseException as error:
                self._blame(item, error)
                if not isinstance(error, Exception):  # Ctrl-C, in the program's own thread
                    raise
                return None

    async def _go_on(self, item: Item | None) -> None:
        """In the background: run `item`, which waits, and whatever comes after it."""
        while item is not None:
            try:
                self._move_to(await self._after_waiting(item))
            except asyncio.CancelledError:
                # Without effect if `cancel` has told why.
                self._blame(item, ProgramCancelledError("the program was cancelled"))
                raise
            except BaseException as error:  # whatever it is, it is the readers' to see
                self._blame(item, error)
                return
            item = self._run_simple()

    def _move_to(self, context: Context) -> None:
        with self.changes:
            self.context = context
            self.changes.tell()

    def _blame(self, item: Item, error: BaseException) -> None:
        if self.failure is None:
            add_line(error, item.line)
            self._fail(Failure.of(error))

    def _fail(self, failure: Failure) -> None:
        """The end: nothing that is queued will run."""
        with self.changes:
            if self.failure is not None:
                return
            self.failure = failure
            self._is_busy = False
            if self._item is not None:
                self._item.fail(failure)
            for item in self._queue:
                item.fail(failure)
            self._queue.clear()
            self.changes.tell()

    def _after(self, item: Item) -> Context:
        """The context after a primitive that does not wait."""
        context, backend = self.context, self.program.backend
        match item.node:
            case ir.Text() | ir.RoleBegin() | ir.RoleEnd() | ir.Image() | ir.Video():
                return said(item.node, context, backend)
            case ir.ScopeBegin():
                self._scopes.append(len(context.text))
                return context
            case ir.ScopeEnd():
                assert item.variable is not None
                words = context.text[self._scopes.pop() :]
                item.variable.set(words, words)
                return context
            case HandOver(receiver):
                receiver.set_result(context)
                return context
            case Adopt(source):
                return source.result().branched()
        raise AssertionError(f"{item.node} has to wait")

    async def _after_waiting(self, item: Item) -> Context:
        """The context after a primitive that waits."""
        context = self.context
        match item.node:
            case ir.Gen():
                assert item.variable is not None
                ask = partial(self._ask, item.variable)
                params = self.program.params(item.node)
                step = await generated(item.node, params, context, self.program, ask)
            case ir.Select():
                step = await selected(item.node, context, self.program)
            case Adopt(source):
                return (await value_of(source)).branched()
            case Join(sources):
                for begin, end in sources:
                    other = await value_of(end)
                    context = context.continued_by(other, len(begin.result().text))
                return context
            case _:
                raise AssertionError(f"{item.node} does not wait")
        assert item.variable is not None
        item.variable.set(step.value, step.text, step.meta)
        return step.context

    async def _ask(
        self,
        variable: Variable,
        context: Context,
        params: SamplingParams,
        show_until: Sequence[str] = (),
    ) -> list[Answer]:
        """Call the backend (see `Ask`)."""
        backend = self.program.backend
        if not self.program.is_streaming or params.n > 1:
            return await backend.generate(context, params)
        answer, shown, trimmer = Answer(""), "", Trimmer(show_until)
        async for piece in backend.stream(context, params):
            answer = Answer(answer.text + piece.text, piece.meta)
            new = trimmer.feed(piece.text)
            shown += new
            variable.add(new, piece.meta)
            self._move_to(context.say(shown))
        return [answer]


def _hint(backend: Backend) -> Future[Context]:
    """A receiver that sends the context it is given to the backend, and waits for nothing.

    With an engine of our own the branches would share the prefix anyway: prompts that arrive
    together compute it once.  The hint gains what the program does between the fork and its first
    gen.
    """

    def send(here: Future[Context]) -> None:
        if here.exception() is None and here.result().text:
            background.start(_send_hint(backend, here.result()))

    receiver: Future[Context] = Future()
    receiver.add_done_callback(send)
    return receiver


async def _send_hint(backend: Backend, context: Context) -> None:
    # A hint that fails is no failure: what is wrong, the branches' own calls will say.
    with contextlib.suppress(Exception):
        await backend.cache_prefix(context)

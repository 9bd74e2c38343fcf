"""`Engine`: a model behind a thread-safe front door.

    caller --Door--> Req --EngineLoop: schedule, forward, sample--> Mailbox --> caller

Any number of threads and event loops may call at once; one thread, `EngineLoop`, does the work.
Every submitted request ends with exactly one final event: a `Completion`, or an error that its
caller sees.  A bad request is refused at the door, before it reaches the engine.
"""

from __future__ import annotations

import asyncio
import warnings
import weakref
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any, TypeVar, overload

from minisgl.chat_template import ChatTemplate
from minisgl.config import EngineConfig
from minisgl.engine.assembly import make_runner
from minisgl.engine.constrained import Constrainer
from minisgl.engine.door import Door
from minisgl.engine.evictions import Evictions
from minisgl.engine.handle import Handle
from minisgl.engine.hardware import takes_gpu
from minisgl.engine.images import ImageReader, load_images, show
from minisgl.engine.loop import EngineLoop
from minisgl.engine.output import Chunk, Completion, EngineError, Score
from minisgl.engine.own_thread import in_own_thread
from minisgl.engine.prompt import AnyPrompt, Prompt, as_list, images_of, is_single
from minisgl.engine.ranks import Ranks
from minisgl.engine.req import Req
from minisgl.engine.scoring import join, score_of
from minisgl.engine.share import load_share
from minisgl.engine.stats import Stats
from minisgl.engine.trace import Trace
from minisgl.models.hub import resolve_model
from minisgl.sampling import SamplingParams
from minisgl.tokenizer import Tokenizer

__all__ = ["Engine", "EngineError"]

Params = SamplingParams | Sequence[SamplingParams] | None
T = TypeVar("T")


class Engine:
    """A loaded model that answers.

    >>> with Engine() as engine:                                        # doctest: +SKIP
    ...     engine.generate("The capital of France is", SamplingParams(max_tokens=4)).text
    ' Paris.'

    `close` ends it, and so does the end of a `with` block.  One that nobody holds any more (handles
    hold their engine), or that is still open at the end of the program, closes itself.

    Args:
        model: a Hugging Face directory, a hub id, a .gguf file, or None for the embedded model.
        progress: show progress bars, and the memory's arithmetic, on stderr while loading.
        **settings: the fields of `EngineConfig`.

    Raises:
        ValueError: a setting that is not allowed, or a model that can't be loaded; in words.
    """

    def __init__(
        self, model: str | None = None, *, progress: bool = False, **settings: Any
    ) -> None:
        self.config = EngineConfig.make(model=model, **settings)
        trace = None if self.config.trace is None else Trace(self.config.trace)
        path = resolve_model(model, progress=progress, weights=not self.config.is_dummy)
        self._path = path
        self.tokenizer = Tokenizer(path)
        self._chat_template: ChatTemplate | None = None
        ranks = Ranks(self.config, path)
        try:
            load = partial(
                load_share,
                self.config,
                path,
                ranks.parallel,
                local_rank=ranks.local_rank,
                progress=progress,
            )
            share = load() if takes_gpu(self.config) else in_own_thread(load)
            self.model_config, self.memory = share.config, share.memory
            self.placement, self.context_length = share.placement, share.context_length
            if self.placement.notice:
                warnings.warn(self.placement.notice, stacklevel=2)
            if self.config.is_dummy:
                warnings.warn(
                    "load_format='dummy': the weights are random, and the answers noise",
                    stacklevel=2,
                )
            image_reader = None
            if share.vision is not None:
                image_reader = ImageReader.of(path, share.vision, self.tokenizer)
            vocab_size = self.tokenizer.size_within(self.model_config.vocab_size)
            self.door = Door(
                self.tokenizer,
                vocab_size=vocab_size,
                context_length=self.context_length,
                pool_slots=share.pool.num_slots,
                eos_ids=self.model_config.eos_token_ids | frozenset(self.tokenizer.eos_token_ids),
                constrainer=Constrainer(
                    self.tokenizer,
                    vocab_size,
                    self.placement.device,
                    jumps=self.config.jump_forward,
                ),
                image_reader=image_reader,
            )
            runner = make_runner(self.config, share, ranks, vocab_size, progress=progress)
        except BaseException:
            ranks.close()
            raise
        self.loop = EngineLoop(runner.scheduler, runner, trace, at_end=ranks.close)
        # The thread knows nothing of this object, so that one which nobody holds any more, and one
        # left open at the end of the program, close themselves.
        weakref.finalize(self, self.loop.close)

    @property
    def chat_template(self) -> ChatTemplate:
        """The model's own template; ValueError if it has none."""
        if self._chat_template is None:
            self._chat_template = ChatTemplate(self._path)
        return self._chat_template

    # ------------------------------------------------------------------ answers

    @overload
    def generate(  # type: ignore[overload-overlap]  # a str is a sequence of str as well
        self, prompt: str, params: Params = None
    ) -> Completion: ...
    @overload
    def generate(self, prompt: Sequence[int] | Prompt, params: Params = None) -> Completion: ...
    @overload
    def generate(self, prompt: Sequence[AnyPrompt], params: Params = None) -> list[Completion]: ...
    def generate(
        self, prompt: AnyPrompt | Sequence[AnyPrompt], params: Params = None
    ) -> Completion | list[Completion]:
        """Complete one prompt, or a list of them in the same order.  A prompt is a text, its ids,
        or a `Prompt`, which has images.

        With `n` > 1 in a request's settings its n answers stand next to one another, and the result
        is a list even for a single prompt.

        Raises:
            ValueError: an empty or too long prompt, with the numbers; an image that can't be used,
                in words; none of the list is run then.
            EngineError: the engine failed or is closed, or one answer failed (the others of the
                list are aborted then).
        """
        reqs = self._make_all(prompt, params)
        try:  # Ctrl-C may come at any moment from here on
            self.loop.submit(reqs)
            done = [Handle.value(req.mailbox.wait()) for req in reqs]
        finally:
            self._abort_all(reqs)
        return done[0] if is_single(prompt) and len(done) == 1 else done

    async def agenerate(
        self, prompt: AnyPrompt | Sequence[AnyPrompt], params: Params = None
    ) -> Completion | list[Completion]:
        """`generate` for a coroutine, on any event loop.  Cancelling it aborts its requests."""
        # Tokenizing a long prompt takes milliseconds, which the caller's loop should not lose.
        # subtle: only that.  What a thread submitted after a cancellation nobody would abort.
        reqs = await asyncio.to_thread(self._make_all, prompt, params)
        try:
            self.loop.submit(reqs)
            done = [Handle.value(await req.mailbox.await_end()) for req in reqs]
        finally:
            self._abort_all(reqs)
        return done[0] if is_single(prompt) and len(done) == 1 else done

    def submit(self, prompt: AnyPrompt, params: SamplingParams | None = None) -> Handle:
        """Start completing one prompt, and return at once.

        The handle gives the result, or the pieces as they come, to a thread or to a coroutine, and
        can abort.  Errors as `generate`; a bad request raises here.
        """
        return self._start([self._make_one(prompt, params)])[0]

    def submit_all(
        self, prompt: AnyPrompt | Sequence[AnyPrompt], params: Params = None
    ) -> list[Handle]:
        """`submit`, for many: a handle for each answer that `generate` would return, in its order.
        They start together, so what their prompts share is computed once."""
        return self._start(self._make_all(prompt, params))

    def stream(self, prompt: AnyPrompt, params: SamplingParams | None = None) -> Handle:
        """Complete one prompt piece by piece: `for chunk in engine.stream(...)`.

        Leaving early (`close()`, or dropping it) aborts the request.
        """
        return self.submit(prompt, params)

    async def astream(
        self, prompt: AnyPrompt, params: SamplingParams | None = None
    ) -> AsyncIterator[Chunk]:
        """`stream` for a coroutine: `async for chunk in engine.astream(...)`."""
        (handle,) = self._start([await asyncio.to_thread(self._make_one, prompt, params)])
        try:
            async for chunk in handle:
                yield chunk
        finally:
            handle.abort()

    # ------------------------------------------------------------------ scores

    def score(
        self,
        prompts: AnyPrompt | Sequence[AnyPrompt],
        continuations: Sequence[str | Sequence[int]],
        *,
        namespace: str | None = None,
    ) -> list[Score]:
        """How likely the model thinks each continuation is after its prompt.

        One prompt for all continuations, or a list of as many.  What they have in common is
        computed once, and nothing is generated.  Text is scored as the model reads it whole: from
        the first token where it differs from the bare prompt, for one prompt's continuations from
        the first where any does (see `minisgl.engine.scoring`).

            >>> engine.score("The capital of France is", [" Paris", " Rome"])  # doctest: +SKIP

        Raises:
            ValueError: see `minisgl.engine.scoring.join`; or too long a text, with the numbers.
            EngineError: the engine failed or is closed, or the model's logits are NaN.
        """
        reqs = self._make_scores(prompts, continuations, namespace)
        try:
            self.loop.submit(reqs)
            return [score_of(Handle.value(req.mailbox.wait())) for req in reqs]
        finally:
            self._abort_all(reqs)

    async def ascore(
        self,
        prompts: AnyPrompt | Sequence[AnyPrompt],
        continuations: Sequence[str | Sequence[int]],
        *,
        namespace: str | None = None,
    ) -> list[Score]:
        """`score` for a coroutine, on any event loop.  Cancelling it aborts its requests."""
        reqs = await asyncio.to_thread(self._make_scores, prompts, continuations, namespace)
        try:
            self.loop.submit(reqs)
            return [score_of(Handle.value(await req.mailbox.await_end())) for req in reqs]
        finally:
            self._abort_all(reqs)

    def _make_scores(
        self,
        prompts: AnyPrompt | Sequence[AnyPrompt],
        continuations: Sequence[str | Sequence[int]],
        namespace: str | None,
    ) -> list[Req]:
        each = as_list(prompts)
        if is_single(prompts):
            each = [load_images(each[0])] * len(continuations)  # its images are read once for all
        joined = join(self.door.encode, each, continuations)
        return [
            self.door.make(
                Prompt(ids, images_of(prompt)),
                SamplingParams(max_tokens=0, prompt_logprobs_from=start, namespace=namespace),
            )
            for prompt, (ids, start) in zip(each, joined, strict=True)
        ]

    # ------------------------------------------------------------------ requests

    def _make_one(self, prompt: AnyPrompt, params: SamplingParams | None) -> Req:
        params = params or SamplingParams()
        if params.n != 1:
            raise ValueError(f"n={params.n}: a handle is one answer; submit {params.n} times")
        return self.door.make(prompt, params)

    def _start(self, reqs: Sequence[Req]) -> list[Handle]:
        # In this order, so that whatever interrupts the submission drops the handles.
        handles = [Handle(req, partial(self._abort, req)) for req in reqs]
        self.loop.submit(reqs)
        return handles

    def _abort(self, req: Req) -> None:
        """For handles, which hold their engine by it."""
        self.loop.abort(req)

    def _make_all(self, prompt: AnyPrompt | Sequence[AnyPrompt], params: Params) -> list[Req]:
        prompts = as_list(prompt)
        each = list(params) if isinstance(params, Sequence) else [params] * len(prompts)
        if len(each) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts, but {len(each)} SamplingParams")
        return [
            req
            for p, s in zip(prompts, each, strict=True)
            for req in self.door.make_all(p, s or SamplingParams())
        ]

    def _abort_all(self, reqs: Sequence[Req]) -> None:
        for req in reqs:
            if req.mailbox.outcome is None:
                self.loop.abort(req)

    # ------------------------------------------------------------------ looking in

    def call(self, f: Callable[[], T]) -> T:
        """Run `f` on the engine thread, between steps, and return what it returns."""
        return self.loop.call(f)

    def stats(self) -> Stats:
        """Counters and the present state."""
        return self.call(self.loop.stats)

    def tree(self) -> str:
        """A picture of the radix tree, token texts included."""

        def decode(ids: Sequence[int]) -> str:
            return self.tokenizer.decode(ids, skip_special_tokens=False)

        return self.call(lambda: self.loop.scheduler.tree.render(lambda key: show(key, decode)))

    def flush_cache(self) -> bool:
        """Forget every cached prefix and image; False (and nothing done) while requests are
        running."""
        return self.call(self.loop.flush)

    def watch_evictions(self) -> Evictions:
        """From now on, what the radix cache forgets is written down there.  One watcher at a time:
        a second one takes the place of the first."""
        evictions, tree = Evictions(), self.loop.scheduler.tree

        def watch() -> None:
            tree.on_evict = evictions.add

        self.call(watch)
        return evictions

    def check(self) -> None:
        """Verify that every slot is accounted for (AssertionError names what is not)."""
        self.call(self.loop.check)

    @property
    def ended(self) -> Future[None]:
        """Done when the engine has ended; its exception is why, unless it was closed."""
        return self.loop.ended

    def close(self) -> None:
        """Stop.  Requests under way end with an `EngineError`.  A second call does nothing."""
        self.loop.close()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

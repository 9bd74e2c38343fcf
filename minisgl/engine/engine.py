"""`Engine`: a model behind a thread-safe front door.

    caller threads --submit--> inbox --> engine thread: schedule, forward, sample, detokenize
         ^                                    |
         '---------- each request's events ---'

One thread steps; any number may call.  Every submitted request ends with exactly one final event: a
`Completion`, or an error that its caller sees.  A bad request is refused at the door, before it
reaches the engine thread.
"""

from __future__ import annotations

import queue
import random
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar, overload

from minisgl.cache.kv_pool import KVPool
from minisgl.cache.req_to_token import ReqToToken
from minisgl.chat_template import ChatTemplate
from minisgl.config import EngineConfig
from minisgl.detokenizer import Detokenizer
from minisgl.engine.decode_workspace import DecodeWorkspace
from minisgl.engine.hardware import Placement, free_memory, place
from minisgl.engine.model_runner import ModelRunner
from minisgl.engine.output import Chunk, Completion, FinishReason
from minisgl.engine.req import Req
from minisgl.engine.sampler import sample_rows
from minisgl.engine.scheduler import Scheduler
from minisgl.kernels.dispatch import use_triton
from minisgl.models.config import ModelConfig
from minisgl.models.hub import resolve_model
from minisgl.models.registry import load_model
from minisgl.sampling import SamplingParams
from minisgl.tokenizer import Tokenizer

Prompt = str | Sequence[int]
T = TypeVar("T")


class EngineError(RuntimeError):
    """The engine failed, or is closed; every waiting caller gets one."""


@dataclass(frozen=True)
class Stats:
    """Counters since the start, and what is going on now.  Tokens unless said otherwise."""

    requests: int
    prompt_tokens: int
    cached_tokens: int  # of prompt_tokens, found in the radix cache
    output_tokens: int
    steps: int
    busy_seconds: float
    waiting: int  # requests
    running: int  # requests
    pool_slots: int
    free_slots: int
    tree_slots: int

    @property
    def hit_rate(self) -> float:
        """Cached over all prompt tokens (paper section 3)."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0


class Stream(Iterator[Chunk]):
    """The pieces of one answer, as they come.  Whoever stops early closes it, or drops it."""

    def __init__(self, req: Req, abort: Callable[[Req], None]) -> None:
        self._req = req
        self._abort = abort
        self._is_over = False

    def __next__(self) -> Chunk:
        if self._is_over:
            raise StopIteration
        event = self._req.events.get()
        if isinstance(event, BaseException):
            self._is_over = True
            raise event
        self._is_over = event.completion is not None
        return event

    def close(self) -> None:
        """Abort the request, if it has not ended."""
        if not self._is_over:
            self._is_over = True
            self._abort(self._req)

    def __del__(self) -> None:
        self.close()


class Engine:
    """A loaded model that answers.

    >>> with Engine() as engine:                                        # doctest: +SKIP
    ...     engine.generate("The capital of France is", SamplingParams(max_tokens=4)).text
    ' Paris.'

    Args:
        model: a Hugging Face directory, a hub id, a .gguf file, or None for the embedded model.
        progress: show progress bars on stderr while loading.
        **settings: the fields of `EngineConfig`.

    Raises:
        ValueError: a setting that is not allowed, or a model that can't be loaded; in words.
    """

    def __init__(
        self, model: str | None = None, *, progress: bool = False, **settings: Any
    ) -> None:
        try:
            self.config = EngineConfig(model=model, **settings)
        except TypeError:
            known = [f for f in EngineConfig.__dataclass_fields__ if f != "model"]
            unknown = sorted(set(settings) - set(known))
            raise ValueError(
                f"unknown setting {', '.join(map(repr, unknown))}; known: {', '.join(known)}"
            ) from None
        path = resolve_model(model, progress=progress)
        self.model_config = ModelConfig.from_dir(path)
        self.placement = place(self.config, self.model_config.dtype)
        if self.placement.notice:
            warnings.warn(self.placement.notice, stacklevel=2)
        self.tokenizer = Tokenizer(path)
        self.context_length = self._choose_context()
        self._chat_template: ChatTemplate | None = None
        self._path = path
        net = load_model(
            path,
            self.model_config,
            dtype=self.placement.dtype,
            device=self.placement.device,
            max_len=self.context_length,
            half_rows=self.placement.half_rows,
            progress=progress,
        )
        pool = self._make_pool(self.placement)
        table = ReqToToken(self.config.max_running, self.context_length, self.placement.device)
        self.scheduler = Scheduler(
            pool,
            table,
            policy=self.config.policy,
            prefill_budget=self.config.prefill_budget,
            use_cache=self.config.radix_cache,
        )
        use_workspace = (
            self.config.decode_workspace
            and not use_triton(pool.layers[0])  # Triton reads scattered slots at full speed
            and not self.model_config.sliding_window
        )
        workspace: DecodeWorkspace[Req] | None = None
        if use_workspace:
            workspace = DecodeWorkspace(pool.layers, pool.num_slots)
        self.runner = ModelRunner(net, self.scheduler, workspace)
        self.eos_ids = frozenset(self.model_config.eos_token_ids) | frozenset(
            self.tokenizer.eos_token_ids
        )
        self._requests = self._prompt_tokens = self._cached_tokens = self._output_tokens = 0
        self._steps, self._busy = 0, 0.0
        self._inbox: queue.SimpleQueue[Req | Callable[[], None] | None] = queue.SimpleQueue()
        self._door = (
            threading.Lock()
        )  # nobody submits between the engine's death and its last words
        self._death: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="minisgl-engine", daemon=True)
        self._thread.start()

    def _choose_context(self) -> int:
        asked, trained = self.config.context_length, self.model_config.max_position
        if asked is None:
            return trained
        # Dynamic NTK is made to be stretched: it chooses its base for the length asked for.
        if asked > trained and self.model_config.rope.type != "dynamic":
            raise ValueError(
                f"context_length={asked}: the model was made for {trained} tokens at most"
            )
        return asked

    def _make_pool(self, where: Placement) -> KVPool:
        c = self.model_config
        shape = (c.num_layers, c.num_kv_heads, c.head_dim)
        per_token = KVPool.bytes_per_token(*shape, dtype=where.dtype)
        slots = self.config.kv_tokens
        if slots is None:
            share = self.config.kv_memory_fraction
            if share is None:
                share = 0.85 if where.device.type == "cuda" else 0.25
            free = free_memory(where.device)
            slots = int(free * share) // per_token
            if slots < 1:
                raise ValueError(
                    f"{free / 2**20:.0f} MiB are free, and {share:.0%} of them hold no token of "
                    f"{per_token / 2**10:.0f} KiB: raise kv_memory_fraction, or free memory"
                )
            # More than every request at full length can't be used.
            slots = min(slots, self.config.max_running * self.context_length)
        return KVPool(slots, *shape, dtype=where.dtype, device=where.device)

    @property
    def chat_template(self) -> ChatTemplate:
        """The model's own template; ValueError if it has none."""
        if self._chat_template is None:
            self._chat_template = ChatTemplate(self._path)
        return self._chat_template

    # ------------------------------------------------------------------ the front door

    @overload
    def generate(  # type: ignore[overload-overlap]  # a str is a sequence of str as well
        self, prompt: str, params: SamplingParams | Sequence[SamplingParams] | None = None
    ) -> Completion: ...
    @overload
    def generate(
        self,
        prompt: Sequence[int],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Completion: ...
    @overload
    def generate(
        self,
        prompt: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> list[Completion]: ...
    def generate(
        self,
        prompt: Prompt | Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
    ) -> Completion | list[Completion]:
        """Complete one prompt, or a list of them in the same order.  A prompt is a text or its ids.

        Raises:
            ValueError: an empty or too long prompt, with the numbers; none of the list is run then.
            EngineError: the engine failed or is closed.
        """
        prompts: list[Any] = [prompt] if _is_single(prompt) else list(prompt)
        each = list(params) if isinstance(params, Sequence) else [params] * len(prompts)
        if len(each) != len(prompts):
            raise ValueError(f"{len(prompts)} prompts, but {len(each)} SamplingParams")
        reqs = [self._make_req(p, s) for p, s in zip(prompts, each, strict=True)]
        for req in reqs:
            self._submit(req)
        try:
            done = [self._wait(req) for req in reqs]
        except BaseException:
            for req in reqs:
                self._abort(req)
            raise
        return done[0] if _is_single(prompt) else done

    def stream(self, prompt: Prompt, params: SamplingParams | None = None) -> Stream:
        """Complete one prompt piece by piece.  Closing the stream aborts the request.

        Errors as `generate`; a bad request raises here, not at the first piece.
        """
        req = self._make_req(prompt, params, streams=True)
        self._submit(req)
        return Stream(req, self._abort)

    def _wait(self, req: Req) -> Completion:
        event = req.events.get()
        if isinstance(event, BaseException):
            raise event
        assert isinstance(event, Chunk) and event.completion is not None
        return event.completion

    def _make_req(
        self, prompt: Prompt, params: SamplingParams | None, *, streams: bool = False
    ) -> Req:
        params = params or SamplingParams()
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt, add_special_tokens=True)
        else:
            ids = [int(i) for i in prompt]
        vocab = self.model_config.vocab_size
        bad = next((i for i in ids if not 0 <= i < vocab), None)
        if bad is not None:
            raise ValueError(f"token id {bad} is not in the vocabulary [0, {vocab})")
        if not ids:
            raise ValueError("the prompt is empty: give at least one token")
        most = min(self.context_length, self.scheduler.pool.num_slots)
        if len(ids) >= most:
            what = "context" if most == self.context_length else "KV pool (kv_tokens)"
            raise ValueError(
                f"the prompt has {len(ids)} tokens, but the {what} holds {most}, "
                "the answer's first token included"
            )
        for i in params.stop_token_ids:
            if not 0 <= i < vocab:
                raise ValueError(f"stop token id {i} is not in the vocabulary [0, {vocab})")
        room = self.context_length - len(ids)
        stop_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stop_ids |= self.eos_ids
        detokenizer = Detokenizer(
            self.tokenizer,
            skip_special_tokens=params.skip_special_tokens,
            stop=params.stop,
            no_stop_trim=params.no_stop_trim,
            continues=True,
        )
        return Req(
            prompt_ids=ids,
            params=params,
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            stop_ids=stop_ids | detokenizer.stop_token_ids,
            seed=random.getrandbits(64) if params.seed is None else params.seed,
            detokenizer=detokenizer,
            streams=streams,
        )

    def _submit(self, req: Req) -> None:
        with self._door:
            if self._death is not None:
                raise EngineError(str(self._death)) from self._death
            self._inbox.put(req)

    def _abort(self, req: Req) -> None:
        if not req.is_done:
            req.aborted = True
            self._inbox.put(lambda: None)  # wakes the engine thread

    # ------------------------------------------------------------------ looking in

    def call(self, f: Callable[[], T]) -> T:
        """Run `f` on the engine thread, between steps, and return what it returns."""
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(f())
            except BaseException as error:
                future.set_exception(error)

        with self._door:
            if self._death is not None:
                raise EngineError(str(self._death)) from self._death
            self._inbox.put(run)
        return future.result()

    def stats(self) -> Stats:
        """Counters and the present state."""
        s = self.scheduler
        return self.call(
            lambda: Stats(
                requests=self._requests,
                prompt_tokens=self._prompt_tokens,
                cached_tokens=self._cached_tokens,
                output_tokens=self._output_tokens,
                steps=self._steps,
                busy_seconds=self._busy,
                waiting=len(s.waiting),
                running=len(s.running) + len(s.prefilling),
                pool_slots=s.pool.num_slots,
                free_slots=s.pool.available_size,
                tree_slots=s.tree.total_size,
            )
        )

    def tree(self) -> str:
        """A picture of the radix tree, token texts included."""

        def decode(ids: Sequence[int]) -> str:
            return self.tokenizer.decode(ids, skip_special_tokens=False)

        return self.call(lambda: self.scheduler.tree.render(decode))

    def flush_cache(self) -> bool:
        """Forget every cached prefix; False (and nothing done) while requests are running."""

        def flush() -> bool:
            if not self.scheduler.is_idle:
                return False
            self.scheduler.pool.free(self.scheduler.tree.reset())
            return True

        return self.call(flush)

    def check(self) -> None:
        """Verify that every slot is accounted for (AssertionError names what is not)."""
        self.call(self._check)

    def _check(self) -> None:
        self.scheduler.check()
        if self.runner.workspace is not None:
            self.runner.workspace.check()

    def close(self) -> None:
        """Stop.  Requests under way end with an `EngineError`.  A second call does nothing."""
        self._inbox.put(None)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ the engine thread

    def _run(self) -> None:
        try:
            while self._receive():
                start = time.perf_counter()
                self._step()
                self._busy += time.perf_counter() - start
                if self.scheduler.is_idle:
                    self._check()
            death: BaseException = EngineError("the engine is closed")
        except BaseException as error:  # whatever it was, callers must hear of it
            death = error
        self._last_words(death)

    def _receive(self) -> bool:
        """Take in what callers sent; wait for it if there is nothing else to do.  False: closed."""
        while True:
            try:
                item = self._inbox.get(block=self.scheduler.is_idle)
            except queue.Empty:
                break
            if item is None:
                return False
            if isinstance(item, Req):
                self._requests += 1
                self._prompt_tokens += len(item.prompt_ids)
                self.scheduler.waiting.append(item)
            else:
                item()
        s = self.scheduler
        for req in [r for r in (*s.waiting, *s.prefilling, *s.running) if r.aborted]:
            self._finish(req, "abort", None)
        return True

    def _step(self) -> None:
        s = self.scheduler
        step = s.next_step()
        if not step:
            # One request alone fills the pool: it can't go on, and nobody can make room for it.
            for req in (s.running or s.prefilling)[:1]:
                self._finish(req, "length", None)
            return
        self._steps += 1
        reqs, logits = self.runner.forward(step)
        next_ids = sample_rows(logits, reqs) if reqs else []
        s.after_step(step)
        for req, token in zip(reqs, next_ids, strict=True):
            self._take(req, token)

    def _take(self, req: Req, token: int) -> None:
        """`req`'s next token was sampled."""
        if req.max_tokens == 0:
            self._finish(req, "length", None)
            return
        if token < 0:
            self._fail(req, EngineError("the model's logits are NaN for this request"))
            return
        req.output_ids.append(token)
        self._output_tokens += 1
        text = ""
        if token not in req.stop_ids or req.params.no_stop_trim:
            text = req.detokenizer.push([token])
        if token in req.stop_ids:
            self._finish(req, "stop", token, text)
        elif req.detokenizer.stopped is not None:
            self._finish(req, "stop", req.detokenizer.stopped, text)
        elif len(req.output_ids) == req.max_tokens:
            self._finish(req, "length", None, text)
        elif req.streams and text:
            req.events.put(Chunk(text, req.output_ids[req.sent :]))
            req.sent = len(req.output_ids)

    def _finish(
        self, req: Req, reason: FinishReason, match: str | int | None, text: str = ""
    ) -> None:
        self.scheduler.finish(req)
        self._cached_tokens += req.cached_tokens
        text += req.detokenizer.finish()
        completion = Completion(
            text=req.detokenizer.text,
            token_ids=list(req.output_ids),
            finish_reason=reason,
            stop_match=match,
            prompt_tokens=len(req.prompt_ids),
            cached_tokens=req.cached_tokens,
            completion_tokens=len(req.output_ids),
        )
        req.events.put(Chunk(text, req.output_ids[req.sent :], completion))

    def _fail(self, req: Req, error: BaseException) -> None:
        self.scheduler.finish(req)
        req.events.put(error)

    def _last_words(self, death: BaseException) -> None:
        """Answer everybody who still waits, once."""
        with self._door:
            self._death = death
        s = self.scheduler
        waiting = [*s.waiting, *s.prefilling, *s.running]
        while True:
            try:
                item = self._inbox.get(block=False)
            except queue.Empty:
                break
            if isinstance(item, Req):
                waiting.append(item)
            elif item is not None:
                item()
        for req in waiting:
            req.is_done = True
            error = EngineError(f"the engine stopped: {death}")
            error.__cause__ = death
            req.events.put(error)


def _is_single(prompt: Prompt | Sequence[Prompt]) -> bool:
    return isinstance(prompt, str) or (len(prompt) > 0 and isinstance(prompt[0], int))

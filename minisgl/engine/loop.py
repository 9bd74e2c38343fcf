"""The engine thread: take in what callers sent, run a step, hand out what it gave.

    inbox --> receive --> schedule --> forward --> sample --> take: detokenize, finish, post
                 ^                                                      |
                 '------------------------------------------------------'

Everything below `Scheduler` and `ModelRunner` happens on this one thread, so nothing there needs a
lock.  Every request that `submit` took ends with exactly one final event in its mailbox: a
`Completion`, or an error that its caller sees, also when the thread itself dies.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, TypeVar

from minisgl.engine.logprobs import add_prompt_logprobs, has_nan, output_logprobs
from minisgl.engine.model_runner import ModelRunner
from minisgl.engine.output import Completion, FinishReason, TokenLogprob
from minisgl.engine.req import Req
from minisgl.engine.sampler import sample_rows
from minisgl.engine.scheduler import Scheduler
from minisgl.engine.stats import Meter, Stats, percentile
from minisgl.engine.trace import Times, Trace
from minisgl.fsm import TooComplexError

T = TypeVar("T")


class EngineError(RuntimeError):
    """The engine failed, or is closed; every waiting caller gets one."""


@dataclass(frozen=True)
class _Abort:
    """In the inbox: `req` ends now."""

    req: Req


@dataclass(frozen=True)
class _Call:
    """In the inbox: `f` is called between steps."""

    f: Callable[[], Any]
    future: Future[Any] = field(default_factory=Future)

    def run(self) -> None:
        try:
            result = self.f()
        except BaseException as error:  # the caller's to see, whatever it is
            self.future.set_exception(error)
        else:
            self.future.set_result(result)


_CLOSE = None  # in the inbox: the last thing that is read


class EngineLoop:
    """Owns the thread, and is the only one who touches the scheduler and the model."""

    def __init__(
        self, scheduler: Scheduler, runner: ModelRunner, trace: Trace | None = None
    ) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.trace = trace
        self.meter = Meter()
        self._inbox: queue.SimpleQueue[list[Req] | _Abort | _Call | None] = queue.SimpleQueue()
        self._live: set[Req] = set()  # whoever still waits for an end
        self._lock = threading.Lock()  # nobody submits between the end and the last words
        self._has_ended = False
        self._fault: BaseException | None = None  # what ended it, unless that was `close`
        self._thread = threading.Thread(target=self._run, name="minisgl-engine", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ for any thread

    def submit(self, reqs: Sequence[Req]) -> None:
        """Queue requests; they reach the scheduler together.

        Raises:
            EngineError: the engine failed or is closed.
            RuntimeError: on the engine thread, which would wait for itself.
        """
        if self._is_current():
            raise RuntimeError("the engine thread can't ask itself: submit from another thread")
        with self._lock:
            self._require_alive()
            self._inbox.put(list(reqs))  # one item, so that one step sees them all

    def abort(self, req: Req) -> None:
        """`req` ends before the next step, wherever it is; without effect once it has ended."""
        # subtle: no lock.  A dropped handle calls this from the garbage collector, which may run in
        # a thread that holds one; a SimpleQueue is made for that.
        self._inbox.put(_Abort(req))

    def call(self, f: Callable[[], T]) -> T:
        """Run `f` on the engine thread, between steps, and return what it returns."""
        if self._is_current():
            return f()
        call = _Call(f)
        with self._lock:
            self._require_alive()
            self._inbox.put(call)
        result: T = call.future.result()
        return result

    def close(self) -> None:
        """Stop.  Requests under way end with an `EngineError`.  A second call does nothing."""
        self._inbox.put(_CLOSE)
        if not self._is_current():
            self._thread.join()

    def _is_current(self) -> bool:
        return threading.current_thread() is self._thread

    def _require_alive(self) -> None:
        if self._has_ended:
            raise self._why_ended()

    def _why_ended(self) -> EngineError:
        """For one caller: raising an error marks it, so each gets its own."""
        if self._fault is None:
            return EngineError("the engine is closed")
        error = EngineError(f"the engine stopped: {type(self._fault).__name__}: {self._fault}")
        error.__cause__ = self._fault
        return error

    # ------------------------------------------------------------------ for the engine thread

    def stats(self) -> Stats:
        """Counters and the present state; call it through `call`."""
        s, m = self.scheduler, self.meter
        free, tree = s.pool.available_size, s.tree.total_size
        return Stats(
            requests=m.requests,
            prompt_tokens=m.prompt_tokens,
            cached_tokens=m.cached_tokens,
            output_tokens=m.output_tokens,
            steps=m.steps,
            retractions=s.retractions,
            busy_seconds=m.busy_seconds,
            waiting=len(s.waiting),
            running=len(s.running) + len(s.prefilling),
            pool_slots=s.pool.num_slots,
            free_slots=free,
            tree_slots=tree,
            locked_slots=s.tree.protected_size,
            request_slots=s.pool.num_slots - free - tree,
            ttft_p50=percentile(m.ttft, 50),
            ttft_p99=percentile(m.ttft, 99),
            step_p50=percentile(m.step, 50),
            step_p99=percentile(m.step, 99),
        )

    def check(self) -> None:
        """Verify that every slot is accounted for; call it through `call`."""
        self.scheduler.check()
        self.runner.check()

    def _run(self) -> None:
        try:
            while self._receive():
                start = time.perf_counter()
                self._step()
                seconds = time.perf_counter() - start
                self.meter.busy_seconds += seconds
                self.meter.step.append(seconds)
                if self.scheduler.is_idle:
                    self.scheduler.check_accounts()
                    self.runner.check()
            fault = None
        except BaseException as error:  # whatever it was, callers must hear of it
            fault = error
        self._last_words(fault)

    def _receive(self) -> bool:
        """Take in what callers sent; wait for it if there is nothing else to do.  False: closed."""
        while self.scheduler.is_idle or not self._inbox.empty():
            if self.scheduler.is_idle:
                self.runner.rest()
            # subtle: no name here keeps an item, and what it refers to, alive while this waits
            if not self._take_in(self._inbox.get()):
                return False
        return True

    def _take_in(self, item: list[Req] | _Abort | _Call | None) -> bool:
        match item:
            case list():
                self._live.update(item)
                for req in item:
                    self.meter.requests += 1
                    self.scheduler.submit(req)
                    self._begin(req)
            case _Abort(req):
                if req in self._live:
                    self._finish(req, "abort", None)
            case _Call():
                item.run()
        return item is not _CLOSE

    def _step(self) -> None:
        s, start = self.scheduler, time.perf_counter()
        step = s.next_step()
        for req in s.stuck:
            # It alone fills the pool: it can't go on, and nobody can make room for it.
            self._finish(req, "length", None)
        if not step:
            return
        self.meter.steps += 1
        scheduled = time.perf_counter()
        reqs, logits, prompt_logits = self.runner.forward(step)
        computed = time.perf_counter()
        next_ids = sample_rows(logits, reqs) if reqs else []
        logprobs = output_logprobs(logits, next_ids, reqs)
        if len(prompt_logits):
            add_prompt_logprobs(prompt_logits, step.extends)
        sampled = time.perf_counter()
        s.after_step(step)
        for req, token, logprob in zip(reqs, next_ids, logprobs, strict=True):
            self._take(req, token, logprob)
        if self.trace is not None:
            times = Times(start, scheduled, computed, sampled, time.perf_counter())
            self.trace.step(step, times, s)

    def _begin(self, req: Req) -> None:
        """What the answer has to begin with is prefilled together with the prompt."""
        if req.constraint is None or req.max_tokens == 0:
            return
        if req.params.prompt_logprobs_from is None:  # those are told before the answer begins
            self._follow(req, None, "")

    def _take(self, req: Req, token: int, logprob: TokenLogprob | None) -> None:
        """`req`'s next token was sampled."""
        if token < 0 or (not req.output_ids and has_nan(req)):
            why = "the model's logits are NaN or infinite, or every token is forbidden"
            self._fail(req, EngineError(f"no token can be sampled for this request: {why}"))
            return
        if req.max_tokens == 0:
            self._finish(req, "length", None)
            return
        if not req.passes:
            self.meter.ttft.append(time.perf_counter() - req.submitted_at)
        req.passes += 1
        req.output_ids.append(token)
        if logprob is not None:
            req.logprobs.append(logprob)
        self.meter.output_tokens += 1
        text = ""
        may_stop = len(req.output_ids) > req.params.min_tokens
        if req.constraint is not None and req.constraint.pending:
            _, piece = req.constraint.pending.popleft()
            self._go_on(req, req.detokenizer.push_bytes(piece, may_stop=may_stop))
            return
        if token not in req.stop_ids or req.params.no_stop_trim:
            text = req.detokenizer.push([token], may_stop=may_stop)
        if token in req.stop_ids:
            self._finish(req, "stop", token, text)
            return
        if req.constraint is not None and req.detokenizer.stopped is None:
            self._follow(req, token, text)
        else:
            self._go_on(req, text)

    def _follow(self, req: Req, token: int | None, text: str) -> None:
        """`req`'s pattern goes on by its next token, and by what is forced then."""
        assert req.constraint is not None
        try:
            if req.constraint.fault is not None:
                raise req.constraint.fault
            if token is not None:
                req.constraint.guide.advance(token)
            text += self._jump(req)
        except TooComplexError as fault:
            self._fail(req, EngineError(f"this request's pattern grew too complex: {fault}"))
        else:
            self._go_on(req, text)

    def _jump(self, req: Req) -> str:
        """Write what the pattern forces, if anything; the text that it adds."""
        constraint = req.constraint
        assert constraint is not None
        jump = constraint.jump(req.output_ids, req.max_tokens)
        if jump is None:
            return ""
        old, new = req.output_ids, req.output_ids[: jump.start] + jump.ids
        same = _common_prefix(old, new)
        now = len(new) if constraint.jumps else min(same + 1, len(old))
        req.output_ids, text = new[: jump.start], ""
        for token, piece in zip(jump.ids, jump.added, strict=True):
            if len(req.output_ids) == now:
                constraint.pending.append((token, piece))
                continue
            if req.detokenizer.stopped is not None:
                break
            req.output_ids.append(token)
            may_stop = len(req.output_ids) > req.params.min_tokens
            text += req.detokenizer.push_bytes(piece, may_stop=may_stop)
        if req.output_ids == old:
            return text
        if req.adjustments is not None:
            req.adjustments.rewind(old, same)
        self.meter.output_tokens += len(req.output_ids) - len(old)
        self.scheduler.rewrite(req, len(req.prompt_ids) + same)
        return text

    def _go_on(self, req: Req, text: str) -> None:
        """`text` was added to the answer, which may have come to its end."""
        if req.detokenizer.stopped is not None:
            self._finish(req, "stop", req.detokenizer.stopped, text)
        elif req.constraint is not None and req.constraint.is_complete:
            self._finish(req, "stop", None, text)
        elif len(req.output_ids) == req.max_tokens:
            self._finish(req, "length", None, text)
        elif text:
            self._post(req, text)

    def _post(self, req: Req, text: str, *, is_last: bool = False) -> None:
        """The text so far, and those ids that will stay."""
        final = len(req.output_ids)
        if req.constraint is not None and not is_last:
            final = min(final, req.constraint.final)
        req.mailbox.add(text, req.output_ids[req.sent : final])
        req.sent = final

    def _finish(
        self, req: Req, reason: FinishReason, match: str | int | None, text: str = ""
    ) -> None:
        self._leave(req, reason)
        asked = req.params
        text += req.detokenizer.finish()
        self._post(req, text, is_last=True)
        req.mailbox.end(
            Completion(
                request_id=req.id,
                index=req.index,
                text=req.detokenizer.text,
                token_ids=list(req.output_ids),
                finish_reason=reason,
                stop_match=match,
                prompt_tokens=len(req.prompt_ids),
                cached_tokens=req.cached_tokens,
                completion_tokens=len(req.output_ids),
                forward_passes=req.passes,
                logprobs=None if asked.logprobs is None else list(req.logprobs),
                prompt_logprobs=(
                    None if asked.prompt_logprobs_from is None else list(req.prompt_logprobs)
                ),
                removed=None if req.constraint is None else list(req.constraint.removed),
            )
        )
        self._live.remove(req)  # last: until then a fault has to be told

    def _fail(self, req: Req, error: BaseException) -> None:
        self._leave(req, "error")
        self.runner.scrub(req)
        req.mailbox.end(error)
        self._live.remove(req)

    def _leave(self, req: Req, reason: str) -> None:
        """`req` gives back what it holds, and is counted."""
        self.scheduler.finish(req, keep=reason != "error")
        if req.was_admitted:
            self.meter.prompt_tokens += len(req.prompt_ids)
            self.meter.cached_tokens += req.cached_tokens
        if self.trace is not None:
            self.trace.end(req, reason)

    def _last_words(self, fault: BaseException | None) -> None:
        """Answer everybody who still waits, once."""
        with self._lock:
            self._has_ended, self._fault = True, fault
        while not self._inbox.empty():
            match self._inbox.get():
                case list(reqs):
                    self._live.update(reqs)
                case _Call() as call:
                    call.future.set_exception(self._why_ended())
        # Not asked of the scheduler, which may be what failed.
        for req in self._live:
            req.mailbox.end(self._why_ended())
        if self.trace is not None:
            for req in self._live:
                self.trace.end(req, "error")
            self.trace.close()
        self._live.clear()


def _common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many ids both begin with."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )

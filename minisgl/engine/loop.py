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
from typing import TypeVar

from minisgl.engine.model_runner import ModelRunner
from minisgl.engine.output import Completion, FinishReason
from minisgl.engine.req import Req
from minisgl.engine.sampler import sample_rows
from minisgl.engine.scheduler import Scheduler
from minisgl.engine.stats import Meter, Stats, percentile

T = TypeVar("T")
_CLOSE = None  # in the inbox: the last thing that is read


class EngineError(RuntimeError):
    """The engine failed, or is closed; every waiting caller gets one."""


class EngineLoop:
    """Owns the thread, and is the only one who touches the scheduler and the model."""

    def __init__(self, scheduler: Scheduler, runner: ModelRunner) -> None:
        self.scheduler = scheduler
        self.runner = runner
        self.meter = Meter()
        self._inbox: queue.SimpleQueue[Req | Callable[[], None] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # nobody submits between the death and the last words
        self._death: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="minisgl-engine", daemon=True)
        self._thread.start()

    # ------------------------------------------------------------------ for any thread

    def submit(self, reqs: Sequence[Req]) -> None:
        """Queue requests; they reach the scheduler together.  EngineError if the engine is dead."""
        with self._lock:
            self._require_alive()
            for req in reqs:
                self._inbox.put(req)

    def abort(self, req: Req) -> None:
        """`req` ends at the next step, wherever it is; without effect once it has ended."""
        req.aborted = True
        self._inbox.put(_nothing)  # wakes the thread

    def call(self, f: Callable[[], T]) -> T:
        """Run `f` on the engine thread, between steps, and return what it returns."""
        if threading.current_thread() is self._thread:
            return f()
        future: Future[T] = Future()

        def run() -> None:
            try:
                future.set_result(f())
            except BaseException as error:
                future.set_exception(error)

        with self._lock:
            self._require_alive()
            self._inbox.put(run)
        return future.result()

    def close(self) -> None:
        """Stop.  Requests under way end with an `EngineError`.  A second call does nothing."""
        self._inbox.put(_CLOSE)
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _require_alive(self) -> None:
        if self._death is not None:
            raise EngineError(str(self._death)) from self._death

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
                    self.check()
            death: BaseException = EngineError("the engine is closed")
        except BaseException as error:  # whatever it was, callers must hear of it
            death = error
        self._last_words(death)

    def _receive(self) -> bool:
        """Take in what callers sent; wait for it if there is nothing else to do.  False: closed."""
        s = self.scheduler
        while True:
            try:
                item = self._inbox.get(block=s.is_idle)
            except queue.Empty:
                break
            if item is _CLOSE:
                return False
            if isinstance(item, Req):
                self.meter.requests += 1
                self.meter.prompt_tokens += len(item.prompt_ids)
                s.submit(item)
            else:
                item()
            for req in [r for r in s.requests() if r.aborted]:
                self._finish(req, "abort", None)
        return True

    def _step(self) -> None:
        s = self.scheduler
        step = s.next_step()
        for req in s.stuck:
            # It alone fills the pool: it can't go on, and nobody can make room for it.
            self._finish(req, "length", None)
        if not step:
            return
        self.meter.steps += 1
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
        if not req.output_ids:
            self.meter.ttft.append(time.perf_counter() - req.submitted_at)
        req.output_ids.append(token)
        self.meter.output_tokens += 1
        text = ""
        if token not in req.stop_ids or req.params.no_stop_trim:
            text = req.detokenizer.push([token])
        if token in req.stop_ids:
            self._finish(req, "stop", token, text)
        elif req.detokenizer.stopped is not None:
            self._finish(req, "stop", req.detokenizer.stopped, text)
        elif len(req.output_ids) == req.max_tokens:
            self._finish(req, "length", None, text)
        elif text:
            self._post(req, text)

    def _post(self, req: Req, text: str) -> None:
        req.mailbox.add(text, req.output_ids[req.sent :])
        req.sent = len(req.output_ids)

    def _finish(
        self, req: Req, reason: FinishReason, match: str | int | None, text: str = ""
    ) -> None:
        self.scheduler.finish(req)
        self.meter.cached_tokens += req.cached_tokens
        text += req.detokenizer.finish()
        self._post(req, text)
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
            )
        )

    def _fail(self, req: Req, error: BaseException) -> None:
        self.scheduler.finish(req)
        req.mailbox.end(error)

    def _last_words(self, death: BaseException) -> None:
        """Answer everybody who still waits, once."""
        with self._lock:
            self._death = death
        waiting = self.scheduler.requests()
        while True:
            try:
                item = self._inbox.get(block=False)
            except queue.Empty:
                break
            if isinstance(item, Req):
                waiting.append(item)
            elif item is not _CLOSE:
                item()
        for req in waiting:
            error = EngineError(f"the engine stopped: {death}")
            error.__cause__ = death
            req.mailbox.end(error)


def _nothing() -> None:
    """What is put into the inbox only to wake its reader."""

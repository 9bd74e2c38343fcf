"""The engine thread: take in what callers sent, run a step, hand out what it gave.

    inbox --> receive --> schedule --> forward --> sample --> answers (answers.py)
                 ^                                               |
                 '-----------------------------------------------'

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

from minisgl.engine.answers import Answers
from minisgl.engine.logprobs import add_prompt_logprobs, output_logprobs
from minisgl.engine.model_runner import ModelRunner
from minisgl.engine.output import EngineError
from minisgl.engine.req import Req
from minisgl.engine.sampler import sample_rows
from minisgl.engine.scheduler import Scheduler
from minisgl.engine.stats import Meter, Stats, percentile
from minisgl.engine.trace import Times, Trace

T = TypeVar("T")


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
    """Owns the thread, and is the only one who touches the scheduler and the model.

    Attributes:
        ended: done when the thread has ended and everybody has heard of it; its exception is the
            `EngineError` that they got, unless it was closed.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: ModelRunner,
        trace: Trace | None = None,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._at_end = at_end  # the last thing that the thread calls, whatever ended it
        self.scheduler = scheduler
        self.runner = runner
        self.trace = trace
        self.meter = Meter()
        self.answers = Answers(scheduler, runner, self.meter, trace)
        self._inbox: queue.SimpleQueue[list[Req] | _Abort | _Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # nobody submits between the end and the last words
        self._has_ended = False
        self._fault: BaseException | None = None  # what ended it, unless that was `close`
        self.ended: Future[None] = Future()
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
        s, m, vision = self.scheduler, self.meter, self.runner.vision
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
            first_token=m.first_token.histogram,
            inter_token=m.inter_token.histogram,
            images=vision.lookups if vision else 0,
            encoded_images=vision.misses if vision else 0,
            vision_bytes=vision.bytes if vision else 0,
        )

    def flush(self) -> bool:
        """Forget every cached prefix and image; False (and nothing done) while anyone needs one;
        call it through `call`."""
        if not self.scheduler.flush():
            return False
        self.runner.flush()
        return True

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
        self._at_end()

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
                self.answers.live.update(item)
                for req in item:
                    self.answers.add(req)
            case _Abort(req):
                if req in self.answers.live:
                    self.answers.finish(req, "abort")
            case _Call():
                item.run()
        return item is not _CLOSE

    def _step(self) -> None:
        s, start = self.scheduler, time.perf_counter()
        step = s.next_step()
        for req in s.stuck:
            # It alone fills the pool: it can't go on, and nobody can make room for it.
            self.answers.finish(req, "length")
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
            self.answers.take(req, token, logprob)
        if self.trace is not None:
            times = Times(start, scheduled, computed, sampled, time.perf_counter())
            self.trace.step(step, times, s)

    def _last_words(self, fault: BaseException | None) -> None:
        """Answer everybody who still waits, once."""
        with self._lock:
            self._has_ended, self._fault = True, fault
        while not self._inbox.empty():
            match self._inbox.get():
                case list(reqs):
                    self.answers.live.update(reqs)
                case _Call() as call:
                    call.future.set_exception(self._why_ended())
        # Not asked of the scheduler, which may be what failed.
        for req in self.answers.live:
            req.mailbox.end(self._why_ended())
        if self.trace is not None:
            for req in self.answers.live:
                self.trace.end(req, "error")
            self.trace.close()
        self.answers.live.clear()
        if fault is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(self._why_ended())

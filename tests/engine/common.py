"""What the engine's tests share: settings, and ways to stop the engine thread at a known place."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from minisgl import Engine, SamplingParams
from minisgl.engine.loop import _Call

T = TypeVar("T")

LONG = 30.0  # seconds after which a test gives up waiting for another thread

# One dtype for one row and for many, so that equal means equal.
fp32 = partial(Engine, dtype="float32")


def greedy(max_tokens: int | None = 12, **kw: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **kw)


def first_difference(
    engine: Engine, prompt: list[int], params: SamplingParams, ours: list[int], alone: list[int]
) -> int:
    """Where two answers part, which they may at a tie only: 1e-4 more of logit for our token, and
    `engine` gives it too.  Sums in another order round otherwise, and now and then that decides."""
    at = next((i for i, (a, b) in enumerate(zip(ours, alone, strict=False)) if a != b), None)
    if at is None:
        assert ours == alone
        return len(ours)
    bias = dict(params.logit_bias)
    bias[ours[at]] = bias.get(ours[at], 0.0) + 1e-4
    nudged = engine.generate(prompt, replace(params, logit_bias=bias))
    assert nudged.token_ids[: at + 1] == ours[: at + 1], f"{ours} together, {alone} alone"
    return at


def post(engine: Engine, f: Callable[[], T]) -> Future[T]:
    """`engine.call` that does not wait for the answer."""
    call = _Call(f)
    engine.loop._inbox.put(call)
    return call.future


@contextmanager
def between_steps(engine: Engine) -> Iterator[None]:
    """The engine thread stands still between two steps; what is sent meanwhile is read after it,
    in order, before the next step."""
    stands, go_on = threading.Event(), threading.Event()

    def stand() -> bool:
        stands.set()
        return go_on.wait(LONG)

    stood = post(engine, stand)
    assert stands.wait(LONG)
    try:
        yield
    finally:
        go_on.set()
    assert stood.result(LONG)


@contextmanager
def inside_a_step(engine: Engine) -> Iterator[threading.Event]:
    """The next forward pass sets the event and stands still until the end of the block."""
    stands, go_on = threading.Event(), threading.Event()
    runner = engine.loop.runner
    forward = runner.forward

    def stand(step: Any) -> Any:
        stands.set()
        assert go_on.wait(LONG)
        return forward(step)

    engine.call(lambda: setattr(runner, "forward", stand))
    try:
        yield stands
    finally:
        go_on.set()
        del runner.forward  # the class's own shows again


@contextmanager
def in_thread(f: Callable[[], object], timeout: float = LONG) -> Iterator[None]:
    """`f` runs beside the block, and has ended after it; what it raises is raised there."""
    errors: list[BaseException] = []

    def run() -> None:
        try:
            f()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        thread.join(timeout)
        assert not thread.is_alive()
    for error in errors:
        raise error


def one_step(engine: Engine) -> None:
    """For `engine.call`, or any function on the engine thread: exactly one step."""
    engine.loop._step()


def assert_all_free(engine: Engine) -> None:
    """Nobody runs or waits, the accounts are right, and a flush frees every slot."""
    engine.check()
    stats = engine.stats()
    assert (stats.waiting, stats.running, stats.request_slots) == (0, 0, 0)
    assert engine.flush_cache()
    stats = engine.stats()
    assert stats.free_slots == stats.pool_slots
    engine.check()

"""When a call is made again, and how clients belong to their loops."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncGenerator
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime

import pytest

from minisgl.lang.backends import per_loop, retries
from minisgl.lang.backends.base import Answer
from minisgl.lang.backends.per_loop import PerLoop
from minisgl.lang.backends.retries import ApiError, Retries, retry_after


class Flaky:
    """Fails with each of `errors`, and then works."""

    def __init__(self, *errors: ApiError) -> None:
        self.errors = list(errors)
        self.calls = 0

    async def __call__(self) -> str:
        self.calls += 1
        if self.errors:
            raise self.errors.pop(0)
        return "done"


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that were to be slept; nobody does."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr(retries, "sleep", sleep)  # not asyncio's, which all threads use
    return slept


def error(status: int | None = 503, wait: float | None = None) -> ApiError:
    return ApiError("busy", status=status, retry_after=wait)


@pytest.mark.parametrize("status", [None, 408, 409, 429, 500, 502, 503, 504, 529])
def test_what_may_pass_is_tried_again(status: int | None, waits: list[float]) -> None:
    call = Flaky(error(status), error(status))
    assert asyncio.run(Retries().call(call)) == "done"
    assert call.calls == 3 and len(waits) == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422])
def test_what_the_caller_has_to_mend_is_not(status: int, waits: list[float]) -> None:
    call = Flaky(error(status))
    with pytest.raises(ApiError):
        asyncio.run(Retries().call(call))
    assert call.calls == 1 and waits == []


def test_waits_double_and_are_spread(waits: list[float]) -> None:
    policy = Retries(most=6, first=1.0, longest=10.0)
    with pytest.raises(ApiError, match="busy"):
        asyncio.run(policy.call(Flaky(*[error() for _ in range(7)])))
    for wait, bound in zip(waits, [1, 2, 4, 8, 10, 10], strict=True):
        assert bound / 2 <= wait <= bound
    assert len(set(waits)) == len(waits)


def test_the_server_s_own_time_is_kept(waits: list[float]) -> None:
    asyncio.run(Retries(first=0.1).call(Flaky(error(429, 7.0))))
    assert 7.0 <= waits[0] <= 7.02
    call = Flaky(error(429, 61.0))
    with pytest.raises(ApiError):  # nobody sits there for so long
        asyncio.run(Retries().call(call))
    assert call.calls == 1


def test_retry_after_is_read_in_each_of_its_forms() -> None:
    soon = datetime.now(timezone.utc) + timedelta(seconds=100)
    found = retry_after({"retry-after": format_datetime(soon, usegmt=True)})
    assert found is not None and 90 < found <= 100
    past = datetime(2020, 1, 1, tzinfo=timezone.utc)
    assert retry_after({"retry-after": format_datetime(past, usegmt=True)}) == 0
    assert retry_after({"retry-after": "-3"}) == 0
    assert retry_after({"retry-after": "later"}) is None
    assert retry_after({"retry-after-ms": "?", "retry-after": "2"}) == 2


@pytest.mark.parametrize("name", ["most", "first", "longest"])
def test_numbers_below_0_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=-1: give a number of at least 0"):
        Retries(**{name: -1})  # type: ignore[arg-type]


def test_a_stream_is_begun_again_only_before_its_first_piece(waits: list[float]) -> None:
    attempts = []

    async def pieces() -> AsyncGenerator[Answer, None]:
        attempts.append(1)
        if len(attempts) == 1:
            raise error()
        yield Answer("a")
        raise error()

    async def read() -> list[str]:
        seen = []
        with pytest.raises(ApiError):
            async for piece in Retries().stream(pieces):
                seen.append(piece.text)
        return seen

    assert asyncio.run(read()) == ["a"] and len(attempts) == 2


def test_each_loop_has_a_client_that_is_closed_with_it() -> None:
    events = []

    class Client:
        async def __aenter__(self) -> Client:
            events.append("open")
            return self

        async def __aexit__(self, *_: object) -> None:
            events.append("closed")

    clients = PerLoop(Client)

    async def twice() -> None:
        assert await clients.get() is await clients.get()
        for _ in range(5):
            await asyncio.sleep(0)
        assert events[-1] == "open"

    asyncio.run(twice())
    asyncio.run(twice())
    assert events == ["open", "closed"] * 2


def test_a_client_that_nobody_holds_is_closed_with_its_loop() -> None:
    events = []

    class Client:
        async def __aenter__(self) -> Client:
            return self

        async def __aexit__(self, *_: object) -> None:
            await asyncio.sleep(0)
            events.append("closed")

    clients = PerLoop(Client)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(clients.get())
    del clients
    gc.collect()
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.close()
    assert events == ["closed"] and per_loop._keepers == {}

"""Calls that fail for a while are made again: after twice the time each, and never all at once.

429 (too many requests), 408, 409, every 5xx, a connection that breaks, a time-out and a reply that
is no JSON may be over the next time.  A server that says when (`Retry-After`) is taken at its word.
Anything else is the caller's to mend, and is raised at once.
"""

from __future__ import annotations

import random
import time
from asyncio import sleep
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TypeVar

from minisgl.lang.backends.base import Answer

T = TypeVar("T")


class ApiError(RuntimeError):
    """What an API has answered instead of a text, or that it has not answered.

    status: of HTTP; None: there was no complete reply.
    retry_after: seconds that the server asks to wait; None: it says nothing.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        retry_after: float | None = None,
        passes: bool | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after
        if passes is None:
            passes = status is None or status in (408, 409, 429) or status >= 500
        self.passes = passes  # whether the same call may succeed later


@dataclass(frozen=True)
class Retries:
    """How often a call is made again, and when.

    >>> Retries(first=1.0, longest=8.0).bound(3)
    8.0

    Raises:
        ValueError: a number below 0.
    """

    most: int = 5
    first: float = 0.5  # seconds before the first one, at most; twice as long before each next
    longest: float = 60.0  # seconds; a server that asks for more is not waited for

    def __post_init__(self) -> None:
        for name in ("most", "first", "longest"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)!r}: give a number of at least 0")

    def bound(self, failures: int) -> float:
        """The longest wait after so many failures."""
        return min(self.longest, self.first * 2.0**failures)

    async def wait(self, error: ApiError, failures: int) -> None:
        """Wait before another try, or raise `error`, after `failures` before it."""
        asked = error.retry_after
        if not error.passes or failures >= self.most or (asked or 0) > self.longest:
            raise error
        # Anywhere in the upper half: clients that failed together don't come back together.
        spread = self.bound(failures) * random.uniform(0.5, 1)
        await sleep(spread if asked is None else asked + spread * 0.1)

    async def call(self, make: Callable[[], Awaitable[T]]) -> T:
        """What `make()` returns, in the end.

        Raises:
            ApiError: the last one.
        """
        failures = 0
        while True:
            try:
                return await make()
            except ApiError as error:
                await self.wait(error, failures)
            failures += 1

    async def stream(
        self, make: Callable[[], AsyncGenerator[Answer, None]]
    ) -> AsyncGenerator[Answer, None]:
        """`call` for an answer in pieces: one that has begun is not begun again."""
        failures, has_begun = 0, False
        while True:
            try:
                async with aclosing(make()) as pieces:
                    async for piece in pieces:
                        has_begun = True
                        yield piece
                return
            except ApiError as error:
                if has_begun:
                    raise
                await self.wait(error, failures)
            failures += 1


def patience(timeout: float, retries: Retries | None) -> tuple[float, Retries]:
    """Both as a backend keeps them.

    Raises:
        ValueError: what is given is no time, or no `Retries`.
    """
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)) or not timeout > 0:
        raise ValueError(f"timeout={timeout!r}: give seconds, above 0")
    if not isinstance(retries, Retries | None):
        raise ValueError(f"retries={retries!r}: give Retries(most=..., first=..., longest=...)")
    return timeout, retries or Retries()


def retry_after(headers: Mapping[str, str]) -> float | None:
    """The seconds that a reply's headers ask to wait; None: they don't, or not legibly.

    >>> retry_after({"retry-after": "1.5"}), retry_after({"retry-after-ms": "20"}), retry_after({})
    (1.5, 0.02, None)
    """
    try:
        if (milliseconds := headers.get("retry-after-ms")) is not None:
            return max(0.0, float(milliseconds) / 1000)
    except ValueError:
        pass
    value = headers.get("retry-after")
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    except (TypeError, ValueError):
        return None

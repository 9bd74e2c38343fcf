"""`PerLoop`: one client of an API for each event loop that uses it.

A client keeps connections, and a connection belongs to the loop that opened it.  Programs run on a
loop that ends with the last of them, and a notebook or a server has its own.  What all clients can
share, the certificates they trust, is read from the disk once: it takes a tenth of a second.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from functools import cache
from importlib.util import find_spec
from typing import Any, Generic, TypeVar
from weakref import WeakKeyDictionary

T = TypeVar("T", bound=AbstractAsyncContextManager[Any])

# subtle: nobody may hold a backend any more when its loop ends, and a generator that is collected
# just then would not be closed.
_keepers: dict[int, AsyncGenerator[None, None]] = {}


class PerLoop(Generic[T]):
    """Makes a client with `make` when a loop first asks, and closes it when that loop ends.

    A loop that is about to end closes the asynchronous generators that it has not finished
    (`shutdown_asyncgens`, which `asyncio.run` calls).  So each client waits in one.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._clients: WeakKeyDictionary[asyncio.AbstractEventLoop, T] = WeakKeyDictionary()

    async def get(self) -> T:
        """The client of the loop that is running."""
        loop = asyncio.get_running_loop()
        if loop not in self._clients:
            client = self._clients[loop] = self._make()
            keeper = _keepers[id(client)] = _close_at_end(client)
            await anext(keeper)
        return self._clients[loop]


async def _close_at_end(client: AbstractAsyncContextManager[Any]) -> AsyncGenerator[None, None]:
    try:
        async with client:
            yield
    finally:
        del _keepers[id(client)]


@cache
def trusted() -> ssl.SSLContext:
    """The system's certificates, and those of `certifi`, which the clients come with."""
    context = ssl.create_default_context()
    if find_spec("certifi") is not None:
        from certifi import where

        context.load_verify_locations(where())
    return context

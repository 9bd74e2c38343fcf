"""`Worker`: one copy of the model behind a URL, from the router's side.

    find --> /health, /get_server_info --> up: asked for evictions every now and then
      ^        |                            |
      '-- wait, longer each time <----------'  a connection that is refused or cut: it is lost

What it had cached is forgotten when it is lost, since who comes back may be somebody else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Mapping

import httpx

from minisgl.router.balancer import Balancer
from minisgl.router.launcher import GaveUp, Source

log = logging.getLogger("minisgl.router")

CONNECT_SECONDS = 5.0
ANSWER_SECONDS = 30.0  # for a worker that lives to say so
FIRST_PAUSE, MOST_PAUSE = 0.1, 5.0  # between two looks for a worker that is lost


class Lost(Exception):
    """It does not answer as a worker does."""


class Worker:
    """Tends one worker; `tend` runs as long as the router does.

    Attributes:
        url: of the worker, while it is up.
        client: for requests to it.  Closed when it is lost, so that whoever waits for it learns.
        why: it is not up; None: it is.
    """

    def __init__(
        self,
        number: int,
        source: Source,
        balancer: Balancer,
        *,
        poll_seconds: float,
        tls: ssl.SSLContext,
        headers: Mapping[str, str],
    ) -> None:
        self.number = number
        self.source = source
        self.url = ""
        self.client: httpx.AsyncClient | None = None
        self.why: str | None = "it has not been found yet"
        self.has_ended = False  # it won't come back
        self.settled = asyncio.Event()  # it has been up, or has ended
        self._balancer = balancer
        self._poll_seconds = poll_seconds
        self._tls = tls
        self._headers = headers
        self._lost = asyncio.Event()
        self._reports = False  # whether it tells of its evictions
        self._after = 0  # the number of the last one

    async def tend(self) -> None:
        """Find it, follow it, find it again.  Returns when that is given up."""
        pause = FIRST_PAUSE
        try:
            while True:
                try:
                    await self._join()
                    pause = FIRST_PAUSE
                    await self._follow()
                except (Lost, httpx.HTTPError, OSError) as error:
                    await self._leave(f"{type(error).__name__}: {error}")
                await asyncio.sleep(pause)
                pause = min(2 * pause, MOST_PAUSE)
        except GaveUp as error:
            log.error("%s; it is not started again", error)
            self.why, self.has_ended = str(error), True
            self.settled.set()
        finally:
            await self._leave(self.why or "the router ends")
            await self.source.close()

    def lose(self, client: httpx.AsyncClient) -> None:
        """A connection of `client` to it was refused or cut: nobody is sent there any more."""
        if client is self.client:  # and not that of an earlier life
            self._is_lost("a connection was refused or cut")
            self._lost.set()

    async def is_well(self) -> bool:
        """Whether it says so, now."""
        if self.client is None:
            return False
        try:
            await self._look()
        except (Lost, httpx.HTTPError):
            return False
        return True

    async def _join(self) -> None:
        self.url = await self.source.find()
        timeout = httpx.Timeout(None, connect=CONNECT_SECONDS)
        self.client = httpx.AsyncClient(
            verify=self._tls,
            trust_env=False,  # a proxy has no business between us
            headers={"Accept-Encoding": "identity"},
            timeout=timeout,
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=64),
        )
        self._lost.clear()
        await self._look()
        capacity, told = None, await self._get("/get_server_info")
        if told.status_code == 200:
            with contextlib.suppress(ValueError, LookupError, TypeError):
                capacity = int(told.json()["stats"]["pool_slots"])
        self._reports = (await self._get("/router/evictions")).status_code == 200
        if self._reports:
            await self._take_evictions(after=0)
        self._balancer.join(self.number, capacity)
        self.why = None
        self.settled.set()
        log.warning("worker %d is up: %s", self.number, self.url)

    async def _follow(self) -> None:
        """Until it is lost."""
        while True:
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._lost.wait(), self._poll_seconds)
            if self._lost.is_set():
                raise Lost("a connection was refused or cut")
            await (self._take_evictions(self._after) if self._reports else self._look())

    async def _look(self) -> None:
        if (await self._get("/health")).status_code != 200:
            raise Lost("/health says that it is not well")

    async def _take_evictions(self, after: int) -> None:
        answer = await self._get(f"/router/evictions?after={after}")
        try:
            news = answer.json()
            self._after, missing, evicted = news["last"], news["missing"], news["evicted"]
        except (ValueError, LookupError) as error:
            raise Lost(f"/router/evictions: status {answer.status_code}, {error!r}") from error
        if missing:
            self._balancer.forget(self.number)
        else:
            self._balancer.evicted(self.number, evicted)

    async def _get(self, path: str) -> httpx.Response:
        assert self.client is not None
        timeout = httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS)
        return await self.client.get(self.url + path, headers=self._headers, timeout=timeout)

    def _is_lost(self, why: str) -> None:
        if self.why is None:
            log.warning("worker %d is lost: %s", self.number, why)
        self.why = why
        self._balancer.leave(self.number)

    async def _leave(self, why: str) -> None:
        self._is_lost(why)
        client, self.client = self.client, None
        if client is not None:
            await client.aclose()

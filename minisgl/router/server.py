"""The router's life: it listens, says so when its workers are there, drains when it is told to
stop, and takes the workers that it started along."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import Future

from minisgl.router.app import make_app
from minisgl.router.fleet import Fleet
from minisgl.router.reader import Reader
from minisgl.serve.listener import Listener


class Server(Listener):
    """The listener around a fleet.

    Attributes:
        listening: the port; workers may not be there yet.
        ready: the port, once every worker has been there, or won't be.
        has_failed: whether it ended because no worker was left.
    """

    def __init__(self, fleet: Fleet, reader: Reader) -> None:
        config = fleet.config
        app = make_app(fleet, reader)
        super().__init__(app, host=config.host, port=config.port, grace=config.drain_seconds)
        self.ready: Future[int] = Future()
        self.has_failed = False
        self._fleet = fleet
        self._watch: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """Look for the workers."""
        self._fleet.start()
        self._watch = asyncio.create_task(self._watch_workers())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then let the workers go."""
        await super().shutdown(sockets)
        if self._watch is not None:
            self._watch.cancel()
        await self._fleet.close()

    async def _watch_workers(self) -> None:
        for worker in self._fleet.workers:
            await worker.settled.wait()
        if any(not worker.has_ended for worker in self._fleet.workers):
            self.ready.set_result(self.listening.result())
        await self._fleet.ended.wait()
        self.has_failed = self.should_exit = True

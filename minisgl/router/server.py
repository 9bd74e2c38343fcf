"""The router's life: it listens, says so when its workers are there, drains when it is told to
stop, and takes the workers that it started along."""

from __future__ import annotations

import asyncio
import socket
from concurrent.futures import Future
from types import FrameType

import uvicorn

from minisgl.router.app import make_app
from minisgl.router.fleet import Fleet
from minisgl.router.reader import Reader

BACKLOG = 2048


class Server(uvicorn.Server):
    """Uvicorn around a fleet.

    Attributes:
        listening: the port, once clients can connect; workers may not be there yet.
        ready: the port, once every worker has been there, or won't be.
        has_failed: whether it ended because no worker was left.
    """

    def __init__(self, fleet: Fleet, reader: Reader) -> None:
        config = fleet.config
        super().__init__(
            uvicorn.Config(
                make_app(fleet, reader),
                host=config.host,
                port=config.port,
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=75,
                timeout_graceful_shutdown=int(config.drain_seconds),
            )
        )
        self.listening: Future[int] = Future()
        self.ready: Future[int] = Future()
        self.has_failed = False
        self._fleet = fleet
        self._watch: asyncio.Task[None] | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and look for the workers."""
        await super().startup(sockets)
        if self.servers:
            self._fleet.start()
            port = self.servers[0].sockets[0].getsockname()[1]
            self._watch = asyncio.create_task(self._watch_workers(port))
            self.listening.set_result(port)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal; a second one ends at once.  subtle: uvicorn's own would raise it again."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then let the workers go."""
        await super().shutdown(sockets)
        if self._watch is not None:
            self._watch.cancel()
        await self._fleet.close()

    async def _watch_workers(self, port: int) -> None:
        for worker in self._fleet.workers:
            await worker.settled.wait()
        if any(not worker.has_ended for worker in self._fleet.workers):
            self.ready.set_result(port)
        await self._fleet.ended.wait()
        self.has_failed = self.should_exit = True

"""The server's life: it listens, drains when it is told to stop, and ends when its engine does.

SIGINT, SIGTERM --> no new connections, no new questions
                    answers go on, for `drain_seconds`          a second signal: at once
                    then each ends, and its client is told
the engine dies --> every client that waits is told, then the process ends with status 1
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from concurrent.futures import Future
from types import FrameType

import uvicorn

from minisgl.serve.app import make_app
from minisgl.serve.desk import Desk

BACKLOG = 2048  # connections that wait to be accepted: clients come all at once
GRACE = 5.0  # seconds for the last words to reach clients, after answers were cut off


class Server(uvicorn.Server):
    """Uvicorn, with our way to end.  `run` or `serve` returns when it has ended.

    Attributes:
        has_failed: whether the engine's death was the reason.
    """

    def __init__(self, desk: Desk) -> None:
        config = uvicorn.Config(
            make_app(desk),
            host=desk.config.host,
            port=desk.config.port,
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=75,  # longer than clients keep idle connections, so that they end it
            timeout_graceful_shutdown=int(desk.config.drain_seconds + GRACE),
        )
        super().__init__(config)
        self.has_failed = False
        self._desk = desk
        self.listening: Future[int] = Future()  # the port, once clients can connect

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and watch the engine."""
        await super().startup(sockets)
        if not self.servers:
            return
        loop = asyncio.get_running_loop()

        def tell(_: Future[None]) -> None:
            with contextlib.suppress(RuntimeError):  # this loop has ended before
                loop.call_soon_threadsafe(self._engine_ended)

        self._desk.engine.ended.add_done_callback(tell)
        self.listening.set_result(self.servers[0].sockets[0].getsockname()[1])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal.  subtle: uvicorn's own would raise it again after a clean end."""
        self.force_exit = self.should_exit
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain, then abort."""
        self._desk.closing = True
        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._desk.config.drain_seconds, self._desk.abort_all)
        await super().shutdown(sockets)
        timer.cancel()

    def _engine_ended(self) -> None:
        """Its clients have been told by now, or will be: the errors lie in their mailboxes."""
        self.has_failed = self._desk.engine.ended.exception() is not None
        self.should_exit = True

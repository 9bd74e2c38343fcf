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

from minisgl.serve.app import make_app
from minisgl.serve.desk import Desk
from minisgl.serve.listener import Listener

LAST_WORDS = 5.0  # seconds for them to reach clients, after answers were cut off


class Server(Listener):
    """The listener around one engine.

    Attributes:
        has_failed: whether the engine's death was the reason.
    """

    def __init__(self, desk: Desk) -> None:
        config = desk.config
        grace = config.drain_seconds + LAST_WORDS
        super().__init__(make_app(desk), host=config.host, port=config.port, grace=grace)
        self.has_failed = False
        self._desk = desk

    def begin(self) -> None:
        """Watch the engine."""
        loop = asyncio.get_running_loop()

        def tell(_: Future[None]) -> None:
            with contextlib.suppress(RuntimeError):  # this loop has ended before
                loop.call_soon_threadsafe(self._engine_ended)

        self._desk.engine.ended.add_done_callback(tell)

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

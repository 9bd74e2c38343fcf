"""`Listener`: uvicorn as our servers use it, from the open port to the signal that ends it."""

from __future__ import annotations

import socket
from concurrent.futures import Future
from types import FrameType

import uvicorn
from starlette.types import ASGIApp

BACKLOG = 2048  # connections that wait to be accepted: clients come all at once


class Listener(uvicorn.Server):
    """`run` or `serve` returns when it has ended.

    Args:
        grace: seconds for answers under way, once it was told to stop.

    Attributes:
        listening: the port, once clients can connect.
    """

    def __init__(self, app: ASGIApp, *, host: str, port: int, grace: float) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                host=host,
                port=port,
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
                timeout_keep_alive=75,  # longer than clients keep idle ones, so that they end them
                timeout_graceful_shutdown=int(grace),
            )
        )
        self.listening: Future[int] = Future()

    def begin(self) -> None:
        """Called on the loop when the port is open, before `listening` says so."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen."""
        await super().startup(sockets)
        if self.servers:
            self.begin()
            self.listening.set_result(self.servers[0].sockets[0].getsockname()[1])

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal; a second one ends at once.  subtle: uvicorn's own would raise it again."""
        self.force_exit = self.should_exit
        self.should_exit = True

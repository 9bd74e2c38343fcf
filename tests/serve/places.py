"""Where a client may ask: a server, or a router in front of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from minisgl.models.hub import resolve_model
from minisgl.router.launcher import Given
from minisgl.router.reader import Reader
from tests.router.common import routing
from tests.serve.common import LONG, Running

PLACES = ["server", "router"]


@contextmanager
def url_of(place: str, server: Running) -> Iterator[str]:
    """The address of `place`."""
    if place == "server":
        yield server.url
        return
    reader = Reader(resolve_model(server.engine.config.model))
    with routing([Given(server.url)], reader) as router:
        router.server.ready.result(LONG)
        yield router.url

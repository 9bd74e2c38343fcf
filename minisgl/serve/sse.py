"""Server-sent events: answers in pieces, over one response.

data: {"...": "..."}\\n\\n
...
data: [DONE]\\n\\n
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from minisgl.serve.desk import Asked, unless_left
from minisgl.serve.errors import ApiError, ClientLeft, dump, told

log = logging.getLogger("minisgl.serve")

Events = AsyncGenerator[dict[str, Any], None]


class EventStream(Response):
    """Sends `events`, then [DONE].  Its client may leave at any time, or read slowly: then the next
    event is made only when there is room for it, of all that came meanwhile.

    Args:
        asked: what the events are made of; closed at the end, however it comes.
        events: JSON objects.  An error among them is told as one more event.
    """

    media_type = "text/event-stream"

    def __init__(self, asked: Asked, events: Events) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._asked = asked
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them all."""
        with self._asked:
            try:
                await unless_left(receive, self._send(scope, send))
            except ClientLeft:
                scope["state"]["status"] = ClientLeft().status  # for the access log

    async def _send(self, scope: Scope, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
        await send(start)
        async with aclosing(self._events) as events:
            async for text in _lines(scope, events):
                await send(
                    {
                        "type": "http.response.body",
                        "body": text.encode(errors="replace"),
                        "more_body": True,
                    }
                )
        await send({"type": "http.response.body", "body": b"data: [DONE]\n\n"})


async def _lines(scope: Scope, events: Events) -> AsyncIterator[str]:
    try:
        async for event in events:
            yield f"data: {dump(event)}\n\n"
    except Exception as error:
        known = told(error)
        scope["state"]["error"] = known.message
        if known.status == 500 and not isinstance(error, ApiError):
            log.error("a stream ended with an error", exc_info=error)
        yield f"data: {dump(known.body())}\n\n"

"""What stands before the routes: whose web pages may ask, the API key, the size of a body, how many
are answered at once.

Each is a plain ASGI application around another one, so that none of them buffers an answer or
hides that a client left.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minisgl.serve.desk import Desk
from minisgl.serve.errors import ApiError, ClientLeft, unavailable

OPEN = ("/health", "/ui")  # need no key: they tell nothing
GENERATING = ("/generate", "/v1/completions", "/v1/chat/completions")
BODY_SECONDS = 300.0  # for a client to send its whole body
SPILL = 4  # so many times the longest body is read, and thrown away, before the connection is cut


def allow_origins(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Lets a browser's pages of these origins ask.  subtle: outside of `RequireKey`, since browsers
    ask first whether they may, without the key, and read no error that does not bear our leave."""
    if not origins:
        return app
    return CORSMiddleware(
        app, allow_origins=origins, allow_methods=["GET", "POST"], allow_headers=["*"]
    )


class RequireKey:
    """401 without the key, as `Authorization: Bearer KEY` or `X-API-Key: KEY`."""

    def __init__(self, app: ASGIApp, key: str) -> None:
        self._app = app
        self._key = key.encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] == "http" and scope["path"] not in OPEN and not self._bears(scope):
            error = ApiError(
                401,
                "give the API key, as 'Authorization: Bearer KEY' or 'X-API-Key: KEY'",
                code="invalid_api_key",
                headers={"WWW-Authenticate": "Bearer"},
            )
            await error.response()(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _bears(self, scope: Scope) -> bool:
        headers = Headers(scope=scope)
        scheme, _, token = headers.get("authorization", "").partition(" ")
        given = [headers.get("x-api-key", ""), token.strip() if scheme.lower() == "bearer" else ""]
        return any(hmac.compare_digest(key.encode("latin-1"), self._key) for key in given)


class ReadBody:
    """Reads the whole body before anything is done with it: 413 if it is longer than allowed, 408
    if it does not come."""

    def __init__(self, app: ASGIApp, most: int) -> None:
        self._app = app
        self._most = most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            body = await asyncio.wait_for(self._read(scope, receive), BODY_SECONDS)
        except ClientLeft as error:
            scope["state"]["status"] = error.status
            return
        except (ApiError, asyncio.TimeoutError) as error:
            if not isinstance(error, ApiError):
                error = ApiError(408, f"the body did not come within {BODY_SECONDS:g} seconds")
            error.headers = {"Connection": "close"}
            await error.response()(scope, receive, send)
            return
        whole: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def replay() -> Message:
            return whole.pop() if whole else await receive()

        await self._app(scope, replay, send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes:
        """The body.  subtle: one that is too long is read on for a while: a client that still sends
        when the connection is cut may never see why."""
        too_long = ApiError(413, f"the body is longer than the {self._most} bytes that are allowed")
        said = Headers(scope=scope).get("content-length", "0")
        if int(said) > SPILL * self._most:
            raise too_long
        body, size, more = [], 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientLeft
            more = message.get("more_body", False)
            size += len(message["body"])
            if size <= self._most:
                body.append(message["body"])
            elif size > SPILL * self._most:
                break
            else:
                body.clear()
        if size > self._most:
            raise too_long
        return b"".join(body)


class Gate:
    """Lets so many requests for answers in at the same time, and none once the server is to end."""

    def __init__(self, app: ASGIApp, desk: Desk) -> None:
        self._app = app
        self._desk = desk
        self._inside = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http" or scope["path"] not in GENERATING:
            await self._app(scope, receive, send)
            return
        most = self._desk.config.max_requests
        if self._desk.closing:
            await unavailable("the server is shutting down").response()(scope, receive, send)
        elif self._inside >= most:
            error = unavailable(f"{most} requests are being answered already; come back later")
            await error.response()(scope, receive, send)
        else:
            self._inside += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._inside -= 1

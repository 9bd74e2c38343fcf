"""One request's way: to the worker that suits it, on to another if that one fails, and back.

Nothing is sent to the client before the first bytes of an answer are there, so until then another
worker can be asked; a stream that is cut after that ends with an error, as one event more.

    503, the worker is full         the next best worker
    connection refused              another one
    cut before the first byte       another one, once: a request may be what kills workers
    an error, and it has ended      the same: an engine that dies still says so
    cut later                       {"error": ...}, [DONE]
    nobody left                     503, Retry-After
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

import httpx
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from minisgl.router.balancer import Question, Ticket
from minisgl.router.fleet import Fleet
from minisgl.router.usage import usage_of
from minisgl.router.worker import Worker
from minisgl.serve.desk import unless_left
from minisgl.serve.errors import ApiError, ClientLeft, dump, unavailable

log = logging.getLogger("minisgl.router")

MOST_LOSSES = 2  # workers that may be lost while one request waits for its first byte
TAIL = 65536  # bytes of a stream's end that are kept to read its usage
# They belong to one connection, or to whoever holds it: a browser's page talks to us, say.
OF_CONNECTION = {
    "connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection",
    "te", "trailer", "transfer-encoding", "upgrade", "expect", "host", "content-length", "date",
    "server", "origin",
}  # fmt: skip


@dataclass(frozen=True)
class Call:
    """A request as it came.

    target: path and query.
    """

    method: str
    target: str
    headers: Mapping[str, str]
    body: bytes


class Forwarded(Response):
    """The answer of some worker to `call`, byte for byte."""

    def __init__(self, fleet: Fleet, call: Call, question: Question) -> None:
        super().__init__()
        self._fleet = fleet
        self._call = call
        self._question = question
        self._has_begun = False  # the client has been sent something

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Ask, and send it; if the client leaves, the worker's connection is cut as well."""
        try:
            await unless_left(receive, self._ask(send))
        except ClientLeft as error:
            scope["state"]["status"] = error.status
        except ApiError as error:
            scope["state"]["error"] = error.message
            await error.response()(scope, receive, send)

    async def _ask(self, send: Send) -> None:
        fleet, tried, losses = self._fleet, set[int](), 0
        full: ApiError | None = None
        while (ticket := fleet.balancer.send(self._question, avoid=tried)) is not None:
            worker = fleet.workers[ticket.worker]
            client = worker.client
            assert client is not None  # whoever has joined has one
            tried.add(worker.number)
            try:
                with ticket:
                    if await self._from(worker, client, ticket, send):
                        return
                full = unavailable("every worker is full; come back later")
            except httpx.TransportError as error:
                worker.lose(client)
                fleet.counts["lost", worker.number] += 1
                why = f"worker {worker.number} was lost: {type(error).__name__}: {error}"
                log.warning("%s %s: %s", self._call.method, self._call.target, why)
                if self._has_begun:
                    await self._end_in_words(send, ApiError(502, why))
                    return
                losses += not isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
                if losses == MOST_LOSSES:
                    raise ApiError(502, f"{losses} workers were lost with this request") from error
            fleet.counts["retries", worker.number] += 1
        raise full or unavailable("no worker is there; come back later")

    async def _from(
        self, worker: Worker, client: httpx.AsyncClient, ticket: Ticket, send: Send
    ) -> bool:
        """Send what `worker` answers; False: it is full.

        Raises:
            httpx.TransportError: it can't be reached, or is lost.
        """
        fleet, call, number = self._fleet, self._call, worker.number
        fleet.counts["requests", number] += 1
        asking = client.stream(
            call.method, worker.url + call.target, headers=call.headers, content=call.body
        )
        async with asking as answer:
            kind = answer.headers.get("content-type", "")
            if answer.status_code == 503:
                fleet.balancer.refused(ticket)
                return False
            if answer.status_code == 500:
                await _unless_it_ended(worker)
            if kind.startswith("text/event-stream"):
                body = await self._stream(answer, ticket, send, worker)
            else:
                body = b"".join([piece async for piece in answer.aiter_raw()])
                await self._begin(answer, send, number)
                await send({"type": "http.response.body", "body": body})
        worker.source.proved()
        if answer.status_code >= 400:
            fleet.balancer.refused(ticket)
            return True
        fleet.counts["prompt_tokens", number] += self._question.length
        fleet.counts["believed_tokens", number] += sum(ticket.cached)
        used = usage_of(kind, body)
        if used is not None:
            fleet.counts["told_prompt_tokens", number] += used[0]
            fleet.counts["told_cached_tokens", number] += used[1]
        return True

    async def _stream(
        self, answer: httpx.Response, ticket: Ticket, send: Send, worker: Worker
    ) -> bytes:
        """Send the pieces as they come; returns how it ended."""
        tail = b""
        async for piece in answer.aiter_raw():
            if not self._has_begun:
                if piece.startswith(b'data: {"error"'):
                    await _unless_it_ended(worker)
                await self._begin(answer, send, worker.number)
                ticket.answers()
            ticket.wrote(piece.count(b"\n\n"))  # about one token each
            tail = (tail + piece)[-TAIL:]
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        if not self._has_begun:
            await self._begin(answer, send, worker.number)
        await send({"type": "http.response.body", "body": b""})
        return tail

    async def _begin(self, answer: httpx.Response, send: Send, number: int) -> None:
        self._has_begun = True
        kept = [
            (name.lower(), value)
            for name, value in answer.headers.raw
            if name.lower() == b"content-length" or name.decode().lower() not in OF_CONNECTION
        ]
        await send(
            {
                "type": "http.response.start",
                "status": answer.status_code,
                "headers": [*kept, (b"x-worker", str(number).encode())],
            }
        )

    async def _end_in_words(self, send: Send, error: ApiError) -> None:
        """subtle: the stream may be cut inside an event, which the first line break ends."""
        words = f"\n\ndata: {dump(error.body())}\n\ndata: [DONE]\n\n"
        await send({"type": "http.response.body", "body": words.encode(errors="replace")})


async def _unless_it_ended(worker: Worker) -> None:
    """Nothing, if `worker` is well, and its error is the answer.

    Raises:
        httpx.RemoteProtocolError: its engine has died with the request.
    """
    if not await worker.is_well():
        raise httpx.RemoteProtocolError("its engine has ended")


def headers_of(given: Mapping[str, str]) -> dict[str, str]:
    """Those of a request that a worker is to see."""
    return {name: value for name, value in given.items() if name.lower() not in OF_CONNECTION}

"""The router as an ASGI application: a few routes of its own; all others are some worker's.

AccessLog -> CORS -> RequireKey -> ReadBody -> routes -> forward.py
"""

from __future__ import annotations

import contextlib
from typing import Any

import httpx
from fastapi import FastAPI, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response
from starlette.types import ASGIApp

from minisgl.router import metrics
from minisgl.router.balancer import Question
from minisgl.router.fleet import Fleet
from minisgl.router.forward import Call, Forwarded, headers_of
from minisgl.router.reader import Reader
from minisgl.serve import errors
from minisgl.serve.access_log import AccessLog
from minisgl.serve.errors import JSON, ApiError, unavailable
from minisgl.serve.limits import GENERATING, ReadBody, RequireKey, allow_origins
from minisgl.serve.metrics import CONTENT_TYPE

ANY = ["GET", "POST", "PUT", "DELETE", "OPTIONS", "HEAD", "PATCH"]


def make_app(fleet: Fleet, reader: Reader) -> ASGIApp:
    """The whole router."""
    routes = FastAPI(title="minisgl router", docs_url=None, redoc_url=None, openapi_url=None)
    errors.install(routes)

    @routes.get("/health")
    async def health() -> Response:
        """200 while some worker can be asked."""
        if not fleet.up:
            raise unavailable("no worker is there; come back later")
        return JSON({"status": "ok", "workers": _states(fleet)})

    @routes.get("/metrics")
    async def prometheus() -> Response:
        """Numbers for Prometheus."""
        return Response(metrics.render(fleet), media_type=CONTENT_TYPE)

    @routes.get("/router/state")
    async def state() -> Response:
        """What the router knows of its workers."""
        seats, sizes = fleet.balancer.seats, fleet.balancer.tree.sizes
        each: list[dict[str, Any]] = []
        for worker in fleet.workers:
            seat = seats.get(worker.number)
            each.append(
                {
                    "worker": worker.number,
                    "url": worker.url,
                    "why_not_up": worker.why,
                    "load": seat.load if seat else 0,
                    "capacity": seat.capacity if seat else None,
                    "tree_tokens": sizes.get(worker.number, 0),
                    "requests": fleet.counts["requests", worker.number],
                }
            )
        policy = {"policy": fleet.config.policy, "affinity": fleet.config.affinity}
        return JSON({**policy, "imbalance": fleet.imbalance, "workers": each})

    @routes.api_route("/flush_cache", methods=["GET", "POST"])
    async def flush_cache(request: Request) -> Response:
        """Every worker forgets every cached prefix."""
        for worker in fleet.up:
            client = worker.client
            assert client is not None
            headers = headers_of(request.headers) | fleet.headers
            try:
                answer = await client.post(worker.url + "/flush_cache", headers=headers)
            except httpx.TransportError as error:
                worker.lose(client)
                raise ApiError(502, f"worker {worker.number} was lost: {error}") from error
            if answer.status_code != 200:
                raise ApiError(answer.status_code, f"worker {worker.number}: {answer.text.strip()}")
            fleet.balancer.forget(worker.number)
        return PlainTextResponse("The caches are empty.\n")

    @routes.api_route("/{path:path}", methods=ANY)
    async def forward(request: Request) -> Response:
        """Whatever else a worker answers."""
        path, body = request.url.path, await request.body()
        question = Question()
        if path in GENERATING:
            # A worker refuses it, and finds better words.
            with contextlib.suppress(ValueError, RecursionError):
                question = await run_in_threadpool(reader.read, path, body)
        target = path + (f"?{request.url.query}" if request.url.query else "")
        headers = headers_of(request.headers) | fleet.headers
        call = Call(request.method, target, headers, body)
        return Forwarded(fleet, call, question)

    app: ASGIApp = ReadBody(routes, fleet.config.max_body_mib * 2**20)
    if fleet.config.api_key is not None:
        app = RequireKey(app, fleet.config.api_key)
    app = allow_origins(app, fleet.config.cors_origins)
    return AccessLog(app)


def _states(fleet: Fleet) -> dict[str, str]:
    return {str(worker.number): worker.why or "up" for worker in fleet.workers}

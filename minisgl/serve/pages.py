"""Routes to look at: which models there are, numbers for Prometheus, and the live page."""

from __future__ import annotations

import time
from importlib.resources import files

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from minisgl.serve import live, metrics
from minisgl.serve.desk import Desk
from minisgl.serve.errors import JSON, ApiError

router = APIRouter()
STARTED = int(time.time())


def _card(desk: Desk, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": STARTED,
        "owned_by": "minisgl",
        "max_model_len": desk.engine.context_length,
    }


@router.get("/v1/models")
async def models(request: Request) -> Response:
    """The names of the model."""
    desk: Desk = request.app.state.desk
    return JSON({"object": "list", "data": [_card(desk, name) for name in desk.names]})


@router.get("/v1/models/{name:path}")
async def model(name: str, request: Request) -> Response:
    """One of them."""
    desk: Desk = request.app.state.desk
    desk.check_model(name)
    return JSON(_card(desk, name))


@router.get("/metrics", response_class=PlainTextResponse)
async def prometheus(request: Request) -> Response:
    """The engine's numbers in Prometheus' text format."""
    desk: Desk = request.app.state.desk
    text = metrics.render(await run_in_threadpool(desk.engine.stats))
    return Response(text, media_type=metrics.CONTENT_TYPE)


@router.get("/ui", response_class=HTMLResponse)
async def ui() -> Response:
    """A chat, and the radix tree, the queue and the batch as they change."""
    return HTMLResponse(files("minisgl.serve").joinpath("ui.html").read_text(encoding="utf-8"))


@router.get("/ui/state")
async def ui_state(request: Request) -> Response:
    """What that page draws."""
    desk: Desk = request.app.state.desk
    if desk.engine.ended.done():
        raise ApiError(503, "the engine has ended")
    return JSON(await run_in_threadpool(live.picture, desk.engine))

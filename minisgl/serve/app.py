"""The application: routes, errors, and what stands before them.

AccessLog -> CORS -> RequireKey -> ReadBody -> Gate -> routes
"""

from __future__ import annotations

from typing import Any

from fastapi import FastAPI
from starlette.types import ASGIApp

from minisgl.serve import chat, completions, errors, evictions, native, pages
from minisgl.serve.access_log import AccessLog
from minisgl.serve.desk import Desk
from minisgl.serve.limits import Gate, ReadBody, RequireKey, allow_origins


def make_app(desk: Desk) -> ASGIApp:
    """The whole server, as an ASGI application."""
    described: dict[int | str, dict[str, Any]] = {
        status: {"model": errors.ErrorBody} for status in ("4XX", "5XX")
    }
    routes = FastAPI(title="minisgl", docs_url=None, redoc_url=None, responses=described)
    routes.state.desk = desk
    errors.install(routes)
    for room in (completions, chat, native, pages):
        routes.include_router(room.router)
    config = desk.config
    if config.report_evictions:
        routes.include_router(evictions.make_router(desk.engine))
    app: ASGIApp = Gate(routes, desk)
    app = ReadBody(app, config.max_body_mib * 2**20)
    if config.api_key is not None:
        app = RequireKey(app, config.api_key)
    return AccessLog(allow_origins(app, config.cors_origins))

"""GET /router/evictions: what the radix cache forgot, for a router that remembers what it had."""

from __future__ import annotations

from fastapi import APIRouter

from minisgl.engine.engine import Engine
from minisgl.serve.errors import JSON


def make_router(engine: Engine) -> APIRouter:
    """The route; what is forgotten from now on is written down."""
    evictions = engine.watch_evictions()
    router = APIRouter()

    @router.get("/router/evictions")
    async def since(after: int = 0) -> JSON:
        """The reports after number `after`, which is the `last` of an earlier answer.

        {"last": 18, "missing": false, "evicted": [[namespace, [token, token, ...]], ...]}

        Nothing that begins with such tokens is cached; missing: nor is, perhaps, anything else.
        """
        news = evictions.since(after)
        evicted = [(report.namespace, report.tokens) for report in news.reports]
        return JSON({"last": news.last, "missing": news.missing, "evicted": evicted})

    return router

"""The access log: one line of JSON for each request, when it has ended.

    {"time": "2026-01-02T03:04:05.678Z", "method": "POST", "path": "/generate", "status": 200,
     "seconds": 0.321, "client": "127.0.0.1", "prompt_tokens": 7, "cached_tokens": 6,
     "completion_tokens": 16}

Tokens are those of answers that ended; `user` is what an OpenAI client says of its user; `error` is
what the client was told.  No prompt and no answer is ever written.  Status 499: the client left.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from minisgl.engine.output import Completion

log = logging.getLogger("minisgl.serve.access")


class AccessLog:
    """Writes to the logger "minisgl.serve.access"."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        # subtle: a dict of this request's own, which every application inside may add to
        state: dict[str, Any] = {**scope.get("state", {}), "status": None}
        scope["state"] = state
        start = time.perf_counter()

        async def watch(message: Message) -> None:
            if message["type"] == "http.response.start" and state["status"] is None:
                state["status"] = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watch)
        finally:
            log.info(_line(scope, state, time.perf_counter() - start))


def note(state: Any, completions: Iterable[Completion]) -> None:
    """Add the tokens of `completions` to the line of this request (`request.state`)."""
    done = list(completions)
    prompts = [one for one in done if one.index == 0]
    state.prompt_tokens = sum(one.prompt_tokens for one in prompts)
    state.cached_tokens = sum(one.cached_tokens for one in prompts)
    state.completion_tokens = sum(one.completion_tokens for one in done)


def _line(scope: Scope, state: dict[str, Any], seconds: float) -> str:
    line = {
        "time": datetime.now(timezone.utc)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z"),
        "method": scope["method"],
        "path": scope["path"],
        "status": state["status"] or 500,
        "seconds": round(seconds, 4),
        "client": scope["client"][0] if scope.get("client") else None,
    }
    names = ("prompt_tokens", "cached_tokens", "completion_tokens", "user", "error")
    line |= {name: state[name] for name in names if state.get(name) is not None}
    return json.dumps(line)

"""Errors, as JSON of the one shape that both families of clients read.

    {"error": {"message": "...", "type": "...", "param": null | "n", "code": null | "..."}}

OpenAI's clients want all four; SGLang's read the message.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.responses import Response

from minisgl.engine.output import EngineError

KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    499: "client_closed_request",
    500: "server_error",
    503: "overloaded_error",
}


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(BaseModel):
    """The body of every error, for the OpenAPI description."""

    error: ErrorDetail


class ApiError(Exception):
    """What a client is told, and the status that says it to machines."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.headers = headers

    def body(self) -> dict[str, Any]:
        """The JSON of it."""
        kind = KINDS.get(self.status, "invalid_request_error")
        detail = ErrorDetail(message=self.message, type=kind, param=self.param, code=self.code)
        return ErrorBody(error=detail).model_dump()

    def response(self) -> Response:
        """The whole response."""
        return JSON(self.body(), self.status, self.headers)


class JSON(Response):
    """A response of strict JSON in UTF-8: it holds no NaN, and half a surrogate pair, which a
    client may have sent and an error may quote, becomes "?"."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The bytes of `content`."""
        return dump(content).encode("utf-8", errors="replace")


def dump(content: Any) -> str:
    """As JSON in one line."""
    return json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


class ClientLeft(ApiError):
    """Nobody reads the answer any more."""

    def __init__(self) -> None:
        super().__init__(499, "the client closed the connection")


def unavailable(message: str) -> ApiError:
    """Not now; ask again in a second."""
    return ApiError(503, message, headers={"Retry-After": "1"})


@contextmanager
def refusing() -> Iterator[None]:
    """What the engine's door refuses in there is the client's mistake."""
    try:
        yield
    except ValueError as error:
        raise ApiError(400, str(error)) from error
    except RecursionError as error:
        raise ApiError(400, "the request is nested too deeply") from error


def told(error: Exception) -> ApiError:
    """What to tell a client of `error`."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, EngineError):
        return ApiError(500, str(error))
    return ApiError(500, "an error inside the server; its log has the details")


def of_validation(error: RequestValidationError) -> ApiError:
    """The first thing that is wrong with a body, and where."""
    first = error.errors()[0]
    place = [str(part) for part in first["loc"][1:]]
    if first["type"] == "json_invalid":
        where = first["loc"][-1]
        return ApiError(400, f"the body is not JSON: {first['ctx']['error']} at character {where}")
    if first["type"] == "extra_forbidden":
        return ApiError(400, f"unknown field {place[-1]!r}", param=".".join(place))
    if not place:
        return ApiError(400, f"the body: {first['msg']} (is Content-Type application/json?)")
    return ApiError(400, f"{'.'.join(place)}: {first['msg']}", param=place[0])


def install(app: FastAPI) -> None:
    """Every error of `app` is JSON."""

    def answer(request: Request, error: Exception) -> Response:
        match error:
            case RequestValidationError():
                return of_validation(error).response()
            case HTTPException():
                message = f"{request.method} {request.url.path}: {error.detail}"
                return ApiError(error.status_code, message, headers=error.headers).response()
            case _:
                return told(error).response()

    for kind in (ApiError, EngineError, RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, answer)

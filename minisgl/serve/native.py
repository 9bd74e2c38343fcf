"""SGLang's own API: /generate, and what its clients ask about the server."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool
from starlette.responses import PlainTextResponse, Response

from minisgl.sampling import SamplingParams
from minisgl.serve.access_log import note
from minisgl.serve.desk import Asked, Desk, unless_left
from minisgl.serve.errors import JSON, ApiError
from minisgl.serve.native_plan import NativePlan
from minisgl.serve.native_reply import Reply
from minisgl.serve.native_types import ConcatenateRequest, GenerateRequest
from minisgl.serve.sse import Events, EventStream

router = APIRouter()


@router.post("/generate")
async def generate(body: GenerateRequest, request: Request) -> Response:
    """Text that goes on from each prompt."""
    desk: Desk = request.app.state.desk
    plan = NativePlan(desk, body)
    asked = await desk.ask(plan.read)
    tokenizer = desk.engine.tokenizer if body.return_text_in_logprobs else None
    replies = [
        Reply(rid, asking, tokenizer) for rid, asking in zip(plan.rids, plan.answers, strict=True)
    ]
    if body.stream:
        return EventStream(asked, _events(asked, replies, request))
    with asked:
        done = await unless_left(request.receive, asked.all())
    note(request.state, done)
    told = [reply.whole(one) for reply, one in zip(replies, done, strict=True)]
    return JSON(told if plan.is_batch or len(told) > 1 else told[0])


async def _events(asked: Asked, replies: list[Reply], request: Request) -> Events:
    """Each has all of the text so far, but only the log-probabilities of its new tokens, and an
    `index` where there are several answers."""
    count = len(replies)
    texts, tokens = [""] * count, [0] * count
    done = []
    async for i, chunk in asked.pieces():
        texts[i] += chunk.text
        tokens[i] += len(chunk.token_ids)
        if chunk.completion is not None:
            done.append(chunk.completion)
            event = replies[i].whole(chunk.completion, chunk.logprobs or [])
        else:
            event = replies[i].part(asked.handles[i], texts[i], tokens[i], chunk.logprobs)
        yield event if count == 1 else {"index": i, **event}
    note(request.state, done)


@router.post("/concate_and_append_request")
async def concatenate_and_append(body: ConcatenateRequest) -> Response:
    """Nothing is to be done: the text that a client goes on with has the branches' texts in it, and
    the tree has what of it was computed before.  (No server of SGLang's has this route; its client
    asks for it, and never says in /generate which stream a request belongs to.)"""
    return JSON({})


@router.get("/get_model_info")
@router.get("/model_info")
async def model_info(request: Request) -> Response:
    """Which model this is; and what our own client asks for: whose server, and the template."""
    desk: Desk = request.app.state.desk
    path = desk.model_path
    info = {"model_path": path, "tokenizer_path": path, "is_generation": True}
    can_see = desk.engine.door.image_reader is not None
    ours: dict[str, Any] = {"server": "minisgl", "has_image_understanding": can_see}
    try:
        ours["chat_template"] = desk.chat_template.config
    except ValueError:
        ours["chat_template"] = None  # it is no chat model
    return JSON(info | ours)


@router.get("/get_server_info")
@router.get("/get_server_args")
@router.get("/server_info")
async def server_info(request: Request) -> Response:
    """How the server was started, and what it does now."""
    desk: Desk = request.app.state.desk
    engine, config = desk.engine, desk.config
    stats = await run_in_threadpool(engine.stats)
    served = asdict(config) | {"api_key": config.api_key and "(set)"}
    info: dict[str, Any] = {
        **{name: _plain(value) for name, value in asdict(engine.config).items()},
        **served,
        "model_path": desk.model_path,
        "context_length": engine.context_length,
        "stats": asdict(stats) | {"hit_rate": stats.hit_rate},
    }
    return JSON(info)


@router.get("/flush_cache", response_class=PlainTextResponse)
@router.post("/flush_cache", response_class=PlainTextResponse)
async def flush_cache(request: Request) -> Response:
    """Forget every cached prefix."""
    desk: Desk = request.app.state.desk
    if not await run_in_threadpool(desk.engine.flush_cache):
        raise ApiError(400, "the cache is in use: requests are waiting or running")
    return PlainTextResponse("The cache is empty.\n")


@router.get("/health")
async def health(request: Request) -> Response:
    """200 while the engine lives and takes requests."""
    desk: Desk = request.app.state.desk
    if desk.closing or desk.engine.ended.done():
        raise ApiError(503, "the engine has ended")
    return JSON({"status": "ok"})


@router.get("/health_generate")
async def health_generate(request: Request) -> Response:
    """200 after the model has made a token."""
    desk: Desk = request.app.state.desk
    # A namespace of its own, so that no prompt's prefix is in the tree because of it.
    params = SamplingParams(max_tokens=1, temperature=0.0, namespace="/health_generate")
    with await desk.ask(lambda: [([0], params)]) as asked:
        await unless_left(request.receive, asked.all())
    return JSON({"status": "ok"})


def _plain(value: object) -> object:
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)

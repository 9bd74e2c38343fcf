"""POST /v1/chat/completions: messages in, a message out, as OpenAI's API has it."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from minisgl.engine.output import Chunk, Completion
from minisgl.serve import chat_prompt
from minisgl.serve.access_log import note
from minisgl.serve.desk import Asked, Desk, Questions, unless_left
from minisgl.serve.errors import JSON
from minisgl.serve.openai_reply import Offsets, chat_logprobs, head, last_visible, usage, visible
from minisgl.serve.openai_types import ChatRequest, NamedTool, Tool
from minisgl.serve.sse import Events, EventStream
from minisgl.serve.tools import Call, Splitter, Style, parse, style_of

router = APIRouter()


@dataclass
class Plan:
    """A body, read: what is asked of the engine, and how its answer is to be taken.

    tools: what may be called; none if the answer is just text.
    begun: what the answer begins with: written for the model, which has to call.
    """

    desk: Desk
    body: ChatRequest
    tools: list[Tool] = field(default_factory=list)
    style: Style | None = None
    begun: str = ""

    def read(self) -> Questions:
        """ValueError for what is not allowed."""
        body = self.body
        more: dict[str, Any] = {"max_tokens": body.most_tokens, "logprobs": body.num_logprobs}
        schema = body.response_format and body.response_format.schema_of_answer
        if body.tools and body.tool_choice != "none":
            self.tools, self.style = body.tools, style_of(self.desk.chat_template.source)
            if body.tool_choice not in (None, "auto"):
                schema = self._forced_call(self.style, schema)
                more["json_space"] = 1 if body.json_space is None else body.json_space
        elif body.tool_choice not in (None, "none"):
            raise ValueError("tool_choice: there are no tools to choose from")
        if schema is not None:
            if body.json_schema is not None:
                raise ValueError("json_schema and another form of the answer: give one")
            more["json_schema"] = schema
        params = body.sampling(**more)
        prompt = chat_prompt.read(self.desk, body, self.tools, self.begun)
        return [(prompt, params)]

    def _forced_call(self, style: Style, schema: Any) -> dict[str, Any]:
        if schema is not None:
            raise ValueError("response_format: an answer that has to be a call has no other form")
        body = self.body
        callable_ = self.tools
        if isinstance(body.tool_choice, NamedTool):
            name = body.tool_choice.function.name
            callable_ = [tool for tool in self.tools if tool.function.name == name]
            if not callable_:
                known = ", ".join(tool.function.name for tool in self.tools)
                raise ValueError(f"tool_choice: there is no tool {name!r}; there are {known}")
        self.begun = style.prefix
        only_one = body.parallel_tool_calls is False or isinstance(body.tool_choice, NamedTool)
        return style.schema(callable_, only_one=only_one)

    def split(self, text: str) -> tuple[str, list[Call]]:
        """(Content, calls) of an answer."""
        if self.style is None:
            return text, []
        names = [tool.function.name for tool in self.tools]
        content, calls = parse(self.begun + text, self.style, names)
        if not calls:
            return text, []
        return content, calls[:1] if self.body.parallel_tool_calls is False else calls


@router.post("/v1/chat/completions")
async def chat_completions(body: ChatRequest, request: Request) -> Response:
    """The assistant's next message."""
    desk: Desk = request.app.state.desk
    desk.check_model(body.model)
    request.state.user = body.user
    plan = Plan(desk, body)
    asked = await desk.ask(plan.read)
    if body.stream:
        told = head("chat.completion.chunk", desk.names[0])
        return EventStream(asked, _events(asked, plan, told, request))
    with asked:
        done = await unless_left(request.receive, asked.all())
    note(request.state, done)
    choices = [_choice(i, plan, one) for i, one in enumerate(done)]
    told = head("chat.completion", desk.names[0])
    return JSON({**told, "choices": choices, "usage": usage(done)})


def _choice(i: int, plan: Plan, done: Completion) -> dict[str, Any]:
    content, calls = plan.split(done.text)
    message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
    if calls:
        message |= {"content": content or None, "tool_calls": _shown(calls)}
    logprobs = None
    if done.logprobs is not None:
        tokenizer = plan.desk.engine.tokenizer
        told = visible(done, Offsets.of_answer(tokenizer, plan.body))
        logprobs = chat_logprobs(told, tokenizer)
    reason = "tool_calls" if calls else done.finish_reason
    return {"index": i, "message": message, "logprobs": logprobs, "finish_reason": reason}


async def _events(asked: Asked, plan: Plan, told: dict[str, Any], request: Request) -> Events:
    same = {**told, "usage": None} if plan.body.includes_usage else told

    def event(i: int, delta: dict[str, Any], logprobs: Any = None, end: Any = None) -> Any:
        choice = {"index": i, "delta": delta, "logprobs": logprobs, "finish_reason": end}
        return {**same, "choices": [choice]}

    choices = range(len(asked.handles))
    for i in choices:
        yield event(i, {"role": "assistant", "content": ""})
    splitters = [Splitter(plan.style) if plan.style and not plan.begun else None for _ in choices]
    done: dict[int, Completion] = {}
    async for i, chunk in asked.pieces():
        splitter, content = splitters[i], chunk.text
        calls: list[Call] = []
        if splitter is not None:
            content = splitter.push(chunk.text)
        elif plan.begun:  # all of it is a call
            content = ""
        if chunk.completion is not None:
            done[i] = chunk.completion
            if plan.style is not None:
                whole = chunk.completion.text
                _, calls = plan.split(whole)
                shown = splitter.shown if splitter else 0
                content = content if calls else content + whole[shown:]
        delta: dict[str, Any] = {"content": content}
        if calls:
            delta["tool_calls"] = [{"index": k, **call} for k, call in enumerate(_shown(calls))]
        reason = "tool_calls" if calls else chunk.finish_reason
        yield event(i, delta, _logprobs(chunk, plan), reason)
    note(request.state, done.values())
    if plan.body.includes_usage:
        yield {**told, "choices": [], "usage": usage(list(done.values()))}


def _logprobs(chunk: Chunk, plan: Plan) -> dict[str, Any] | None:
    if chunk.logprobs is None:
        return None
    tokenizer, tokens = plan.desk.engine.tokenizer, chunk.logprobs
    if chunk.completion is not None:
        tokens = last_visible(tokens, chunk.completion, Offsets.of_answer(tokenizer, plan.body))
    return chat_logprobs(tokens, tokenizer)


def _shown(calls: Sequence[Call]) -> list[dict[str, Any]]:
    return [
        {
            "id": f"call_{uuid.uuid4().hex[:24]}",
            "type": "function",
            "function": {"name": call.name, "arguments": call.arguments},
        }
        for call in calls
    ]

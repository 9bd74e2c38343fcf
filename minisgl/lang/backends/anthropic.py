"""`Anthropic`: models behind Anthropic's API.

    Anthropic("claude-opus-4-6")        the key from ANTHROPIC_API_KEY

Needs the extra `anthropic`.  Its conversations are stricter than others': what the system says
stands apart, the user begins, and turns alternate.  A program's conversation is brought into that
form where nothing is lost by it, and refused before the call where something would be.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import replace
from itertools import groupby
from typing import Any

import anthropic

from minisgl.lang.backends.api import ApiBackend, Call, Request, schema_of
from minisgl.lang.backends.base import Answer
from minisgl.lang.backends.per_loop import PerLoop, trusted
from minisgl.lang.backends.retries import ApiError, Retries
from minisgl.lang.context import Context, Message
from minisgl.lang.ir import Select
from minisgl.lang.stops import Trimmer, cut
from minisgl.sampling import SamplingParams

_MISSING = (
    "min_p", "repetition_penalty", "frequency_penalty", "presence_penalty", "logit_bias", "seed",
    "min_tokens", "stop_token_ids", "ignore_eos", "skip_special_tokens", "no_stop_trim", "regex",
    "stop_regex", "logprobs", "prompt_logprobs_from", "json_space", "namespace",
)  # fmt: skip
_TOKENS = ("prompt_tokens", "cached_tokens", "completion_tokens")


class Anthropic(ApiBackend):
    """See above.

    Args:
        model: its name at the API.
        base_url: of another server; None: Anthropic's own, or ANTHROPIC_BASE_URL.
        prefill: whether the model goes on with words that the assistant has begun.  Claude did up
            to 4.5; later ones refuse.
        **others: api_key, timeout, retries; see `ApiBackend`.

    Raises:
        ValueError: no key, or a value that is not allowed.
    """

    key_name = "ANTHROPIC_API_KEY"

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        prefill: bool = False,
        api_key: str | None = None,
        timeout: float = 120.0,
        retries: Retries | None = None,
    ) -> None:
        super().__init__(model, api_key=api_key, timeout=timeout, retries=retries)
        self.can_continue = prefill
        self._clients = PerLoop(
            lambda: anthropic.AsyncAnthropic(
                api_key=self._key,
                base_url=base_url,
                timeout=self._timeout,
                max_retries=0,  # `Retries` does it, of streams too
                http_client=anthropic.DefaultAsyncHttpxClient(verify=trusted()),
            )
        )

    # ------------------------------------------------------------------ requests

    def _call(self, context: Context, params: SamplingParams) -> Call:
        """See `ApiBackend`."""
        self._refuse(params, _MISSING)
        if not params.max_tokens:
            raise ValueError(
                f"max_tokens={params.max_tokens!r}: {self.name} has to be told a number above 0"
            )
        if params.temperature > 1:
            raise ValueError(f"temperature={params.temperature}: {self.name} takes at most 1")
        if context.turns and context.turns[-1]["role"] == "assistant":
            raise ValueError(f"{self.name}: the user has to speak between two answers")
        system, messages = conversation(self._messages(context), self.name)
        request: Request = {
            "model": self._model,
            "max_tokens": params.max_tokens,
            "messages": messages,
        }
        if system:
            request["system"] = system
        # It refuses stop strings that are all white space; those are cut on our side.
        if stops := [stop for stop in params.stop if stop.strip()]:
            request["stop_sequences"] = stops
        if params.json_schema is not None:
            schema = schema_of(params)
            request["output_config"] = {"format": {"type": "json_schema", "schema": schema}}
        # Not in the client's own signature, since its newest models take none of them.
        drawing = {
            name: getattr(params, name)
            for name in ("temperature", "top_p", "top_k")
            if getattr(params, name) != getattr(SamplingParams, name)
        }
        if drawing:
            request["extra_body"] = drawing
        words = context.words
        return Call(request, params, words[len(words.rstrip()) :] if words.strip() else "")

    def _select_params(self, node: Select, max_tokens: int) -> SamplingParams:
        # The newest models refuse any temperature, so none is sent where none was asked for.
        return SamplingParams(
            temperature=node.temperature or 1.0, seed=node.seed, max_tokens=max_tokens
        )

    # ------------------------------------------------------------------ calls

    async def generate(self, context: Context, params: SamplingParams) -> list[Answer]:
        """See `ApiBackend`.  The API gives one answer a call, so `n` of them are `n` calls."""
        one = super().generate
        each = (one(context, replace(params, n=1)) for _ in range(params.n))
        answers = [answer for (answer,) in await asyncio.gather(*each)]
        if params.n > 1:
            usage = [answer.meta for answer in answers]
            total = {name: sum(u[name] for u in usage) for name in _TOKENS}
            answers = [replace(a, meta={**a.meta, "usage": total}) for a in answers]
        return answers

    async def _ask(self, call: Call) -> list[Answer]:
        client = await self._clients.get()
        with self._errors(anthropic.AnthropicError):
            reply = await client.messages.create(**call.request)
            blocks = getattr(reply, "content", None)
            if blocks is None:
                raise ApiError(f"{self.name}: a reply without content: {str(reply)[:200]!r}")
            text = "".join(block.text for block in blocks if block.type == "text")
        text, _ = _without(call.blank, text)
        text, matched = cut(text, call.params.stop)
        meta = {"id": reply.id, **_usage(reply.usage)}
        return [Answer(text, {**meta, "finish_reason": _reason(reply, matched, meta)})]

    async def _ask_stream(self, call: Call) -> AsyncGenerator[Answer, None]:
        client = await self._clients.get()
        trimmer, meta = Trimmer(call.params.stop), dict[str, Any]()
        blank, end = call.blank, None
        with self._errors(anthropic.AnthropicError):
            async with await client.messages.create(**call.request, stream=True) as stream:
                async for event in stream:
                    match event.type:
                        case "message_start":
                            meta |= {"id": event.message.id, **_usage(event.message.usage)}
                        case "content_block_delta" if event.delta.type == "text_delta":
                            text, blank = _without(blank, event.delta.text)
                            if new := trimmer.feed(text):
                                yield Answer(new, {"finish_reason": None})
                        case "message_delta":
                            meta["completion_tokens"] = event.usage.output_tokens
                            end = event.delta
            if end is None:
                raise ApiError(f"{self.name}: the connection broke before the answer's end")
        rest = trimmer.flush()
        yield Answer(rest, {**meta, "finish_reason": _reason(end, trimmer.matched, meta)})


def conversation(
    messages: list[Message], name: str
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """What the system says, and the turns, as Anthropic's API has them.

    >>> said = [("system", "Be brief."), ("user", "Hi"), ("user", "there")]
    >>> system, turns = conversation([{"role": r, "content": c} for r, c in said], "claude")
    >>> [block["text"] for block in system], turns[0]["role"], len(turns[0]["content"]), len(turns)
    (['Be brief.'], 'user', 2, 1)

    Raises:
        ValueError: a conversation that this API does not have.
    """
    turns = [(m["role"], _blocks(m["content"])) for m in messages]
    count = next((i for i, (role, _) in enumerate(turns) if role != "system"), len(turns))
    system = [block for _, blocks in turns[:count] for block in blocks]
    others = {role for role, _ in turns[count:]} - {"user", "assistant"}
    if "system" in others:
        raise ValueError(f"{name}: the system speaks before the user and the assistant, or not")
    if others:
        raise ValueError(f"{name} knows system, user and assistant; not {sorted(others)}")
    merged = [
        {"role": role, "content": [block for _, blocks in turn for block in blocks]}
        for role, turn in groupby(turns[count:], key=lambda turn: turn[0])
    ]
    if not merged or merged[0]["role"] != "user":
        raise ValueError(f"{name}: the user has to speak first, and the assistant answers")
    if merged[-1]["role"] == "assistant":  # it goes on from words, not from blanks
        last = merged[-1]["content"][-1]
        merged[-1]["content"][-1] = {"type": "text", "text": last["text"].rstrip()}
    for turn in merged:
        if not turn["content"]:
            raise ValueError(f"{name}: the {turn['role']} has to say something")
    return system, merged


def _blocks(content: Any) -> list[dict[str, Any]]:
    """OpenAI's parts as Anthropic's blocks; empty texts, which it refuses, are left out."""
    parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
    return [_block(part) for part in parts if part["type"] != "text" or part["text"].strip()]


def _block(part: dict[str, Any]) -> dict[str, Any]:
    match part["type"]:
        case "text":
            return {"type": "text", "text": part["text"]}
        case "image_url":
            url = part["image_url"]["url"]
            head, found, data = url.partition(";base64,")
            if found:
                media_type = head.removeprefix("data:")
                source = {"type": "base64", "media_type": media_type, "data": data}
            else:
                source = {"type": "url", "url": url}
            return {"type": "image", "source": source}
        case other:
            raise ValueError(f"Anthropic's API takes texts and images; not {other!r}")


def _without(blank: str, text: str) -> tuple[str, str]:
    """The text without what it repeats of `blank`, and what it may still repeat.

    >>> _without(" ", " x"), _without("\\n\\n", "\\n"), _without(" ", "x")
    (('x', ''), ('', '\\n'), ('x', ''))
    """
    while blank and text and text[0] == blank[0]:
        text, blank = text[1:], blank[1:]
    return text, "" if text else blank


def _usage(usage: Any) -> dict[str, Any]:
    """Tokens, by the names that they have here; theirs counts cached ones apart."""
    read = usage.cache_read_input_tokens or 0
    written = usage.cache_creation_input_tokens or 0
    return {
        "prompt_tokens": usage.input_tokens + read + written,
        "cached_tokens": read,
        "completion_tokens": usage.output_tokens,
    }


def _reason(end: Any, matched: str | None, meta: dict[str, Any]) -> dict[str, Any]:
    if matched is None and end.stop_reason == "max_tokens":
        return {"type": "length", "length": meta["completion_tokens"]}
    if matched is None and end.stop_reason not in ("end_turn", "stop_sequence"):
        return {"type": end.stop_reason}
    return {"type": "stop", "matched": matched if matched is not None else end.stop_sequence}

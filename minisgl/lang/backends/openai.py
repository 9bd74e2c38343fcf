"""`OpenAI`: models behind OpenAI's API, and every server that speaks its protocol.

    OpenAI("gpt-4o")                                          the key from OPENAI_API_KEY
    OpenAI("my-model", base_url="http://localhost:30000/v1", extensions=True)    SGLang's, or ours
    OpenAI("davinci-002", is_chat=False)                      one that continues plain text

Needs the extra `openai`.  Chat models take conversations; completion models take the program's text
as it is.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import openai

from minisgl.lang.backends.api import ApiBackend, Call, Request, schema_of
from minisgl.lang.backends.base import Answer, decide
from minisgl.lang.backends.openai_reply import Growing, answers_of, tokens_of, usage_of
from minisgl.lang.backends.per_loop import PerLoop, trusted
from minisgl.lang.backends.retries import ApiError, Retries
from minisgl.lang.chat_format import ChatFormat
from minisgl.lang.choices import ChoicesDecision, Tokens
from minisgl.lang.context import Context
from minisgl.lang.ir import Select
from minisgl.sampling import SamplingParams

MOST_STOPS = 4  # that the API takes; those beyond are cut on our side
THOUGHTS = 4096  # tokens that a model may think before it picks a choice
# Models that think before they answer.
REASONING = re.compile(r"(o[1-9]|gpt-5)(?!.*chat)")

_EXTENSIONS = (
    "top_k", "min_p", "repetition_penalty", "min_tokens", "stop_token_ids", "ignore_eos",
    "skip_special_tokens", "no_stop_trim", "regex", "stop_regex",
)  # fmt: skip
_NEVER = ("prompt_logprobs_from", "json_space", "namespace")
_DRAWING = ("temperature", "top_p", "frequency_penalty", "presence_penalty", "logit_bias")


class OpenAI(ApiBackend):
    """See above.

    Args:
        model: its name at the API.
        is_chat: False for a model that continues plain text (the older completions API).
        base_url: of another server; None: OpenAI's own, or OPENAI_BASE_URL.
        chat: how a completion model's text lays out roles; None: it has none.
        extensions: the server is SGLang's or ours, and takes more: regex, top_k, min_p, min_tokens
            and the like.
        prefill: the server goes on with words that the assistant has begun, as those of SGLang and
            vLLM do (`continue_final_message`).
        reasoning: whether it thinks before it answers, so that nothing about the drawing of tokens
            can be set, and `max_tokens` counts the thoughts as well; None: as its name says.
        **others: api_key, timeout, retries; see `ApiBackend`.

    Raises:
        ValueError: no key (another server may need none), or a value that is not allowed.
    """

    key_name = "OPENAI_API_KEY"

    def __init__(
        self,
        model: str,
        *,
        is_chat: bool = True,
        base_url: str | None = None,
        chat: ChatFormat | None = None,
        extensions: bool = False,
        prefill: bool = False,
        reasoning: bool | None = None,
        api_key: str | None = None,
        timeout: float = 120.0,
        retries: Retries | None = None,
    ) -> None:
        super().__init__(
            model,
            api_key=api_key,
            needs_key=base_url is None,
            timeout=timeout,
            retries=retries,
        )
        if chat is not None and is_chat:
            raise ValueError("chat: an API of conversations has its own; for is_chat=False only")
        self._is_chat = self.needs_roles = is_chat
        self._extensions = extensions
        self.can_see = is_chat
        self.can_continue = not is_chat or prefill
        self._is_reasoning = bool(REASONING.match(model)) if reasoning is None else reasoning
        self.tells_tokens = not self._is_reasoning
        self._format = chat
        # Older servers know only the one name, and OpenAI's newer models only the other.
        is_new = is_chat and (base_url is None or self._is_reasoning)
        self._limit_name = "max_completion_tokens" if is_new else "max_tokens"
        self._clients = PerLoop(
            lambda: openai.AsyncOpenAI(
                api_key=self._key or "none",  # its client wants one
                base_url=base_url,
                timeout=self._timeout,
                max_retries=0,  # `Retries` does it, of streams too
                http_client=openai.DefaultAsyncHttpxClient(verify=trusted()),
            )
        )

    @property
    def chat(self) -> ChatFormat:
        """See `ApiBackend`; ValueError for a completion model that was given none."""
        if self._is_chat:
            return super().chat
        if self._format is None:
            raise ValueError(
                f"{self.name} continues plain text, and how it was taught to lay out roles is not "
                "known: use no roles, or give chat=ChatFormat(ChatTemplate(...))"
            )
        return self._format

    # ------------------------------------------------------------------ requests

    def _call(self, context: Context, params: SamplingParams) -> Call:
        """See `ApiBackend`."""
        if params.max_tokens == 0:
            raise ValueError(f"max_tokens=0: {self.name} answers with one token at least")
        request = {**self._sampling(params), **self._ends(params)}
        if not self._is_chat:
            if not context.text:
                raise ValueError(f"nothing has been said for {self.name} to go on from")
            return Call({**request, "prompt": context.text}, params)
        request["messages"] = self._messages(context)
        if context.words.strip():  # a server that can, as `_messages` has made sure
            request.setdefault("extra_body", {}).update(
                continue_final_message=True, add_generation_prompt=False
            )
        return Call(request, params)

    def _sampling(self, params: SamplingParams) -> Request:
        """How tokens are drawn, and what they follow."""
        self._refuse(params, _NEVER)
        request: Request = {"model": self._model}
        if params.n > 1:
            request["n"] = params.n
        if params.seed is not None:
            request["seed"] = params.seed
        if self._is_reasoning:
            self._refuse(params, (*_DRAWING, "logprobs"), ", as it thinks before it answers")
        else:
            # Also where they are ours and OpenAI's defaults: other servers have others.
            request |= {"temperature": params.temperature, "top_p": params.top_p}
            request |= {
                name: getattr(params, name)
                for name in ("frequency_penalty", "presence_penalty")
                if getattr(params, name)
            }
        if params.logit_bias:
            request["logit_bias"] = {str(i): max(b, -100.0) for i, b in params.logit_bias}
        if params.logprobs is not None:
            chat = {"logprobs": True, "top_logprobs": params.logprobs}
            request |= chat if self._is_chat else {"logprobs": params.logprobs}
        return {**request, **self._form(params)}

    def _form(self, params: SamplingParams) -> Request:
        """What an answer's form must be, and the other things that only extensions know."""
        request: Request = {}
        more: Request = {}
        if self._extensions:
            more = {
                name: getattr(params, name)
                for name in _EXTENSIONS
                if getattr(params, name) != getattr(SamplingParams, name)
            }
        else:
            self._refuse(
                params, _EXTENSIONS, "; a server of SGLang's or ours may (extensions=True)"
            )
        if params.json_schema is not None:
            schema = schema_of(params)
            if self._is_chat:
                request["response_format"] = (
                    {"type": "json_object"}
                    if schema is True
                    else {
                        "type": "json_schema",
                        "json_schema": {"name": "answer", "schema": schema, "strict": True},
                    }
                )
            elif self._extensions:
                more["json_schema"] = params.json_schema
            else:
                self._refuse(params, ("json_schema",), " of completions")
        return request | ({"extra_body": more} if more else {})

    def _ends(self, params: SamplingParams) -> Request:
        request: Request = {}
        if params.stop and not self._is_reasoning:  # which takes none: all are cut on our side
            request["stop"] = list(params.stop[:MOST_STOPS])
        if params.max_tokens is not None:
            request[self._limit_name] = params.max_tokens
        elif not self._is_chat:
            raise ValueError(f"max_tokens=None: give {self.name} a number, or it takes 16")
        return request

    # ------------------------------------------------------------------ calls

    async def _ask(self, call: Call) -> list[Answer]:
        with self._errors(openai.OpenAIError):
            reply = await self._create(call.request)
            return answers_of(reply, call.params, self.name)

    async def _ask_stream(self, call: Call) -> AsyncGenerator[Answer, None]:
        growing = Growing(call.params, self.name)
        with self._errors(openai.OpenAIError):
            stream = await self._create(
                {**call.request, "stream": True, "stream_options": {"include_usage": True}}
            )
            async with stream:
                async for chunk in stream:
                    for piece in growing.add(chunk):
                        yield piece
            yield growing.end()

    async def _create(self, request: Request) -> Any:
        client = await self._clients.get()
        endpoint: Any = client.chat.completions if self._is_chat else client.completions
        try:
            return await endpoint.create(**request)
        except openai.BadRequestError as error:
            other = {"max_tokens", "max_completion_tokens"} - {self._limit_name}
            if self._limit_name not in request or not any(name in str(error) for name in other):
                raise
            (name,) = other  # the server says which of the two it knows
            limit = request.pop(self._limit_name)
            self._limit_name = name
            request[name] = limit
            return await endpoint.create(**request)

    # ------------------------------------------------------------------ select

    async def select(self, context: Context, node: Select) -> ChoicesDecision:
        """By log-probabilities where plain text is continued; else as `ApiBackend` says."""
        if self._is_chat:
            return await super().select(context, node)
        if len(node.choices) == 1:
            return ChoicesDecision(node.choices[0])
        if node.method.requires_unconditional_logprobs:
            raise ValueError(f"{self.name} can't score choices without their context")
        inside, usage = await self._score(context, node.choices)
        decision = await asyncio.to_thread(decide, node, inside, None)
        return replace(decision, meta_info={**decision.meta_info, "usage": usage})

    def _select_params(self, node: Select, max_tokens: int) -> SamplingParams:
        if not self._is_reasoning:
            return super()._select_params(node, max_tokens)
        if node.temperature:
            raise ValueError(f"temperature={node.temperature}: {self.name} has no such setting")
        return SamplingParams(max_tokens=THOUGHTS + max_tokens)

    async def _score(
        self, context: Context, choices: Sequence[str]
    ) -> tuple[list[Tokens], dict[str, Any]]:
        """The tokens of each choice after `context`, and what that took.

        One call for all: the API echoes the texts with their log-probabilities.

        Raises:
            ApiError: as `generate`; OpenAI's own newer models refuse to echo.
        """
        if not context.text:
            raise ValueError(f"nothing has been said for {self.name} to go on from")
        request: Request = {
            "model": self._model,
            "prompt": [context.text + choice for choice in choices],
            "max_tokens": 1,  # not all servers allow 0
            "echo": True,
            "logprobs": 0,
            "temperature": 0,
        }

        async def ask() -> Any:
            with self._errors(openai.OpenAIError):
                return await self._create(request)

        reply = await self._retries.call(ask)
        found = sorted(reply.choices, key=lambda choice: choice.index)
        start = len(context.text)
        begins = [_begins(one.logprobs) for one in found]
        # The token in which the choices begin, if one holds the context's end as well: for all.
        first = min(max((at for at in each if at <= start), default=start) for each in begins)
        scored: list[Tokens] = [
            [
                token
                for at, token in zip(each, tokens_of(one.logprobs), strict=True)
                if first <= at < start + len(choice) and token[0] is not None
            ]
            for each, one, choice in zip(begins, found, choices, strict=True)
        ]
        if not all(scored):
            raise ApiError(f"{self.name} does not tell how likely the texts are", passes=False)
        return scored, usage_of(reply.usage)


def _begins(logprobs: Any) -> list[int]:
    """Where the tokens of an echoed text begin in it, in characters: as the server says, or else by
    their own texts, among which part of a character has none of its own."""
    told = getattr(logprobs, "text_offset", None)
    texts = [token[2] for token in tokens_of(logprobs)]
    if told is not None and len(told) == len(texts) and all(at >= 0 for at in told):
        return list(told)
    return list(accumulate(map(len, texts), initial=0))[:-1]

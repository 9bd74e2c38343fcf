"""`RuntimeEndpoint`: a model behind the HTTP server of SGLang, or ours, by its native API.

    sgl.set_default_backend(RuntimeEndpoint("http://localhost:30000"))

The server continues texts, with everything that an engine can do: patterns, log-probabilities,
`select`, a cache of prefixes.  See SGLang's documentation of `/generate` for the fields.
"""

from __future__ import annotations

import asyncio
import json
import os
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from minisgl.chat_template import ChatTemplate
from minisgl.lang.backends.base import Answer, Backend
from minisgl.lang.backends.http_client import Reply, request
from minisgl.lang.backends.native_params import sampling_params
from minisgl.lang.backends.retries import ApiError, Retries, patience
from minisgl.lang.background import background
from minisgl.lang.chat_format import ChatFormat
from minisgl.lang.choices import Tokens
from minisgl.lang.context import Context
from minisgl.lang.images import image_part
from minisgl.lang.ir import Video
from minisgl.sampling import SamplingParams


class RuntimeEndpoint(Backend):
    """A server at `base_url`, which is asked at once what model it has.

    Args:
        api_key: sent as a bearer; None: MINISGL_API_KEY of the environment, if there is one.
        verify: for https: True for the system's certificates, the path of a file or directory of
            others, or False to trust anybody.
        chat_template: of the model, if the server does not send it: its text, a directory that
            holds it, or what its tokenizer_config.json says.
        timeout: seconds that a reply, or the next piece of one, may take.
        retries: how often a call that fails is made again; see `Retries`.

    Raises:
        ValueError: no such URL, or no model that generates.
        ApiError: there is no server, or it does not let us in.
    """

    tells_tokens = True

    def __init__(
        self,
        base_url: str,
        *,
        api_key: str | None = None,
        verify: bool | str = True,
        chat_template: ChatTemplate | str | Path | Mapping[str, Any] | None = None,
        timeout: float = 300.0,
        retries: Retries | None = None,
    ) -> None:
        if not isinstance(base_url, str) or not base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url={base_url!r}: give http://host:port, or https://...")
        self._timeout, self._retries = patience(timeout, retries)
        self._url = base_url.rstrip("/")
        key = self._key = api_key or os.environ.get("MINISGL_API_KEY")
        if key and not (key.isascii() and key.isprintable()):
            raise ValueError("api_key: a key is printable ASCII; what is given is not")
        self._headers = {"authorization": f"Bearer {key}", "x-api-key": key} if key else {}
        self._tls = _trusted(verify) if base_url.startswith("https:") else None
        self._info = self._now("GET", "/get_model_info")
        self._is_ours = self._info.get("server") == "minisgl"
        if not self._info.get("is_generation", True):
            raise ValueError(f"{self.name} at {base_url} does not generate text")
        self.can_see = bool(self._info.get("has_image_understanding", True))
        given = self._info.get("chat_template") if chat_template is None else chat_template
        template = None if given is None else _template(given)
        self._chat = None if template is None else ChatFormat(template)
        # A server puts BOS before every text, so one that the template prints would be a second.
        self._bos = (template and template.bos_token) or ""

    @property
    def name(self) -> str:
        """The path that the server has for its model."""
        return str(self._info.get("model_path"))

    @property
    def chat(self) -> ChatFormat:
        """The layout of the model's own template; ValueError if it is not known."""
        if self._chat is None:
            raise ValueError(
                f"how {self.name} lays out conversations is not known, as its server does not tell "
                "it: give RuntimeEndpoint(..., chat_template=DIRECTORY), the model's"
            )
        return self._chat

    def __repr__(self) -> str:
        return f"RuntimeEndpoint({self.name!r})"

    async def generate(self, context: Context, params: SamplingParams) -> list[Answer]:
        """See `Backend`."""
        reply = await self._post("/generate", await self._body(context, params))
        return [_answer(one) for one in (reply if isinstance(reply, list) else [reply])]

    async def stream(self, context: Context, params: SamplingParams) -> AsyncIterator[Answer]:
        """See `Backend`."""
        body = {**await self._body(context, params), "stream": True}
        async for piece in self._retries.stream(partial(self._pieces, body)):
            yield piece

    async def score(
        self, context: Context, choices: Sequence[str], *, unconditional: bool
    ) -> tuple[list[Tokens], list[Tokens] | None]:
        """See `Backend`.

        The server is asked from the context's last token on, since a choice may change that one: a
        token may hold the end of the one and the beginning of the other.
        """
        namespace = context.namespace
        prefill = SamplingParams(max_tokens=0, temperature=0, namespace=namespace)
        (prompt,) = await self.generate(context, prefill)
        last = max(prompt.meta["prompt_tokens"] - 2, 0)
        said = context.text.removeprefix(self._bos)
        texts = [said, *(said + choice for choice in choices)]
        asked = self._body_of(prefill)
        seen = await self._images(context)
        pictures = {"image_data": [seen] * len(texts)} if seen else {}
        ids, *scored = await self._score({**asked, **pictures, "text": texts}, last)
        common = min(_common(ids, tokens) for tokens in scored)
        inside: list[Tokens] = [
            [token for token in tokens[common:] if token[0] is not None] for tokens in scored
        ]
        if not unconditional:
            return inside, None
        alone_ids = [[token[1] for token in tokens] for tokens in inside]
        alone = await self._score({**asked, "input_ids": alone_ids}, 0)
        return inside, alone

    async def cache_prefix(self, context: Context) -> None:
        """See `Backend`."""
        await self.generate(context, SamplingParams(max_tokens=0, namespace=context.namespace))

    def flush_cache(self) -> bool:
        """See `Backend`; False if the server is busy."""
        try:
            self._now("POST", "/flush_cache", is_json=False)
        except ApiError as error:
            if error.status != 400:
                raise
            return False
        return True

    def info(self) -> dict[str, Any]:
        """See `Backend`."""
        return {**self._info, **self._now("GET", "/get_server_info")}

    # ------------------------------------------------------------------ requests

    async def _body(self, context: Context, params: SamplingParams) -> dict[str, Any]:
        if not context.text:
            raise ValueError(f"nothing has been said for {self.name} to go on from: add some text")
        body = {**self._body_of(params), "text": context.text.removeprefix(self._bos)}
        if seen := await self._images(context):
            body["image_data"] = seen
        if params.logprobs is not None or params.prompt_logprobs_from is not None:
            first = params.prompt_logprobs_from
            body |= {
                "return_logprob": True,
                "top_logprobs_num": params.logprobs or 0,
                "return_text_in_logprobs": True,
                # The list begins after this position; of the answer only: -1.
                "logprob_start_len": -1 if first is None else max(0, first - 1),
            }
        return body

    def _body_of(self, params: SamplingParams) -> dict[str, Any]:
        body: dict[str, Any] = {"sampling_params": sampling_params(params, is_ours=self._is_ours)}
        if params.namespace is not None and not self._is_ours:
            body["extra_key"] = params.namespace
        return body

    async def _images(self, context: Context) -> list[str]:
        """Each as a URL, which may hold its data."""
        if any(isinstance(medium, Video) for medium in context.media):
            raise ValueError(f"{self.name}: a video can't be sent to a server; show its frames")
        read = [asyncio.to_thread(image_part, medium) for medium in context.media]
        return [part["image_url"]["url"] for part in await asyncio.gather(*read)]

    async def _score(self, body: dict[str, Any], start: int) -> list[Tokens]:
        asked = {
            **body,
            "return_logprob": True,
            "return_text_in_logprobs": True,
            "logprob_start_len": start,
        }
        replies = await self._post("/generate", asked)
        # A null comes first from some servers, whatever the start.
        lists = [reply["meta_info"]["input_token_logprobs"] for reply in replies]
        return [told[1:] if start and told and told[0][0] is None else told for told in lists]

    async def _post(self, path: str, body: Any) -> Any:
        return await self._retries.call(partial(self._ask, "POST", path, body))

    async def _ask(self, method: str, path: str, body: Any, *, is_json: bool = True) -> Any:
        async with self._request(method, path, body) as reply:
            if not is_json and reply.status < 400:
                return await reply.read()
            return await reply.json()

    async def _pieces(self, body: dict[str, Any]) -> AsyncGenerator[Answer, None]:
        """Of the text, which comes anew and longer with each event."""
        seen, last = 0, None
        async with self._request("POST", "/generate", body) as reply:
            async for event in reply.events():
                if event != "[DONE]":
                    last = _event(event)
                    answer = _answer(last)
                    yield Answer(answer.text[seen:], answer.meta)
                    seen = len(answer.text)
        if last is None or last["meta_info"]["finish_reason"] is None:
            raise ApiError(f"{self.name}: the connection broke before the answer's end")

    @asynccontextmanager
    async def _request(self, method: str, path: str, body: Any) -> AsyncIterator[Reply]:
        url = self._url + path
        try:
            async with request(
                method, url, body, headers=self._headers, timeout=self._timeout, tls=self._tls
            ) as reply:
                yield reply
        except ApiError as error:
            text = str(error)
            if self._key is None or self._key not in text:
                raise
            text = text.replace(self._key, "***")
            raise ApiError(text, status=error.status, passes=error.passes) from None

    def _now(self, method: str, path: str, *, is_json: bool = True) -> Any:
        """For what is no coroutine."""
        asking = partial(self._ask, method, path, None, is_json=is_json)
        return background.run(self._retries.call(asking))


def _answer(reply: Any) -> Answer:
    """An answer of the server, whose meta data are ours; what is not known of a token is left out.

    Raises:
        ApiError: it is none, or it has been aborted.
    """
    if "error" in reply:
        raise ApiError(str(reply["error"].get("message", reply["error"])), passes=False)
    meta = dict(reply["meta_info"])
    reason = meta.get("finish_reason") or {}
    if reason.get("type") == "abort":
        raise ApiError(f"the server has aborted it: {reason.get('message')}", passes=False)
    for name in ("input_token_logprobs", "output_token_logprobs"):
        if meta.get(name) is not None:
            meta[name] = [token for token in meta[name] if token[0] is not None]
    return Answer(reply["text"], meta)


def _event(event: str) -> Any:
    try:
        return json.loads(event)
    except ValueError:
        raise ApiError(f"an event that is no JSON: {event[:80]!r}") from None


def _common(a: Tokens, b: Tokens) -> int:
    """How many ids both begin with."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x[1] != y[1]), len(a))


def _template(given: ChatTemplate | str | Path | Mapping[str, Any]) -> ChatTemplate:
    if isinstance(given, str) and "{" in given:  # a template's own text
        given = {"chat_template": given}
    return given if isinstance(given, ChatTemplate) else ChatTemplate(given)


def _trusted(verify: object) -> ssl.SSLContext:
    if isinstance(verify, str):
        is_directory = Path(verify).is_dir()
        return ssl.create_default_context(
            cafile=None if is_directory else verify, capath=verify if is_directory else None
        )
    context = ssl.create_default_context()
    if not verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context

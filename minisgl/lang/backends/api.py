"""`ApiBackend`: what the models of the big APIs have in common.

They are asked through their makers' own clients, in conversations, and tell little: no
log-probabilities of given texts, so `select` asks instead of comparing (`ApiBackend.select`).  What
an API can't do is refused before the call, by name.  A key comes from an argument or from the
environment, and stands in no error and no `repr`.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
from abc import abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from minisgl.chat_template import ChatTemplate
from minisgl.lang.backends.base import Answer, Backend
from minisgl.lang.backends.retries import ApiError, Retries, patience, retry_after
from minisgl.lang.chat_format import ChatFormat
from minisgl.lang.choices import ChoicesDecision, token_length_normalized
from minisgl.lang.context import Context, Message
from minisgl.lang.ir import Select
from minisgl.sampling import SamplingParams

# Such an API takes messages and lays them out itself, as nobody outside knows.  This is how a
# program's text shows them, and nothing that a model reads.
SHOWN = ChatFormat(
    ChatTemplate(
        {
            "chat_template": "{% for m in messages %}{{ m['role'].upper() }}: {{ m['content'] }}\n"
            "{% endfor %}{% if add_generation_prompt %}ASSISTANT: {% endif %}"
        }
    )
)

Request = dict[str, Any]


@dataclass(frozen=True)
class Call:
    """One call of an API.

    request: the arguments for its client.
    blank: what the program has said last and the API was not told; not to be said again.
    """

    request: Request
    params: SamplingParams
    blank: str = ""


class ApiBackend(Backend):
    """A model behind an API.

    Args:
        model: its name there.
        api_key: None: from the environment variable `key_name`.
        timeout: seconds that a reply, or the next piece of one, may take.
        retries: how often a call that fails is made again; see `Retries`.

    Raises:
        ValueError: no key, or a value that is not allowed.
    """

    needs_roles = True
    can_see = True
    key_name = ""

    def __init__(
        self,
        model: str,
        *,
        api_key: str | None = None,
        needs_key: bool = True,
        timeout: float = 120.0,
        retries: Retries | None = None,
    ) -> None:
        if not isinstance(model, str) or not model:
            raise ValueError(f"model={model!r}: give the name that the API has for it")
        self._model = model
        self._timeout, self._retries = patience(timeout, retries)
        self._key = api_key or os.environ.get(self.key_name)
        if not self._key and needs_key:
            raise ValueError(f"no key for {model}: give api_key=..., or set {self.key_name}")

    @property
    def name(self) -> str:
        """See `Backend`."""
        return self._model

    @property
    def chat(self) -> ChatFormat:
        """How a program's text shows a conversation; the API has its own way."""
        return SHOWN

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._model!r})"

    async def generate(self, context: Context, params: SamplingParams) -> list[Answer]:
        """See `Backend`.

        Raises:
            ValueError: the API has no such setting, or no such conversation.
            ApiError: it failed, and again when it was asked again.
        """
        call = await self._prepared(context, params)
        return await self._retries.call(partial(self._ask, call))

    async def stream(self, context: Context, params: SamplingParams) -> AsyncIterator[Answer]:
        """See `Backend`; errors as `generate`.  One that comes in the middle is raised there."""
        call = await self._prepared(context, params)
        async for piece in self._retries.stream(partial(self._ask_stream, call)):
            yield piece

    async def _prepared(self, context: Context, params: SamplingParams) -> Call:
        if context.shown:  # pictures are read from the disk
            return await asyncio.to_thread(self._call, context, params)
        return self._call(context, params)

    @abstractmethod
    def _call(self, context: Context, params: SamplingParams) -> Call:
        """What is sent; ValueError for what can't be."""

    @abstractmethod
    async def _ask(self, call: Call) -> list[Answer]:
        """ApiError if it fails."""

    @abstractmethod
    def _ask_stream(self, call: Call) -> AsyncGenerator[Answer, None]:
        """The answer in pieces; ApiError if it fails."""

    # ------------------------------------------------------------------ conversations

    def _messages(self, context: Context) -> list[Message]:
        """The conversation up to the assistant's answer; words of the assistant's own are last.

        Raises:
            ValueError: nobody has said anything, or it is not the assistant's turn.
        """
        if context.role != "assistant":
            raise ValueError(
                f"gen stands in the role {context.role!r}, and {self.name} speaks as the assistant "
                "only: put it into assistant(...)"
            )
        messages = list(context.messages)
        if context.words.strip():
            if not self.can_continue:
                raise ValueError(
                    f"gen stands after the assistant's words {context.words[-60:]!r}, and "
                    f"{self.name} can't go on with words of its own: let the assistant's role "
                    "begin with gen, or use @function(num_api_spec_tokens=...), which looks for "
                    "these words in the model's reply"
                )
            assert context.open_message is not None
            messages.append(context.open_message)
        if not messages:
            raise ValueError(f"nothing has been said to {self.name} yet: begin with user(...)")
        return messages

    async def select(self, context: Context, node: Select) -> ChoicesDecision:
        """The choice that the model answers when it is asked for one of them.

        An API that doesn't tell how likely a given text is leaves no other way.  The question is an
        extra message, which the program's own text does not show.

        Raises:
            ValueError: it answers none of them; or the method needs log-probabilities.
        """
        if len(node.choices) == 1:
            return ChoicesDecision(node.choices[0])
        if node.method is not token_length_normalized:
            raise ValueError(
                f"choices_method={type(node.method).__name__}: {self.name} does not tell how "
                "likely a text is; leave choices_method out, and it is asked for one of the choices"
            )
        asked = Context().begin_role("user", self.chat).say(_question(node.choices, context.words))
        messages = (*context.messages, *asked.end_role(self.chat).messages)
        # Enough for any of the choices, in quotes: a token has a byte at least.
        most = 8 + max(len(choice.encode()) for choice in node.choices)
        params = self._select_params(node, most)
        (answer,) = await self.generate(Context(turns=messages, role="assistant"), params)
        choice = chosen(answer.text, node.choices)
        if choice is None:
            raise ValueError(
                f"{self.name} was asked for one of {list(node.choices)} and answered "
                f"{answer.text[:80]!r}"
            )
        return ChoicesDecision(choice, {"reply": answer.text, "usage": answer.meta})

    def _select_params(self, node: Select, max_tokens: int) -> SamplingParams:
        return SamplingParams(temperature=node.temperature, seed=node.seed, max_tokens=max_tokens)

    # ------------------------------------------------------------------ errors

    def _refuse(self, params: SamplingParams, names: Sequence[str], why: str = "") -> None:
        """ValueError if one of the settings is not its default."""
        for name in names:
            value = getattr(params, name)
            if value != getattr(SamplingParams, name):
                raise ValueError(
                    f"{name}={value!r}: {self.name} has no such setting behind its API{why}"
                )

    @contextmanager
    def _errors(self, of_sdk: type[Exception]) -> Iterator[None]:
        """Whatever the client raises is an `ApiError` without the key."""
        try:
            yield
        except ApiError:
            raise
        except Exception as error:
            of_http = type(error).__module__.startswith("httpx")
            if not (isinstance(error, (of_sdk, json.JSONDecodeError)) or of_http):
                raise
            status = getattr(error, "status_code", None)
            if status is not None and status < 400:
                status = None  # a reply that is none
            headers = getattr(getattr(error, "response", None), "headers", {})
            spent = getattr(error, "code", None) == "insufficient_quota"  # waiting won't help
            text = f"{self.name}: {type(error).__name__}: {error}"
            if self._key:
                text = text.replace(self._key, "***")
            # Not chained: what the client raised holds the request, and with it the key.
            raise ApiError(
                text,
                status=status,
                retry_after=retry_after(headers),
                passes=False if spent else None,
            ) from None


def schema_of(params: SamplingParams) -> Any:
    """The answer's JSON schema as a dict, or as True for any JSON."""
    from minisgl.fsm.json_schema import as_schema  # only here: with it comes numpy

    schema = as_schema(params.json_schema)
    if isinstance(schema, Mapping) and schema.get("$ref", "").startswith("#/$defs/"):
        # That of a class points at one of its own parts; an API wants an object at the root.
        name = schema["$ref"].removeprefix("#/$defs/")
        schema = {**schema["$defs"][name], "$defs": schema["$defs"]}
    return schema


def chosen(reply: str, choices: Sequence[str]) -> str | None:
    """The choice that a reply means, which may be in quotes or the beginning of a sentence.

    >>> chosen('"Paris".', ["Par", "Paris", "Rome"]), chosen("Parma", ["Par", "Rome"])
    ('Paris', None)
    """
    said = reply.strip().strip("\"'`* ")
    for fold in (str, str.casefold):
        found = [
            choice
            for choice in choices
            if re.match(re.escape(fold(choice.strip())) + r"(?!\w)", fold(said))
        ]
        if found:
            return max(found, key=len)
    return None


def _question(choices: Sequence[str], words: str) -> str:
    listed = "\n".join(f"- {choice.strip()}" for choice in choices)
    begun = f" Your answer begins with {words!r}; say only how it goes on." if words.strip() else ""
    return f"Answer with exactly one of these, word for word, and nothing else:\n{listed}\n{begun}"

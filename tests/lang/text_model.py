"""A model that goes on from its own words as it went on before: what it says next depends on the
text alone, character by character, and so does where its tokens end."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator, Callable
from typing import Any

from minisgl.chat_template import ChatTemplate
from minisgl.lang.backends.base import Answer, Backend
from minisgl.lang.chat_format import ChatFormat
from minisgl.lang.context import Context
from minisgl.lang.stops import cut
from minisgl.sampling import SamplingParams
from tests.lang.fake import CHATML, config_of

Says = Callable[[str], str]


def knows(document: str) -> Says:
    """Goes on as the document does after the longest of its parts that the text ends with."""

    def says(text: str) -> str:
        for size in range(min(len(text), len(document)), -1, -1):
            at = document.find(text[len(text) - size :])
            if at >= 0:
                return document[at + size :]
        raise AssertionError("the empty text is a part of every document")

    return says


def ends_token(text: str) -> bool:
    return zlib.crc32(text.encode()) % 3 != 0


class TextModel(Backend):
    """Attributes:
    calls: (text, params) of each, in order.
    """

    name = "text-model"

    def __init__(
        self,
        says: Says,
        *,
        tells_tokens: bool = True,
        is_chat: bool = False,
        can_continue: bool = True,
        ends_token: Callable[[str], bool] = ends_token,
    ) -> None:
        self.says, self._ends_token = says, ends_token
        self.tells_tokens, self.can_continue = tells_tokens, can_continue
        self.needs_roles = is_chat
        self.calls: list[tuple[str, SamplingParams]] = []
        self._chat = ChatFormat(ChatTemplate(config_of(CHATML)))

    @property
    def chat(self) -> ChatFormat:
        return self._chat

    async def generate(self, context: Context, params: SamplingParams) -> list[Answer]:
        assert self.can_continue or not context.words, "asked to go on with words of its own"
        self.calls.append((context.text, params))
        return [self._answer(context.text, params)] * params.n

    async def stream(self, context: Context, params: SamplingParams) -> AsyncIterator[Answer]:
        (answer,) = await self.generate(context, params)
        for i, character in enumerate(answer.text):
            last = i == len(answer.text) - 1
            yield Answer(character, answer.meta if last else {"finish_reason": None})
        if not answer.text:
            yield answer

    def _answer(self, prompt: str, params: SamplingParams) -> Answer:
        tokens = self._tokens(prompt, self.says(prompt))
        limit = len(tokens) if params.max_tokens is None else params.max_tokens
        said = "".join(tokens[:limit])
        text, matched = cut(said, params.stop)
        used = self._tokens(prompt, said[: len(text) + len(matched or "")])
        if matched is not None or len(tokens) < limit:
            reason: dict[str, Any] = {"type": "stop", "matched": matched}
        else:
            reason = {"type": "length", "length": limit}
        meta = {
            "prompt_tokens": len(self._tokens("", prompt)),
            "completion_tokens": len(used),
            "finish_reason": reason,
        }
        if params.logprobs is not None and self.tells_tokens:
            meta["output_token_logprobs"] = [[-1.0, None, token] for token in used]
        return Answer(text, meta)

    def _tokens(self, prompt: str, text: str) -> list[str]:
        tokens, start = [], 0
        for end in range(1, len(text) + 1):
            if end == len(text) or self._ends_token(prompt + text[:end]):
                tokens.append(text[start:end])
                start = end
        return tokens

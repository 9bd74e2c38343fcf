"""OpenAI's replies, of chats and of completions, whole or in chunks, as `Answer`s.

Log-probabilities have the form that they have everywhere here, [log-probability, id, text]; this
API tells no ids.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minisgl.lang.backends.base import Answer
from minisgl.lang.backends.retries import ApiError
from minisgl.lang.stops import Trimmer, cut
from minisgl.sampling import SamplingParams


def answers_of(reply: Any, params: SamplingParams, name: str) -> list[Answer]:
    """The answers of a whole reply, cut at stop strings that the API did not know.

    Raises:
        ApiError: it is no such reply, or the model refuses.
    """
    choices = getattr(reply, "choices", None)
    if not choices:
        raise ApiError(f"{name}: a reply without choices: {str(reply)[:200]!r}")
    usage = usage_of(reply.usage)
    answers = []
    for choice in sorted(choices, key=lambda choice: choice.index):
        text, matched = cut(_text_of(choice, name), params.stop)
        meta = {**usage, "id": reply.id, "finish_reason": _reason(choice, matched, usage)}
        if params.n > 1:
            meta["completion_tokens"] = None  # only their sum is told
            meta["usage"] = usage
        if choice.logprobs is not None:
            meta["output_token_logprobs"] = tokens_of(choice.logprobs)
            meta["output_top_logprobs"] = _top_of(choice.logprobs)
        _require_words(text, meta, name)
        answers.append(Answer(text, meta))
    return answers


class Growing:
    """One answer from the chunks of a stream."""

    def __init__(self, params: SamplingParams, name: str) -> None:
        self._trimmer = Trimmer(params.stop)
        self._name = name
        self._tells = params.logprobs is not None
        self._text = ""
        self._meta: dict[str, Any] = {"finish_reason": None}
        self._tokens: list[Any] = []
        self._top: list[Any] = []
        self._last: Any = None

    def add(self, chunk: Any) -> Iterator[Answer]:
        """What a chunk adds, up to a stop string."""
        if chunk.usage is not None:  # the last one, which has no choices
            self._meta |= usage_of(chunk.usage)
        for choice in chunk.choices:
            self._meta["id"] = chunk.id
            if choice.finish_reason is not None:
                self._last = choice
            if choice.logprobs is not None:
                self._tokens += tokens_of(choice.logprobs)
                self._top += _top_of(choice.logprobs)
            new = self._trimmer.feed(_text_of(choice, self._name))
            self._text += new
            if new:
                yield Answer(new, {"finish_reason": None})

    def end(self) -> Answer:
        """The rest, with the meta data of the whole.

        Raises:
            ApiError: the stream was cut off.
        """
        if self._last is None:
            raise ApiError(f"{self._name}: the connection broke before the answer's end")
        rest = self._trimmer.flush()
        reason = _reason(self._last, self._trimmer.matched, self._meta)
        self._meta["finish_reason"] = reason
        if self._tells:
            self._meta |= {
                "output_token_logprobs": self._tokens,
                "output_top_logprobs": self._top,
            }
        _require_words(self._text + rest, self._meta, self._name)
        return Answer(rest, self._meta)


def usage_of(usage: Any) -> dict[str, Any]:
    """Tokens, by the names that they have here."""
    if usage is None:
        return {}
    of_prompt = getattr(usage, "prompt_tokens_details", None)
    of_answer = getattr(usage, "completion_tokens_details", None)
    told = {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": getattr(of_prompt, "cached_tokens", None) or 0,
        "completion_tokens": usage.completion_tokens,
    }
    thought = getattr(of_answer, "reasoning_tokens", None)
    return told | ({"reasoning_tokens": thought} if thought else {})


def tokens_of(logprobs: Any) -> list[list[Any]]:
    """The tokens of an answer; [] if there are none."""
    content = getattr(logprobs, "content", None)
    if content is not None:  # of a chat
        return [[token.logprob, None, token.token] for token in content]
    texts = getattr(logprobs, "tokens", None) or []
    return [[lp, None, t] for lp, t in zip(logprobs.token_logprobs, texts, strict=True)]


def _top_of(logprobs: Any) -> list[list[list[Any]]]:
    content = getattr(logprobs, "content", None)
    if content is not None:
        return [[[t.logprob, None, t.token] for t in token.top_logprobs] for token in content]
    told = getattr(logprobs, "top_logprobs", None) or []
    return [[[lp, None, text] for text, lp in (top or {}).items()] for top in told]


def _text_of(choice: Any, name: str) -> str:
    """Of a choice of a completion, a chat, or a chat's chunk."""
    if hasattr(choice, "text"):
        return choice.text or ""
    message = choice.message if hasattr(choice, "message") else choice.delta
    if getattr(message, "refusal", None):
        raise ApiError(f"{name} refuses: {message.refusal}", passes=False)
    return message.content or ""


def _reason(choice: Any, matched: str | None, usage: dict[str, Any]) -> dict[str, Any]:
    kind = "stop" if matched is not None else choice.finish_reason
    if kind == "stop":
        return {"type": "stop", "matched": matched}
    if kind == "length":
        return {"type": "length", "length": usage.get("completion_tokens")}
    return {"type": kind}


def _require_words(text: str, meta: dict[str, Any], name: str) -> None:
    thought = meta.get("reasoning_tokens")
    if not text and thought and meta["finish_reason"]["type"] == "length":
        raise ApiError(
            f"{name} has thought for {thought} tokens, and max_tokens, which counts them, left "
            "none for an answer: give more",
            passes=False,
        )

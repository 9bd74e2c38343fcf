"""What both OpenAI routes put into their answers: usage, log-probabilities, ids."""

from __future__ import annotations

import codecs
import math
import time
import uuid
from collections.abc import Collection, Sequence
from typing import Any

from minisgl.engine.output import Completion, TokenLogprob
from minisgl.serve.openai_types import Sampled
from minisgl.tokenizer import GrowingBytes, Tokenizer

UNLIKELY = -9999.0  # OpenAI's number for a token that can't be; JSON has no -inf


def head(kind: str, model: str) -> dict[str, Any]:
    """The fields that an answer, and each chunk of it, begins with."""
    prefix = "cmpl" if kind == "text_completion" else "chatcmpl"
    return {
        "id": f"{prefix}-{uuid.uuid4().hex}",
        "object": kind,
        "created": int(time.time()),
        "model": model,
    }


def usage(done: Sequence[Completion]) -> dict[str, Any]:
    """Of all answers to all prompts; a prompt counts once, whatever n is."""
    prompts = [one for one in done if one.index == 0]
    prompt = sum(one.prompt_tokens for one in prompts)
    answer = sum(one.completion_tokens for one in done)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": answer,
        "total_tokens": prompt + answer,
        "prompt_tokens_details": {"cached_tokens": sum(one.cached_tokens for one in prompts)},
    }


class Offsets:
    """Where the tokens of a text begin in it, in characters.

    Args:
        skipped: ids that are no text.
        is_start: whether what is cut at the start of a text is cut from these.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        skipped: Collection[int],
        *,
        is_start: bool = False,
        begin: int = 0,
    ) -> None:
        self._bytes = GrowingBytes(tokenizer, skipped=skipped, is_start=is_start)
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._next = begin

    @staticmethod
    def of_answer(tokenizer: Tokenizer, body: Sampled, begin: int = 0) -> Offsets:
        """In an answer to `body`, or in a text that has `begin` characters before it."""
        shows = body.skip_special_tokens is False
        return Offsets(tokenizer, () if shows else tokenizer.special_ids, begin=begin)

    def of(self, token: int) -> int:
        """Of the next token; part of a character begins with the character."""
        at = self._next
        self._next += len(self._characters.decode(self._bytes.push([token])))
        return at


def visible(done: Completion, offsets: Offsets) -> list[TokenLogprob]:
    """The tokens of an answer that begin within its text: not EOS, nor those of a stop string that
    was cut off."""
    size = len(done.text)
    return [each for each in done.logprobs or () if offsets.of(each.token_id) < size]


def last_visible(
    tokens: Sequence[TokenLogprob], done: Completion, offsets: Offsets
) -> list[TokenLogprob]:
    """Of the last `tokens` of an answer, those that are `visible`."""
    before = done.completion_tokens - len(tokens)
    return visible(done, offsets)[before:]


def chat_logprobs(told: Sequence[TokenLogprob], tokenizer: Tokenizer) -> dict[str, Any]:
    """In the form of chat completions."""

    def entry(token: int, logprob: float) -> dict[str, Any]:
        data = tokenizer.token_bytes(token)
        text = data.decode("utf-8", errors="replace")
        return {"token": text, "bytes": list(data), "logprob": _finite(logprob)}

    content = [
        entry(each.token_id, each.logprob)
        | {"top_logprobs": [entry(token, logprob) for token, logprob in each.top]}
        for each in told
    ]
    return {"content": content, "refusal": None}


def completion_logprobs(
    told: Sequence[tuple[int, TokenLogprob | None]], tokenizer: Tokenizer, offsets: Sequence[int]
) -> dict[str, Any]:
    """In the form of completions: of tokens (id, log-probability) that begin at these `offsets` in
    the choice's text; None: the first of a prompt, which nothing comes before."""
    return {
        "tokens": [token_text(tokenizer, token) for token, _ in told],
        "token_logprobs": [each and _finite(each.logprob) for _, each in told],
        "top_logprobs": [each and _by_text(each.top, tokenizer) for _, each in told],
        "text_offset": list(offsets),
    }


def _by_text(top: Sequence[tuple[int, float]], tokenizer: Tokenizer) -> dict[str, float]:
    """The likeliest of the tokens that have one text is named by it ("A" may be a piece, and a
    byte of its own, too), any other "token_id:65"."""
    found: dict[str, float] = {}
    for token, logprob in top:
        text = token_text(tokenizer, token)
        found[f"token_id:{token}" if text in found else text] = _finite(logprob)
    return found


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """A token's text; part of a character is "bytes:\\\\xf0\\\\x9f", so that halves differ."""
    data = tokenizer.token_bytes(token)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)


def _finite(logprob: float) -> float:
    return logprob if math.isfinite(logprob) else UNLIKELY

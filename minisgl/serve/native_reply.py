"""What /generate answers: the text, and `meta_info` in the fields of SGLang's old and new clients.

logprob_start_len = S     tokens S+1, S+2, ... of the prompt; S = 0: also the first, as null
input_token_logprobs      [[log-probability, id, text], ...]         new clients
prompt_logprob            [log-probability of tokens S+1, S+2, ...]  old ones
normalized_prompt_logprob their mean
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

from minisgl.engine.handle import Handle
from minisgl.engine.output import Completion, TokenLogprob
from minisgl.serve.native_plan import Asking
from minisgl.tokenizer import Tokenizer

Entry = tuple[int, TokenLogprob | None]  # a token, and how likely it was


class Reply:
    """Makes replies of one answer.

    Args:
        rid: its id.
        asking: what was asked.
        tokenizer: of the texts of tokens; None: they are not wanted.
    """

    def __init__(self, rid: str, asking: Asking, tokenizer: Tokenizer | None) -> None:
        self._rid = rid
        self._asking = asking
        self._tokenizer = tokenizer

    def whole(self, done: Completion, last: Sequence[TokenLogprob] | None = None) -> dict[str, Any]:
        """Of an answer that has ended; `last`: only these of its log-probabilities are told."""
        asking = self._asking
        count = 0 if asking.is_scoring else done.completion_tokens
        meta = {
            "id": self._rid,
            "prompt_tokens": done.prompt_tokens,
            "completion_tokens": count,
            "cached_tokens": done.cached_tokens,
            "completion_tokens_wo_jump_forward": 0 if asking.is_scoring else done.forward_passes,
            "finish_reason": self._finish_reason(done),
        }
        if done.logprobs is not None:
            told = done.prompt_logprobs
            prompt: list[Entry] = []
            if told is not None:
                prompt = list(zip(asking.ids[asking.start :], told, strict=True))
            meta |= self._of_prompt(prompt)
            meta |= self._of_answer(done.logprobs if last is None else last, count)
        return {"text": "" if asking.is_scoring else done.text, "meta_info": meta}

    def part(
        self, handle: Handle, text: str, count: int, told: Sequence[TokenLogprob] | None
    ) -> dict[str, Any]:
        """Of one that goes on: its `text` and `count` tokens so far; `told` of the new ones."""
        meta: dict[str, Any] = {
            "id": self._rid,
            "prompt_tokens": handle.prompt_tokens,
            "completion_tokens": count,
            "cached_tokens": handle.cached_tokens,
            "finish_reason": None,
        }
        if told is not None:
            meta |= self._of_answer(told, count)
        return {"text": text, "meta_info": meta}

    def _of_prompt(self, entries: Sequence[Entry]) -> dict[str, Any]:
        scored = [_finite(each.logprob) for _, each in entries if each is not None]
        numbers = [lp for lp in scored if lp is not None]
        return {
            "input_token_logprobs": [self._entry(token, each) for token, each in entries],
            "input_top_logprobs": [self._top(each) for _, each in entries],
            "prompt_logprob": scored,
            "normalized_prompt_logprob": statistics.fmean(numbers) if numbers else None,
        }

    def _of_answer(self, told: Sequence[TokenLogprob], count: int) -> dict[str, Any]:
        # subtle: a prompt that is only scored keeps what could come next, and not what came
        answer = [] if self._asking.is_scoring else told
        return {
            "output_token_logprobs": [self._entry(each.token_id, each) for each in answer],
            "output_token_logprobs_length": count,
            "output_top_logprobs": [self._top(each) for each in told],
            "token_logprob": [[each.token_id, _finite(each.logprob)] for each in answer],
        }

    def _finish_reason(self, done: Completion) -> dict[str, Any]:
        if self._asking.is_scoring:
            return {"type": "length", "length": 0}
        if done.finish_reason == "length":
            return {"type": "length", "length": done.completion_tokens}
        return {"type": done.finish_reason, "matched": done.stop_match}

    def _entry(self, token: int, told: TokenLogprob | None) -> list[Any]:
        return [told and _finite(told.logprob), token, self._text(token)]

    def _top(self, told: TokenLogprob | None) -> list[list[Any]] | None:
        if told is None or not told.top:
            return None
        return [[_finite(logprob), token, self._text(token)] for token, logprob in told.top]

    def _text(self, token: int) -> str | None:
        if self._tokenizer is None or token < 0:  # an image's placeholder may have no id
            return None
        return self._tokenizer.token_bytes(token).decode("utf-8", errors="replace")


def _finite(logprob: float) -> float | None:
    """JSON has no -inf."""
    return logprob if math.isfinite(logprob) else None

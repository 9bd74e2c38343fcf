"""The door: a caller's prompt and settings become a `Req`, or a `ValueError` in words.

Whatever needs the model to be checked is checked here, in the caller's thread, so that a bad
request never reaches the engine and the next one is served.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from minisgl.detokenizer import Detokenizer
from minisgl.engine.req import Req
from minisgl.sampling import SamplingParams
from minisgl.tokenizer import Tokenizer

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Door:
    """What a request is checked against."""

    tokenizer: Tokenizer
    vocab_size: int
    context_length: int
    pool_slots: int
    eos_ids: frozenset[int]

    def make(self, prompt: Prompt, params: SamplingParams, index: int = 0) -> Req:
        """The `index`-th of `params.n` answers to `prompt`.

        Raises:
            ValueError: with the value that can't be used, and what can.
        """
        ids = self.encode(prompt)
        for i in params.stop_token_ids:
            self._check_id(i, "stop token id")
        room = self.context_length - len(ids)
        stop_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stop_ids |= self.eos_ids
        detokenizer = Detokenizer(
            self.tokenizer,
            skip_special_tokens=params.skip_special_tokens,
            stop=params.stop,
            no_stop_trim=params.no_stop_trim,
            continues=True,
        )
        return Req(
            prompt_ids=ids,
            params=params,
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            stop_ids=stop_ids | detokenizer.stop_token_ids,
            seed=random.getrandbits(64) if params.seed is None else params.seed + index,
            detokenizer=detokenizer,
            index=index,
        )

    def encode(self, prompt: Prompt) -> list[int]:
        """The prompt's ids, checked: not empty, in the vocabulary, with room for one more."""
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt, add_special_tokens=True)
        else:
            ids = [int(i) for i in prompt]
        for i in ids:
            self._check_id(i, "token id")
        if not ids:
            raise ValueError("the prompt is empty: give at least one token")
        most = min(self.context_length, self.pool_slots)
        if len(ids) >= most:
            what = "context" if most == self.context_length else "KV pool (kv_tokens)"
            raise ValueError(
                f"the prompt has {len(ids)} tokens, but the {what} holds {most}, "
                "the answer's first token included"
            )
        return ids

    def _check_id(self, i: int, what: str) -> None:
        if not 0 <= i < self.vocab_size:
            raise ValueError(f"{what} {i} is not in the vocabulary [0, {self.vocab_size})")


def is_single(prompt: Prompt | Sequence[Prompt]) -> bool:
    """Whether this is one prompt and not a list of them."""
    return isinstance(prompt, str) or (len(prompt) > 0 and isinstance(prompt[0], int))

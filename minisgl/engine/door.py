"""The door: a caller's prompt and settings become a `Req`, or a `ValueError` in words.

Whatever needs the model to be checked is checked here, in the caller's thread, so that a bad
request never reaches the engine and the next one is served.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from minisgl.detokenizer import Detokenizer
from minisgl.engine.adjustments import Adjustments
from minisgl.engine.constrained import Constrainer
from minisgl.engine.req import Req
from minisgl.sampling import SamplingParams
from minisgl.tokenizer import Tokenizer

Prompt = str | Sequence[int]


@dataclass(frozen=True)
class Door:
    """What a request is checked against.

    vocab_size: ids below it are tokens, to the model and to the tokenizer.  A model's vocabulary is
    often padded beyond its tokenizer's: such ids are never sampled and nobody may name them.
    """

    tokenizer: Tokenizer
    vocab_size: int
    context_length: int
    pool_slots: int
    eos_ids: frozenset[int]
    constrainer: Constrainer

    def make(self, prompt: Prompt, params: SamplingParams, index: int = 0) -> Req:
        """The `index`-th of `params.n` answers to `prompt`.

        Raises:
            ValueError: with the value that can't be used, and what can.
        """
        ids = self.encode(prompt, answers=params.max_tokens != 0)
        for i in params.stop_token_ids:
            self._check_id(i, "stop token id")
        for i, _ in params.logit_bias:
            self._check_id(i, "logit_bias for token id")
        first = params.prompt_logprobs_from
        if first is not None and first >= len(ids):
            raise ValueError(
                f"prompt_logprobs_from={first}: the prompt has {len(ids)} tokens, so give at most "
                f"{len(ids) - 1}"
            )
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
        stop_ids |= detokenizer.stop_token_ids
        tokens = [i for i in stop_ids if i < self.vocab_size]  # a model may name others as EOS
        return Req(
            prompt_ids=ids,
            params=params,
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            stop_ids=stop_ids,
            seed=random.getrandbits(64) if params.seed is None else params.seed + index,
            detokenizer=detokenizer,
            adjustments=Adjustments.of(params, ids, tokens),
            constraint=self.constrainer.make(params, tokens),
            index=index,
            prompt_logprobs=[None] if first == 0 else [],  # nothing comes before the first token
        )

    def encode(self, prompt: Prompt, *, answers: bool = True) -> list[int]:
        """The prompt's ids, checked: not empty, in the vocabulary, and with room for one more if
        it is to be answered."""
        if isinstance(prompt, str):
            ids = self.tokenizer.encode(prompt, add_special_tokens=True)
        else:
            ids = [int(i) for i in prompt]
        for i in ids:
            self._check_id(i, "token id")
        if not ids:
            raise ValueError("the prompt is empty: give at least one token")
        most = min(self.context_length, self.pool_slots)
        if len(ids) + answers > most:
            what = "context" if most == self.context_length else "KV pool (kv_tokens)"
            raise ValueError(
                f"the prompt has {len(ids)} tokens, but the {what} holds {most}"
                + (", the answer's first token included" if answers else "")
            )
        return ids

    def _check_id(self, i: int, what: str) -> None:
        if not 0 <= i < self.vocab_size:
            raise ValueError(f"{what} {i} is not in the vocabulary [0, {self.vocab_size})")


def is_single(prompt: Prompt | Sequence[Prompt]) -> bool:
    """Whether this is one prompt and not a list of them."""
    return isinstance(prompt, str) or (len(prompt) > 0 and isinstance(prompt[0], int))

"""The door: a caller's prompt and settings become a `Req`, or a `ValueError` in words.

Whatever needs the model to be checked is checked here, in the caller's thread, so that a bad
request never reaches the engine and the next one is served.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from minisgl.detokenizer import Detokenizer
from minisgl.engine.adjustments import Adjustments
from minisgl.engine.constrained import Constrainer
from minisgl.engine.images import ImageReader, Reading
from minisgl.engine.prompt import AnyPrompt, images_of, text_of
from minisgl.engine.req import Req
from minisgl.sampling import SamplingParams
from minisgl.tokenizer import Tokenizer


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
    image_reader: ImageReader | None = None
    """None: the model reads text only."""

    def make(self, prompt: AnyPrompt, params: SamplingParams) -> Req:
        """The request for the first answer to `prompt`.

        Raises:
            ValueError: with the value that can't be used, and what can.
        """
        return self._make(self.read(prompt, answers=params.max_tokens != 0), params, 0)

    def make_all(self, prompt: AnyPrompt, params: SamplingParams) -> list[Req]:
        """The requests for all `params.n` answers to `prompt`, which is read once."""
        reading = self.read(prompt, answers=params.max_tokens != 0)
        return [self._make(reading, params, index) for index in range(params.n)]

    def _make(self, reading: Reading, params: SamplingParams, index: int) -> Req:
        for i in params.stop_token_ids:
            self._check_id(i, "stop token id")
        for i, _ in params.logit_bias:
            self._check_id(i, "logit_bias for token id")
        first = params.prompt_logprobs_from
        if first is not None:
            if first >= len(reading.ids):
                raise ValueError(
                    f"prompt_logprobs_from={first}: the prompt has {len(reading.ids)} tokens, so "
                    f"give at most {len(reading.ids) - 1}"
                )
            params = replace(params, prompt_logprobs_from=reading.place(first))
        room = self.context_length - len(reading.tokens)
        stop_ids = frozenset(params.stop_token_ids)
        if not params.ignore_eos:
            stop_ids |= self.eos_ids
        detokenizer = Detokenizer(
            self.tokenizer,
            skip_special_tokens=params.skip_special_tokens,
            stop=params.stop,
            stop_regex=params.stop_regex,
            no_stop_trim=params.no_stop_trim,
            continues=True,
        )
        stop_ids |= detokenizer.stop_token_ids
        tokens = [i for i in stop_ids if i < self.vocab_size]  # a model may name others as EOS
        return Req(
            prompt_ids=reading.tokens,
            images=reading.images,
            params=params,
            max_tokens=room if params.max_tokens is None else min(params.max_tokens, room),
            stop_ids=stop_ids,
            seed=random.getrandbits(64) if params.seed is None else params.seed + index,
            detokenizer=detokenizer,
            adjustments=Adjustments.of(params, [i for i in reading.ids if i >= 0], tokens),
            constraint=self.constrainer.make(params, tokens),
            index=index,
            prompt_logprobs=[None] if first == 0 else [],  # nothing comes before the first token
        )

    @property
    def encoder(self) -> ImageReader | Tokenizer:
        """What makes ids of a text, the placeholders of images among them."""
        return self.image_reader or self.tokenizer

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; an image is its placeholder, one of them."""
        return self.encoder.encode(text)

    def read(self, prompt: AnyPrompt, *, answers: bool = True) -> Reading:
        """The prompt's ids and tokens, checked: not empty, in the vocabulary, an image for each
        placeholder, and with room for one more if it is to be answered."""
        text, images, reader = text_of(prompt), images_of(prompt), self.image_reader
        ids = self.encode(text) if isinstance(text, str) else _token_ids(text)
        for i in ids:
            if reader is None or not reader.is_placeholder(i):
                self._check_id(i, "token id")
        if not ids:
            raise ValueError("the prompt is empty: give at least one token")
        if reader is None and images:
            raise ValueError(f"{len(images)} images are given, and this model reads text only")
        reading = reader.read(ids, images) if reader else Reading(ids, ids)
        self._check_length(reading, answers=answers)
        return reading

    def _check_length(self, reading: Reading, *, answers: bool) -> None:
        length, most = len(reading.tokens), min(self.context_length, self.pool_slots)
        if length + answers > most:
            its = f" ({', '.join(map(str, reading.images))})" if reading.images else ""
            what = "context" if most == self.context_length else "KV pool (kv_tokens)"
            raise ValueError(
                f"the prompt has {length} tokens{its}, but the {what} holds {most}"
                + (", the answer's first token included" if answers else "")
            )

    def _check_id(self, i: int, what: str) -> None:
        if not 0 <= i < self.vocab_size:
            raise ValueError(f"{what} {i} is not in the vocabulary [0, {self.vocab_size})")


def _token_ids(given: Sequence[int]) -> list[int]:
    try:
        return [int(i) for i in given]
    except (TypeError, ValueError) as error:
        raise ValueError(f"prompt {given!r}: give a text, its token ids, or a Prompt") from error

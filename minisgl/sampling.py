"""`SamplingParams`: how the next token is chosen and when to stop.

One frozen object travels from the caller to the sampler; it checks its own values once, here, and
is changed with `dataclasses.replace`.  Not here: what needs the model to check (a stop id must lie
in the vocabulary, the answer must fit the context), which the engine does at its door.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

MOST_LOGPROBS = 20  # likeliest tokens that `logprobs` may ask for, as in OpenAI's API
MOST_PENALTY = 2.0  # frequency and presence penalties lie in [-2, 2], and
MOST_BIAS = 100.0  # biases in [-100, 100], as there too
MOST_REPETITION = 100.0  # repetition penalties lie in [1/100, 100]


@dataclass(frozen=True)
class SamplingParams:
    """Settings of one request.

    >>> SamplingParams(temperature=0.0, stop="END").stop
    ('END',)
    >>> SamplingParams(top_p=1.2)
    Traceback (most recent call last):
        ...
    ValueError: top_p=1.2: give a number in (0, 1]; 1 turns it off

    Raises:
        ValueError: for a value that is not allowed, with the value and what is allowed.
    """

    n: int = 1
    """Answers to one prompt, each sampled on its own (seeds: `seed`, `seed + 1`, ...)."""

    max_tokens: int | None = None
    """Most tokens of the answer; None: until the context is full."""

    min_tokens: int = 0
    """EOS and stop ids can't be sampled before the answer has this many tokens, and stop strings
    and patterns are looked for only after them."""

    temperature: float = 1.0
    """0 is greedy: always the likeliest token.  1, the default as everywhere in the field, is the
    model's own distribution; higher is more even."""

    top_k: int = -1
    """Choose among this many likeliest tokens; -1 or 0: among all."""

    top_p: float = 1.0
    """Choose among the fewest likeliest tokens whose probabilities reach this sum."""

    min_p: float = 0.0
    """Choose among tokens at least this share as likely as the likeliest; 0: off."""

    repetition_penalty: float = 1.0
    """A token that is in the prompt or in the answer so far has its logit divided by this if it is
    positive, and multiplied if not: once, however often the token occurs.  In [0.01, 100]; 1: off;
    above 1 repeating is less likely (Keskar et al. 2019, arXiv 1909.05858)."""

    frequency_penalty: float = 0.0
    """Subtracted from a token's logit for each time it is in the answer; the prompt does not count,
    as in OpenAI's API.  In [-2, 2]; 0: off."""

    presence_penalty: float = 0.0
    """Subtracted, once, from the logit of each token that is in the answer; else as
    `frequency_penalty`."""

    logit_bias: tuple[tuple[int, float], ...] = ()
    """Added to the logits of these token ids, after the penalties, in [-100, 100]; -inf forbids a
    token.  A dict {id: bias} may be given."""

    seed: int | None = None
    """The same seed gives the same text again; None: a new one each time."""

    stop: tuple[str, ...] = ()
    """Texts that end the answer; one string may be given for a tuple of one."""

    stop_regex: tuple[str, ...] = ()
    """Patterns (Python's syntax, see `minisgl.fsm`) that end the answer where the first of them
    matches, as soon as it does: "[0-9]+" with the first digit.  A match has 1 to 256 characters,
    and is cut off like a stop string; one string may be given for a tuple of one."""

    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the answer, besides the model's EOS."""

    ignore_eos: bool = False
    """Go on after EOS; `stop`, `stop_regex` and `stop_token_ids` still hold."""

    skip_special_tokens: bool = True
    """Leave special tokens (<s>, <|im_end|>, ...) out of the text."""

    no_stop_trim: bool = False
    """Keep what ended the answer, stop string, match or stop token, at the end of its text."""

    regex: str | None = None
    """The answer matches this pattern, from its first character to its last (Python's syntax, see
    `minisgl.fsm`).  One that `max_tokens` or a stop string cuts off is the beginning of a match."""

    json_schema: Any = None
    """The answer is JSON that is valid by this schema: a dict, JSON text of one, True for any JSON,
    a dataclass or a pydantic model."""

    json_space: int = 32
    """With `json_schema`: how many characters of white space may stand where JSON allows any; 0 is
    the compact form.  Without a bound a model may write spaces for ever."""

    logprobs: int | None = None
    """Return the log-probability of each token of the answer, and with it those of this many
    likeliest tokens, at most 20; None: off.

    All log-probabilities are the model's own, in natural logarithms over the tokenizer's tokens:
    before penalties, biases and temperature, which change what is sampled and not what is told."""

    prompt_logprobs_from: int | None = None
    """Return log-probabilities of the prompt's tokens from this position on (the first token of
    all has none), with as many likeliest ones as `logprobs` says; None: off.  Only the tokens
    before that position can come from the cache."""

    namespace: str | None = None
    """Requests share cached prefixes only within one namespace (an adapter, a tenant's salt)."""

    def __post_init__(self) -> None:
        # subtle: a frozen dataclass sets its own fields this way, here only, to their one form
        object.__setattr__(self, "stop", _strings("stop", self.stop))
        object.__setattr__(self, "stop_regex", _strings("stop_regex", self.stop_regex))
        object.__setattr__(self, "stop_token_ids", _ids(self.stop_token_ids))
        object.__setattr__(self, "logit_bias", _biases(self.logit_bias))
        object.__setattr__(self, "json_schema", _schema(self.json_schema))
        self._check_lengths()
        self._check_distribution()
        self._check_pattern()
        if self.seed is not None and not _is_int(self.seed):
            raise ValueError(f"seed={self.seed!r}: give a whole number, or None for a new one")
        for name in ("ignore_eos", "skip_special_tokens", "no_stop_trim"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r}: give True or False")
        if self.logprobs is not None and not (
            _is_int(self.logprobs, at_least=0) and self.logprobs <= MOST_LOGPROBS
        ):
            raise ValueError(
                f"logprobs={self.logprobs!r}: give a whole number from 0 to {MOST_LOGPROBS}, "
                "or None to turn them off"
            )
        first = self.prompt_logprobs_from
        if first is not None and not _is_int(first, at_least=0):
            raise ValueError(
                f"prompt_logprobs_from={first!r}: give a position in the prompt, a whole number of "
                "at least 0, or None to turn them off"
            )
        if self.namespace is not None and not (isinstance(self.namespace, str) and self.namespace):
            raise ValueError(
                f"namespace={self.namespace!r}: give a string that is not empty, or None"
            )

    def _check_lengths(self) -> None:
        if not _is_int(self.n, at_least=1):
            raise ValueError(f"n={self.n!r}: give a whole number of at least 1")
        if self.max_tokens is not None and not _is_int(self.max_tokens, at_least=0):
            raise ValueError(
                f"max_tokens={self.max_tokens!r}: give a whole number of at least 0, "
                "or None for 'until the context is full'"
            )
        if not _is_int(self.min_tokens, at_least=0):
            raise ValueError(f"min_tokens={self.min_tokens!r}: give a whole number of at least 0")
        if self.max_tokens is not None and self.min_tokens > self.max_tokens:
            raise ValueError(
                f"min_tokens={self.min_tokens!r}: give at most max_tokens={self.max_tokens!r}"
            )

    def _check_distribution(self) -> None:
        if not _is_number(self.temperature) or self.temperature < 0:
            raise ValueError(
                f"temperature={self.temperature!r}: give a finite number of at least 0; 0 is greedy"
            )
        if not _is_int(self.top_k, at_least=-1):
            raise ValueError(
                f"top_k={self.top_k!r}: give a whole number of at least 1; -1 or 0 turns it off"
            )
        if not _is_number(self.top_p) or not 0 < self.top_p <= 1:
            raise ValueError(f"top_p={self.top_p!r}: give a number in (0, 1]; 1 turns it off")
        if not _is_number(self.min_p) or not 0 <= self.min_p < 1:
            raise ValueError(f"min_p={self.min_p!r}: give a number in [0, 1); 0 turns it off")
        repetition = self.repetition_penalty
        if not _is_number(repetition) or not 1 / MOST_REPETITION <= repetition <= MOST_REPETITION:
            raise ValueError(
                f"repetition_penalty={repetition!r}: give a number in [0.01, 100]; 1 turns it off"
            )
        for name in ("frequency_penalty", "presence_penalty"):
            penalty = getattr(self, name)
            if not _is_number(penalty) or abs(penalty) > MOST_PENALTY:
                raise ValueError(f"{name}={penalty!r}: give a number in [-2, 2]; 0 turns it off")

    def _check_pattern(self) -> None:
        if self.regex is not None and not isinstance(self.regex, str):
            raise ValueError(f"regex={self.regex!r}: give a pattern as a string, or None")
        if self.regex is not None and self.json_schema is not None:
            raise ValueError("regex and json_schema: an answer can follow one of them; give one")
        if not _is_int(self.json_space, at_least=0):
            raise ValueError(f"json_space={self.json_space!r}: give a whole number of at least 0")


def _is_int(value: object, at_least: int | None = None) -> bool:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    return is_int and (at_least is None or value >= at_least)  # type: ignore[operator]


def _is_number(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)  # type: ignore[arg-type]


def _strings(name: str, given: object) -> tuple[str, ...]:
    """None, one string or several -> a tuple."""
    strings = () if given is None else (given,) if isinstance(given, str) else given
    if isinstance(strings, Iterable):
        strings = tuple(strings)
        if all(isinstance(s, str) and s for s in strings):
            return strings
    raise ValueError(f"{name}={given!r}: give a string or a tuple of strings, none of them empty")


def _schema(schema: object) -> object:
    """A dict becomes its JSON text, so that the settings can be compared and hashed."""
    if not isinstance(schema, Mapping):
        return schema
    try:
        return json.dumps(schema)
    except (TypeError, ValueError) as error:
        raise ValueError(f"json_schema={schema!r} can't be written as JSON: {error}") from error


def _ids(ids: object) -> tuple[int, ...]:
    if ids is None:
        return ()
    if isinstance(ids, Iterable) and not isinstance(ids, (str, bytes)):
        ids = tuple(ids)
        if all(_is_int(i, at_least=0) for i in ids):
            return ids
    raise ValueError(f"stop_token_ids={ids!r}: give token ids, whole numbers of at least 0")


def _biases(biases: object) -> tuple[tuple[int, float], ...]:
    """A dict, pairs or None -> pairs (id, bias) in order of their ids."""
    pairs = () if biases is None else biases.items() if isinstance(biases, Mapping) else biases
    if isinstance(pairs, Iterable) and not isinstance(pairs, (str, bytes)):
        pairs = tuple(pairs)
        if all(_is_bias(pair) for pair in pairs) and len({i for i, _ in pairs}) == len(pairs):
            return tuple(sorted((i, float(bias)) for i, bias in pairs))
    raise ValueError(
        f"logit_bias={biases!r}: give {{token id: bias}}, each id a whole number of at least 0, "
        "and once; each bias a number in [-100, 100], or -inf"
    )


def _is_bias(pair: object) -> bool:
    if not isinstance(pair, (tuple, list)) or len(pair) != 2:
        return False
    token, bias = pair
    allowed = (_is_number(bias) and abs(bias) <= MOST_BIAS) or bias == -math.inf
    return _is_int(token, at_least=0) and allowed

"""`SamplingParams`: how the next token is chosen and when to stop.

One frozen object travels from the caller to the sampler; it checks its own values once, here, and
is changed with `dataclasses.replace`.  Not here: what needs the model to check (a stop id must lie
in the vocabulary, the answer must fit the context), which the engine does at its door.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


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

    temperature: float = 1.0
    """0 is greedy: always the likeliest token.  1, the default as everywhere in the field, is the
    model's own distribution; higher is more even."""

    top_k: int = -1
    """Choose among this many likeliest tokens; -1 or 0: among all."""

    top_p: float = 1.0
    """Choose among the fewest likeliest tokens whose probabilities reach this sum."""

    min_p: float = 0.0
    """Choose among tokens at least this share as likely as the likeliest; 0: off."""

    seed: int | None = None
    """The same seed gives the same text again; None: a new one each time."""

    stop: tuple[str, ...] = ()
    """Texts that end the answer; one string may be given for a tuple of one."""

    stop_token_ids: tuple[int, ...] = ()
    """Token ids that end the answer, besides the model's EOS."""

    ignore_eos: bool = False
    """Go on after EOS; `stop` and `stop_token_ids` still hold."""

    skip_special_tokens: bool = True
    """Leave special tokens (<s>, <|im_end|>, ...) out of the text."""

    no_stop_trim: bool = False
    """Keep what ended the answer, stop string or stop token, at the end of its text."""

    def __post_init__(self) -> None:
        # subtle: a frozen dataclass sets its own fields this way, here only, to their one form
        object.__setattr__(self, "stop", _strings(self.stop))
        object.__setattr__(self, "stop_token_ids", _ids(self.stop_token_ids))
        if not _is_int(self.n, at_least=1):
            raise ValueError(f"n={self.n!r}: give a whole number of at least 1")
        if self.max_tokens is not None and not _is_int(self.max_tokens, at_least=0):
            raise ValueError(
                f"max_tokens={self.max_tokens!r}: give a whole number of at least 0, "
                "or None for 'until the context is full'"
            )
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
        if self.seed is not None and not _is_int(self.seed):
            raise ValueError(f"seed={self.seed!r}: give a whole number, or None for a new one")
        for name in ("ignore_eos", "skip_special_tokens", "no_stop_trim"):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(f"{name}={getattr(self, name)!r}: give True or False")


def _is_int(value: object, at_least: int | None = None) -> bool:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    return is_int and (at_least is None or value >= at_least)  # type: ignore[operator]


def _is_number(value: object) -> bool:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return is_number and math.isfinite(value)  # type: ignore[arg-type]


def _strings(stop: object) -> tuple[str, ...]:
    """None, one string or several -> a tuple."""
    strings = () if stop is None else (stop,) if isinstance(stop, str) else stop
    if isinstance(strings, Iterable):
        strings = tuple(strings)
        if all(isinstance(s, str) and s for s in strings):
            return strings
    raise ValueError(f"stop={stop!r}: give a string or a tuple of strings, none of them empty")


def _ids(ids: object) -> tuple[int, ...]:
    if ids is None:
        return ()
    if isinstance(ids, Iterable) and not isinstance(ids, (str, bytes)):
        ids = tuple(ids)
        if all(_is_int(i, at_least=0) for i in ids):
            return ids
    raise ValueError(f"stop_token_ids={ids!r}: give token ids, whole numbers of at least 0")

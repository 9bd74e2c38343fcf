"""Settings of a gen or of a run: fields of `SamplingParams`, by our names or by SGLang's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any, TypedDict

from minisgl.sampling import SamplingParams


class Settings(TypedDict, total=False):
    """What `gen` takes besides its own arguments, for editors and type checkers."""

    temperature: float
    top_p: float
    top_k: int
    min_p: float
    frequency_penalty: float
    presence_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    seed: int
    stop_regex: str | Sequence[str]
    ignore_eos: bool
    skip_special_tokens: bool
    no_stop_trim: bool
    json_space: int
    logprobs: int
    prompt_logprobs_from: int
    namespace: str
    # SGLang's names
    max_new_tokens: int
    min_new_tokens: int
    return_logprob: bool
    top_logprobs_num: int
    logprob_start_len: int
    return_text_in_logprobs: bool


DEFAULTS: Mapping[str, Any] = {"max_tokens": 128}  # of a gen; the rest as in `SamplingParams`

_OURS = frozenset(field.name for field in fields(SamplingParams))
_OTHER_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens"}
_LOGPROBS = ("return_logprob", "top_logprobs_num", "logprob_start_len", "return_text_in_logprobs")


def is_setting(name: str) -> bool:
    """Whether `name` is one."""
    return name in _OURS or name in _OTHER_NAMES or name in _LOGPROBS


def settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """What is given, as fields of `SamplingParams`.  None means "not given", except for
    `max_tokens=None`, "until the context is full".

    >>> settings({"max_new_tokens": 8, "temperature": 0, "stop": None})
    {'max_tokens': 8, 'temperature': 0}
    >>> settings({"return_logprob": True, "top_logprobs_num": 2, "logprob_start_len": 5})
    {'logprobs': 2, 'prompt_logprobs_from': 6}

    Raises:
        ValueError: a value that is not allowed, with what is.
        TypeError: an unknown name.
    """
    asked = {_OTHER_NAMES.get(name, name): value for name, value in given.items()}
    logprobs = {name: asked.pop(name) for name in _LOGPROBS if name in asked}
    asked = {k: v for k, v in asked.items() if v is not None or k == "max_tokens"}
    asked |= _logprobs(**logprobs)
    SamplingParams(**asked)
    return asked


def _logprobs(
    *,
    return_logprob: bool | None = None,
    top_logprobs_num: int | None = None,
    logprob_start_len: int | None = None,
    return_text_in_logprobs: bool | None = None,
) -> dict[str, Any]:
    if return_text_in_logprobs is False:
        raise ValueError("return_text_in_logprobs=False: tokens always come with their text")
    if return_logprob is False:
        return {}
    asked: dict[str, Any] = {}
    if return_logprob or top_logprobs_num is not None:
        asked["logprobs"] = top_logprobs_num or 0
    if logprob_start_len is not None and logprob_start_len >= 0:
        # SGLang counts from the token before the first one that is told; 0 is all of them.
        asked["prompt_logprobs_from"] = logprob_start_len + 1 if logprob_start_len else 0
    return asked

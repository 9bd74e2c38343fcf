"""SamplingParams says no at once, with the value and what is allowed."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, fields, replace
from typing import Any

import pytest

from minisgl.sampling import SamplingParams


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("temperature", -0.1, "at least 0"),
        ("temperature", math.nan, "finite"),
        ("temperature", math.inf, "finite"),
        ("temperature", "hot", "finite"),
        ("temperature", True, "finite"),
        ("top_k", -2, "at least 1"),
        ("top_k", 1.5, "whole"),
        ("top_p", 0.0, r"\(0, 1\]"),
        ("top_p", 1.2, r"\(0, 1\]"),
        ("top_p", math.nan, r"\(0, 1\]"),
        ("min_p", -0.1, r"\[0, 1\)"),
        ("min_p", 1.0, r"\[0, 1\)"),
        ("seed", 1.0, "whole number"),
        ("max_tokens", -1, "at least 0"),
        ("max_tokens", 2.0, "whole number"),
        ("max_tokens", True, "whole number"),
        ("min_tokens", -1, "at least 0"),
        ("min_tokens", 1.5, "whole number"),
        ("n", 0, "at least 1"),
        ("n", 1.0, "whole number"),
        ("repetition_penalty", 0.0, r"\[0\.01, 100\]"),
        ("repetition_penalty", 1e9, r"\[0\.01, 100\]"),
        ("repetition_penalty", math.nan, r"\[0\.01, 100\]"),
        ("frequency_penalty", 2.1, r"\[-2, 2\]"),
        ("presence_penalty", -2.1, r"\[-2, 2\]"),
        ("presence_penalty", "much", r"\[-2, 2\]"),
        ("logit_bias", {"AI": -100}, "token id"),
        ("logit_bias", {"999999": 5}, "whole number"),
        ("logit_bias", {-1: 5}, "at least 0"),
        ("logit_bias", {True: 5}, "whole number"),
        ("logit_bias", {5: math.inf}, "-inf"),
        ("logit_bias", {5: math.nan}, "-inf"),
        ("logit_bias", {5: 100.5}, r"\[-100, 100\]"),
        ("logit_bias", ((5, 1.0), (5, 2.0)), "once"),
        ("logit_bias", ((5, 1.0, 2.0),), "token id"),
        ("logit_bias", "5", "token id"),
        ("logit_bias", 5, "token id"),
        ("logprobs", -1, "0 to 20"),
        ("logprobs", 21, "0 to 20"),
        ("logprobs", True, "0 to 20"),
        ("prompt_logprobs_from", -1, "at least 0"),
        ("prompt_logprobs_from", "0", "whole number"),
        ("stop_regex", ["a", ""], "none of them empty"),
        ("stop_regex", 5, "stop_regex=5: give a string"),
        ("namespace", "", "not empty"),
        ("namespace", 1, "string"),
        ("stop", "", "none of them empty"),
        ("stop", ("a", ""), "none of them empty"),
        ("stop", (1,), "strings"),
        ("stop", 1, "strings"),
        ("stop_token_ids", (-1,), "at least 0"),
        ("stop_token_ids", "12", "token ids"),
        ("stop_token_ids", 7, "token ids"),
        ("ignore_eos", 1, "True or False"),
        ("skip_special_tokens", None, "True or False"),
        ("no_stop_trim", "yes", "True or False"),
    ],
)
def test_bad_value_is_named_with_what_is_allowed(name: str, value: Any, allowed: str) -> None:
    with pytest.raises(ValueError, match=allowed) as error:
        SamplingParams(**{name: value})
    assert f"{name}={value!r}" in str(error.value)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0},
        {"temperature": 1e-5},
        {"top_k": -1},
        {"top_k": 0},
        {"top_k": 10**6},
        {"top_p": 1},
        {"min_p": 0},
        {"min_tokens": 3, "max_tokens": 3},
        {"repetition_penalty": 0.01},
        {"repetition_penalty": 100},
        {"frequency_penalty": -2},
        {"presence_penalty": 2.0},
        {"logprobs": 0},
        {"logprobs": 20},
        {"prompt_logprobs_from": 0},
        {"namespace": "tenant"},
        {"max_tokens": 0},
        {"max_tokens": None},
        {"seed": -3},
        {"seed": 2**70},
    ],
)
def test_the_ends_of_the_ranges_are_allowed(params: dict[str, Any]) -> None:
    for name, value in params.items():
        assert getattr(SamplingParams(**params), name) == value


def test_lists_and_single_strings_have_one_form() -> None:
    params = SamplingParams(stop=["a", "b"], stop_token_ids=[1, 2])  # type: ignore[arg-type]
    assert (params.stop, params.stop_token_ids) == (("a", "b"), (1, 2))
    assert SamplingParams(stop="STOP") == SamplingParams(stop=("STOP",))  # type: ignore[arg-type]
    assert SamplingParams(stop=None, stop_token_ids=None) == SamplingParams()  # type: ignore[arg-type]
    assert len({SamplingParams(), SamplingParams(), SamplingParams(seed=1)}) == 2


def test_fewer_tokens_at_most_than_at_least() -> None:
    with pytest.raises(ValueError, match="min_tokens=5: give at most max_tokens=4"):
        SamplingParams(min_tokens=5, max_tokens=4)


def test_biases_have_one_form() -> None:
    pairs = ((3, -math.inf), (7, 1.0))
    for given in ({7: 1, 3: -math.inf}, [(7, 1), (3, -math.inf)], pairs):
        assert SamplingParams(logit_bias=given).logit_bias == pairs  # type: ignore[arg-type]
    assert SamplingParams(logit_bias=None).logit_bias == ()  # type: ignore[arg-type]
    hash(SamplingParams(logit_bias={7: 1}))  # type: ignore[arg-type]


def test_frozen_and_checked_again_by_replace() -> None:
    params = SamplingParams(temperature=0.5, stop="x", seed=3)  # type: ignore[arg-type]
    with pytest.raises(FrozenInstanceError):
        params.seed = 1  # type: ignore[misc]
    changed = replace(params, top_k=5)
    for field in fields(params):
        expected = 5 if field.name == "top_k" else getattr(params, field.name)
        assert getattr(changed, field.name) == expected
    with pytest.raises(ValueError, match="top_p=2"):
        replace(params, top_p=2)

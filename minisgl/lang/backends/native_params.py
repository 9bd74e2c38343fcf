"""`SamplingParams` as the `sampling_params` of SGLang's native API.

Only what is not the default is sent: servers of different ages know different settings, and refuse
or ignore the others.
"""

from __future__ import annotations

import json
from typing import Any

from minisgl.sampling import SamplingParams

_SAME = (
    "n", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "frequency_penalty",
    "presence_penalty", "ignore_eos", "skip_special_tokens", "no_stop_trim", "regex",
)  # fmt: skip
_NAMES = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"} | {n: n for n in _SAME}
_OURS = {"seed": "seed", "namespace": "namespace", "json_space": "json_space"}
_SGLANG = {"seed": "sampling_seed"}
_ALWAYS = ("max_tokens", "temperature")  # older servers have other defaults


def sampling_params(params: SamplingParams, *, is_ours: bool) -> dict[str, Any]:
    """Settings by the server's names.

    >>> sampling_params(SamplingParams(max_tokens=8, stop="END", seed=1), is_ours=False)
    {'max_new_tokens': 8, 'temperature': 1.0, 'sampling_seed': 1, 'stop': ['END']}

    Args:
        is_ours: the server is minisgl's, and not SGLang's.

    Raises:
        ValueError: a setting that the server has not.
    """
    if params.json_space != SamplingParams.json_space and not is_ours:
        raise ValueError(f"json_space={params.json_space}: SGLang's server has no such setting")
    names = _NAMES | (_OURS if is_ours else _SGLANG)
    sent = {
        theirs: getattr(params, ours)
        for ours, theirs in names.items()
        if ours in _ALWAYS or getattr(params, ours) != getattr(SamplingParams, ours)
    }
    if params.json_schema is not None:
        from minisgl.fsm.json_schema import as_schema  # only here: with it comes numpy

        sent["json_schema"] = json.dumps(as_schema(params.json_schema))
    if params.stop:
        sent["stop"] = list(params.stop)
    if params.stop_regex:
        sent["stop_regex"] = list(params.stop_regex)
    if params.stop_token_ids:
        sent["stop_token_ids"] = list(params.stop_token_ids)
    if params.logit_bias:
        sent["logit_bias"] = {str(i): max(bias, -100.0) for i, bias in params.logit_bias}
    return sent

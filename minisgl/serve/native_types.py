"""The bodies of SGLang's own API that we read, and `SamplingParams` from them.

Its clients send every parameter they know of, so that "off" comes in many forms: null, "", [] for
`stop`, [] for lists of ids.  What is not known at all is refused.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from minisgl.sampling import SamplingParams
from minisgl.serve.openai_types import Strict, biases


class NativeParams(Strict):
    """`sampling_params`."""

    max_new_tokens: int | None = Field(default=128, description="null: until the context is full")
    min_new_tokens: int | None = None
    n: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: str | list[str] | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    seed: int | None = None
    ignore_eos: bool | None = None
    regex: str | None = None
    json_schema: str | dict[str, Any] | None = None
    json_space: int | None = None
    dtype: Literal["int", "float", "str", "bool"] | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = Field(
        default=None, description="no difference: text is the tokens' own bytes"
    )
    no_stop_trim: bool | None = None
    namespace: str | None = None

    def sampling(self, **more: Any) -> SamplingParams:
        """Of these, and `more`; ValueError for a value that is not allowed."""
        same = (
            "n stop_token_ids temperature top_p top_k min_p frequency_penalty presence_penalty "
            "repetition_penalty seed ignore_eos regex json_schema json_space "
            "skip_special_tokens no_stop_trim namespace"
        )
        given = {name: getattr(self, name) for name in same.split()}
        given |= {"min_tokens": self.min_new_tokens, "logit_bias": biases(self.logit_bias)}
        stop, patterns = _listed(self.stop), _listed(self.stop_regex)
        if self.dtype is not None:
            if self.regex is not None or self.json_schema is not None:
                raise ValueError("dtype: give it, a regex or a json_schema, and not two of them")
            from minisgl.lang.dtypes import reading_of  # here: few need the language

            reading = reading_of(self.dtype)
            given |= reading.settings
            stop += reading.stop
        given["stop"] = [s for s in dict.fromkeys(stop) if s]
        given["stop_regex"] = [pattern for pattern in patterns if pattern]
        given = {k: v for k, v in (given | more).items() if v is not None}
        return SamplingParams(max_tokens=self.max_new_tokens, **given)


def _listed(given: str | list[str] | None) -> list[str]:
    return [given] if isinstance(given, str) else list(given or ())


class GenerateRequest(Strict):
    """POST /generate.  Lists of texts, or of lists of ids, are batches."""

    text: str | list[str] | None = None
    input_ids: list[int] | list[list[int]] | None = None
    sampling_params: NativeParams | list[NativeParams] | None = None
    image_data: str | list[str | list[str] | None] | None = Field(
        default=None,
        description='base64, data: URLs, paths or URLs; "video:" and base64 is a video',
    )
    rid: str | list[str] | None = Field(default=None, description="what meta_info.id is")
    return_logprob: bool | None = None
    logprob_start_len: int | None = Field(
        default=None,
        description="log-probabilities of the prompt from the token after this one on; 0: of all "
        "tokens; -1, the default with max_new_tokens > 0: of none",
    )
    top_logprobs_num: int | None = None
    return_text_in_logprobs: bool | None = None
    stream: bool | None = None


class ConcatenateRequest(Strict):
    """POST /concate_and_append_request."""

    src_rids: list[str]
    dst_rid: str

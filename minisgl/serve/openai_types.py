"""The bodies of OpenAI's API that we read, and `SamplingParams` from them.

As there, a field that nobody knows is refused, and so is one of another type.  Fields that are ours
are marked; OpenAI's client sends them with `extra_body={...}`.
"""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from minisgl.sampling import SamplingParams


class Strict(BaseModel):
    """Unknown fields and other types are refused: "5" is no number."""

    model_config = ConfigDict(extra="forbid", strict=True)


class StreamOptions(Strict):
    """include_usage: one more chunk at the end says what was used."""

    include_usage: bool | None = None


class Sampled(Strict):
    """What completions and chat have in common; None is the default of `SamplingParams`."""

    model: str | None = None
    n: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stop: str | list[str] | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[str, float] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    user: str | None = Field(default=None, description="written into the access log")

    # ours
    top_k: int | None = None
    min_p: float | None = None
    min_tokens: int | None = None
    repetition_penalty: float | None = None
    stop_regex: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    regex: str | None = None
    json_schema: Any = None
    json_space: int | None = None
    namespace: str | None = None

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with what was used."""
        return bool(self.stream_options and self.stream_options.include_usage)

    def sampling(self, **more: Any) -> SamplingParams:
        """Of this body, and `more` that its kind adds; ValueError for a value not allowed."""
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only with stream=true")
        same = (
            "n temperature top_p seed presence_penalty frequency_penalty top_k min_p min_tokens "
            "repetition_penalty stop_token_ids ignore_eos skip_special_tokens no_stop_trim regex "
            "json_schema json_space namespace"
        )
        given = {name: getattr(self, name) for name in same.split()}
        given |= {"stop": self.stop or None, "stop_regex": self.stop_regex or None}
        given |= {"logit_bias": biases(self.logit_bias), **more}
        return SamplingParams(**{k: v for k, v in given.items() if v is not None})


class CompletionRequest(Sampled):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    max_tokens: int | None = 16
    echo: bool | None = None
    logprobs: int | None = None
    best_of: int | None = None


class ImageURL(Strict):
    """A data: URL; an http URL or a file's path where the server allows it; base64."""

    url: str
    detail: Literal["auto"] | None = None


class Part(Strict):
    """A part of a message."""

    type: Literal["text", "image_url", "video_url"]
    text: str | None = None
    image_url: ImageURL | None = None
    video_url: ImageURL | None = None


class Message(BaseModel):
    """One message.  Its other fields (name, tool_calls, ...) go to the model's chat template."""

    model_config = ConfigDict(extra="allow", strict=True)

    role: str
    content: str | list[Part] | None = None


class JsonSchema(Strict):
    """strict: true or false are the same here: answers always follow the schema."""

    name: str | None = None
    description: str | None = None
    schema_: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Strict):
    """What the answer looks like."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @property
    def schema_of_answer(self) -> dict[str, Any] | None:
        """None: any text."""
        match self.type:
            case "json_object":
                return {"type": "object"}
            case "json_schema":
                if self.json_schema is None:
                    raise ValueError("response_format: json_schema is missing")
                return self.json_schema.schema_
        return None


class Function(Strict):
    """A function that the model may call."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(Strict):
    """The only kind that there is."""

    type: Literal["function"]
    function: Function


class FunctionName(Strict):
    """Of one of the tools."""

    name: str


class NamedTool(Strict):
    """The tool that is to be called."""

    type: Literal["function"]
    function: FunctionName


class ChatRequest(Sampled):
    """POST /v1/chat/completions."""

    messages: list[Message]
    add_generation_prompt: bool | None = Field(
        default=None, description="false: the prompt ends with the last message, as it is"
    )
    continue_final_message: bool | None = Field(
        default=None, description="the answer goes on with the last message, and repeats none of it"
    )
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    response_format: ResponseFormat | None = None
    tools: list[Tool] | None = None
    tool_choice: Literal["none", "auto", "required"] | NamedTool | None = None
    parallel_tool_calls: bool | None = None

    @property
    def ending(self) -> dict[str, bool]:
        """How the prompt ends, as `ChatTemplate.encode` takes it."""
        goes_on = bool(self.continue_final_message)
        if goes_on and self.add_generation_prompt:
            raise ValueError("add_generation_prompt and continue_final_message: give one of them")
        begins = self.add_generation_prompt is not False and not goes_on
        return {"add_generation_prompt": begins, "continue_final_message": goes_on}

    @property
    def most_tokens(self) -> int | None:
        """The smaller of the two limits; None: until the context is full."""
        given = [n for n in (self.max_tokens, self.max_completion_tokens) if n is not None]
        return min(given, default=None)

    @property
    def num_logprobs(self) -> int | None:
        """As `SamplingParams.logprobs`."""
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs: only with logprobs=true")
        return (self.top_logprobs or 0) if self.logprobs else None


def biases(given: dict[str, float] | None) -> dict[int, float] | None:
    """`logit_bias` with numbers for keys; JSON has only strings."""
    if given is None:
        return None
    try:
        return {int(token): bias for token, bias in given.items()}
    except ValueError as error:
        raise ValueError(f"logit_bias: its keys are token ids, and one is none: {error}") from error

"""`LM`: any backend as a language model of DSPy's, which writes its prompts itself.

    import dspy
    from minisgl.lang.dspy import LM

    dspy.configure(lm=LM(Engine()), adapter=dspy.JSONAdapter())
    dspy.Predict("question -> answer")(question="What is the capital of France?").answer

Needs the extra `dspy`.  With an engine in this process there is no server between the two: a DSPy
module that is called many times shares the prefix of its prompts by the radix tree, and with
`JSONAdapter` its answers are held to their form by a schema, so that even a small model's can be
read.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import dspy

from minisgl.lang.api import assistant, function, gen, image, role
from minisgl.lang.backends import as_backend
from minisgl.lang.ir import Chain
from minisgl.lang.state import ProgramState
from minisgl.lang.usage import Tally

# DSPy's own, about what it keeps of calls; nothing that a model is told.
_OF_DSPY = ("cache", "rollout_id", "num_retries")


@function
def conversation(s: ProgramState, messages: Sequence[Mapping[str, Any]]) -> None:
    """What DSPy asks, as a program."""
    for message in messages:
        s += role(message["role"], said(message["content"]))
    s += assistant(gen("answer"))


class LM(dspy.BaseLM):  # type: ignore[misc]  # DSPy has no types
    """A backend for DSPy.

    Args:
        backend: an `Engine`, a `Runtime` or another backend; None: the default one.
        **settings: of every call, by the fields of `SamplingParams` or SGLang's names for them.
    """

    def __init__(self, backend: Any = None, **settings: Any) -> None:
        self.backend = as_backend(backend)
        super().__init__(model=self.backend.name, model_type="chat", cache=False, **settings)

    @property
    def supports_response_schema(self) -> bool:
        """Answers are held to a JSON schema."""
        return True

    @property
    def supported_params(self) -> set[str]:
        """What DSPy may ask for, by OpenAI's names."""
        return {"temperature", "max_tokens", "top_p", "n", "stop", "seed", "response_format"}

    def forward(
        self, prompt: str | None = None, messages: Any = None, **asked: Any
    ) -> SimpleNamespace:
        """A call, whose reply has OpenAI's form."""
        turns = messages or [{"role": "user", "content": prompt}]
        state = conversation.run(turns, backend=self.backend, **self._settings(asked))
        return reply_of(state, self.model)

    async def aforward(
        self, prompt: str | None = None, messages: Any = None, **asked: Any
    ) -> SimpleNamespace:
        """`forward` for a coroutine."""
        turns = messages or [{"role": "user", "content": prompt}]
        state = await conversation.arun(turns, backend=self.backend, **self._settings(asked))
        return reply_of(state, self.model)

    def _settings(self, asked: Mapping[str, Any]) -> dict[str, Any]:
        given = {**self.kwargs, **asked}
        form = given.pop("response_format", None)
        if form is not None:
            given["json_schema"] = schema_in(form)
        return {k: v for k, v in given.items() if v is not None and k not in _OF_DSPY}


def schema_in(form: Any) -> Any:
    """The JSON schema that a `response_format` asks for; True for any JSON.

    Raises:
        ValueError: it asks for something else.
    """
    match form:
        case {"type": "json_object"}:
            return True
        case {"type": "json_schema", "json_schema": {"schema": schema}}:
            return schema
        case type():  # a pydantic model
            return form
    raise ValueError(f"response_format={form!r}: give a JSON schema, or any JSON")


def said(content: Any) -> Chain:
    """A message's content, text or OpenAI's parts, as a program says it.

    Raises:
        ValueError: a part that is neither text nor a picture.
    """
    said = Chain(())
    for part in [{"type": "text", "text": content}] if isinstance(content, str) else content:
        match part:
            case {"type": "text", "text": str(text)}:
                said = said + text
            case {"type": "image_url", "image_url": {"url": url}}:
                said = said + image(url)
            case _:
                raise ValueError(f"{part!r}: a message has texts and pictures")
    return said


def reply_of(state: ProgramState, model: str) -> SimpleNamespace:
    """What OpenAI's API would have replied."""
    answers, metas = state["answer"], state.get_meta_info("answer")
    if isinstance(answers, str):
        answers, metas = [answers], [metas]
    took = Tally.of_call(*metas)
    choices = [
        SimpleNamespace(
            index=i,
            message=SimpleNamespace(role="assistant", content=text, tool_calls=None),
            finish_reason=meta.get("finish_reason", {}).get("type", "stop"),
            logprobs=None,
        )
        for i, (text, meta) in enumerate(zip(answers, metas, strict=True))
    ]
    usage = {
        "prompt_tokens": took.prompt_tokens,
        "completion_tokens": took.completion_tokens,
        "total_tokens": took.prompt_tokens + took.completion_tokens,
    }
    return SimpleNamespace(id=str(uuid.uuid4()), model=model, choices=choices, usage=usage)

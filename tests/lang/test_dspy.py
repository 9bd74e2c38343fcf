"""Our models in DSPy's programs, with DSPy itself; it is no part of the usual installation."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import minisgl.lang as sgl
from tests.lang.fake import FakeBackend

dspy = pytest.importorskip("dspy", reason="DSPy is not installed: pip install 'minisgl[dspy]'")

from minisgl.lang.dspy import LM, said, schema_in  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def runtime(default_model_dir: Path) -> Iterator[sgl.Runtime]:
    with sgl.Runtime(str(default_model_dir), kv_tokens=8192) as runtime:
        yield runtime


def test_a_prompt_messages_and_several_answers() -> None:
    backend = FakeBackend()
    lm = LM(backend, max_tokens=4)
    (answer,) = lm("Who?")
    (text,) = backend.asked("generate")
    assert text == "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n"
    assert len(answer.split()) == 4
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]
    assert len(lm(messages=turns, n=3, temperature=0.5)) == 3
    _, text, params = backend.calls[-1]
    assert text.startswith("<|im_start|>system\nBe brief.") and params.temperature == 0.5
    assert asyncio.run(lm.acall("Who?")) == [answer]
    assert len(lm.history) == 3 and lm.history[0]["outputs"] == [answer]
    with pytest.raises(TypeError, match="loudness"):
        lm("Who?", loudness=3)


def test_what_a_message_may_hold_and_what_a_form_asks() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {"url": "http://b"}}]
    assert [type(node).__name__ for node in said(parts).nodes] == ["Text", "Image"]
    with pytest.raises(ValueError, match="texts and pictures"):
        said([{"type": "input_audio"}])
    schema = {"type": "object"}
    assert schema_in({"type": "json_schema", "json_schema": {"schema": schema}}) == schema
    assert schema_in({"type": "json_object"}) is True
    with pytest.raises(ValueError, match="response_format="):
        schema_in({"type": "text"})


def test_a_module_on_an_engine_in_this_process(runtime: sgl.Runtime) -> None:
    """A model of 135 million parameters, and answers that DSPy can read all the same."""
    lm = LM(runtime, temperature=0, max_tokens=96)
    before = runtime.engine.stats()
    with dspy.context(lm=lm, adapter=dspy.JSONAdapter()):
        judge = dspy.Predict("sentence -> is_positive: bool, word: str")
        sentences = ["What a wonderful day!", "It was a terrible evening."]
        found = [judge(sentence=sentence) for sentence in sentences]
    assert all(isinstance(one.is_positive, bool) and isinstance(one.word, str) for one in found)
    after = runtime.engine.stats()
    assert after.cached_tokens - before.cached_tokens > 100  # what both prompts begin with
    usage: dict[str, Any] = lm.history[-1]["usage"]
    assert usage["prompt_tokens"] > 100 and usage["completion_tokens"] > 5


def test_the_rag_pipeline_of_the_paper(runtime: sgl.Runtime) -> None:
    from scripts.examples import rag_dspy

    with dspy.context(lm=LM(runtime, temperature=0, max_tokens=96), adapter=dspy.JSONAdapter()):
        pipeline = rag_dspy.Rag()
        found = pipeline(question="How tall is the tower of Brenn?")
    assert "63 metres" in found.context[0] and isinstance(found.answer, str)
    assert json.dumps(found.answer)

"""DSPy's own client against the server; it is no part of the usual installation."""

from __future__ import annotations

from typing import Any

import pytest

from minisgl import SamplingParams
from tests.serve.common import Running

dspy = pytest.importorskip("dspy", reason="DSPy is not installed: pip install 'minisgl[dspy]'")

pytestmark = pytest.mark.filterwarnings("ignore")  # those of what it imports

MESSAGES = [{"role": "user", "content": "Is the sky blue?"}]


def lm(server: Running, **settings: Any) -> Any:
    base = {"api_base": f"{server.url}/v1", "api_key": "none", "cache": False}
    return dspy.LM("openai/tiny", **base, **{"temperature": 0, "max_tokens": 8, **settings})


def test_it_gets_the_engine_s_answers(server: Running) -> None:
    engine = server.engine
    prompt = engine.chat_template.encode(MESSAGES, engine.door.encoder)
    whole = engine.generate(prompt, SamplingParams(temperature=0.0, max_tokens=8)).text
    assert lm(server)(messages=MESSAGES) == [whole]
    assert lm(server, n=2)("Is the sky blue?") == [whole] * 2


def test_a_module_s_answer_has_its_form(server: Running) -> None:
    model = lm(server, extra_body={"regex": '\\{"answer": "(yes|no)"\\}'}, max_tokens=40)
    with dspy.context(lm=model, adapter=dspy.JSONAdapter()):
        answer = dspy.Predict("question -> answer")(question="Is the sky blue?").answer
    assert answer in ("yes", "no")

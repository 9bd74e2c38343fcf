"""Tools: in the prompt by the model's own template, and calls found in what the model writes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisgl import Engine
from minisgl.chat_template import ChatTemplate
from minisgl.serve.tools import HERMES, LLAMA, MISTRAL, Call, Splitter, Style, parse, style_of
from scripts.make_tiny_model import CHAT_TEMPLATE
from tests.serve.common import Running, serving
from tests.serve.test_openai import MESSAGES

WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "what the sky does",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
CLOCK: dict[str, Any] = {"type": "function", "function": {"name": "clock"}}
TIME = '{"name": "clock", "arguments": {}}'
HERMES_TEMPLATE = (
    "{% if tools %}Tools: {{ tools | tojson }} Call them: <tool_call>...</tool_call>\n{% endif %}"
    "{% for m in messages if m.tool_calls %}{{ m.tool_calls[0].function.arguments.city }}"
    "{% endfor %}" + CHAT_TEMPLATE.replace("message['content']", "(message['content'] or '')")
)


@pytest.fixture(scope="module")
def tooled(engine: Engine) -> Iterator[Running]:
    template = ChatTemplate(str(engine.config.model), HERMES_TEMPLATE)
    with serving(engine, template) as running:
        yield running


def answering(patch: pytest.MonkeyPatch, tooled: Running, text: str) -> None:
    """The model says `text`."""
    submit = tooled.engine.submit_all

    def forced(prompts: Any, params: Any) -> Any:
        from dataclasses import replace
        from re import escape

        return submit(prompts, [replace(p, regex=escape(text), json_schema=None) for p in params])

    patch.setattr(tooled.engine, "submit_all", forced)


def chat(server: Running, **more: Any) -> Any:
    return server.openai.chat.completions.create(
        model="default", messages=MESSAGES, tools=[WEATHER, CLOCK], **more
    )


class TestParse:
    @pytest.mark.parametrize(
        ("style", "text", "said", "calls"),
        [
            (HERMES, f"<tool_call>\n{TIME}\n</tool_call>", "", [Call("clock", "{}")]),
            (HERMES, f"Hm. <tool_call>{TIME}</tool_call>" * 2, "Hm.", [Call("clock", "{}")] * 2),
            (HERMES, f"<tool_call>{TIME}", "", [Call("clock", "{}")]),
            (HERMES, '<tool_call>{"name": "clock"}', "", [Call("clock", "{}")]),
            (MISTRAL, f"[{TIME}, {TIME}]", "", [Call("clock", "{}")] * 2),
            (MISTRAL, f"[TOOL_CALLS] [{TIME}]", "", [Call("clock", "{}")]),
            (LLAMA, ' {"name": "clock", "parameters": {"ä": 1}}', "", [Call("clock", '{"ä": 1}')]),
        ],
    )  # fmt: skip
    def test_calls(self, style: Style, text: str, said: str, calls: list[Call]) -> None:
        assert parse(text, style, ["clock"]) == (said, calls)

    @pytest.mark.parametrize(
        ("style", "text"),
        [
            (HERMES, "Just words."),
            (HERMES, '<tool_call>{"name": "other", "arguments": {}}</tool_call>'),
            (HERMES, '<tool_call>{"name": "clock", "argum'),
            (HERMES, '<tool_call>{"name": "clock", "arguments": [1]}</tool_call>'),
            (MISTRAL, "[1, 2]"),
            (MISTRAL, "[]"),
            (MISTRAL, "[" * 100_000),
            (LLAMA, '{"name": ["clock"]}'),
            (LLAMA, "5"),
            (LLAMA, ""),
        ],
    )
    def test_what_is_no_call_stays_as_it_is(self, style: Style, text: str) -> None:
        assert parse(text, style, ["clock"]) == (text, [])

    def test_the_style_is_the_template_s(self) -> None:
        assert style_of(HERMES_TEMPLATE) is HERMES and style_of("[TOOL_CALLS]") is MISTRAL
        assert style_of("parameters") is LLAMA

    @given(
        st.sampled_from([HERMES, MISTRAL, LLAMA]),
        st.lists(st.sampled_from(["<", "tool_call", ">", "<tool_call>", "{", "[", "a", " "])),
    )
    def test_what_was_shown_is_a_prefix_and_no_call(self, style: Style, pieces: list[str]) -> None:
        splitter = Splitter(style)
        shown = "".join(map(splitter.push, pieces))
        text = "".join(pieces)
        assert text.startswith(shown) and splitter.shown == len(shown)
        if style is HERMES:
            assert "<tool_call>" not in shown
            if "<" not in text:
                assert shown == text  # nothing is held back for long
        elif text.lstrip()[:1] not in (style.begins, ""):
            assert shown == text
        else:
            assert shown == ""


class TestChat:
    CALL = '<tool_call>{"name": "weather", "arguments": {"city": "Rome"}}</tool_call>'

    def test_a_call_is_a_call(self, tooled: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        answering(monkeypatch, tooled, "Well. " + self.CALL + self.CALL)
        (choice,) = chat(tooled).choices
        assert choice.finish_reason == "tool_calls" and choice.message.content == "Well."
        calls = choice.message.tool_calls
        assert [call.function.name for call in calls] == ["weather"] * 2
        assert json.loads(calls[0].function.arguments) == {"city": "Rome"}
        assert calls[0].id != calls[1].id
        (choice,) = chat(tooled, parallel_tool_calls=False).choices
        assert len(choice.message.tool_calls) == 1

    def test_in_a_stream_too(self, tooled: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        answering(monkeypatch, tooled, "Well <b. " + self.CALL)
        pieces = [piece.choices[0] for piece in chat(tooled, stream=True)]
        assert "".join(piece.delta.content or "" for piece in pieces) == "Well <b. "
        (calls,) = [piece.delta.tool_calls for piece in pieces if piece.delta.tool_calls]
        assert calls[0].index == 0 and calls[0].function.name == "weather"
        assert pieces[-1].finish_reason == "tool_calls"

    def test_words_are_words(self, tooled: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        for text in ("It is late.", "<tool_call>nonsense</tool_call>"):
            with monkeypatch.context() as patch:
                answering(patch, tooled, text)
                assert chat(tooled).choices[0].message.content == text
                pieces = [piece.choices[0] for piece in chat(tooled, stream=True)]
                assert "".join(piece.delta.content or "" for piece in pieces) == text
                assert pieces[-1].finish_reason == "stop"

    @pytest.mark.parametrize("stream", [False, True])
    def test_it_can_be_made_to_call(self, tooled: Running, stream: bool) -> None:
        named = {"type": "function", "function": {"name": "weather"}}
        if stream:
            pieces = [piece.choices[0] for piece in chat(tooled, tool_choice=named, stream=True)]
            assert not any(piece.delta.content for piece in pieces)
            reason, calls = pieces[-1].finish_reason, pieces[-1].delta.tool_calls
        else:
            (choice,) = chat(tooled, tool_choice=named).choices
            reason, calls = choice.finish_reason, choice.message.tool_calls
        assert reason == "tool_calls" and len(calls) == 1
        assert calls[0].function.name == "weather"
        assert json.loads(calls[0].function.arguments)["city"] in ("Rome", "Oslo")

    def test_the_tools_are_in_the_prompt_unless_none_may_be_called(self, tooled: Running) -> None:
        with_tools = chat(tooled, max_tokens=1).usage.prompt_tokens
        none = chat(tooled, max_tokens=1, tool_choice="none").usage.prompt_tokens
        plain = tooled.openai.chat.completions.create(
            model="default", messages=MESSAGES, max_tokens=1
        )
        assert with_tools > none == plain.usage.prompt_tokens  # type: ignore[union-attr]

    def test_earlier_calls_reach_the_template_as_objects(self, tooled: Running) -> None:
        call = {
            "id": "1", "type": "function",
            "function": {"name": "weather", "arguments": '{"city": "Rome"}'},
        }  # fmt: skip
        messages = [
            *MESSAGES,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "1", "content": "sun"},
        ]
        body = {"messages": messages, "max_tokens": 1, "tools": [WEATHER]}
        assert tooled.post("/v1/chat/completions", body).status_code == 200
        call["function"]["arguments"] = "{"  # type: ignore[index]
        answer = tooled.post("/v1/chat/completions", body)
        assert answer.status_code == 400 and "not JSON" in answer.json()["error"]["message"]

    def test_what_can_not_be(self, tooled: Running, server: Running) -> None:
        path, body = "/v1/chat/completions", {"messages": MESSAGES, "tools": [WEATHER]}
        for more, why in (
            ({"tool_choice": {"type": "function", "function": {"name": "x"}}}, "no tool 'x'"),
            ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "other form"),
            ({"tool_choice": "sometimes"}, "tool_choice"),
        ):  # fmt: skip
            answer = tooled.post(path, {**body, **more})
            assert answer.status_code == 400 and why in answer.json()["error"]["message"]
        # A template that prints no tools would drop them in silence.
        answer = server.post(path, body)
        assert answer.status_code == 400
        assert "no place for them" in answer.json()["error"]["message"]

"""Every mistake gets JSON of one shape, with the right status, and the next request is served."""

from __future__ import annotations

import json
from typing import Any

import openai
import pytest

from minisgl.engine.output import EngineError
from tests.serve.common import Running, events, until
from tests.serve.test_openai import MESSAGES

COMPLETIONS, CHAT, GENERATE = "/v1/completions", "/v1/chat/completions", "/generate"
BASE: dict[str, dict[str, Any]] = {
    COMPLETIONS: {"prompt": "Once", "max_tokens": 2},
    CHAT: {"messages": MESSAGES, "max_tokens": 2},
    GENERATE: {"text": "Once", "sampling_params": {"max_new_tokens": 2}},
}


@pytest.fixture(autouse=True)
def the_next_request_is_served(server: Running) -> Any:
    yield
    assert server.post(COMPLETIONS, BASE[COMPLETIONS]).status_code == 200


def error_of(answer: Any, status: int) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    return error


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth):
        value = {"items": value}
    return value


def a_call(arguments: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "arguments": arguments}}


def params(**more: Any) -> dict[str, Any]:
    return {"sampling_params": {"max_new_tokens": 2, **more}}


BAD: list[tuple[str, dict[str, Any], str]] = [
    (COMPLETIONS, {"prompt": ""}, "empty"),
    (COMPLETIONS, {"prompt": []}, "empty"),
    (COMPLETIONS, {"prompt": [[]]}, "empty"),
    (COMPLETIONS, {"prompt": ["a", ""]}, "empty"),
    (COMPLETIONS, {"prompt": [1, "a"]}, "prompt"),
    (COMPLETIONS, {"prompt": [999999]}, "token id 999999 is not in the vocabulary"),
    (COMPLETIONS, {"prompt": [2**70]}, f"token id {2**70} is not in the vocabulary"),
    (COMPLETIONS, {"prompt": [-1]}, "token id -1"),
    (COMPLETIONS, {"prompt": "word " * 600}, "context holds 512"),
    (COMPLETIONS, {"prompt": None}, "prompt"),
    (COMPLETIONS, {"max_tokens": -1}, "max_tokens=-1"),
    (COMPLETIONS, {"max_tokens": "2"}, "max_tokens"),
    (COMPLETIONS, {"max_tokens": 2.5}, "max_tokens"),
    (COMPLETIONS, {"n": 0}, "n=0"),
    (COMPLETIONS, {"n": 5000}, "5000 answers"),
    (COMPLETIONS, {"best_of": 1, "n": 2}, "best_of=1"),
    (COMPLETIONS, {"best_of": 3, "stream": True}, "best_of"),
    (COMPLETIONS, {"echo": True, "logprobs": 1, "stream": True}, "echo and logprobs"),
    (COMPLETIONS, {"temperature": -1}, "temperature=-1"),
    (COMPLETIONS, {"temperature": True}, "temperature"),
    (COMPLETIONS, {"top_p": 1.2}, "top_p=1.2"),
    (COMPLETIONS, {"top_k": -2}, "top_k=-2"),
    (COMPLETIONS, {"logprobs": 21}, "logprobs=21"),
    (COMPLETIONS, {"logit_bias": {"999999": 5}}, "999999"),
    (COMPLETIONS, {"logit_bias": {"AI": -100}}, "AI"),
    (COMPLETIONS, {"logit_bias": {"5": 200}}, "100"),
    (COMPLETIONS, {"stop_token_ids": [4096], "min_tokens": 2}, "stop token id 4096"),
    (COMPLETIONS, {"min_tokens": 3}, "min_tokens=3"),
    (COMPLETIONS, {"regex": "a(["}, "position 2"),
    (COMPLETIONS, {"regex": "(" * 9000}, "regex"),
    (COMPLETIONS, {"json_schema": {"type": "nothing"}}, "nothing"),
    (COMPLETIONS, {"regex": "a", "json_schema": {}}, "give one"),
    (COMPLETIONS, {"stop": ["a", ""]}, "stop"),
    (COMPLETIONS, {"stream_options": {"include_usage": True}}, "stream_options"),
    (COMPLETIONS, {"seed": 1.5}, "seed"),
    (COMPLETIONS, {"suffix": "end"}, "unknown field 'suffix'"),
    (CHAT, {"messages": []}, "no messages"),
    (CHAT, {"messages": [{"content": "a"}]}, "role"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, "messages"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "no field 'text'"),
    (CHAT, {"messages": [{"role": "user", "content": 5}]}, "messages"),
    (CHAT, {"top_logprobs": 2}, "top_logprobs"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "logprobs=21"),
    (CHAT, {"response_format": {"type": "xml"}}, "response_format"),
    (CHAT, {"response_format": {"type": "json_schema"}}, "json_schema is missing"),
    (CHAT, {"tool_choice": "required"}, "no tools"),
    (CHAT, {"add_generation_prompt": True, "continue_final_message": True}, "give one of them"),
    (CHAT, {"messages": [{"role": "assistant"}], "continue_final_message": True}, "with a text"),
    (CHAT, {"functions": []}, "unknown field 'functions'"),
    (GENERATE, {"text": None}, "text or input_ids"),
    (GENERATE, {"input_ids": [1]}, "text or input_ids"),
    (GENERATE, {"text": None, "input_ids": []}, "batch is empty"),
    (GENERATE, {"text": []}, "batch is empty"),
    (GENERATE, {"text": ["a", ""]}, "empty"),
    (GENERATE, {"text": ["a"], "sampling_params": []}, "1 prompts, but 0 sampling_params"),
    (GENERATE, {"rid": ["a", "b"]}, "rid"),
    (GENERATE, {"logprob_start_len": 3}, "only with return_logprob"),
    (GENERATE, {"return_logprob": True, "logprob_start_len": 900}, "logprob_start_len=900"),
    (GENERATE, {"return_logprob": True, "logprob_start_len": -2}, "logprob_start_len=-2"),
    (GENERATE, {"return_logprob": True, "top_logprobs_num": 21}, "logprobs=21"),
    (GENERATE, params(stop_regex=["b", "a*"]), "stop_regex 'a*' matches the empty text"),
    (COMPLETIONS, {"stop_regex": "(a"}, "position"),
    (GENERATE, params(dtype="int", regex="a"), "dtype"),
    (GENERATE, params(dtype="complex"), "dtype"),
    (GENERATE, params(max_tokens=3), "unknown field 'max_tokens'"),
    (GENERATE, params(regex="[z-a]"), "position"),
    (GENERATE, params(json_schema="{"), "JSON schema"),
    (GENERATE, {"image_data": "AAAA"}, "image"),
    (GENERATE, {"text": ["a", "b"], "image_data": ["AAAA"]}, "1 for 2 prompts"),
]


@pytest.mark.parametrize(("path", "more", "why"), BAD, ids=[f"{p[1:]}-{w}" for p, _, w in BAD])
def test_a_bad_request_is_refused_in_words(
    server: Running, path: str, more: dict[str, Any], why: str
) -> None:
    body = {k: v for k, v in (BASE[path] | more).items() if v is not None}
    error = error_of(server.post(path, body), 400)
    assert why in error["message"] and error["type"] == "invalid_request_error"
    # A stream is refused in the same way, before it begins.
    body = {**body, "stream": True}
    if "stream_options" not in body:
        assert why in error_of(server.post(path, body), 400)["message"]


@pytest.mark.parametrize(
    ("body", "kind", "why"),
    [
        (b"", "application/json", "Content-Type"),
        (b"{bad", "application/json", "not JSON"),
        (b"[]", "application/json", "body"),
        (b"5", "application/json", "body"),
        (b"[" * 100_000, "application/json", ""),
        (b'{"prompt": "\xff"}', "application/json", ""),
        (b'{"prompt": "\\ud800"}', "application/json", "surrogate"),
        (b'{"prompt": "a", "\\ud800": 1}', "application/json", ""),
        (b'{"prompt": "a", "temperature": NaN}', "application/json", "temperature"),
        (b'{"prompt": "a", "seed": ' + b"9" * 5000 + b"}", "application/json", ""),
        (b'{"prompt": "a"}', "text/plain", "Content-Type"),
    ],
    ids=range(11),
)
def test_a_body_that_is_none(server: Running, body: bytes, kind: str, why: str) -> None:
    answer = server.http.post(COMPLETIONS, content=body, headers={"Content-Type": kind})
    assert why in error_of(answer, 400)["message"]


@pytest.mark.parametrize(
    ("path", "more"),
    [
        (COMPLETIONS, {"json_schema": {"not": nested(700)}}),
        (GENERATE, params(json_schema=json.dumps(nested(700)))),
        (CHAT, {"messages": [{"role": "assistant", "tool_calls": [a_call("[" * 100_000)]}]}),
    ],
)
def test_what_is_nested_too_deeply(server: Running, path: str, more: dict[str, Any]) -> None:
    error = error_of(server.post(path, BASE[path] | more), 400)
    assert "nested too deeply" in error["message"]


def test_where_in_a_body(server: Running) -> None:
    error = error_of(server.post(COMPLETIONS, {"prompt": "a", "top_p": "x"}), 400)
    assert error["param"] == "top_p" and error["message"].startswith("top_p: ")
    error = error_of(server.post(CHAT, {"messages": [{"role": 5}]}), 400)
    assert error["param"] == "messages" and "messages.0.role" in error["message"]


def test_other_routes_and_methods(server: Running) -> None:
    assert "GET /nothing" in error_of(server.get("/nothing"), 404)["message"]
    answer = server.get("/generate")
    assert "GET /generate" in error_of(answer, 405)["message"] and answer.headers["allow"] == "POST"
    error = error_of(server.post(COMPLETIONS, {"prompt": "a", "model": "gpt-4"}), 404)
    assert (error["param"], error["code"]) == ("model", "model_not_found")


def test_the_official_client_raises_its_own_errors(server: Running) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature=-1"):
        server.openai.completions.create(model="tiny", prompt="a", temperature=-1)
    with pytest.raises(openai.BadRequestError, match="unknown field 'wings'"):
        server.openai.completions.create(model="tiny", prompt="a", extra_body={"wings": 2})


def failing(server: Running, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The next answers end with `error` after their first token."""
    from minisgl.engine.answers import Answers

    def take(self: Answers, req: Any, token: int, logprob: Any, real: Any = Answers.take) -> None:
        if req.passes:
            self.fail(req, error)
        else:
            real(self, req, token, logprob)

    monkeypatch.setattr(Answers, "take", take)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, GENERATE])
def test_an_answer_that_fails(server: Running, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    with monkeypatch.context() as patch:
        failing(server, patch, EngineError("no token can be sampled"))
        body = {**BASE[path], **({} if path == GENERATE else {"max_tokens": 5})}
        body |= params(max_new_tokens=5, ignore_eos=True) if path == GENERATE else {
            "ignore_eos": True, "n": 2,
        }  # fmt: skip
        error = error_of(server.post(path, body), 500)
        assert error["message"] == "no token can be sampled" and error["type"] == "server_error"
        answer = server.post(path, {**body, "stream": True})
        assert answer.status_code == 200  # it had begun
        last = events(answer.text)[-1]
        assert last["error"]["message"] == "no token can be sampled"
        if path == COMPLETIONS:
            with pytest.raises(openai.APIError, match="no token can be sampled"):
                list(
                    server.openai.completions.create(
                        model="tiny", prompt="a", max_tokens=5, stream=True,
                        extra_body={"ignore_eos": True},
                    )
                )  # fmt: skip


def test_a_fault_of_ours_is_not_told_but_logged(
    server: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(*_: Any) -> None:
        raise RuntimeError("a secret")

    with monkeypatch.context() as patch:
        patch.setattr(server.engine, "submit_all", fault)
        answer = server.post(COMPLETIONS, BASE[COMPLETIONS])
    error = error_of(answer, 500)
    assert "secret" not in error["message"]
    until(lambda: "a secret" in caplog.text)

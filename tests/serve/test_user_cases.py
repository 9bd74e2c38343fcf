"""What users of such servers ran into (rows B7, B8, C7, D18, H1 to H6, H8 to H11), at the server
and through the router.

Elsewhere: H7 is tests/serve/test_life.py's and tests/router/test_real_workers.py's, D21 is
tests/router/test_forward.py's, and G4 tests/engine/test_tensor_parallel.py's.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from minisgl import Engine, SamplingParams
from tests.engine.common import between_steps
from tests.serve.common import LONG, Running, events, serving, until
from tests.serve.places import PLACES, url_of

MESSAGES: Any = [{"role": "user", "content": "Is the sky blue?"}]
GENERATE, COMPLETIONS, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"


@pytest.fixture(scope="module", params=PLACES)
def url(request: pytest.FixtureRequest, server: Running) -> Iterator[str]:
    with url_of(request.param, server) as url:
        yield url


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[openai.OpenAI]:
    base = f"{url}/v1"
    with openai.OpenAI(base_url=base, api_key="none", timeout=LONG, max_retries=0) as client:
        yield client


def post(url: str, path: str, body: Any) -> httpx.Response:
    return httpx.post(url + path, json=body, timeout=LONG, verify=False)


def ok(url: str, path: str, body: Any) -> Any:
    answer = post(url, path, body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def error_of(answer: httpx.Response) -> Any:
    """Of an answer that is none, or of a stream that ends with it."""
    if answer.status_code != 200:
        return answer.json()["error"]
    return events(answer.text[answer.text.rindex('data: {"error"') :])[-1]["error"]


@pytest.mark.parametrize("setting", [{"logit_bias": {"999999": 5}}, {"logit_bias": {"AI": -100}}])
def test_b7_a_bias_for_what_is_no_token(url: str, setting: dict[str, Any]) -> None:
    body = {"prompt": "Once", "max_tokens": 2}
    assert post(url, COMPLETIONS, body | setting).status_code == 400
    ok(url, COMPLETIONS, body)


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, GENERATE])
def test_b8_a_stop_token_outside_of_the_vocabulary(url: str, path: str) -> None:
    settings = {"stop_token_ids": [4096]}
    body: dict[str, Any] = {
        COMPLETIONS: {"prompt": "Once", "max_tokens": 4, "min_tokens": 2, **settings},
        CHAT: {"messages": MESSAGES, "max_tokens": 4, "min_tokens": 2, **settings},
        GENERATE: {
            "text": "Once",
            "sampling_params": {"max_new_tokens": 4, "min_new_tokens": 2, **settings},
        },
    }[path]
    for more in ({}, {"stream": True}):
        answer = post(url, path, body | more)
        assert answer.status_code == 400
        assert "stop token id 4096" in answer.json()["error"]["message"]
    settings["stop_token_ids"][0] = 7
    ok(url, path, json.loads(json.dumps(body).replace("4096", "7")))


def test_c7_what_a_pattern_forbids_has_a_log_probability_in_json(url: str) -> None:
    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    settings = {"regex": "[0-9]", "max_new_tokens": 2}
    asked: list[tuple[str, dict[str, Any]]] = [
        (GENERATE, {"text": "a", "sampling_params": settings, "return_logprob": True,
                    "top_logprobs_num": 5}),
        (COMPLETIONS, {"prompt": "a", "regex": "[0-9]", "logprobs": 5}),
        (CHAT, {"messages": MESSAGES, "regex": "[0-9]", "logprobs": True, "top_logprobs": 5}),
    ]  # fmt: skip
    for path, body in asked:
        answer = post(url, path, body | {"logit_bias": {"5": -100}} if path != GENERATE else body)
        assert answer.status_code == 200
        json.loads(answer.text, parse_constant=refuse)


@pytest.mark.parametrize("stream", [False, True])
def test_d18_h5_who_leaves_frees_what_was_held(server: Running, url: str, stream: bool) -> None:
    settings = {"max_new_tokens": None, "ignore_eos": True}
    body = {"text": "Once upon", "sampling_params": settings, "stream": stream}
    place = httpx.URL(url)
    with ExitStack() as stack:
        if stream:
            http = stack.enter_context(httpx.Client(verify=False, timeout=LONG))
            reply = stack.enter_context(http.stream("POST", url + GENERATE, json=body))
            next(reply.iter_raw())
        else:
            data = json.dumps(body).encode()
            sock = stack.enter_context(socket.create_connection((place.host, place.port)))
            head = f"POST {GENERATE} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
            sock.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            until(lambda: len(server.desk._asked) == 1)
    until(lambda: not server.desk._asked)
    until(server.idle)
    assert server.engine.stats().request_slots == 0


def test_h1_a_chat_s_stream_begins_with_the_role_and_ends_once(client: openai.OpenAI) -> None:
    pieces = [
        piece.choices[0]
        for piece in client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=5, stream=True
        )
    ]
    assert pieces[0].delta.role == "assistant"
    assert [piece.finish_reason is None for piece in pieces] == [True] * (len(pieces) - 1) + [False]


def test_h1_the_last_line_is_done(url: str) -> None:
    body = {"messages": MESSAGES, "max_tokens": 3, "stream": True}
    assert post(url, CHAT, body).text.endswith("data: [DONE]\n\n")


def test_h2_usage_comes_last_and_alone(client: openai.OpenAI) -> None:
    pieces = list(
        client.chat.completions.create(
            model="tiny", messages=MESSAGES, max_tokens=3, stream=True,
            stream_options={"include_usage": True},
        )
    )  # fmt: skip
    assert pieces[-1].choices == [] and pieces[-1].usage is not None
    assert pieces[-1].usage.total_tokens > pieces[-1].usage.prompt_tokens > 0
    assert all(piece.usage is None for piece in pieces[:-1])


def test_h3_nothing_to_go_on_from(url: str) -> None:
    asked = [
        (COMPLETIONS, {"prompt": ""}), (COMPLETIONS, {"prompt": []}), (COMPLETIONS, {}),
        (GENERATE, {"text": ""}), (GENERATE, {"input_ids": []}), (GENERATE, {}), (CHAT, {}),
        (CHAT, {"messages": []}),
    ]  # fmt: skip
    for path, body in asked:
        assert post(url, path, body).status_code == 400, (path, body)
    ok(url, COMPLETIONS, {"prompt": "a", "max_tokens": 1})


@pytest.mark.parametrize("pattern", ["(", "[z-a]", "a{3,1}", "*", "(?P<a>x)(?P=a)"])
def test_h4_a_pattern_with_a_mistake(url: str, pattern: str) -> None:
    for path, body in (
        (GENERATE, {"text": "a", "sampling_params": {"regex": pattern}}),
        (COMPLETIONS, {"prompt": "a", "regex": pattern}),
        (CHAT, {"messages": MESSAGES, "regex": pattern, "stream": True}),
    ):
        assert post(url, path, body).status_code == 400
    ok(url, COMPLETIONS, {"prompt": "a", "max_tokens": 1})


def test_h6_sixty_four_at_once_read_their_prompts(server: Running, url: str) -> None:
    def chat(i: int) -> str:
        messages = [{"role": "user", "content": f"Number {i % 4}?"}]
        body = {"messages": messages, "max_tokens": 4, "temperature": 0, "ignore_eos": True}
        return str(ok(url, CHAT, body)["choices"][0]["message"]["content"])

    with ThreadPoolExecutor(64) as pool:
        answers = list(pool.map(chat, range(64)))
    template, encoder = server.engine.chat_template, server.engine.door.encoder
    params = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
    for i in range(4):
        ids = template.encode([{"role": "user", "content": f"Number {i}?"}], encoder)
        assert set(answers[i::4]) == {server.engine.generate(ids, params).text}


@pytest.mark.parametrize("place", PLACES)
def test_h8_the_engine_dies_and_everybody_hears_of_it(tiny_model_dir: Path, place: str) -> None:
    body = {"text": "Once", "sampling_params": {"max_new_tokens": 6}}
    with ExitStack() as stack:
        engine = stack.enter_context(Engine(str(tiny_model_dir), kv_tokens=512))
        server = stack.enter_context(serving(engine))
        url = stack.enter_context(url_of(place, server))
        pool = stack.enter_context(ThreadPoolExecutor(4))
        with between_steps(engine):
            whole = [pool.submit(post, url, GENERATE, body) for _ in range(2)]
            streams = [pool.submit(post, url, GENERATE, body | {"stream": True}) for _ in range(2)]
            until(lambda: len(server.desk._asked) == 4)
            engine.loop.runner.forward = None  # type: ignore[assignment]
        # The router may hear of it first, from a connection that is cut or from /health.
        told = "the engine stopped" if place == "server" else "the engine stopped|lost|no worker"
        for asked in whole + streams:
            assert re.search(told, error_of(asked.result(LONG))["message"])
        server.thread.join(LONG)
        assert server.server.has_failed
        if place == "router":  # which goes on, and says that there is nobody to ask
            assert post(url, GENERATE, body).status_code == 503


def test_h9_umlauts_and_numbers(url: str) -> None:
    body = {"prompt": "Once", "temperature": 0, "max_tokens": 60}
    raw = post(url, COMPLETIONS, body | {"regex": "(Grün|Weiß) für [äöü]{2}"})
    assert "ü" in raw.text and "\\u" not in raw.text
    assert re.fullmatch("(Grün|Weiß) für [äöü]{2}", raw.json()["choices"][0]["text"])
    schema = {"type": "object", "properties": {"x": {"type": "number", "multipleOf": 0.5}},
              "required": ["x"], "additionalProperties": False}  # fmt: skip
    ended = 0
    for seed in range(8):
        more = {"json_schema": schema, "json_space": 0, "seed": seed, "temperature": 1}
        choice = ok(url, COMPLETIONS, body | more)["choices"][0]
        if choice["finish_reason"] == "stop":
            ended += 1
            assert isinstance(json.loads(choice["text"])["x"], (int, float))
    assert ended, "of random digits some end in time"


def test_h10_a_pattern_that_is_complete_ends_the_answer(url: str) -> None:
    body = {"text": "Once", "sampling_params": {"regex": "a{2}(bc)?d", "max_new_tokens": 30}}
    reply = ok(url, GENERATE, body)
    assert reply["text"] in ("aad", "aabcd")
    assert reply["meta_info"]["finish_reason"]["type"] == "stop"


def test_h11_what_looks_in(url: str) -> None:
    body = {"prompt": "The tree keeps every prefix once", "max_tokens": 1, "temperature": 0}
    ok(url, COMPLETIONS, body)
    usage = ok(url, COMPLETIONS, body)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] == usage["prompt_tokens"] - 1
    assert httpx.get(f"{url}/health", verify=False).status_code == 200
    metrics = httpx.get(f"{url}/metrics", verify=False)
    assert metrics.status_code == 200 and "_hit_rate " in metrics.text

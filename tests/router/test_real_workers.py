"""`python -m minisgl.router` with two real workers: the engine's own answers, cached where they
should be, and nothing that outlives the router."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import httpx

from minisgl import Engine, SamplingParams
from minisgl.engine.prompt import AnyPrompt
from minisgl.models.hub import resolve_model
from minisgl.router.reader import Reader
from minisgl.router.usage import usage_of
from tests.serve.common import LONG, events, until

SYSTEM = {"role": "system", "content": "You answer questions about rivers, briefly."}


def chat(question: str) -> dict[str, object]:
    return {"messages": [SYSTEM, {"role": "user", "content": question}], "max_tokens": 8}


def is_closed(url: str) -> bool:
    place = urlsplit(url)
    try:
        socket.create_connection((place.hostname, place.port), timeout=1.0).close()
    except OSError:
        return True
    return False


def test_two_workers_answer_as_one_engine_does(tiny_model_dir: Path) -> None:
    command = [sys.executable, "-m", "minisgl.router", "--model", str(tiny_model_dir)]
    command += ["--workers", "2", "--port", "0", "--dtype", "float32", "--kv-tokens", "4096"]
    command += ["--no-access-log", "--", "--policy", "fcfs"]
    router = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        assert router.stderr is not None
        url = next(line.strip() for line in router.stderr if line.startswith("http://"))
        with httpx.Client(base_url=url, timeout=LONG) as client:
            workers = [each["url"] for each in client.get("/router/state").json()["workers"]]
            info = client.get("/get_server_info").json()
            assert info["policy"] == "fcfs" and info["kv_tokens"] == 4096
            with Engine(str(tiny_model_dir), dtype="float32", kv_tokens=4096) as engine:
                _same_answers(client, engine)
            _hits(client)
            bad = {"prompt": "a", "max_tokens": 2, "logit_bias": {"999999": 5}}
            assert client.post("/v1/completions", json=bad).status_code == 400
            assert any(_believed(client))
            for worker in workers:  # behind the router's back: they tell
                assert httpx.post(f"{worker}/flush_cache", timeout=LONG).status_code == 200
            until(lambda: not any(_believed(client)))
    finally:
        router.send_signal(signal.SIGKILL)  # which it can't tell its workers of
        router.wait(LONG)
        router.stderr.close()
    until(lambda: all(map(is_closed, workers)))


def test_ctrl_c_lets_answers_go_on(tiny_model_dir: Path) -> None:
    command = [sys.executable, "-m", "minisgl.router", "--model", str(tiny_model_dir)]
    command += ["--workers", "1", "--port", "0", "--kv-tokens", "512", "--no-access-log"]
    router = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        assert router.stderr is not None
        url = next(line.strip() for line in router.stderr if line.startswith("http://"))
        with httpx.Client(base_url=url, timeout=LONG) as client:
            workers = [each["url"] for each in client.get("/router/state").json()["workers"]]
            asked = {"prompt": "Once", "max_tokens": 100, "ignore_eos": True, "stream": True}
            usage = {"stream_options": {"include_usage": True}}
            with client.stream("POST", "/v1/completions", json=asked | usage) as answer:
                pieces = answer.iter_text()
                text = next(pieces)
                os.killpg(router.pid, signal.SIGINT)  # as a terminal does, to all of its group
                text += "".join(pieces)
        assert events(text)[-1]["usage"]["completion_tokens"] == 100
        assert router.wait(LONG) == 0
        assert "Traceback" not in router.stderr.read()
    finally:
        router.kill()
        router.wait(LONG)
        router.stderr.close()
    until(lambda: all(map(is_closed, workers)))


def _same_answers(client: httpx.Client, engine: Engine) -> None:
    params = SamplingParams(max_tokens=8, temperature=0.0)
    sampling = {"max_new_tokens": 8, "temperature": 0.0}
    for text in ("The Nile is", "The Nile flows", "Ships"):
        wanted = engine.generate(text, params).text
        got = client.post("/generate", json={"text": text, "sampling_params": sampling})
        assert got.json()["text"] == wanted
        asking = {"prompt": text, "max_tokens": 8, "temperature": 0, "stream": True}
        pieces = events(client.post("/v1/completions", json=asking).text)
        assert "".join(piece["choices"][0]["text"] for piece in pieces) == wanted


def _believed(client: httpx.Client) -> list[int]:
    return [each["tree_tokens"] for each in client.get("/router/state").json()["workers"]]


def _hits(client: httpx.Client) -> None:
    """Chats that begin alike go to one worker; others, meanwhile, to the one with less to do."""
    assert client.post("/flush_cache").status_code == 200
    answers = [client.post("/v1/chat/completions", json=chat(f"Q{i}?")) for i in range(4)]
    assert len({answer.headers["x-worker"] for answer in answers}) == 1
    cached = [usage_of("application/json", answer.content) for answer in answers]
    assert cached[0] is not None and cached[0][1] == 0
    assert all(used is not None and used[1] >= 20 for used in cached[1:])


def test_prompts_are_read_as_the_engine_reads_them(tiny_model_dir: Path) -> None:
    reader = Reader(resolve_model(str(tiny_model_dir)))
    with Engine(str(tiny_model_dir), dtype="float32", kv_tokens=512) as engine:

        def ids(prompt: AnyPrompt) -> list[int]:
            return engine.door.read(prompt).tokens

        def read(path: str, **body: object) -> tuple[list[list[int]], int]:
            question = reader.read(path, json.dumps(body).encode())
            return list(map(list, question.prompts)), question.output

        assert read("/generate", text="a b") == ([ids("a b")], 128)
        two = [{"max_new_tokens": 3, "n": 2}, {"max_new_tokens": 9999}]
        assert read("/generate", text=["a", "b c"], sampling_params=two) == (
            [ids("a"), ids("b c")],
            6 + 512,
        )
        assert read("/generate", input_ids=[5, 6]) == ([[5, 6]], 128)
        assert read("/v1/completions", prompt="a b", n=3) == ([ids("a b")], 48)
        messages = [SYSTEM, {"role": "user", "content": [{"type": "text", "text": "Hm?"}]}]
        wanted = engine.chat_template.encode(
            [SYSTEM, {"role": "user", "content": "Hm?"}], engine.door.encoder
        )
        assert read("/v1/chat/completions", messages=messages, max_tokens=5) == ([wanted], 5)
        begun = [SYSTEM, {"role": "assistant", "content": "It is"}]
        wanted = engine.chat_template.encode(
            begun, engine.door.encoder, continue_final_message=True
        )
        told = read("/v1/chat/completions", messages=begun, continue_final_message=True)
        assert told == ([wanted], 128)
        (mine,), _ = read("/v1/completions", prompt="a b", namespace="me")
        assert mine[0] < 0 and mine[1:] == ids("a b")
        assert read("/tokenize", anything=1) == ([], 0)

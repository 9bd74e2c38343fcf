"""Thousands of requests over 64 connections, from clients that leave, read slowly or send nonsense:
each is answered rightly, and nothing leaks."""

from __future__ import annotations

import gc
import json
import os
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from minisgl import Engine
from tests.serve.common import LONG, Running, request, serving, until

CONNECTIONS = 64
REQUESTS = int(os.environ.get("MINISGL_SOAK_REQUESTS", "3000"))

PROMPTS = ["Once", "What is the capital of France?", "Two requests that begin alike"]
BAD: list[bytes] = [
    b"{", b"[]", b'{"text": ""}', b'{"text": "a", "wings": 2}', b'{"text": "\xff"}',
    b'{"text": "a", "sampling_params": {"regex": "(["}}',
    b'{"text": "a", "image_data": "AAAA"}',
    b'{"text": "' + b"word " * 2000 + b'"}',
]  # fmt: skip


def right_answers(server: Running) -> dict[str, str]:
    answers = {}
    for prompt in PROMPTS:
        body = {"text": prompt, "sampling_params": {"temperature": 0, "max_new_tokens": 12}}
        answers[prompt] = server.post("/generate", body).json()["text"]
    return answers


class Client:
    """One connection after another, each for one request."""

    def __init__(self, server: Running, answers: dict[str, str], seed: int) -> None:
        self.server = server
        self.answers = answers
        self.random = random.Random(seed)
        self.seen: Counter[str] = Counter()

    def run(self, count: int) -> Counter[str]:
        kinds = [self.whole, self.stream, self.slow, self.bad, self.huge, self.leaves, self.chat]
        for _ in range(count):
            kind = self.random.choice(kinds)
            kind()
            self.seen[kind.__name__] += 1
        return self.seen

    def exchange(self, data: bytes, piece: int = 65536) -> tuple[int, bytes]:
        with self.server.connect() as sock:
            sock.sendall(data)
            answer = b"".join(iter(lambda: sock.recv(piece), b""))
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head.split()[1]), body

    def body(self, prompt: str, **more: Any) -> bytes:
        params = {"temperature": 0, "max_new_tokens": 12}
        data = json.dumps({"text": prompt, "sampling_params": params, **more}).encode()
        return request("POST", "/generate", data, Connection="close")

    def whole(self) -> None:
        prompt = self.random.choice(PROMPTS)
        status, body = self.exchange(self.body(prompt))
        assert status == 200 and json.loads(body)["text"] == self.answers[prompt]

    def stream(self, piece: int = 65536) -> None:
        prompt = self.random.choice(PROMPTS)
        status, body = self.exchange(self.body(prompt, stream=True), piece)
        assert status == 200 and b"data: [DONE]" in body
        last = body.replace(b"\r\n", b"").split(b"data: ")[-2]
        text = json.loads(last[: last.rindex(b"}") + 1])["text"]
        assert text == self.answers[prompt]

    def slow(self) -> None:
        self.stream(piece=64)

    def bad(self) -> None:
        data = self.random.choice(BAD)
        status, body = self.exchange(request("POST", "/generate", data, Connection="close"))
        assert status == 400 and json.loads(body)["error"]["message"]

    def huge(self) -> None:
        data = b" " * (2**20 + 1)
        status, body = self.exchange(request("POST", "/generate", data, Connection="close"))
        assert status == 413 and json.loads(body)["error"]["message"]

    def leaves(self) -> None:
        endless = {"max_new_tokens": None, "ignore_eos": True}
        stream = self.random.random() < 0.5
        with self.server.connect() as sock:
            sock.sendall(self.body("Once", sampling_params=endless, stream=stream))
            if stream:
                sock.recv(256)

    def chat(self) -> None:
        body = {"messages": [{"role": "user", "content": "Hi"}], "regex": "(yes|no)", "n": 2}
        data = json.dumps(body).encode()
        status, answer = self.exchange(
            request("POST", "/v1/chat/completions", data, Connection="close")
        )
        choices = json.loads(answer)["choices"]
        assert status == 200 and len(choices) == 2
        assert {choice["message"]["content"] for choice in choices} <= {"yes", "no"}


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="counts file handles in /proc")
def test_soak(tiny_model_dir: Path) -> None:
    # Tight: 400 slots for 64 clients, so that requests wait, are retracted and evict one another.
    settings: dict[str, Any] = {"dtype": "float32", "kv_tokens": 400, "context_length": 128}
    with ExitStack() as stack:
        engine = stack.enter_context(Engine(str(tiny_model_dir), **settings))
        server = stack.enter_context(serving(engine, max_body_mib=1))
        answers = right_answers(server)
        crowd(server, answers, CONNECTIONS)  # caches fill, pools grow
        threads, files = threading.active_count(), open_files()
        seen = crowd(server, answers, REQUESTS)
        assert sum(seen.values()) >= REQUESTS and len(seen) == 7
        until(lambda: not server.desk._asked)
        until(server.idle)
        gc.collect()
        stats = engine.stats()
        assert stats.request_slots == stats.locked_slots == stats.waiting == stats.running == 0
        assert stats.free_slots + stats.tree_slots == stats.pool_slots
        until(lambda: open_files() <= files)
        assert threading.active_count() <= threads + 40  # the pool that reads prompts
        assert server.get("/health_generate").status_code == 200


def crowd(server: Running, answers: dict[str, str], count: int) -> Counter[str]:
    each = -(-count // CONNECTIONS)
    with ThreadPoolExecutor(CONNECTIONS) as pool:
        clients = [Client(server, answers, seed) for seed in range(CONNECTIONS)]
        runs = [pool.submit(client.run, each) for client in clients]
        total: Counter[str] = Counter()
        for run in runs:
            total += run.result(REQUESTS + 10 * LONG)
    return total

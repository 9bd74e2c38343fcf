"""What the server's tests share: a real uvicorn server on a loopback port, and ways to use it."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import httpx
import openai

from minisgl import Engine
from minisgl.chat_template import ChatTemplate
from minisgl.serve.config import ServeConfig
from minisgl.serve.desk import Desk
from minisgl.serve.server import Server

LONG = 60.0  # seconds after which a test gives up waiting for something else


@dataclass
class Running:
    """A server that listens."""

    engine: Engine
    server: Server
    thread: threading.Thread
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def desk(self) -> Desk:
        return self.server._desk

    @cached_property
    def http(self) -> httpx.Client:
        # No certificates: reading them takes longer than a test.
        return httpx.Client(base_url=self.url, timeout=LONG, verify=False)

    @cached_property
    def openai(self) -> openai.OpenAI:
        return openai.OpenAI(base_url=f"{self.url}/v1", api_key="none", timeout=LONG, max_retries=0)

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return self.http.post(path, json=body, headers=headers)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.http.get(path, headers=headers)

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout=LONG)

    def idle(self) -> bool:
        """Whether the engine has nothing to do (and all its slots are accounted for)."""
        self.engine.check()
        return self.engine.call(lambda: self.engine.loop.scheduler.is_idle)

    def stop(self) -> None:
        for client in ("http", "openai"):
            if client in vars(self):
                getattr(self, client).close()
        self.server.should_exit = True
        self.thread.join(LONG)
        assert not self.thread.is_alive()


@contextmanager
def serving(
    engine: Engine, chat_template: ChatTemplate | None = None, **settings: Any
) -> Iterator[Running]:
    config = ServeConfig(**{"port": 0, "drain_seconds": LONG, **settings})
    server = Server(Desk(engine, config, chat_template))
    thread = threading.Thread(target=server.run, name="uvicorn")
    thread.start()
    running = Running(engine, server, thread, server.listening.result(LONG))
    try:
        yield running
    finally:
        running.stop()


def until(condition: Callable[[], bool]) -> None:
    """Wait for `condition`, which some other thread brings about."""
    waited = threading.Event()
    for _ in range(int(LONG * 100)):
        if condition():
            return
        waited.wait(0.01)
    raise AssertionError("it never came")


def events(text: str) -> list[Any]:
    """The JSON objects of a stream, which has to end with [DONE]."""
    lines = [line for line in text.split("\n\n") if line]
    assert lines.pop() == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


def request(method: str, path: str, body: bytes = b"", **headers: str) -> bytes:
    """An HTTP request, byte by byte."""
    lines = [f"{method} {path} HTTP/1.1", "Host: test"]
    if body:
        lines += [f"Content-Length: {len(body)}", "Content-Type: application/json"]
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body

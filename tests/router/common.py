"""Fake workers: they answer with bytes that a test chose, and can be made to hang, refuse and die.

A plain socket server in a thread, so that a connection can be cut anywhere.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import httpx

from minisgl.router.balancer import Question
from minisgl.router.config import RouterConfig
from minisgl.router.fleet import Fleet
from minisgl.router.launcher import Given, Source
from minisgl.router.server import Server
from tests.serve.common import LONG, until

STREAM_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
CHUNKED = STREAM_HEAD + b"Transfer-Encoding: chunked\r\n\r\n"


def reply(body: Any, status: str = "200 OK", **headers: str) -> bytes:
    """A whole response with a JSON body."""
    text = json.dumps(body).encode()
    more = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\n{more}"
        f"Content-Length: {len(text)}\r\n\r\n"
    )
    return head.encode() + text


def chunk(data: bytes) -> bytes:
    """As HTTP sends pieces."""
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass
class Asked:
    """A request that a fake worker got."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    connection: socket.socket

    def left(self) -> bool:
        """Waits until the client has closed the connection; False: it sent more."""
        self.connection.settimeout(LONG)
        try:
            return self.connection.recv(1) == b""
        except ConnectionError:
            return True


Answer = Callable[[Asked], bytes | None]
"""Bytes to send; None: the connection is cut."""


@dataclass
class FakeWorker:
    """Answers what the router asks by itself, and everything else with `answer`."""

    answer: Answer = lambda asked: reply({"ok": True})
    port: int = 0
    pool_slots: int = 1000
    evicted: list[tuple[str | None, list[int]]] = field(default_factory=list)
    missing: bool = False
    reports: bool = True
    health: str = "200 OK"
    asked: list[Asked] = field(default_factory=list)
    polls: int = 0

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", self.port))
        self.port = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def die(self) -> None:
        """As a process that is killed: its port is closed, every connection is cut."""
        with suppress(OSError):  # wakes whoever waits in accept
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in list(self._open):
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._open.add(connection)
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection, connection.makefile("rb") as reading:
            while line := reading.readline():
                method, target, _ = line.decode().split(" ")
                headers = {}
                while (line := reading.readline()) != b"\r\n":
                    name, _, value = line.decode().partition(":")
                    headers[name.lower()] = value.strip()
                body = reading.read(int(headers.get("content-length", "0")))
                asked = Asked(method, target, headers, body, connection)
                out = self._own(asked) or self._theirs(asked)
                if out is None:
                    connection.shutdown(socket.SHUT_RDWR)
                    break
                connection.sendall(out)
        self._open.discard(connection)

    def _own(self, asked: Asked) -> bytes | None:
        path, _, query = asked.target.partition("?")
        match path:
            case "/health":
                return reply({"status": self.health}, self.health)
            case "/get_server_info":
                return reply({"stats": {"pool_slots": self.pool_slots}})
            case "/router/evictions" if self.reports:
                self.polls += 1
                after = int(query.partition("=")[2] or 0)
                news = {"last": len(self.evicted), "missing": self.missing}
                return reply({**news, "evicted": self.evicted[after:]})
            case "/router/evictions":
                return reply({"error": {"message": "no such route"}}, "404 Not Found")
        return None

    def _theirs(self, asked: Asked) -> bytes | None:
        self.asked.append(asked)
        return self.answer(asked)


class WordReader:
    """In place of the model's tokenizer: the prompt's words, each a number."""

    def read(self, path: str, body: bytes) -> Question:
        given = json.loads(body)
        prompts = given["text"] if isinstance(given["text"], list) else [given["text"]]
        return Question([tokens_of(text) for text in prompts], given.get("output", 1))


def tokens_of(text: str) -> list[int]:
    return [sum(map(ord, word)) for word in text.split()]


@dataclass
class Routing:
    """A router that listens, on some thread."""

    server: Server
    fleet: Fleet
    thread: threading.Thread
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=LONG, verify=False, trust_env=False)

    def ask(self, text: Any, **more: Any) -> httpx.Response:
        with self.client() as client:
            return client.post("/generate", json={"text": text, **more})

    def get(self, path: str) -> httpx.Response:
        with self.client() as client:
            return client.get(path)

    def state(self) -> list[dict[str, Any]]:
        workers: list[dict[str, Any]] = self.get("/router/state").json()["workers"]
        return workers

    def until_up(self, *numbers: int) -> None:
        """Wait until just these workers are up."""
        until(lambda: {w.number for w in self.fleet.up} == set(numbers))

    def until_idle(self) -> None:
        until(lambda: all(seat.load == 0 for seat in list(self.fleet.balancer.seats.values())))

    def stop(self) -> None:
        self.server.should_exit = True
        self.thread.join(LONG)
        assert not self.thread.is_alive()


@contextmanager
def routing(
    sources: Sequence[FakeWorker | Source],
    reader: Any = None,
    worker_key: str | None = None,
    **settings: Any,
) -> Iterator[Routing]:
    config = RouterConfig(**{"port": 0, "poll_seconds": 0.05, "drain_seconds": 1.0, **settings})
    places = [Given(each.url) if isinstance(each, FakeWorker) else each for each in sources]
    fleet = Fleet(config, places, worker_key)
    server = Server(fleet, reader or WordReader())
    thread = threading.Thread(target=server.run, name="router")
    thread.start()
    running = Routing(server, fleet, thread, server.listening.result(LONG))
    try:
        yield running
    finally:
        running.stop()
        for each in sources:
            if isinstance(each, FakeWorker):
                each.die()

"""Clients that leave, that send too much or too often, without a key, or from a web page."""

from __future__ import annotations

import json
import socket
import struct
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import openai
import pytest

from minisgl import Engine
from tests.engine.common import between_steps
from tests.serve.common import Running, request, serving, until

ENDLESS = {"text": "Once", "sampling_params": {"max_new_tokens": None, "ignore_eos": True}}


def endless(**more: Any) -> bytes:
    return request("POST", "/generate", json.dumps({**ENDLESS, **more}).encode())


class TestLeaving:
    """The engine stands still while the client leaves, so that no answer ends by itself first."""

    @pytest.mark.parametrize("stream", [False, True])
    def test_frees_the_slots_at_the_next_step(self, server: Running, stream: bool) -> None:
        with server.connect() as sock, between_steps(server.engine):
            sock.sendall(endless(stream=stream))
            until(lambda: len(server.desk._asked) == 1)
            sock.close()
            until(lambda: not server.desk._asked)
        assert server.idle()
        stats = server.engine.stats()
        assert stats.request_slots == 0 and stats.locked_slots == 0

    def test_in_the_middle_of_a_stream(self, server: Running) -> None:
        with server.connect() as sock:
            sock.sendall(endless(stream=True))
            read = b""
            while b"data: " not in read:  # it has begun
                read += sock.recv(65536)
            with between_steps(server.engine):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                sock.close()  # with a reset, not politely
                until(lambda: not server.desk._asked)
        until(server.idle)

    def test_one_of_many_leaves_and_the_others_stay(self, server: Running) -> None:
        body = {"text": "Once", "sampling_params": {"max_new_tokens": 8, "temperature": 0}}
        alone = server.post("/generate", body).json()["text"]
        data = request("POST", "/generate", json.dumps(body).encode(), Connection="close")
        with ExitStack() as stack:
            socks = [stack.enter_context(server.connect()) for _ in range(8)]
            with between_steps(server.engine):
                for sock in socks:
                    sock.sendall(data)
                until(lambda: len(server.desk._asked) == 8)
                for sock in socks[::2]:
                    sock.close()
                until(lambda: len(server.desk._asked) == 4)
            for sock in socks[1::2]:
                answer = b"".join(iter(lambda s=sock: s.recv(65536), b""))  # type: ignore[misc]
                assert json.loads(answer.partition(b"\r\n\r\n")[2])["text"] == alone

    def test_before_the_whole_body_came(self, server: Running) -> None:
        before = server.engine.stats().requests
        with server.connect() as sock:
            sock.sendall(endless()[:-5])
        assert server.get("/health").status_code == 200
        assert server.engine.stats().requests == before


@pytest.fixture(scope="module")
def small(engine: Engine) -> Iterator[Running]:
    with serving(engine, max_body_mib=1) as running:
        yield running


class TestBodies:
    @pytest.mark.parametrize("size", [2**20 + 1, 3 * 2**20, 40 * 2**20])
    @pytest.mark.parametrize("chunked", [False, True])
    def test_too_long(self, small: Running, size: int, chunked: bool) -> None:
        length = "Transfer-Encoding: chunked" if chunked else f"Content-Length: {size}"
        head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{length}"
        far_too_long = size == 40 * 2**20  # it need not be read to its end
        with small.connect() as sock:
            sock.sendall(head.encode() + b"\r\n\r\n")
            try:
                for at in range(0, size, 2**16):
                    piece = b"x" * min(2**16, size - at)
                    sock.sendall(b"%x\r\n%s\r\n" % (len(piece), piece) if chunked else piece)
                sock.sendall(b"0\r\n\r\n" if chunked else b"")
                answer = b"".join(iter(lambda: sock.recv(65536), b""))
            except OSError:
                assert far_too_long
            else:
                assert answer.startswith(b"HTTP/1.1 413 ") and b"1048576 bytes" in answer
        assert small.get("/health").status_code == 200

    def test_as_long_as_allowed(self, small: Running) -> None:
        body = json.dumps({"text": "a", "sampling_params": {"max_new_tokens": 1}}).encode()
        padded = body + b" " * (2**20 - len(body))
        head = {"Content-Type": "application/json"}
        assert small.http.post("/generate", content=padded, headers=head).status_code == 200
        assert small.http.post("/generate", content=padded + b" ", headers=head).status_code == 413

    def test_that_never_ends(self, small: Running, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("minisgl.serve.limits.BODY_SECONDS", 0.01)
        with small.connect() as sock:
            sock.sendall(endless()[:-5])
            assert sock.recv(65536).startswith(b"HTTP/1.1 408 ")


def test_more_than_so_many_are_told_to_come_back(engine: Engine) -> None:
    with serving(engine, max_requests=2) as server, ExitStack() as stack:
        with between_steps(engine):
            for _ in range(2):
                sock = stack.enter_context(server.connect())
                sock.sendall(endless())
            until(lambda: len(server.desk._asked) == 2)
            answer = server.post("/generate", ENDLESS)
            assert answer.status_code == 503 and answer.headers["retry-after"] == "1"
            assert "2 requests" in answer.json()["error"]["message"]
            assert server.get("/health").status_code == 200  # others are answered
            assert server.get("/v1/models").status_code == 200
        stack.close()
        until(lambda: not server.desk._asked)
        small = {"text": "a", "sampling_params": {"max_new_tokens": 1}}
        until(lambda: server.post("/generate", small).status_code == 200)


@pytest.fixture(scope="module")
def locked(engine: Engine) -> Iterator[Running]:
    with serving(engine, api_key="sesame") as running:
        yield running


class TestKey:
    def test_in_either_header(self, locked: Running) -> None:
        body = {"text": "a", "sampling_params": {"max_new_tokens": 1}}
        for head in (
            {"Authorization": "Bearer sesame"},
            {"authorization": "bearer sesame"},
            {"X-API-Key": "sesame"},
        ):
            assert locked.post("/generate", body, **head).status_code == 200
        wrong: list[dict[str, str]] = [
            {}, {"Authorization": "sesame"}, {"Authorization": "Bearer open"},
            {"Authorization": "Basic sesame"}, {"X-API-Key": ""}, {"X-API-Key": "sesame "[:-2]},
        ]  # fmt: skip
        for head in wrong:
            answer = locked.post("/generate", body, **head)
            assert answer.status_code == 401, head
            assert answer.json()["error"]["code"] == "invalid_api_key"
        answer = locked.http.get("/v1/models", headers=[(b"X-API-Key", b"\xe9")])
        assert answer.status_code == 401

    def test_every_route_but_health_and_the_page_wants_it(self, locked: Running) -> None:
        assert locked.get("/health").status_code == locked.get("/ui").status_code == 200
        for path in ("/v1/models", "/metrics", "/get_server_info", "/ui/state", "/flush_cache"):
            assert locked.get(path).status_code == 401
        assert (
            locked.get("/get_server_info", **{"X-API-Key": "sesame"}).json()["api_key"] == "(set)"
        )

    def test_the_official_client(self, locked: Running) -> None:
        with pytest.raises(openai.AuthenticationError):
            locked.openai.models.list()
        assert locked.openai.with_options(api_key="sesame").models.list().data


class TestOrigins:
    def preflight(self, server: Running) -> httpx.Response:
        asking = {"Access-Control-Request-Method": "POST"}
        asking["Access-Control-Request-Headers"] = (
            "x-api-key, x-stainless-os"  # OpenAI's own client
        )
        head = {"Origin": "https://a.example", **asking}
        return server.http.options("/generate", headers=head)

    def test_no_web_page_may_ask_by_default(self, server: Running) -> None:
        assert self.preflight(server).status_code == 405
        answer = server.get("/v1/models", Origin="https://a.example")
        assert "access-control-allow-origin" not in answer.headers

    def test_those_that_may(self, engine: Engine) -> None:
        with serving(engine, cors_origins=("https://a.example",), api_key="k") as server:
            answer = self.preflight(server)
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == "https://a.example"
            answer = server.get("/v1/models", Origin="https://a.example")  # errors can be read too
            assert answer.status_code == 401
            assert answer.headers["access-control-allow-origin"] == "https://a.example"
            answer = server.get("/v1/models", Origin="https://b.example")
            assert "access-control-allow-origin" not in answer.headers


def test_a_slow_reader_gets_everything_and_holds_up_nobody(server: Running) -> None:
    with server.connect() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        body = {"text": "Once", "sampling_params": {"max_new_tokens": 150, "ignore_eos": True}}
        data = json.dumps({**body, "stream": True}).encode()
        sock.sendall(request("POST", "/generate", data, Connection="close"))
        until(lambda: len(server.desk._asked) == 1)
        small = {"text": "a", "sampling_params": {"max_new_tokens": 3}}
        assert server.post("/generate", small).status_code == 200
        until(server.idle)  # the engine is done long before the reader
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)
        answer = b"".join(iter(lambda: sock.recv(65536), b""))
    assert b"data: [DONE]" in answer and b'"completion_tokens":150' in answer


def test_sixty_four_connect_at_once(server: Running) -> None:
    body = json.dumps({"text": "a", "sampling_params": {"max_new_tokens": 1}}).encode()
    data = request("POST", "/generate", body, Connection="close")
    with ExitStack() as stack:
        socks = [stack.enter_context(server.connect()) for _ in range(64)]
        for sock in socks:
            sock.sendall(data)
        for sock in socks:
            answer = b"".join(iter(lambda s=sock: s.recv(65536), b""))  # type: ignore[misc]
            assert answer.startswith(b"HTTP/1.1 200 ")

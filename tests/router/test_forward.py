"""Requests through the router to fake workers: routed, retried, cut, full, and byte for byte."""

from __future__ import annotations

import json
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from minisgl.router.reader import Reader
from tests.router.common import CHUNKED, Asked, FakeWorker, chunk, reply, routing
from tests.serve.common import LONG, request, until

PREFIX = "a b c d e f g h "


def by_worker(*workers: FakeWorker) -> list[int]:
    return [len(worker.asked) for worker in workers]


def test_a_prefix_goes_where_it_went_before_and_news_to_whoever_has_none() -> None:
    """D21, and the next two: to one worker until loads differ; or round robin."""
    workers = [FakeWorker(), FakeWorker()]
    with routing(workers) as router:
        router.server.ready.result(LONG)
        for i in range(3):
            assert router.ask(f"{PREFIX} {i}").headers["x-worker"] == "0"
        assert by_worker(*workers) == [3, 0]
        state = router.state()
        assert state[0]["tree_tokens"] == 11 and state[1]["tree_tokens"] == 0
        assert [s["load"] for s in state] == [0, 0]
        assert [s["capacity"] for s in state] == [1000, 1000]


def test_a_busy_worker_is_avoided_when_waiting_costs_more_than_computing() -> None:
    hold = threading.Event()

    def wait(asked: Asked) -> bytes:
        assert hold.wait(LONG)
        return reply({})

    workers = [FakeWorker(wait), FakeWorker()]
    with routing(workers) as router:
        router.server.ready.result(LONG)
        first = threading.Thread(target=router.ask, args=(PREFIX,), kwargs={"output": 100})
        first.start()
        until(lambda: len(workers[0].asked) == 1)
        assert router.state()[0]["load"] == 108
        # 108 + 2 * 1 there, 0 + 2 * 9 here
        assert router.ask(f"{PREFIX} z").headers["x-worker"] == "1"
        hold.set()
        first.join(LONG)
        router.until_idle()


@pytest.mark.parametrize("policy", ["round-robin", "random"])
def test_other_policies(policy: str) -> None:
    workers = [FakeWorker(), FakeWorker()]
    with routing(workers, policy=policy) as router:
        router.server.ready.result(LONG)
        for _ in range(8):
            router.ask(PREFIX)
        counts = by_worker(*workers)
        assert sum(counts) == 8 and min(counts) >= 1
        if policy == "round-robin":
            assert counts == [4, 4]


def test_a_batch_goes_as_a_whole() -> None:
    workers = [FakeWorker(), FakeWorker()]
    with routing(workers) as router:
        router.server.ready.result(LONG)
        router.ask(["x y", "x y z", "p q"])
        assert by_worker(*workers) == [1, 0]
        assert router.state()[0]["tree_tokens"] == 5  # what they have in common counts once


def test_requests_and_answers_pass_unchanged() -> None:
    """C7: among them the null of a log-probability that is minus infinity."""
    body = b'{ "text": "a  b",\n "odd": "\xc3\xbc" }'
    answer = b'{"x":  null, "meta_info": {"prompt_tokens": 9, "cached_tokens": 4}}\n'
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json; charset=x\r\nX-Odd: yes\r\n"
    raw = head + b"Content-Length: %d\r\n\r\n" % len(answer) + answer
    worker = FakeWorker(lambda asked: raw)
    with routing([worker]) as router, router.client() as client:
        router.server.ready.result(LONG)
        got = client.post(
            "/generate?a=1&b=%20", content=body, headers={"Authorization": "Bearer K"}
        )
        assert got.content == answer and got.headers["x-odd"] == "yes"
        assert got.headers["content-type"] == "application/json; charset=x"
        (asked,) = worker.asked
        assert asked.body == body and asked.target == "/generate?a=1&b=%20"
        assert asked.headers["authorization"] == "Bearer K"
        assert asked.headers["host"] == f"127.0.0.1:{worker.port}"
        metrics = router.get("/metrics").text
        assert 'minisgl_router_told_cached_tokens_total{worker="0"} 4' in metrics
        assert "minisgl_router_hit_rate 0.444444" in metrics
        assert client.get("/v1/models").json() and worker.asked[-1].target == "/v1/models"


def test_a_refusal_is_the_workers_own_and_is_not_believed_to_be_cached() -> None:
    error = {"error": {"message": "too long"}}
    worker = FakeWorker(lambda asked: reply(error, "400 Bad Request"))
    with routing([worker]) as router, router.client() as client:
        router.server.ready.result(LONG)
        got = client.post("/generate", json={"text": PREFIX})
        assert got.status_code == 400 and got.json() == error
        assert client.post("/generate", content=b"no json").json() == error
        assert router.state()[0]["tree_tokens"] == 0


def test_what_is_nested_too_deeply_is_the_workers_to_refuse(tiny_model_dir: Path) -> None:
    error = {"error": {"message": "nested too deeply"}}
    worker = FakeWorker(lambda asked: reply(error, "400 Bad Request"))
    message = {"role": "assistant", "tool_calls": [{"function": {"arguments": "[" * 100_000}}]}
    with routing([worker], Reader(tiny_model_dir)) as router, router.client() as client:
        router.server.ready.result(LONG)
        got = client.post("/v1/chat/completions", json={"messages": [message]})
        assert got.status_code == 400 and got.json() == error


def streaming(pieces: list[bytes], end: bytes | None) -> Any:
    """An answer in chunks, then `end`; None: it is cut."""

    def answer(asked: Asked) -> bytes | None:
        asked.connection.sendall(CHUNKED)
        for piece in pieces:
            asked.connection.sendall(chunk(piece))
        return end

    return answer


def test_a_stream_passes_byte_for_byte_as_it_comes() -> None:
    more = threading.Event()
    first, second = b'data: {"text": "\xc3', b'\xbc"}\n\ndata: [DONE]\n\n'

    def answer(asked: Asked) -> bytes:
        asked.connection.sendall(CHUNKED + chunk(first))
        assert more.wait(LONG)
        return chunk(second) + b"0\r\n\r\n"

    with routing([FakeWorker(answer)]) as router, router.client() as client:
        router.server.ready.result(LONG)
        with client.stream("POST", "/generate", json={"text": PREFIX}) as got:
            pieces = got.iter_raw()
            assert next(pieces) == first  # while the worker waits
            more.set()
            assert b"".join(pieces) == second


def test_a_worker_that_dies_before_the_first_byte_is_replaced() -> None:
    """D21, and the next three: a dead worker is an error or another answer, and no hang."""
    for end in (lambda asked: None, streaming([], None)):
        workers = [FakeWorker(end), FakeWorker()]
        with routing(workers) as router:
            router.server.ready.result(LONG)
            got = router.ask(PREFIX)
            assert got.status_code == 200 and got.headers["x-worker"] == "1"
            assert by_worker(*workers) == [1, 1]
            assert workers[0].asked[0].body == workers[1].asked[0].body
            router.until_up(0, 1)  # it is there again: only its connection was cut
            assert router.state()[0]["tree_tokens"] == 0
            assert 'minisgl_router_lost_total{worker="0"} 1' in router.get("/metrics").text


def test_a_stream_that_is_cut_ends_with_an_error() -> None:
    whole = b'data: {"text": "a"}\n\n'
    workers = [FakeWorker(streaming([whole, b'data: {"te'], None)), FakeWorker()]
    with routing(workers) as router:
        router.server.ready.result(LONG)
        got = router.ask(PREFIX).text
        assert got.startswith(whole.decode()) and by_worker(*workers) == [1, 0]
        said, broken, error, done = [line for line in got.split("\n\n") if line]
        assert (said, broken, done) == ('data: {"text": "a"}', 'data: {"te', "data: [DONE]")
        message = json.loads(error.removeprefix("data: "))["error"]["message"]
        assert message.startswith("worker 0 was lost: RemoteProtocolError: peer closed")
        router.until_idle()


def test_a_whole_answer_that_is_cut_is_asked_for_again() -> None:
    half = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n[1,"

    def cut(asked: Asked) -> None:
        asked.connection.sendall(half)

    with routing([FakeWorker(cut), FakeWorker()]) as router:
        router.server.ready.result(LONG)
        assert router.ask(PREFIX).json() == {"ok": True}


def test_a_request_that_kills_workers_is_not_sent_to_all_of_them() -> None:
    workers = [FakeWorker(lambda asked: None) for _ in range(4)]
    with routing(workers) as router:
        router.server.ready.result(LONG)
        got = router.ask(PREFIX)
        assert got.status_code == 502
        assert got.json()["error"]["message"] == "2 workers were lost with this request"
        assert sum(by_worker(*workers)) == 2


ENDED = {"error": {"message": "the engine stopped"}}


@pytest.mark.parametrize(
    "answer",
    [
        reply(ENDED, "500 Internal Server Error"),
        CHUNKED + chunk(b'data: {"error":{"message":"the engine stopped"}}\n\n') + chunk(b""),
    ],
    ids=["whole", "stream"],
)
def test_an_engine_that_dies_with_a_request_still_says_so(answer: bytes) -> None:
    """Then its answer is no answer; the error of a worker that goes on is."""

    def die(asked: Asked) -> bytes:
        workers[0].health = "503 Service Unavailable"
        return answer

    workers = [FakeWorker(die, reports=False), FakeWorker()]
    with routing(workers, policy="round-robin", poll_seconds=LONG) as router:
        router.server.ready.result(LONG)
        got = router.ask(PREFIX)
        assert got.json() == {"ok": True} and got.headers["x-worker"] == "1"
    well = FakeWorker(lambda asked: answer)
    with routing([well, FakeWorker()], policy="round-robin") as router:
        router.server.ready.result(LONG)
        got = router.ask(PREFIX)
        assert "the engine stopped" in got.text and got.headers["x-worker"] == "0"
        assert len(well.asked) == 1


def test_a_full_worker_passes_on_and_all_full_is_said() -> None:
    def full(asked: Asked) -> bytes:
        return reply({"error": {"message": "full"}}, "503 Service Unavailable", Retry_After="1")

    workers = [FakeWorker(full), FakeWorker()]
    with routing(workers) as router:
        router.server.ready.result(LONG)
        assert router.ask(PREFIX).headers["x-worker"] == "1"
        state = router.state()
        assert [s["tree_tokens"] for s in state] == [0, 8]
        assert [s["why_not_up"] for s in state] == [None, None]  # full is not lost
        workers[1].answer = full
        got = router.ask("q r s")
        assert got.status_code == 503 and got.headers["retry-after"] == "1"
        assert got.json()["error"]["message"] == "every worker is full; come back later"


def test_a_client_that_leaves_takes_the_workers_connection_along() -> None:
    """D18: which the worker hears as an abort, whether its answer has begun or not."""
    left: list[bool] = []

    def quiet(asked: Asked) -> None:
        left.append(asked.left())

    def talk(asked: Asked) -> None:
        asked.connection.sendall(CHUNKED + chunk(b"data: 1\n\n"))
        left.append(asked.left())

    worker = FakeWorker(quiet)
    with routing([worker]) as router:
        router.server.ready.result(LONG)
        body = json.dumps({"text": PREFIX}).encode()
        with socket.create_connection(("127.0.0.1", router.port)) as client:
            client.sendall(request("POST", "/generate", body))
            until(lambda: len(worker.asked) == 1)
        until(lambda: left == [True])
        worker.answer = talk
        asking = {"method": "POST", "url": "/generate", "json": {"text": PREFIX}}
        with router.client() as client, client.stream(**asking) as got:
            assert next(got.iter_raw()) == b"data: 1\n\n"
        until(lambda: left == [True, True])
        router.until_idle()
        assert router.fleet.up, "nobody was lost"


def test_a_stream_takes_its_tokens_off_the_load_as_they_come() -> None:
    steps = [threading.Event() for _ in range(2)]

    def answer(asked: Asked) -> bytes:
        asked.connection.sendall(CHUNKED)
        for step in steps:
            asked.connection.sendall(chunk(b"data: 1\n\ndata: 2\n\n"))
            assert step.wait(LONG)
        return b"0\r\n\r\n"

    def load(router: Any) -> float:
        return float(router.fleet.balancer.seats[0].load)

    with routing([FakeWorker(answer)]) as router, router.client() as client:
        router.server.ready.result(LONG)
        with client.stream("POST", "/generate", json={"text": PREFIX, "output": 10}) as got:
            until(lambda: load(router) == 8)  # the prompt is computed, 2 of 10 tokens are there
            steps[0].set()
            until(lambda: load(router) == 6)
            steps[1].set()
            got.read()
        until(lambda: load(router) == 0)


def test_flush_goes_to_all() -> None:
    workers = [FakeWorker(), FakeWorker()]
    with routing(workers) as router:
        router.server.ready.result(LONG)
        router.ask(PREFIX)
        assert router.get("/flush_cache").status_code == 200
        assert [w.asked[-1].target for w in workers] == ["/flush_cache"] * 2
        assert router.state()[0]["tree_tokens"] == 0
        busy = {"error": {"message": "the cache is in use"}}
        workers[1].answer = lambda asked: reply(busy, "400 Bad Request")
        got = router.get("/flush_cache")
        assert got.status_code == 400 and "worker 1: " in got.json()["error"]["message"]


def test_a_key_is_asked_for_and_sent_along() -> None:
    worker = FakeWorker()
    with routing([worker], api_key="K") as router, router.client() as client:
        router.server.ready.result(LONG)
        assert client.post("/generate", json={"text": PREFIX}).status_code == 401
        assert client.get("/health").status_code == 200
        bearer = {"Authorization": "Bearer K"}
        assert client.post("/generate", json={"text": PREFIX}, headers=bearer).status_code == 200
        assert worker.asked[0].headers["authorization"] == "Bearer K"


def test_a_browser_s_page_asks_first_without_the_key() -> None:
    worker = FakeWorker()
    page = {"Origin": "https://a.example"}
    asking = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "x-api-key",
    }
    allowed = {"access-control-allow-origin": "https://a.example"}
    settings = {"api_key": "K", "cors_origins": ("https://a.example",)}
    with routing([worker], **settings) as router, router.client() as client:
        router.server.ready.result(LONG)
        got = client.options("/generate", headers=page | asking)
        assert got.status_code == 200 and allowed.items() <= got.headers.items()
        assert "x-api-key" in got.headers["access-control-allow-headers"]
        body = {"text": PREFIX}
        got = client.post("/generate", json=body, headers=page)  # its page can read why
        assert got.status_code == 401 and allowed.items() <= got.headers.items()
        got = client.post("/generate", json=body, headers=page | {"X-API-Key": "K"})
        assert got.status_code == 200 and allowed.items() <= got.headers.items()
        assert [asked.headers.get("origin") for asked in worker.asked] == [None]
    with routing([FakeWorker()], api_key="K") as router, router.client() as client:
        router.server.ready.result(LONG)
        got = client.options("/generate", headers=page | asking)
        assert got.status_code == 401 and not allowed.keys() & got.headers.keys()

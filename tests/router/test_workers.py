"""Workers that come and go: found, lost, found again, started again, given up; what they evict."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from minisgl.router.config import RouterConfig
from minisgl.router.launcher import Started, gpus_of
from tests.router.common import Asked, FakeWorker, routing
from tests.serve.common import LONG, until

FAKE = [sys.executable, str(Path(__file__).parent / "fake_worker.py")]
PREFIX = "a b c d e f g h "


def is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


def test_evictions_are_asked_for_and_applied() -> None:
    worker = FakeWorker()
    with routing([worker]) as router:
        router.server.ready.result(LONG)
        router.ask("a b c d")
        router.ask("a b x", namespace=None)
        assert router.state()[0]["tree_tokens"] == 5
        worker.evicted = [(None, [97, 98, 99])]  # everything that begins with "a b c"
        until(lambda: router.state()[0]["tree_tokens"] == 3)
        polls = worker.polls
        until(lambda: worker.polls > polls + 1)
        assert router.state()[0]["tree_tokens"] == 3, "each report counts once"
        worker.missing = True
        until(lambda: router.state()[0]["tree_tokens"] == 0)


def test_what_a_worker_can_not_hold_is_not_believed() -> None:
    with routing([FakeWorker(pool_slots=10)]) as router:
        router.server.ready.result(LONG)
        for i in range(5):
            router.ask(f"{i} {i} {i}")
        assert router.state()[0]["tree_tokens"] == 9


def test_a_server_that_does_not_report_can_be_a_worker() -> None:
    worker = FakeWorker(reports=False)
    with routing([worker]) as router:
        router.server.ready.result(LONG)
        assert router.ask(PREFIX).status_code == 200
        worker.die()
        router.until_up()


def test_a_worker_that_is_gone_is_found_again_at_its_address() -> None:
    first, second = FakeWorker(), FakeWorker()
    with routing([first, second]) as router:
        router.server.ready.result(LONG)
        router.ask(PREFIX)
        first.die()
        assert router.ask(PREFIX).headers["x-worker"] == "1"
        router.until_up(1)
        state = router.state()
        assert state[0]["why_not_up"] and state[0]["tree_tokens"] == 0
        again = FakeWorker(port=first.port)
        router.until_up(0, 1)
        assert router.ask("p q").headers["x-worker"] == "0"
        again.die()


def test_without_workers_there_is_an_answer() -> None:
    worker = FakeWorker()
    with routing([worker]) as router:
        router.server.ready.result(LONG)
        worker.die()
        for _ in range(2):
            got = router.ask(PREFIX)
            assert got.status_code == 503 and got.headers["retry-after"] == "1"
            assert got.json()["error"]["message"] == "no worker is there; come back later"
        assert router.get("/health").status_code == 503
        assert router.get("/v1/models").status_code == 503
        assert router.get("/router/state").status_code == 200


def test_who_waits_for_a_worker_that_hangs_hears_of_its_loss() -> None:
    """Its host is gone, say: the connection is never cut, and /health does not answer."""
    never = threading.Event()

    def hang(asked: Asked) -> None:
        assert never.wait(LONG)

    stuck, well = FakeWorker(hang, reports=False), FakeWorker()
    with routing([stuck, well]) as router:
        router.server.ready.result(LONG)
        got: list[str] = []
        asking = threading.Thread(target=lambda: got.append(router.ask(PREFIX).headers["x-worker"]))
        asking.start()
        until(lambda: len(stuck.asked) == 1)
        stuck.health = "500 Internal Server Error"
        asking.join(LONG)
        assert got == ["1"]
        never.set()


def test_a_process_is_started_again_and_ends_with_the_router() -> None:
    started = Started(0, FAKE, restarts=1)
    with routing([started]) as router:
        router.server.ready.result(LONG)
        for _ in range(3):  # more often than `restarts`, but it answers in between
            pid = router.ask(PREFIX).json()["pid"]
            assert pid == started.pid
            assert router.get("/die").status_code == 503  # and there is no other one
            router.until_up(0)
            assert is_gone(pid)
        last = started.pid
    assert last is not None and is_gone(last)


def test_a_process_that_never_answers_is_given_up_and_the_router_ends() -> None:
    with routing([Started(0, [*FAKE, "dies"], restarts=1)]) as router:
        router.thread.join(LONG)
        assert not router.thread.is_alive() and router.server.has_failed
        why = router.fleet.workers[0].why
        assert why == "worker 0 ended 2 times without an answer"
        assert not router.server.ready.done()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"workers": 0}, "workers=0: give a whole number of at least 1"),
        ({"workers": 2, "worker": ("http://a",)}, "workers=2 and URLs of 1: give one"),
        ({"ray": "auto", "worker": ("http://a",)}, "ray='auto' and URLs of 1: give one"),
        ({"ray": "ray://a:1"}, "ray='ray://a:1': give HOST:PORT, 'auto' or 'local'"),
        ({"ray": ""}, "ray='': give HOST:PORT, 'auto' or 'local'"),
        ({"ray": "auto", "ray_cpus": 0}, "ray_cpus=0: give a whole number of at least 1"),
        ({"ray_cpus": 2}, "ray_cpus=2: only with ray"),
        ({"worker": ("a:3",)}, "worker='a:3': give a URL"),
        ({"policy": "best"}, "policy='best': choose one of cache-aware"),
        ({"affinity": float("nan")}, "affinity=nan: give a number of at least 0"),
        ({"poll_seconds": 0.0}, "poll_seconds=0.0: give a number above 0"),
        ({"port": 65536}, "port=65536: give a number from 0 to 65535"),
        ({"restarts": -1}, "restarts=-1: give a whole number of at least 0"),
    ],
)
def test_settings_that_are_refused(given: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RouterConfig(**given)  # type: ignore[arg-type]


def test_gpus_are_dealt_out_or_too_few() -> None:
    assert gpus_of(["4", "5", "6"], workers=3, tp_size=1) == ["4", "5", "6"]
    with pytest.raises(ValueError, match="workers=2 times tp_size=2 is 4 GPUs, and there are 3"):
        gpus_of(["0", "1", "2"], workers=2, tp_size=2)

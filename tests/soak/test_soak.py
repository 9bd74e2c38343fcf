"""Thousands of requests over 64 connections, at the server and at the router, one of whose workers
is killed meanwhile: every request is answered, rightly, and nothing leaks.

A small run of the server belongs to `make test`; the large ones have the marker `slow`.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from minisgl import Engine
from tests.models.tiny_llava import make_tiny_llava
from tests.serve.common import LONG, until
from tests.soak.clients import CONNECTIONS, Stock, crowd
from tests.soak.processes import COUNTS, KEY, Held, Process, Program, running
from tests.soak.questions import (
    CHAT_TEMPLATE,
    Told,
    bad_questions,
    good_questions,
    long_questions,
    looks,
)

pytestmark = pytest.mark.skipif(not COUNTS, reason="counts what processes hold in /proc")

MIB = 2**20
# Tight: 900 slots for 64 clients, so that requests wait, are retracted and evict one another.
ENGINE = {"dtype": "float32", "kv_tokens": 900, "context_length": 400}
THREADS = 40  # that read prompts, started as they are needed
# Requests before things are counted, while caches fill and pools grow; those after it; and how many
# MiB more a process may have by then.  Memory that is freed is not always given back, and less and
# less of it is asked for.
SMALL, LARGE = (64, 256, 256), pytest.param(2000, 8000, 128, marks=pytest.mark.slow)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_tiny_llava(tmp_path_factory.mktemp("soak") / "llava")
    config = path / "tokenizer_config.json"
    told = json.loads(config.read_text(encoding="utf-8")) | {"chat_template": CHAT_TEMPLATE}
    config.write_text(json.dumps(told), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def stock(model: Path) -> Stock:
    with Engine(str(model), **{**ENGINE, "kv_tokens": 4000}) as quiet:
        return Stock(
            good_questions(quiet), long_questions(quiet), bad_questions(), looks(), most=MIB
        )


def options(model: Path) -> list[str]:
    given = ["--model", str(model), "--max-body-mib", "1"]
    for name, value in ENGINE.items():
        given += [f"--{name.replace('_', '-')}", str(value)]
    return given


@pytest.mark.parametrize(("warm", "requests", "mib"), [SMALL, LARGE])
def test_server(model: Path, stock: Stock, warm: int, requests: int, mib: int) -> None:
    with running("minisgl.serve", *options(model)) as program:
        report(crowd(program.port, stock, warm, seed=0))
        before = held_when_idle(program, [program.url], [program.process])
        did = crowd(program.port, stock, requests, seed=1)
        after = held_when_idle(program, [program.url], [program.process])
        report(did)
        assert_no_leak(before, after, mib)
        assert_everything_happened(did, requests)
        assert program.get("/health_generate") == {"status": "ok"}
        assert_still_right(program, stock)


@pytest.mark.parametrize(("warm", "requests", "mib"), [LARGE])
def test_router_with_a_worker_that_is_killed(
    model: Path, stock: Stock, warm: int, requests: int, mib: int
) -> None:
    mine = [*options(model), "--workers", "2", "--poll-seconds", "0.1"]
    with running("minisgl.router", *mine) as program:
        router, workers = program.process, program.process.children()
        assert len(workers) == 2
        report(crowd(program.port, stock, warm, seed=0))
        before = held_when_idle(program, urls(program), [router, *workers])
        killed, kept = workers
        ended = threading.Event()
        with killing(program, killed, after=requests // 4, unless=ended) as was_killed:
            did = crowd(program.port, stock, requests, seed=1, may_lose=True)
            ended.set()
        assert was_killed.is_set()
        report(did)
        until(lambda: set(program.get("/health")["workers"].values()) == {"up"})
        (started,) = [w for w in router.children() if w.pid not in (killed.pid, kept.pid)]
        after = held_when_idle(program, urls(program), [router, started, kept])
        assert_no_leak([before[0], before[2]], [after[0], after[2]], mib)
        assert_everything_happened(did, requests)
        # Only what had begun when it was killed can't be answered by another one.
        assert did["lost"] <= CONNECTIONS
        assert_still_right(program, stock)


# ---------------------------------------------------------------------- what is asserted


def report(did: Counter[str]) -> None:
    print(f"\n{sum(n for what, n in did.items() if what[0] != ' ')} things done")
    for what, n in did.items():
        print(f"  {what:28} {n:6}")


def urls(program: Program) -> list[str]:
    return [worker["url"] for worker in program.get("/router/state")["workers"]]


def held_when_idle(program: Program, engines: list[str], processes: list[Process]) -> list[Held]:
    """What `processes` hold once nobody waits for `engines` any more, all whose slots are free or
    in their tree."""

    def idle(url: str) -> bool:
        stats = program.get("/get_server_info", url)["stats"]
        if any(stats[name] for name in ("waiting", "running", "request_slots", "locked_slots")):
            return False
        assert stats["free_slots"] + stats["tree_slots"] == stats["pool_slots"]
        return True

    until(lambda: all(map(idle, engines)))
    return [process.held() for process in processes]


def assert_no_leak(before: list[Held], after: list[Held], mib: int) -> None:
    for one, other in zip(before, after, strict=True):
        print(f"  held before: {one}, after: {other}")
        assert other.files <= one.files + CONNECTIONS  # connections that are closed soon
        assert other.threads <= one.threads + THREADS
        assert other.memory <= one.memory + mib * MIB


def assert_everything_happened(did: Counter[str], requests: int) -> None:
    manners = [what for what in did if what[0] != " " and what != "lost"]
    assert len(manners) == 8 and sum(did[what] for what in manners) >= requests
    assert any(what.startswith("  chat regex") for what in did)


def assert_still_right(program: Program, stock: Stock) -> None:
    """Each good question once more, by one client."""
    for question in stock.good:
        headers = {"X-API-Key": KEY, "Content-Type": "application/json"}
        url = program.url + question.path
        answer = httpx.post(url, content=question.body, headers=headers, timeout=LONG, verify=False)
        question.check(Told(answer.status_code, answer.content))


@contextmanager
def killing(
    program: Program, worker: Process, *, after: int, unless: threading.Event
) -> Iterator[threading.Event]:
    """`worker` is killed once the router has sent `after` requests, while the block runs."""
    done = threading.Event()

    def watch() -> None:
        while not unless.wait(0.02):
            workers = program.get("/router/state")["workers"]
            if sum(each["requests"] for each in workers) >= after:
                worker.kill()
                done.set()
                return

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield done
    finally:
        unless.set()
        thread.join()

"""A tensor-parallel rank that dies inside a worker: the worker ends and says why, and whoever asked
it is answered by another one."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from minisgl import Engine, SamplingParams
from minisgl.models.hub import resolve_model
from minisgl.router.launcher import Started
from minisgl.router.reader import Reader
from tests.router.common import routing
from tests.serve.common import LONG, events, until

TOKENS = 300


def children(parent: int) -> Iterator[int]:
    """Processes that `parent` started."""
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            lines = status.read_text().splitlines()
        except OSError:  # it has ended
            continue
        if f"PPid:\t{parent}" in lines:
            yield int(status.parent.name)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_who_asked_it_is_answered_elsewhere(
    stream: bool, tiny_model_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-m", "minisgl.serve", "--model", str(tiny_model_dir)]
    command += ["--tp-size", "2", "--device", "cpu", "--dtype", "float32", "--kv-tokens", "512"]
    command += ["--port", "0", "--end-with-stdin", "--no-access-log"]
    params = {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    with Engine(str(tiny_model_dir), dtype="float32", kv_tokens=512) as engine:
        wanted = engine.generate(
            "hello", SamplingParams(max_tokens=TOKENS, temperature=0, ignore_eos=True)
        )
    workers = [Started(number, command, restarts=3) for number in range(2)]
    reader = Reader(resolve_model(str(tiny_model_dir)))
    with routing(workers, reader=reader, policy="round-robin") as router:
        router.server.ready.result(4 * LONG)
        pid = workers[0].pid
        assert pid is not None
        (rank,) = children(pid)
        os.kill(rank, signal.SIGSTOP)  # so that the answer can't be there before it is killed
        got: list[httpx.Response] = []
        asking = threading.Thread(
            target=lambda: got.append(router.ask("hello", sampling_params=params, stream=stream))
        )
        asking.start()
        until(lambda: router.fleet.balancer.seats[0].load > 0)
        os.kill(rank, signal.SIGKILL)
        asking.join(4 * LONG)
        assert got[0].status_code == 200 and got[0].headers["x-worker"] == "1"
        last = events(got[0].text)[-1] if stream else got[0].json()
        assert last["text"] == wanted.text
        router.until_up(0, 1)
        assert workers[0].pid != pid
    said = capfd.readouterr().err
    assert "[0] error: the engine stopped: EngineError: tensor-parallel rank 1 was ended by" in said
    assert "Fatal Python error" not in said

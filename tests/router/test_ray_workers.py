"""Workers that Ray places: started on its hosts, again elsewhere, given up, ended with the router.

What `any_ray` runs is asked of Ray, where it is installed (`-m slow`), and of tiny_ray.py here,
which can lose hosts as well.
"""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx
import pytest

import minisgl.router
from minisgl.router.__main__ import parser_of_workers, route
from minisgl.router.config import RouterConfig
from tests.router.common import FakeWorker, routing
from tests.router.test_workers import is_gone
from tests.router.tiny_ray import Place, TinyRay
from tests.serve.common import LONG, until

ROOT = Path(__file__).parents[2]
FAKE = [str(Path(__file__).parent / "fake_worker.py")]
ONE_CPU = {"num_cpus": 1, "num_gpus": 0}
ASK = "a b c"


class Unreadable:
    """Can be sent and not received."""

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return int, ("nonsense",)


@contextmanager
def workers_of(ray: ModuleType | TinyRay | None) -> Iterator[ModuleType]:
    """minisgl.router.ray_workers as it is with this `ray`."""
    name = "minisgl.router.ray_workers"
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "ray", ray)
        # subtle: pytest, looking for doctests, leaves half a module here where it can't import ray
        sys.modules.pop(name, None)
        try:
            yield importlib.import_module(name)
        finally:
            sys.modules.pop(name, None)
            vars(minisgl.router).pop("ray_workers", None)


@pytest.fixture
def tiny() -> TinyRay:
    return TinyRay({"127.0.0.1": Place(cpus=2)})


@pytest.fixture(params=["tiny", pytest.param("ray", marks=pytest.mark.slow)])
def any_ray(request: pytest.FixtureRequest, tiny: TinyRay) -> Iterator[ModuleType]:
    """`minisgl.router.ray_workers`, a cluster of this host being there."""
    if request.param == "ray":
        os.environ.setdefault("RAY_AUTH_MODE", "disabled")  # writes no token into the home
    ray = tiny if request.param == "tiny" else pytest.importorskip("ray")
    with workers_of(ray) as module, module.cluster("local"):
        yield module


pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning")


def test_a_server_is_started_again_and_ends_with_the_router(any_ray: Any) -> None:
    placed = any_ray.Placed(0, FAKE, 1, {"WORD": "secret"}, ONE_CPU)
    with routing([placed]) as router:
        router.server.ready.result(LONG)
        assert router.fleet.workers[0].url.startswith("http://127.0.0.1:"), "the router's own host"
        pids: list[int] = []
        for _ in range(2):  # more often than `restarts`, but it answers in between
            told = router.ask(ASK).json()
            assert told["word"] == "secret" and told["pid"] not in pids
            pids += [told["pid"], told["parent"]]
            assert router.get("/die").status_code == 503  # and there is no other one
            router.until_up(0)
        told = router.ask(ASK).json()
        pids += [told["pid"], told["parent"]]
    until(lambda: all(map(is_gone, pids)))


def test_an_actor_that_is_killed_takes_its_server_along_and_is_made_again(any_ray: Any) -> None:
    placed = [any_ray.Placed(i, FAKE, 3, {}, ONE_CPU) for i in range(2)]
    with routing(placed, policy="round-robin") as router:
        router.server.ready.result(LONG)
        first, second = router.ask(ASK), router.ask(ASK)
        assert (first.headers["x-worker"], second.headers["x-worker"]) == ("0", "1")
        os.kill(first.json()["parent"], signal.SIGKILL)
        until(lambda: is_gone(first.json()["pid"]))
        for _ in range(3):
            assert router.ask(ASK).status_code == 200, "requests go on"
        router.until_up(0, 1)
        pids = {router.ask(ASK).json()["pid"] for _ in range(2)}
        assert len(pids) == 2 and first.json()["pid"] not in pids and second.json()["pid"] in pids


def test_a_server_that_never_answers_is_given_up_and_the_router_ends(
    any_ray: Any,
) -> None:
    with routing([any_ray.Placed(0, [*FAKE, "dies"], 1, {}, ONE_CPU)]) as router:
        why: list[str | None] = []
        until(lambda: why.append(router.fleet.workers[0].why) or router.server.should_exit)
        router.thread.join(LONG)
        assert not router.thread.is_alive() and router.server.has_failed
        assert router.fleet.workers[0].why == "worker 0 ended 2 times without an answer"
    assert "OSError: worker 0 did not start: worker 0 ended with exit code 2" in why


def test_an_actor_that_can_not_be_made_says_why(any_ray: Any) -> None:
    """As where minisgl is not installed on a host."""
    with routing([any_ray.Placed(0, [Unreadable()], 2, {}, ONE_CPU)]) as router:
        why: list[str | None] = []
        until(lambda: why.append(router.fleet.workers[0].why) or router.server.should_exit)
        router.thread.join(LONG)
    said = [w for w in why if w and w.startswith("OSError: worker 0 did not start: ")]
    assert said and all("invalid literal for int()" in w and "\n" not in w for w in said), why


def test_a_router_that_ends_waits_for_no_place(
    any_ray: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(any_ray, "NOTICE_SECONDS", 0.01)
    with routing([any_ray.Placed(0, FAKE, 0, {}, {"num_cpus": 10**6, "num_gpus": 0})]) as router:
        until(lambda: "worker 0 waits for a host with {'num_cpus': 1000000" in caplog.text)
        assert router.ask(ASK).status_code == 503
    assert not router.server.ready.done()


# ---------------------------------------------------------------- what needs several hosts


@contextmanager
def hosts(**places: Place) -> Iterator[tuple[TinyRay, Any]]:
    """A cluster of tiny_ray's: b=... is the host 127.0.0.2; the router is on a, 127.0.0.1."""
    tiny = TinyRay({f"127.0.0.{ord(name) - 96}": place for name, place in places.items()})
    with workers_of(tiny) as module, module.cluster("local"):
        yield tiny, module


only_linux = pytest.mark.skipif(sys.platform != "linux", reason="all of 127.0.0.0/8 is loopback")


@only_linux
def test_a_worker_whose_host_is_lost_is_placed_on_another() -> None:
    with hosts(b=Place(1), c=Place(1)) as (tiny, module):
        placed = [module.Placed(i, FAKE, 3, {}, ONE_CPU) for i in range(2)]
        with routing(placed) as router:
            router.server.ready.result(LONG)
            was = sorted(each["url"].rpartition(":")[0] for each in router.state())
            assert was == ["http://127.0.0.2", "http://127.0.0.3"], "reached from other hosts"
            tiny.end_host("127.0.0.2")
            until(lambda: len(router.fleet.up) == 1)
            assert router.ask(ASK).status_code == 200
            tiny.add_host("127.0.0.4", Place(1))
            router.until_up(0, 1)
            now = sorted(each["url"].rpartition(":")[0] for each in router.state())
            assert now == ["http://127.0.0.3", "http://127.0.0.4"]


def test_each_worker_has_the_gpus_of_its_ranks() -> None:
    with hosts(a=Place(8, [0, 1, 2, 3])) as (_, module):
        assert module.needs_of("auto", 2, None) == {"num_cpus": 2, "num_gpus": 2}
        assert module.needs_of("cpu", 2, None) == {"num_cpus": 2, "num_gpus": 0}
        needs = module.needs_of("cuda", 2, 4)
        assert needs == {"num_cpus": 4, "num_gpus": 2}
        placed = [module.Placed(i, FAKE, 0, {}, needs) for i in range(2)]
        with routing(placed, policy="round-robin") as router:
            router.server.ready.result(LONG)
            gpus = {router.ask(ASK).json()["gpus"] for _ in range(2)}
            assert gpus == {"0,1", "2,3"}
    with hosts(a=Place(8)) as (_, module):
        assert module.needs_of("auto", 1, None) == {"num_cpus": 1, "num_gpus": 0}


# ---------------------------------------------------------------- the command


def test_workers_get_a_key_of_their_own() -> None:
    worker = FakeWorker()
    with routing([worker], worker_key="theirs") as router:
        router.server.ready.result(LONG)
        with router.client() as client:
            body = {"text": ASK}
            client.post("/generate", json=body, headers={"Authorization": "Bearer client's"})
            client.post("/flush_cache")
        assert {asked.headers["authorization"] for asked in worker.asked} == {"Bearer theirs"}


COMMAND = """
import sys
from tests.router.tiny_ray import Place, TinyRay
if sys.argv.pop(1) == "tiny":
    sys.modules["ray"] = TinyRay({"127.0.0.1": Place(cpus=1)})
from minisgl.router.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("kind", ["tiny", pytest.param("ray", marks=pytest.mark.slow)])
def test_the_command(kind: str, tiny_model_dir: Path) -> None:
    if kind == "ray":
        pytest.importorskip("ray")
    command = [sys.executable, "-c", COMMAND, kind, "--ray", "local", "--workers", "1"]
    command += ["--model", str(tiny_model_dir), "--port", "0", "--dtype", "float32"]
    command += ["--kv-tokens", "512", "--no-access-log"]
    router = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        assert router.stderr is not None
        url = next(line.strip() for line in router.stderr if line.startswith("http://"))
        with httpx.Client(base_url=url, timeout=LONG) as client:
            asking = {"text": "hello", "sampling_params": {"max_new_tokens": 3}}
            assert client.post("/generate", json=asking).json()["text"]
            (worker,) = client.get("/router/state").json()["workers"]
        assert httpx.post(f"{worker['url']}/generate", json=asking).status_code == 401
        router.terminate()
        assert router.wait(LONG) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{worker['url']}/health")
    finally:
        router.kill()
        router.wait(LONG)
        router.stderr.close()


def workers_args(model: Path) -> argparse.Namespace:
    return parser_of_workers().parse_args(["--model", str(model)])


def test_without_ray_it_is_said_what_to_install(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(RuntimeError, match=r"--ray needs Ray: pip install 'minisgl\[ray\]'"):
        route(RouterConfig(ray="auto"), workers_args(tiny_model_dir), [])


def test_a_cluster_that_is_not_there(tiny: TinyRay, tiny_model_dir: Path) -> None:
    with (
        workers_of(tiny),
        pytest.raises(ConnectionError, match="Could not find any running Ray instance"),
    ):
        route(RouterConfig(ray="auto"), workers_args(tiny_model_dir), [])

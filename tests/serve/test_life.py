"""How a server ends: it drains, then aborts; or its engine dies, and everybody hears of it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import httpx
import pytest

from minisgl import Engine, EngineConfig
from minisgl.engine import tp_worker
from minisgl.serve.__main__ import main, parser, serve, settings_of
from minisgl.serve.app import make_app
from minisgl.serve.config import ServeConfig
from minisgl.serve.desk import Desk
from minisgl.serve.server import Server
from tests.engine.common import between_steps
from tests.serve.common import LONG, Running, events, request, serving, until

ROOT = Path(__file__).parents[2]
BODY: dict[str, Any] = {"text": "Once", "sampling_params": {"max_new_tokens": 6, "temperature": 0}}


def ask(server: Running, body: dict[str, Any]) -> httpx.Response:
    """On a connection of its own."""
    with httpx.Client(verify=False, timeout=LONG) as client:
        return client.post(f"{server.url}/generate", json=body)


class TestDrain:
    def test_answers_go_on_and_new_questions_are_refused(self, engine: Engine) -> None:
        with ExitStack() as stack:
            server = stack.enter_context(serving(engine))
            pool = stack.enter_context(ThreadPoolExecutor(2))
            with between_steps(engine):
                whole = pool.submit(ask, server, BODY)
                stream = pool.submit(ask, server, {**BODY, "stream": True})
                data = json.dumps(BODY).encode()
                late = stack.enter_context(server.connect())  # its body comes too late
                late.sendall(request("POST", "/generate", data)[:-5])
                until(lambda: len(server.desk._asked) == 2)
                server.server.should_exit = True
                until(lambda: server.desk.closing)
                late.sendall(data[-5:])
                assert late.recv(65536).startswith(b"HTTP/1.1 503 ")
            assert whole.result(LONG).json()["text"] == events(stream.result(LONG).text)[-1]["text"]
            server.thread.join(LONG)
            assert not server.thread.is_alive()
            with pytest.raises(httpx.ConnectError):
                ask(server, BODY)

    def test_then_they_are_cut_off_and_their_clients_told(self, engine: Engine) -> None:
        endless = {**BODY, "sampling_params": {"max_new_tokens": None, "ignore_eos": True}}
        with serving(engine, drain_seconds=0.0) as server, ThreadPoolExecutor(2) as pool:
            with between_steps(engine):
                whole = pool.submit(ask, server, endless)
                stream = pool.submit(ask, server, {**endless, "stream": True})
                until(lambda: len(server.desk._asked) == 2)
                server.server.should_exit = True
                until(lambda: server.desk.closing)
                # Cut off at once: what the engine reads first when it goes on.
                until(lambda: engine.loop._inbox.qsize() >= 4)
            answer = whole.result(LONG)
            assert answer.status_code == 503
            assert "shutting down" in answer.json()["error"]["message"]
            assert "shutting down" in events(stream.result(LONG).text)[-1]["error"]["message"]
        until(lambda: engine.call(lambda: engine.loop.scheduler.is_idle))
        engine.check()


def test_the_death_of_the_engine_reaches_everybody(tiny_model_dir: Path) -> None:
    with ExitStack() as stack:
        engine = stack.enter_context(Engine(str(tiny_model_dir), kv_tokens=512))
        server = stack.enter_context(serving(engine))
        pool = stack.enter_context(ThreadPoolExecutor(4))
        with between_steps(engine):
            asked = [pool.submit(ask, server, BODY) for _ in range(2)]
            asked += [pool.submit(ask, server, {**BODY, "stream": True}) for _ in range(2)]
            until(lambda: len(server.desk._asked) == 4)
            engine.loop.runner.forward = None  # type: ignore[assignment]
        for whole in asked[:2]:
            answer = whole.result(LONG)
            assert answer.status_code == 500
            assert "the engine stopped: TypeError" in answer.json()["error"]["message"]
        for stream in asked[2:]:
            error = events(stream.result(LONG).text)[-1]["error"]
            assert "the engine stopped: TypeError" in error["message"]
        server.thread.join(LONG)  # it ends by itself
        assert not server.thread.is_alive() and server.server.has_failed


def test_an_engine_that_has_ended_is_not_healthy(tiny_model_dir: Path) -> None:
    with Engine(str(tiny_model_dir), kv_tokens=512) as engine:
        pass
    app = make_app(Desk(engine, ServeConfig()))

    async def statuses() -> list[int]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as client:
            paths = ("/health", "/health_generate", "/metrics", "/ui/state", "/get_server_info")
            return [(await client.get(path)).status_code for path in paths]

    assert asyncio.run(statuses()) == [503, 500, 500, 503, 500]


# ---------------------------------------------------------------------- the program


@contextmanager
def program(model: Path, *options: str, **env: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """`python -m minisgl.serve`, and its address once it listens."""
    process = subprocess.Popen(
        [
            sys.executable, "-m", "minisgl.serve", "--model", str(model), "--port", "0",
            "--kv-tokens", "512", *options,
        ],
        cwd=ROOT,
        env={**os.environ, **env},
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # as a shell starts it: Ctrl-C is for all of its group
    )  # fmt: skip
    assert process.stderr is not None
    lines = []
    try:
        for line in process.stderr:
            lines.append(line)
            if match := re.fullmatch(r"(http://127\.0\.0\.1:\d+)\n", line):
                yield process, match[1]
                return
        raise AssertionError("".join(lines))
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def test_a_signal_ends_the_program_cleanly_and_the_log_is_json(tiny_model_dir: Path) -> None:
    with program(tiny_model_dir, "--served-names", "t", MINISGL_API_KEY="k") as (process, url):
        with httpx.Client(verify=False, timeout=LONG, headers={"X-API-Key": "k"}) as client:
            body = {"prompt": "Once", "max_tokens": 3, "model": "t", "user": "Ada"}
            assert client.post(f"{url}/v1/completions", json=body).status_code == 200
            assert client.get(f"{url}/nothing").status_code == 404
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONG) == 0
        assert process.stderr is not None
        first, second = (json.loads(line) for line in process.stderr)
    assert (first["method"], first["path"], first["status"]) == ("POST", "/v1/completions", 200)
    assert first["user"] == "Ada" and first["completion_tokens"] == 3
    assert first["prompt_tokens"] > 0 and first["cached_tokens"] == 0 and first["seconds"] > 0
    assert second["status"] == 404
    with pytest.raises(httpx.ConnectError):  # the port is free
        httpx.get(url, verify=False)


def others_of(process: subprocess.Popen[str]) -> list[Path]:
    """The processes that it started, where there is a way to see them."""
    tasks = Path(f"/proc/{process.pid}/task")
    found = [pid for file in tasks.glob("*/children") for pid in file.read_text().split()]
    return [Path("/proc") / pid for pid in found]


@pytest.mark.parametrize("ranks", [1, 2])
def test_ctrl_c_lets_answers_go_on(tiny_model_dir: Path, ranks: int) -> None:
    settings = {"max_new_tokens": 100, "temperature": 0, "ignore_eos": True}
    body = {"text": "Once", "sampling_params": settings, "stream": True}
    with program(tiny_model_dir, "--tp-size", str(ranks)) as (process, url):
        others = others_of(process)
        assert len(others) >= ranks - 1 or not Path("/proc").exists()
        with (
            httpx.Client(verify=False, timeout=LONG) as client,
            client.stream("POST", f"{url}/generate", json=body) as answer,
        ):
            pieces = answer.iter_text()
            text = next(pieces)
            os.killpg(process.pid, signal.SIGINT)
            text += "".join(pieces)
        assert events(text)[-1]["meta_info"]["completion_tokens"] == 100
        assert process.wait(LONG) == 0
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()
        until(lambda: not any(other.exists() for other in others))


def test_ctrl_c_again_ends_at_once(tiny_model_dir: Path) -> None:
    settings = {"max_new_tokens": 400, "ignore_eos": True}
    body = {"text": ["Once"] * 300, "sampling_params": settings}  # minutes
    with program(tiny_model_dir, "--drain-seconds", "600") as (process, url):

        def is_busy() -> bool:
            return "minisgl_running 0\n" not in httpx.get(f"{url}/metrics", verify=False).text

        def is_over() -> bool:
            try:
                answer = httpx.get(f"{url}/health", verify=False, timeout=LONG)
            except httpx.TransportError:
                return True
            return answer.status_code == 503

        def ask() -> int:
            try:
                answer = httpx.post(f"{url}/generate", json=body, verify=False, timeout=LONG)
            except httpx.TransportError:
                return 0
            return answer.status_code

        with ThreadPoolExecutor(1) as pool:
            status = pool.submit(ask)
            until(
                lambda: "minisgl_running 0\n" not in httpx.get(f"{url}/metrics", verify=False).text
            )
            os.killpg(process.pid, signal.SIGINT)
            until(is_over)
            assert not status.done()
            os.killpg(process.pid, signal.SIGINT)
            assert process.wait(LONG) == 0
            assert status.result(LONG) in (0, 500, 503)  # no answer, in any case


def test_the_status_says_that_the_engine_died(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> None:
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr("minisgl.engine.model_runner.ModelRunner.forward", broken)
    said: list[str] = []

    def url() -> str | None:
        said.append(capsys.readouterr().err)
        found = re.search(r"http://127\.0\.0\.1:\d+", "".join(said))
        return found and found[0]

    with ThreadPoolExecutor(1) as pool:
        options = ["--model", str(tiny_model_dir), "--port", "0", "--kv-tokens", "512"]
        status = pool.submit(main, [*options, "--no-access-log"])
        until(lambda: url() is not None or status.done())
        answer = httpx.post(f"{url()}/generate", json=BODY, verify=False, timeout=LONG)
        assert answer.status_code == 500 and "broken on purpose" in answer.text
        assert status.result(LONG) == 1
    url()
    assert "broken on purpose" in "".join(said)


def test_a_port_that_is_taken(engine: Engine, server: Running) -> None:
    second = Server(Desk(engine, ServeConfig(port=server.port)))
    with pytest.raises(SystemExit) as exit_:
        second.run()
    assert exit_.value.code != 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--port", "70000"], "port=70000"),
        (["--max-requests", "0"], "max_requests=0"),
        (["--drain-seconds", "-1"], "drain_seconds=-1"),
        (["--kv-tokens", "0"], "kv_tokens=0"),
        (["--api-key", "ä"], "ASCII"),
        (["--chat-template", "/nowhere"], "/nowhere"),
        (["--policy", "luck"], "luck"),
    ],
)
def test_options_are_checked_before_anything_is_loaded(
    options: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as exit_:
        main(options)
    assert exit_.value.code == 2 and why in capsys.readouterr().err


def test_options_become_settings() -> None:
    args = parser().parse_args(
        ["--served-names", "a", "--served-names", "b", "--prefix-cache", "none", "--port", "5"]
    )
    assert ServeConfig(**settings_of(ServeConfig, args)) == ServeConfig(
        port=5, served_names=("a", "b")
    )
    assert args.prefix_cache == "none" and args.kv_tokens is None


def test_every_option_is_in_the_docs_with_its_default() -> None:
    page = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
    for field in fields(ServeConfig):
        (row,) = re.findall(rf"^\| `--{field.name.replace('_', '-')}` \| (.+?) \|", page, re.M)
        words = {None: ("none", "the model's"), (): ("none", "the model's"), False: ("off",)}
        default: Any = field.default
        number = f"{default:g}" if isinstance(default, float) else str(default)
        assert row.strip("`") in words.get(default, (number,)), field.name


def test_of_torchrun_s_processes_only_rank_0_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    worked: list[EngineConfig] = []
    monkeypatch.setattr(tp_worker, "work_under_torchrun", worked.append)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert serve(ServeConfig(), {"model": "a model", "tp_size": 2}, None) == 0
    assert [(config.model, config.tp_size) for config in worked] == [("a model", 2)]

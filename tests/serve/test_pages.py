"""Metrics, the live page and the access log."""

from __future__ import annotations

import json
import logging
import re

import pytest

from minisgl.serve.metrics import COUNTERS, GAUGES, HISTOGRAMS
from tests.engine.common import between_steps
from tests.serve.common import Running, until

BODY = {"text": "Once upon a time", "sampling_params": {"max_new_tokens": 5, "ignore_eos": True}}


def metrics(server: Running) -> dict[str, float]:
    answer = server.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = [line for line in answer.text.splitlines() if not line.startswith("#")]
    pairs = [line.rsplit(" ", 1) for line in lines]
    return {name: float(value) for name, value in pairs}


def test_every_number_is_named_and_true(server: Running) -> None:
    server.get("/flush_cache")
    before = metrics(server)
    server.post("/generate", BODY)
    server.post("/generate", BODY)
    after = metrics(server)
    stats = server.engine.stats()
    for name in COUNTERS:
        assert after[f"minisgl_{name}_total"] == getattr(stats, name)
    for name in GAUGES:
        assert after[f"minisgl_{name}"] == pytest.approx(getattr(stats, name))

    def rose(name: str) -> float:
        return after[name] - before[name]

    assert rose("minisgl_requests_total") == 2 and rose("minisgl_output_tokens_total") == 10
    prompt = rose("minisgl_prompt_tokens_total") / 2
    assert rose("minisgl_cached_tokens_total") == prompt - 1
    assert rose("minisgl_first_token_seconds_count") == 2
    assert rose("minisgl_inter_token_seconds_count") == 8
    for name in HISTOGRAMS:
        buckets = [v for k, v in after.items() if k.startswith(f"minisgl_{name}_seconds_bucket")]
        assert buckets == sorted(buckets)
        assert buckets[-1] == after[f"minisgl_{name}_seconds_count"]
        assert after[f"minisgl_{name}_seconds_sum"] > 0


def test_the_text_is_in_prometheus_format(server: Running) -> None:
    text = server.get("/metrics").text
    number = r"[-+]?(\d+(\.\d+)?(e[-+]?\d+)?|\+Inf)"
    sample = re.compile(rf'minisgl_\w+(\{{le="{number}"\}})? {number}')
    described: set[str] = set()
    for line in text.splitlines():
        if match := re.fullmatch(r"# (HELP|TYPE) (minisgl_\w+) (.+)", line):
            described.add(match[2])
            if match[1] == "TYPE":
                assert match[3] in ("counter", "gauge", "histogram")
        else:
            assert sample.fullmatch(line), line
            name = re.split(r"[{ ]", line)[0]
            assert name in described or re.sub("_(bucket|sum|count)$", "", name) in described
    assert text.endswith("\n")


def test_the_page_needs_nothing_from_elsewhere(server: Running) -> None:
    page = server.get("/ui")
    assert page.headers["content-type"].startswith("text/html")
    assert not re.search(r"""(src|href)\s*=|https?://|@import""", page.text)
    assert "innerHTML" not in page.text  # what models say is text
    # Every element that the script asks for is there.
    ids = set(re.findall(r'\bid="(\w+)"', page.text))
    assert set(re.findall(r'\$\("(\w+)"\)', page.text)) <= ids


def test_the_picture_shows_queue_batch_and_tree(server: Running) -> None:
    server.get("/flush_cache")
    for text in ("Once upon a time", "Once upon a river"):
        server.post("/generate", {"text": text, "sampling_params": {"max_new_tokens": 1}})
    state = server.get("/ui/state").json()
    first, *others = state["nodes"]
    assert first["parent"] == -1 and first["text"].startswith("Once upon a")
    assert len(others) == 2 and {node["parent"] for node in others} == {0}
    assert sum(node["tokens"] for node in state["nodes"]) == state["stats"]["tree_slots"]
    assert state["more_nodes"] == 0
    assert state["waiting"] == state["running"] == state["prefilling"] == []
    page = server.get("/ui").text
    drawn = set(re.findall(r"\b(?:r|node|s|state)\.(\w+)", page))
    there = {*state, *state["stats"], *first}
    script_only = {"answer", "prompt", "text"}  # of requests, which there are none of now
    assert drawn - there - script_only <= {
        "id", "prompt_tokens", "cached_tokens", "computed", "output_tokens",
    }  # fmt: skip


def test_requests_are_drawn_while_they_run(server: Running) -> None:
    from minisgl.serve import live

    engine = server.engine
    with between_steps(engine):
        handles = [engine.submit("Once upon a time") for _ in range(2)]
        until(lambda: engine.loop._inbox.qsize() >= 2)
    state = live.picture(engine)  # read between two of their steps, or after their end
    for name in ("waiting", "prefilling", "running"):
        for shown in state[name]:
            assert shown["prompt"] == "Once upon a time" and shown["prompt_tokens"] > 0
    for handle in handles:
        handle.abort()
    until(server.idle)


def test_the_log_has_a_line_for_each_request(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    def lines() -> list[dict[str, object]]:
        return [json.loads(r.message) for r in caplog.records if r.name.endswith("access")]

    with caplog.at_level(logging.INFO, logger="minisgl.serve.access"):
        body = {"prompt": "a secret", "max_tokens": 2, "n": 2, "user": "Ada", "stream": True}
        server.post("/v1/completions", body)
        server.post("/v1/completions", {"prompt": "", "user": "Bob"})
        with server.connect() as sock:
            sock.sendall(b"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n")
        until(lambda: len(lines()) == 3)
    first, second, third = lines()
    assert (first["status"], first["user"], first["completion_tokens"]) == (200, "Ada", 4)
    assert (second["status"], second["user"]) == (400, "Bob")
    assert (third["status"], third["path"]) == (499, "/generate")
    assert "secret" not in caplog.text

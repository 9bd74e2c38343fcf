"""The production-like traces: what comes back is found in the cache, and only with one."""

from __future__ import annotations

from pathlib import Path

import PIL.Image
import pytest
import torch

from scripts.bench import traces
from scripts.bench.figures import Options, production
from scripts.bench.figures.production import CACHED, UNCACHED
from scripts.bench.random_models import Model
from tests.models.tiny_llava import make_tiny_llava

KINDS = ("prompt", "cached")


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Few conversations, short texts, and a LLaVA whose images are 16 tokens."""
    monkeypatch.setattr(traces, "CHATS", (6, 5))
    monkeypatch.setattr(traces, "SIGHTS", (6, 5))
    monkeypatch.setattr(traces, "NEW", 2)
    monkeypatch.setattr(traces, "PAUSE", 0.1)
    monkeypatch.setattr(traces, "RULES", traces.RULES[:1])
    path = make_tiny_llava(tmp_path_factory.mktemp("llava") / "llava")
    llava = Model("tiny", path, torch.device("cpu"), {"device": "cpu"}, is_random=True)
    monkeypatch.setattr(traces, "prepare", lambda options, shape, scale, scratch: llava)
    monkeypatch.setattr(traces, "with_weights", lambda model: model)


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """As a directory of real data is laid out."""
    (tmp_path / "mt_bench").mkdir()
    (tmp_path / "mt_bench" / "question.jsonl").write_text('{"turns": ["One?", "Two?"]}\n', "utf-8")
    (tmp_path / "images").mkdir()
    for i in range(2):
        image = PIL.Image.new("RGB", (40, 200), (90 * i, 90, 90))
        image.save(tmp_path / "images" / f"{i}.png")
    return tmp_path


@pytest.mark.usefixtures("small")
def test_both_traces_with_and_without_the_tree(tiny_model_dir: Path, data: Path) -> None:
    options = Options(quick=True, model=str(tiny_model_dir), device="cpu", rounds=2, data=data)
    result = production.run(options)
    assert [row[:2] for row in result.tables[0].rows] == [
        [trace, way] for trace in ("chat", "images") for way in (CACHED, UNCACHED)
    ]
    for raw in result.raw.values():
        prompts, cached = raw["prompt tokens"], raw["cached tokens"]
        rounds = [*prompts[CACHED], *prompts[UNCACHED]]
        assert len(rounds) == 4 and all(each == rounds[0] for each in rounds)  # the same trace
        assert not any(map(sum, cached[UNCACHED]))
        assert all(0 < sum(each) < sum(rounds[0]) for each in cached[CACHED])
        assert all(len(waits) == len(rounds[0]) for waits in raw["first token seconds"][CACHED])
    # A later turn finds all of the turn before it, but what a tokenizer joins to the next token.
    turns = [len(talk.turns) for talk in traces.chats(options).talks]
    prompts, cached = (result.raw["chat"][f"{kind} tokens"][CACHED][0] for kind in KINDS)
    starts = {sum(turns[:i]) for i in range(len(turns))}
    later = [i for i in range(len(prompts)) if i not in starts]
    assert later and all(cached[i] >= prompts[i - 1] - 4 for i in later)
    hits = [row[5] for row in result.tables[0].rows]
    assert hits[1] == hits[3] == "0.0%" and "0.0%" not in (hits[0], hits[2])
    assert [len(values) for values in result.charts[0].series.values()] == [2, 2]


@pytest.mark.usefixtures("small")
def test_a_trace_is_the_same_each_time_and_of_the_given_data(data: Path, tmp_path: Path) -> None:
    options = Options(quick=True)
    first, second = traces.chats(options), traces.chats(options)
    assert first.talks == second.talks and len(first.talks) == 5
    arrivals = [talk.at for talk in first.talks]
    assert arrivals == sorted(arrivals)
    assert len({talk.system for talk in first.talks}) < 5  # some is popular
    assert len(traces.chats(Options()).talks) == 6

    talks = traces.chats(Options(data=data)).talks
    assert {turn for talk in talks for turn in talk.turns} == {"One?", "Two?"}
    (tmp_path / "scratch").mkdir()
    shown = [t.image for t in traces.sights(Options(data=data), tmp_path / "scratch").talks]
    folders = {image.parent.name for image in shown if image}
    assert folders == {"images", "scratch"}  # others', and one's own

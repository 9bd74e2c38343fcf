"""Figures 5 and 6 on a tiny model: what they report, and that answers are equal."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

import minisgl.lang as sgl
from minisgl.lang.backends.base import Answer
from minisgl.lang.context import Context
from minisgl.sampling import SamplingParams
from scripts.bench.figures import Options, latency, throughput
from scripts.bench.peers.backend import PeerBackend
from scripts.bench.workloads import WORKLOADS, Size
from scripts.bench.workloads.compare import Comparison, Outcome
from scripts.bench.workloads.report import result_of
from scripts.bench.workloads.systems import System
from scripts.make_tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Options:
    model = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", max_position=4096)
    return Options(quick=True, model=str(model), device="cpu")


@pytest.fixture(autouse=True)
def little(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two programs with one example each."""
    for name, workload in WORKLOADS.items():
        monkeypatch.setitem(WORKLOADS, name, replace(workload, quick=Size(2, 2, 0.02)))


def test_throughput_beside_transformers(
    options: Options, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ("mmlu", "hellaswag", "json_decoding")
    result = throughput.run(options, names)
    values, better = result.tables
    systems = ["ours", "ours, all off", "transformers"]
    assert values.columns == ["workload", "settings", "programs", "hit rate", *systems]
    assert better.columns == ["workload", *systems[1:]]
    for row, name in zip(values.rows, names, strict=True):
        size = WORKLOADS[name].quick
        assert row[:3] == [WORKLOADS[name].title, WORKLOADS[name].settings(size.scale), size.batch]
        assert row[3] is not None and row[3] > 0
        raw = result.raw[name]
        assert all(len(raw[system]["latencies"][0]) == size.batch for system in systems)
        assert raw["ours, all off"]["hit_rates"] == [0.0]
        assert raw["transformers"]["hit_rates"] == [None]
        for system, value in zip(systems, row[4:], strict=True):
            assert value == size.batch / raw[system]["seconds"][0]
    (chart,) = result.charts
    assert chart.series["ours"] == [1.0, 1.0, 1.0]
    assert all(value is not None for series in chart.series.values() for value in series)
    assert "6 of 6 answers of ours, all off are ours, to the character." in result.notes
    assert "4 of 4 answers of transformers are ours, to the character." in result.notes
    free = [note for note in result.notes if "free text" in note]
    assert len(free) == 1 and "transformers has no patterns: for JSON decoding" in free[0]
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 3 + 3 * 3 and told[0].startswith("Warming up.")
    assert sgl.global_config.enable_fork_hint  # switches are back


def test_latency_alone(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)  # no transformers
    result = latency.run(Options(**{**vars(options), "rounds": 2}), ("mmlu", "skeleton_of_thought"))
    values, better = result.tables
    assert values.columns[4:] == ["ours", "ours, all off"]
    for row, name in zip(values.rows, ("mmlu", "skeleton_of_thought"), strict=True):
        raw = result.raw[name]["ours"]
        assert row[2] == WORKLOADS[name].quick.single == len(raw["latencies"][0])
        assert len(raw["seconds"]) == 2
        means = [sum(latencies) / len(latencies) for latencies in raw["latencies"]]
        assert row[4] == pytest.approx(sum(means) / 2)  # the median of two
        off = result.raw[name]["ours, all off"]["latencies"]
        gains = [sum(b) / sum(a) for a, b in zip(raw["latencies"], off, strict=True)]
        assert better.rows[values.rows.index(row)][1] == pytest.approx(sum(gains) / 2)
    assert any("22 of 22 answers of ours, all off are ours" in note for note in result.notes)


class Choosy(PeerBackend):
    """A peer without a process: says "no" to everything, and does not choose or score."""

    def __init__(self) -> None:
        self._name, self.features, self.free_tokens = "choosy", [], None

    async def generate(self, context: Context, params: SamplingParams) -> list[Answer]:
        self._generation(context, params)
        return [Answer("no")]

    def flush_cache(self) -> bool:
        return True

    def info(self) -> dict[str, Any]:
        return {}


def comparison(name: str, systems: Sequence[System]) -> Comparison:
    workload = WORKLOADS[name]
    outcomes = {system.name: Outcome() for system in systems}
    return Comparison(workload, 0.02, workload.jobs(None, 2, 0.02), None, outcomes)


def test_what_a_peer_does_not_run(options: Options) -> None:
    with sgl.Runtime(options.model, device="cpu", dtype="float32", kv_tokens=8192) as runtime:
        systems = [System("ours", runtime), System("choosy", Choosy())]
        compared = [comparison(name, systems) for name in ("hellaswag", "json_decoding", "mmlu")]
        for each in compared:
            for system in [*systems, *systems]:
                each.round(system)
    hellaswag, json_decoding, mmlu = (each.outcomes["choosy"] for each in compared)
    assert "can't score choices" in hellaswag.refusal and not hellaswag.runs
    assert json_decoding.free_tokens and len(json_decoding.runs) == 2
    assert mmlu.free_tokens is None and not mmlu.refusal
    assert [each.equal("choosy") for each in compared] == [None, None, (0, 2)]
    result = result_of(compared, throughput.MEASURE)
    assert [row[-1] is None for row in result.tables[0].rows] == [True, False, False]
    assert result.charts[0].series["choosy"][0] is None
    assert any("choosy does not run HellaSwag: " in note for note in result.notes)
    assert any(
        note == "0 of 2 answers of choosy are ours, to the character (all but in MMLU 0 of 2)."
        for note in result.notes
    )

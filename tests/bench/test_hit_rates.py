"""Figures 8a, 8b, 8c and 13 on a tiny model: what they report, and what of it is no matter of time:
hit rates, and that answers are equal under every switch."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scripts.bench.figures import Options, ablations, hit_rate_sweep, optimal_hit_rate
from scripts.bench.figures.ablations import CASES, FULL, VARIANTS, Case
from scripts.bench.workloads import WORKLOADS, Size
from scripts.make_tiny_model import make_tiny_model


@pytest.fixture(scope="module")
def options(tmp_path_factory: pytest.TempPathFactory) -> Options:
    model = make_tiny_model(tmp_path_factory.mktemp("models") / "tiny", max_position=4096)
    return Options(quick=True, model=str(model), device="cpu")


def test_ablations(options: Options) -> None:
    size = Size(2, 0, 0.02)
    cases = [Case(name, size, size, size, 0.6) for name in ("llm_judge", "chat_short")]
    result = ablations.run(options, cases)
    (table,) = result.tables
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    titles = [WORKLOADS[case.name].title for case in cases]
    assert [(r["workload"], r["variant"]) for r in rows] == [
        (t, v) for t in titles for v in VARIANTS
    ]
    for row in rows:
        same, of = str(row["equal answers"]).split(" of ")
        assert same == of, f"{row['variant']} changes answers"
    rate = {(row["workload"], row["variant"]): row["hit rate %"] for row in rows}
    for title in titles:
        assert rate[title, "no cache"] == 0
        assert rate[title, FULL] > 0
        for variant in VARIANTS:
            assert rate[title, variant] <= 100
    assert rate[titles[0], "no tree structure"] < rate[titles[0], FULL]
    ratio = {(r["workload"], r["variant"]): r["throughput / full"] for r in rows}
    assert all(ratio[title, FULL] == 1 for title in titles)
    assert list(result.charts[0].series) == list(VARIANTS) and len(result.notes) == len(cases)


def test_every_case_of_the_figure_is_a_workload() -> None:
    assert {case.name for case in CASES} <= set(WORKLOADS)
    assert all(0 < case.share <= 1 for case in CASES)


def test_hit_rate_sweep(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hit_rate_sweep, "QUICK", Size(1, 0, 0.008))
    result = hit_rate_sweep.run(options, bounds=(0.0, 0.5, 1.0))
    (table,) = result.tables
    rows = [dict(zip(table.columns, row, strict=True)) for row in table.rows]
    none, half, all_ = (float(row["hit rate %"] or 0) for row in rows)
    assert none == 0 and 0 < half <= 50 < all_
    assert all(float(row["batch size"] or 0) >= 1 for row in rows)
    answers = 3 * (3 + 9 + 27)
    assert result.notes[1].startswith(f"{answers} of {answers} answers")
    assert [chart.kind for chart in result.charts] == ["lines"] * 4


def test_optimal_hit_rate(options: Options, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("mmlu", "chat_short"):
        monkeypatch.setitem(WORKLOADS, name, replace(WORKLOADS[name], quick=Size(2, 0, 0.02)))
    result = optimal_hit_rate.run(options, ["mmlu", "chat_short"])
    (table,) = result.tables
    for values in table.rows:
        row = dict(zip(table.columns, values, strict=True))
        assert 0 < float(row["hit rate %"] or 0) <= float(row["optimum %"] or 0) + 1e-9
    assert "met" in result.notes[0] and "met" in result.notes[1]
    assert list(result.charts[0].series) == ["achieved", "optimal"]


def test_optimal_hit_rate_with_half_the_memory(options: Options) -> None:
    workload = replace(WORKLOADS["chat_short"], quick=Size(3, 0, 0.02))
    row = optimal_hit_rate.measure(workload, options, is_tight=True)
    assert row["hit rate %, half"] <= row["hit rate %"] <= row["optimum %"] + 1e-9
    assert row["half the memory"] < row["prompt tokens"]

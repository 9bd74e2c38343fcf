"""The share of the radix tree: that its stopwatch counts once, and that nothing is reused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts.bench.figures import Options, overhead


class Clock:
    """Advances by one second each time it is read."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


class Nested:
    def outer(self) -> str:
        return "outer " + self.inner()

    def inner(self) -> str:
        return "inner"

    def fails(self) -> None:
        raise KeyError("x")


def test_a_call_within_a_call_counts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overhead, "time", SimpleNamespace(perf_counter=Clock()))
    watch, target = overhead.Stopwatch(), Nested()
    watch.attach(target, ["outer", "inner", "fails"])
    assert (target.outer(), target.inner()) == ("outer inner", "inner")
    with pytest.raises(KeyError):
        target.fails()
    assert watch.calls == {"outer": 1, "inner": 1, "fails": 1}
    assert watch.seconds == {"outer": 1.0, "inner": 1.0, "fails": 1.0}


def test_a_run_without_reuse(tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"REQUESTS": 6, "PROMPT": 12, "QUICK_NEW": 3, "RUNNING": 2}.items():
        monkeypatch.setattr(overhead, name, value)
    result = overhead.run(Options(quick=True, model=str(tiny_model_dir), device="cpu", rounds=2))
    assert result.raw["cached"] == 0
    assert len(result.raw["run seconds"]) == len(result.raw["shares"]) == 2
    rows = {row[0]: row for row in result.tables[0].rows}
    calls = {name: row[1] for name, row in rows.items()}
    # Each of the 12 requests is inserted, and 2 * 2 * 15 slots do not hold them all.
    assert calls["insert"] == 12 and calls["evict"] > 0 and calls["lock"] == calls["unlock"]
    assert calls["all"] == sum(result.raw["calls"].values())
    assert result.tables[0].rows[-1][0] == "all"
    assert len(result.charts[0].x) == len(rows) - 1

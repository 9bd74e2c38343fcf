"""Costs of a step: the fit finds those that steps were made of, and an engine's own steps do."""

from __future__ import annotations

import json
import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from minisgl import Engine
from scripts.bench import simulate, step_costs
from scripts.bench.step_costs import fit, measure
from scripts.bench.steps import StepRecord, Steps

AMOUNTS = [(p, d) for p in (0, 16, 64, 256) for d in (0, 1, 4, 16) if p or d]


def steps(a: float, b: float, c: float, noise: float = 0.0) -> list[StepRecord]:
    """Each of AMOUNTS 20 times, by these costs."""
    rng = random.Random(0)
    return [
        StepRecord((a + b * p + c * d) * (1 + rng.uniform(-noise, noise)), p, d, d)
        for p, d in AMOUNTS * 20
    ]


@pytest.mark.parametrize(
    "costs", [(0.012, 5e-5, 1e-4), (0.0, 1e-3, 1e-3), (0.01, 0.0, 1e-3), (0.01, 1e-3, 0.0)]
)
def test_known_costs_are_found(costs: tuple[float, float, float]) -> None:
    found = fit(steps(*costs))
    assert (found.step, found.prefill_token, found.decode_request) == pytest.approx(costs, abs=1e-9)
    assert found.steps == 20 * len(AMOUNTS)
    assert found.error < 1e-6 and found.worst < 1e-6


def test_noise_is_told_and_makes_no_cost_negative() -> None:
    found = fit(steps(0.01, 1e-4, 1e-3, noise=0.2))
    costs = (found.step, found.prefill_token, found.decode_request)
    assert costs == pytest.approx((0.01, 1e-4, 1e-3), rel=0.1)
    assert 0.05 < found.error < 0.15 < found.worst < 0.25
    falling = [StepRecord(0.02 - 1e-4 * d, 16 * (d % 3), d, d) for d in range(1, 9)]
    assert fit(falling).decode_request == 0.0
    assert "half of which it meets within" in str(found)


def test_steps_that_are_all_alike_tell_nothing() -> None:
    with pytest.raises(ValueError, match="20 steps are too few, or too much alike"):
        fit([StepRecord(0.01, 0, n, n) for n in range(1, 21)])
    with pytest.raises(ValueError, match="2 steps are too few"):
        fit(steps(1, 1, 1)[:2])


def test_an_engine_is_measured_by_its_own_steps(
    tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_costs, "BATCHES", (1, 3))
    with Engine(str(tiny_model_dir), kv_tokens=1200) as engine:
        records = measure(engine, rounds=2)
        assert sum(r.prefilled for r in records) == 2 * (16 + 64 + 256) * 4
        assert sum(r.decoding for r in records) == 2 * 3 * 4 * (step_costs.NEW - 1)
        assert all(r.seconds > 0 and r.tokens == r.prefilled + r.decoding for r in records)
        assert fit(records).steps == len(records)
        assert Steps(engine).take() == []


def test_the_simulation_takes_what_was_measured(
    tiny_model_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(step_costs, "BATCHES", (1, 3))
    costs, said = simulate.calibrate(str(tiny_model_dir))
    assert said.startswith("a step takes") and costs.budget == 2048 and costs.slots > 0
    asked = []

    def run(*args: object, costs: simulate.Costs, **others: object) -> simulate.Result:
        asked.append(costs)
        return simulate.Result(1.0, 0.5, 1.0)

    monkeypatch.setattr(simulate, "simulate", run)
    monkeypatch.setattr(simulate, "calibrate", lambda model: (costs, "measured"))
    out = tmp_path / "out.json"
    words = ["--calibrate", "MODEL", "--slots", "77", "--workers", "1", "--policies", "random"]
    monkeypatch.setattr(sys, "argv", ["simulate", *words, "--json", str(out)])
    simulate.main()
    assert asked == [replace(costs, slots=77)]  # what is given counts more
    assert json.loads(out.read_text())["notes"] == ["MODEL: measured"]

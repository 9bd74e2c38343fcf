"""The tables, the chart and the notes of figures 5 and 6."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from scripts.bench.common import median_ratio
from scripts.bench.results import Cell, Chart, Result, Table
from scripts.bench.workloads.base import Run
from scripts.bench.workloads.compare import Comparison, Outcome
from scripts.bench.workloads.systems import OURS


@dataclass(frozen=True)
class Measure:
    """What is compared.

    name: with its unit.
    of: its value in a run.
    is_time: less is better.
    """

    name: str
    of: Callable[[Run], float]
    is_time: bool

    def median(self, outcome: Outcome) -> float | None:
        """Over the rounds; None without any."""
        return statistics.median(map(self.of, outcome.runs)) if outcome.runs else None

    def gain(self, ours: Outcome, theirs: Outcome) -> float | None:
        """How many times better ours is: the median over rounds; None without any."""
        if not theirs.runs:
            return None
        a, b = ([self.of(run) for run in outcome.runs] for outcome in (ours, theirs))
        return median_ratio(b, a) if self.is_time else median_ratio(a, b)


def result_of(comparisons: Sequence[Comparison], measure: Measure) -> Result:
    """A figure's result, but for its title and where it was measured."""
    systems = list(comparisons[0].outcomes)
    others = [name for name in systems if name != OURS]
    titles = [each.workload.title for each in comparisons]
    values = {
        name: [measure.median(each.outcomes[name]) for each in comparisons] for name in systems
    }
    gains = {
        name: [measure.gain(each.outcomes[OURS], each.outcomes[name]) for each in comparisons]
        for name in others
    }
    measured: list[dict[str, Cell]] = [
        {
            "workload": each.workload.title,
            "settings": each.workload.settings(each.scale),
            "programs": len(each.jobs),
            "hit rate": each.outcomes[OURS].runs[0].hit_rate,
            **{name: values[name][i] for name in systems},
        }
        for i, each in enumerate(comparisons)
    ]
    better: list[dict[str, Cell]] = [
        {"workload": title, **{name: gains[name][i] for name in others}}
        for i, title in enumerate(titles)
    ]
    bars = {
        name: [value and value / ours for value, ours in zip(each, values[OURS], strict=True)]
        for name, each in values.items()
    }
    chart = Chart(
        "bars", f"{measure.name}, ours = 1", "", "", list(titles), bars,
        is_log=measure.is_time,  # others do a part of ours, but take many times as long
    )  # fmt: skip
    return Result(
        tables=[
            Table.of(measured, measure.name, digits=3),
            Table.of(better, "How many times better ours is than"),
        ],
        charts=[chart],
        notes=[
            *(_summary(name, titles, gains[name]) for name in others),
            *(_equality(name, comparisons) for name in others),
            *(note for each in comparisons for name in others for note in _missing(each, name)),
        ],
        raw={each.workload.name: _raw(each) for each in comparisons},
    )


def _summary(name: str, titles: Sequence[str], gains: Sequence[float | None]) -> str:
    there = [(gain, title) for gain, title in zip(gains, titles, strict=True) if gain is not None]
    if not there:
        return f"{name} runs none of these."
    (least, where_least), (most, where_most) = min(there), max(there)
    mean = statistics.geometric_mean(gain for gain, _ in there)
    return (
        f"Ours against {name}: from {least:.2f} times ({where_least}) to {most:.2f} times "
        f"({where_most}), the geometric mean of {len(there)} workloads is {mean:.2f}."
    )


def _equality(name: str, comparisons: Sequence[Comparison]) -> str:
    found = {each.workload.title: each.equal(name) for each in comparisons}
    compared = {title: pair for title, pair in found.items() if pair is not None}
    equal, total = (sum(pair[i] for pair in compared.values()) for i in range(2))
    differ = [f"{title} {a} of {b}" for title, (a, b) in compared.items() if a != b]
    rest = f" (all but in {', '.join(differ)})" if differ else ""
    return f"{equal:,} of {total:,} answers of {name} are ours, to the character{rest}."


def _missing(each: Comparison, name: str) -> list[str]:
    outcome, title = each.outcomes[name], each.workload.title
    if outcome.refusal:
        return [f"{name} does not run {title}: {outcome.refusal}"]
    if outcome.free_tokens is not None:
        return [
            f"{name} has no patterns: for {title} it writes {outcome.free_tokens} tokens of free "
            "text, as many as ours has on average."
        ]
    return []


def _raw(each: Comparison) -> dict[str, Any]:
    """Every measured value of a workload, by system."""
    return {
        name: {
            "seconds": [run.seconds for run in outcome.runs],
            "latencies": [run.latencies for run in outcome.runs],
            "hit_rates": [run.hit_rate for run in outcome.runs],
            "prompt_tokens": [run.prompt_tokens for run in outcome.runs],
            "equal": each.equal(name),
            "free_tokens": outcome.free_tokens,
            "refusal": outcome.refusal,
        }
        for name, outcome in each.outcomes.items()
    }

"""Figure 13: the hit rate that is reached, beside the best there can be.

The paper draws, for each workload, the hit rate that its scheduler reaches and the optimum for the
same requests (theorem 3.1: each edge of the tree of all prompts is computed once); on average it
reaches 96 % of the optimum.  Here all requests of a run are written down, hints of forks included,
and the optimum is worked out from them afterwards (scripts/bench/optimum.py).

Each workload runs twice: with memory for everything, and with a pool that holds half of what the
run leaves behind, where what is thrown away, and when, decides.  The optimum knows no bound on
memory, and all requests before the first is run; the engine gets them as programs ask.

How to read it: "of the optimum" is 100 % if no token was computed that could have been found.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

import minisgl.lang as sgl
from scripts.bench.figures import Options
from scripts.bench.optimum import Asked, hit_rates, least_computed, part_of_tree, recorded
from scripts.bench.results import Chart, Result, Table
from scripts.bench.workloads import WORKLOADS
from scripts.bench.workloads.base import Job, Workload
from scripts.bench.workloads.compare import size_of
from scripts.bench.workloads.systems import has_gpu

TITLE = "Figure 13: achieved and optimal hit rate"
GOAL_MEAN, GOAL_EACH = 0.99, 0.95  # of the optimum, with memory for everything
TIGHT = 0.5  # of the tokens that a run leaves behind


def ask(
    options: Options, workload: Workload, jobs: Sequence[Job], kv_tokens: int | None = None
) -> list[list[Asked]]:
    """What the engine is asked, and finds, in each round of a batch of the programs."""
    dtype = "auto" if has_gpu(options) else "float32"
    rounds = []
    settings = {"device": options.device, "dtype": dtype, "kv_tokens": kv_tokens}
    with sgl.Runtime(options.model, **settings) as runtime:
        for _ in range(options.rounds):
            runtime.flush_cache()
            with recorded(runtime.engine) as requests:
                workload.run(runtime, jobs)
            rounds.append(requests)
    return rounds


def measure(workload: Workload, options: Options, *, is_tight: bool) -> dict[str, Any]:
    """One row."""
    size = size_of(workload, options)
    jobs = workload.jobs(options.data, size.batch, size.scale)
    rounds = ask(options, workload, jobs)
    requests = rounds[0]
    row: dict[str, Any] = {
        "workload": workload.title,
        "settings": workload.settings(size.scale),
        "programs": len(jobs),
        "requests": len(requests),
        "prompt tokens": sum(len(asked.prompt) for asked in requests),
        "least": least_computed(requests),
        **_rates(rounds),
    }
    if is_tight:
        slots = part_of_tree(requests, TIGHT)
        tight = _rates(ask(options, workload, jobs, slots))
        row |= {"half the memory": slots} | {f"{name}, half": tight[name] for name in tight}
    return row


def _rates(rounds: Sequence[Sequence[Asked]]) -> dict[str, float]:
    """In percent, medians over rounds."""
    rates = [hit_rates(requests) for requests in rounds]
    achieved, optimal = (statistics.median(each) for each in zip(*rates, strict=True))
    share = statistics.median(a / b if b else 1.0 for a, b in rates)
    return {"hit rate %": 100 * achieved, "optimum %": 100 * optimal, "of it %": 100 * share}


def run(options: Options, names: Sequence[str] = tuple(WORKLOADS)) -> Result:
    rows = [measure(WORKLOADS[name], options, is_tight=not options.quick) for name in names]
    series = {"achieved": "hit rate %", "optimal": "optimum %"}
    if not options.quick:
        series["achieved, half the memory"] = "hit rate %, half"
    shares = {row["workload"]: row["of it %"] / 100 for row in rows}
    mean, worst = statistics.mean(shares.values()), min(shares, key=shares.__getitem__)
    notes = [
        f"On average {mean:.1%} of the optimum is reached; goal {GOAL_MEAN:.0%}: "
        + ("met" if mean >= GOAL_MEAN else "MISSED"),
        f"On each workload at least {shares[worst]:.1%} ({worst}); goal {GOAL_EACH:.0%}: "
        + ("met" if shares[worst] >= GOAL_EACH else "MISSED"),
    ]
    if not options.quick:
        mean = statistics.mean(row["of it %, half"] for row in rows)
        notes.append(f"With half the memory: {mean:.1f} % on average.")
    return Result(
        tables=[Table.of(rows, digits=1)],
        charts=[
            Chart(
                "bars", TITLE, "", "% of prompt tokens", [row["workload"] for row in rows],
                {name: [row[column] for row in rows] for name, column in series.items()},
            )
        ],
        notes=notes,
        raw={"rows": rows},
    )  # fmt: skip

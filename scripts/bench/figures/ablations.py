"""Figure 8c: what each part of RadixAttention and of the language contributes.

The paper runs four workloads with one part left out at a time, and draws throughput relative to the
whole.  The parts, and the switches that leave them out here:

    no cache                  prefix_cache="none": nothing is kept or shared
    no tree structure         prefix_cache="table": only whole requests that have ended are found
    FCFS                      policy="fcfs": in order of arrival
    random schedule           policy="random"
    no frontend parallelism   enable_parallel_decoding=False: a program waits after each primitive
    no frontend hint          enable_fork_hint, enable_precache_with_tracing=False

Memory decides: where there is room for everything, order hardly matters.  So each workload runs in
a pool that holds a share of what it leaves behind with room for all; the table says how many slots
that is.  Programs start together, greedy, every cache empty, in rounds of each variant in turn.

How to read it: a bar is programs per second relative to "full", the median over rounds.  Hit rates
say why.  Where "no frontend hint" costs nothing, that is because requests that need a prefix at the
same time share it here while it is computed: the hint says early what the engine finds anyway.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import minisgl.lang as sgl
from scripts.bench.common import median_ratio
from scripts.bench.figures import Options
from scripts.bench.optimum import hit_rates, part_of_tree, recorded
from scripts.bench.results import Chart, Result, Table
from scripts.bench.workloads import WORKLOADS
from scripts.bench.workloads.base import Run, Size, Workload
from scripts.bench.workloads.systems import System, has_gpu

TITLE = "Figure 8c: what each part contributes"
FULL = "full"


@dataclass(frozen=True)
class Variant:
    """Settings of the engine, and switches of the language."""

    engine: Mapping[str, str] = field(default_factory=dict)
    language: Mapping[str, bool] = field(default_factory=dict)


VARIANTS = {
    "no cache": Variant({"prefix_cache": "none"}),
    "no tree structure": Variant({"prefix_cache": "table"}),
    "FCFS": Variant({"policy": "fcfs"}),
    "random schedule": Variant({"policy": "random"}),
    "no frontend parallelism": Variant(language={"enable_parallel_decoding": False}),
    "no frontend hint": Variant(
        language={"enable_fork_hint": False, "enable_precache_with_tracing": False}
    ),
    FULL: Variant(),
}


@dataclass(frozen=True)
class Case:
    """A workload, its sizes on a GPU, on a CPU and with --quick, and its share of memory."""

    name: str
    paper: Size
    cpu: Size
    quick: Size
    share: float


CASES = (
    Case("llm_judge", Size(25, 0), Size(6, 0, 0.15), Size(3, 0, 0.04), 0.25),
    Case("tree_of_thought", Size(32, 0), Size(4, 0, 0.06), Size(1, 0, 0.01), 0.25),
    Case("mmlu", Size(400, 0), Size(48, 0), Size(16, 0, 0.6), 0.75),
    Case("chat_short", Size(20, 0), Size(12, 0, 0.25), Size(6, 0, 0.1), 0.5),
)


@dataclass(frozen=True)
class Trial:
    """What is kept of a run.  Its states would keep their engine, weights and all."""

    seconds: float
    hit_rate: float | None
    answers: list[str]

    @classmethod
    def of(cls, run: Run, workload: Workload) -> Trial:
        answers = [answer for state in run.states for answer in workload.answers(state)]
        return cls(run.seconds, run.hit_rate, answers)


@dataclass
class Measured:
    """One workload: trials of each variant, one a round."""

    workload: Workload
    size: Size
    programs: int
    kv_tokens: int
    optimum: float
    answers: list[str]  # with memory for everything
    runs: dict[str, list[Trial]]

    def relative(self, name: str) -> float:
        """Programs per second over those of "full"."""
        full, its = ([run.seconds for run in self.runs[each]] for each in (FULL, name))
        return median_ratio(full, its)

    def hit_rate(self, name: str) -> float:
        """The median over rounds."""
        return statistics.median(run.hit_rate or 0.0 for run in self.runs[name])

    def equal(self, name: str) -> int:
        """How many answers of a variant are those that there were with memory for everything."""
        said = self.runs[name][0].answers
        return sum(a == b for a, b in zip(said, self.answers, strict=True))


def measure(case: Case, size: Size, options: Options) -> Measured:
    """All variants of one workload, in turn."""
    workload = WORKLOADS[case.name]
    jobs = workload.jobs(options.data, size.batch, size.scale)
    dtype = "auto" if has_gpu(options) else "float32"  # so that answers can be compared
    settings: dict[str, Any] = {"device": options.device, "dtype": dtype}
    with sgl.Runtime(options.model, **settings) as roomy, recorded(roomy.engine) as requests:
        expected = Trial.of(workload.run(roomy, jobs), workload).answers
    settings["kv_tokens"] = part_of_tree(requests, case.share)
    runs: dict[str, list[Trial]] = {name: [] for name in VARIANTS}
    for _ in range(options.rounds):
        for name, variant in VARIANTS.items():  # one engine at a time: a laptop holds no more
            with sgl.Runtime(options.model, **settings, **variant.engine) as runtime:
                system = System(name, runtime, variant.language)
                if has_gpu(options):  # the first run compiles kernels for the shapes
                    system.run(workload, jobs)
                runs[name].append(Trial.of(system.run(workload, jobs), workload))
    optimum = hit_rates(requests)[1]
    return Measured(workload, size, len(jobs), settings["kv_tokens"], optimum, expected, runs)


def size_of(case: Case, options: Options) -> Size:
    """On a GPU the paper's, or with --quick a CPU's."""
    if has_gpu(options):
        return case.cpu if options.quick else case.paper
    return case.quick if options.quick else case.cpu


def run(options: Options, cases: Sequence[Case] = CASES) -> Result:
    found = [measure(case, size_of(case, options), options) for case in cases]
    rows = [
        {
            "workload": each.workload.title,
            "variant": name,
            "programs": each.programs,
            "slots": each.kv_tokens,
            "hit rate %": 100 * each.hit_rate(name),
            "seconds": statistics.median(run.seconds for run in each.runs[name]),
            "throughput / full": each.relative(name),
            "equal answers": f"{each.equal(name)} of {len(each.answers)}",
        }
        for each in found
        for name in VARIANTS
    ]
    titles = [each.workload.title for each in found]
    return Result(
        tables=[Table.of(rows)],
        charts=[
            Chart(
                "bars", TITLE, "", "programs per second, relative to full", titles,
                {name: [each.relative(name) for each in found] for name in VARIANTS},
            ),
            Chart(
                "bars", "Hit rates", "", "% of prompt tokens", titles,
                {name: [100 * each.hit_rate(name) for each in found] for name in VARIANTS},
            ),
        ],
        notes=[note(each) for each in found],
        raw={
            each.workload.name: {
                "settings": each.workload.settings(each.size.scale),
                "optimal hit rate": each.optimum,
                "seconds": {n: [run.seconds for run in runs] for n, runs in each.runs.items()},
                "hit rates": {n: [run.hit_rate for run in runs] for n, runs in each.runs.items()},
            }
            for each in found
        },
    )  # fmt: skip


def note(each: Measured) -> str:
    """Which variants full beats."""
    faster = [name for name in VARIANTS if name != FULL and each.relative(name) >= 1]
    return (
        f"{each.workload.title} ({each.workload.settings(each.size.scale)}; {each.kv_tokens:,} "
        f"slots; optimal hit rate {each.optimum:.1%}): "
        + (f"as fast as full or faster: {', '.join(faster)}." if faster else "full beats all.")
    )

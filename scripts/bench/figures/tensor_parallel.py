"""Figure 12: throughput of the workloads of figure 5 on Llama-70B, split over several devices.

The paper runs Llama-2-70B on four GPUs with tensor parallelism and finds the gains of figure 5
again.  Here a model of its shape with random weights runs them, as in figure 7, over as many GPUs
as it needs with `--real-shapes`, and else over two ranks:

    ours              radix cache, cache-aware scheduling, branches in parallel, hints, jump-forward
    ours, all off     the same ranks without any of these
    ours, one rank    everything on, not split; where the real size is run it has no room

On a CPU, and with a single GPU, the ranks are processes that talk over Gloo and share the cores.
That shows that they answer like one, and what they say to each other; it shows no speed, and "one
rank" is faster.  What a rank hands to the sums is (2 layers - 1) hidden numbers for each token, and
two more for each whose logits are wanted (docs/scaling.md), whatever carries them: a token that is
cached costs no communication either.

How to read it: a bar is a system's programs per second relative to ours; the last table is what
each rank hands to all-reduce during a workload.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from minisgl import Engine
from scripts.bench.figures import Options
from scripts.bench.figures.throughput import MEASURE
from scripts.bench.in_turn import Opener, compare_in_turn, ours, systems_of
from scripts.bench.random_models import prepare, save_weights
from scripts.bench.results import Cell, Result, Table
from scripts.bench.steps import Steps
from scripts.bench.workloads import WORKLOADS
from scripts.bench.workloads.base import Job, Run, Workload
from scripts.bench.workloads.report import result_of
from scripts.bench.workloads.systems import OFF, OURS, System

TITLE = "Figure 12: throughput on Llama-70B with tensor parallelism"
SHAPE, SCALES = "llama-70b", (16, 8)  # with --quick, without
RANKS, ONE_RANK = 2, "ours, one rank"


@dataclass
class Spoken:
    """What each rank of one system hands to all-reduce.

    per_sum: bytes of one token in one sum.
    layers: of the model.
    tokens: computed in each workload.
    bytes: of each workload, by the formula.
    total: bytes since its start, by the formula.
    counted: the same as the rank counts them; None on a GPU, where a replay of recorded kernels
        calls no Python that could count.
    """

    per_sum: int = 0
    layers: int = 0
    tokens: dict[str, int] = field(default_factory=dict)
    bytes: dict[str, int] = field(default_factory=dict)
    total: int = 0
    counted: int | None = None

    def of(self, tokens: int, rows: int) -> int:
        """Bytes by the formula of docs/scaling.md."""
        return (tokens * (2 * self.layers - 1) + rows * 2) * self.per_sum


@dataclass(frozen=True)
class Counting(System):
    """A system that counts what its engine computes."""

    steps: Steps | None = None
    spoken: Spoken = field(default_factory=Spoken)

    def run(self, workload: Workload, jobs: Sequence[Job], parallel: int | None = None) -> Run:
        """See `System`."""
        self.count()
        run = super().run(workload, jobs, parallel)
        name = workload.name
        self.spoken.tokens[name], self.spoken.bytes[name] = self.count()
        return run

    def count(self) -> tuple[int, int]:
        """Tokens since the last call, and what a rank handed to the sums for them."""
        assert self.steps is not None
        records = self.steps.take()
        tokens = sum(record.tokens for record in records)
        given = self.spoken.of(tokens, sum(record.rows for record in records))
        self.spoken.total += given
        return tokens, given


@contextmanager
def counting(opened: Opener, spoken: dict[str, Spoken]) -> Iterator[System]:
    """The system, and what its ranks said to each other while it was open."""
    with opened() as system:
        engine: Engine = system.backend.engine  # type: ignore[attr-defined]
        c = engine.model_config
        per_sum = c.hidden_size * engine.placement.dtype.itemsize
        said = spoken[system.name] = Spoken(per_sum, c.num_layers)
        counts = Counting(system.name, system.backend, system.switches, Steps(engine), said)
        yield counts
        counts.count()
        if engine.placement.device.type == "cpu":
            model: Any = engine.loop.runner.model
            said.counted = engine.call(lambda: model.ranks.parallel.traffic.all_reduce)


def run(
    options: Options, names: Sequence[str] = tuple(WORKLOADS), scale: int | None = None
) -> Result:
    has_room = torch.cuda.device_count() >= RANKS or options.real_shapes
    if options.device == "auto" and not has_room:
        options = replace(options, device="cpu")
    spoken: dict[str, Spoken] = {}
    with tempfile.TemporaryDirectory() as scratch:
        scale = scale or SCALES[0 if options.quick else 1]
        model = prepare(options, SHAPE, scale, Path(scratch), ranks=RANKS)
        if options.peers and model.is_dummy and not options.real_shapes:
            model = save_weights(model)
        systems = systems_of(model, options)
        for name in (OURS, OFF):
            systems[name] = lambda opened=systems[name]: counting(opened, spoken)
        if not options.real_shapes:
            systems[ONE_RANK] = lambda: ours(ONE_RANK, model, tp_size=1)
        comparisons = compare_in_turn(options, names, systems)
    result = result_of(comparisons, MEASURE)
    ranks = model.settings["tp_size"]
    result.notes.insert(0, f"The model: {model.name}; {ranks} ranks on {model.device.type}.")
    result.notes += [_agreement(name, said) for name, said in spoken.items()]
    result.tables.append(_table(names, spoken))
    result.raw["all_reduce"] = {name: asdict(said) for name, said in spoken.items()}
    return result


def _agreement(name: str, said: Spoken) -> str:
    formula = f"{name}: {said.total:,} bytes into sums by the formula"
    if said.counted is None:
        return f"{formula}."
    return f"{formula}; rank 0 counted {said.counted:,}."


def _table(names: Sequence[str], spoken: dict[str, Spoken]) -> Table:
    rows: list[dict[str, Cell]] = []
    for name in names:
        tokens = {system: spoken[system].tokens[name] for system in (OURS, OFF)}
        rows.append(
            {
                "workload": WORKLOADS[name].title,
                "tokens computed, ours": tokens[OURS],
                "all off": tokens[OFF],
                "MiB summed, ours": spoken[OURS].bytes[name] / 2**20,
                "MiB, all off": spoken[OFF].bytes[name] / 2**20,
                "times less": tokens[OFF] / tokens[OURS],
            }
        )
    return Table.of(rows, "What a rank hands to all-reduce")

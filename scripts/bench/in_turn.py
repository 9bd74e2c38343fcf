"""The workloads on systems that are opened one after another: for models without room for two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import minisgl.lang as sgl
from scripts.bench.figures import Options
from scripts.bench.fixed_lengths import FixedPeer, FixedRuntime
from scripts.bench.peers.backend import PeerBackend
from scripts.bench.random_models import Model, given_back
from scripts.bench.workloads import WORKLOADS
from scripts.bench.workloads.compare import Comparison, Outcome, size_of
from scripts.bench.workloads.systems import (
    ENGINE_OFF,
    LANGUAGE_OFF,
    OFF,
    OURS,
    System,
    has_gpu,
)

Opener = Callable[[], AbstractContextManager[System]]


def systems_of(model: Model, options: Options) -> dict[str, Opener]:
    """Ours first, then ours with everything off, then the peers asked for."""
    openers: dict[str, Opener] = {
        OURS: lambda: ours(OURS, model),
        OFF: lambda: ours(OFF, model, LANGUAGE_OFF, **ENGINE_OFF),
    }
    for name, python in options.peers:
        if model.is_dummy:
            raise ValueError(f"peer {name!r} reads weights from files, and {model.name} has none")
        openers[name] = lambda name=name, python=python: peer(name, python, model, options)
    return openers


@contextmanager
def ours(
    name: str, model: Model, switches: Mapping[str, bool] | None = None, **settings: Any
) -> Iterator[System]:
    """Our engine of `model`; the answers of a random one have fixed lengths."""
    runtime = FixedRuntime if model.is_random else sgl.Runtime
    with runtime(str(model.path), **{**model.settings, **settings}) as backend:
        yield System(name, backend, switches or {})


@contextmanager
def peer(name: str, python: str, model: Model, options: Options) -> Iterator[System]:
    """Another system."""
    kind = FixedPeer if model.is_random else PeerBackend
    with kind(name, model.path, python, model.settings["dtype"], options.device) as backend:
        yield System(name, backend)


def compare_in_turn(
    options: Options, names: Sequence[str], systems: Mapping[str, Opener]
) -> list[Comparison]:
    """As `compare_all`, but a round is all workloads on one system, then all on the next."""
    comparisons = []
    for name in names:
        workload = WORKLOADS[name]
        size = size_of(workload, options)
        jobs = workload.jobs(options.data, size.batch, size.scale)
        outcomes = {system: Outcome() for system in systems}
        comparisons.append(Comparison(workload, size.scale, jobs, None, outcomes))
    for _ in range(options.rounds):
        for opened in systems.values():
            with given_back():
                _round(opened, comparisons, warmups=1 if has_gpu(options) else 0)
    return comparisons


def _round(opened: Opener, comparisons: Sequence[Comparison], warmups: int) -> None:
    """`warmups`: runs of each workload before the one that counts, which compile its kernels."""
    warm = WORKLOADS["generative_agents"]
    with opened() as system:
        system.run(warm, warm.jobs(None, 1, 1.0))  # what is made on first use
        for comparison in comparisons:
            runs = comparison.outcomes[system.name].runs
            before = len(runs)
            for _ in range(1 + warmups):
                comparison.round(system)
            del runs[before:-1]

"""Who runs the workloads in figures 5 and 6: ours, ours with everything off, and peers."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

import torch

import minisgl.lang as sgl
from minisgl.lang.backends.base import Backend
from scripts.bench.figures import Options
from scripts.bench.peers import open_peer
from scripts.bench.workloads.base import Job, Run, Workload

OURS, OFF = "ours", "ours, all off"

# What the paper is about, in the engine and in the language.
ENGINE_OFF = {
    "prefix_cache": "none",
    "policy": "fcfs",
    "jump_forward": False,
    "shared_decode": False,
}
LANGUAGE_OFF = {
    "enable_fork_hint": False,
    "enable_parallel_decoding": False,
    "enable_precache_with_tracing": False,
}
SEVERAL_ON_A_GPU = 0.3  # of its free memory for the KV pool of each engine, since peers need some


@dataclass(frozen=True)
class System:
    """A backend, and the language's switches (`minisgl.lang.config`) while programs run on it."""

    name: str
    backend: Backend
    switches: Mapping[str, bool] = field(default_factory=dict)

    def run(self, workload: Workload, jobs: Sequence[Job], parallel: int | None = None) -> Run:
        """`workload.run`, with nothing remembered from before; errors as there."""
        self.backend.flush_cache()
        with switched(self.switches):
            return workload.run(self.backend, jobs, parallel)


@contextmanager
def open_systems(options: Options) -> Iterator[list[System]]:
    """Ours first, then ours with everything off, then the peers: those asked for, or transformers
    if it is installed.

    Raises:
        ValueError, PeerError: one can't be opened; see `open_peer`.
    """
    dtype = "auto" if has_gpu(options) else "float32"  # so that answers can be compared
    settings = {"device": options.device, "dtype": dtype}
    if has_gpu(options):
        settings["kv_memory_fraction"] = SEVERAL_ON_A_GPU
    peers = options.peers
    if not peers and importlib.util.find_spec("transformers"):
        peers = (("transformers", sys.executable),)
    with ExitStack() as stack:
        ours = stack.enter_context(sgl.Runtime(options.model, **settings))
        off = stack.enter_context(sgl.Runtime(options.model, **settings, **ENGINE_OFF))
        systems = [System(OURS, ours), System(OFF, off, LANGUAGE_OFF)]
        for name, python in peers:
            peer = open_peer(name, options.model, python, dtype, options.device)
            systems.append(System(name, stack.enter_context(peer)))
        yield systems


def has_gpu(options: Options) -> bool:
    """Whether the engine will run on one."""
    return options.device != "cpu" and torch.cuda.is_available()


@contextmanager
def switched(switches: Mapping[str, bool]) -> Iterator[None]:
    """The language's switches for the time of a block."""
    before = {name: getattr(sgl.global_config, name) for name in switches}
    try:
        for name, value in switches.items():
            setattr(sgl.global_config, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(sgl.global_config, name, value)

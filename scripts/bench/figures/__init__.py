"""The paper's evaluation, a file for each figure or table.

A figure is a module with a `TITLE`, a docstring that says what the paper shows there and what is
measured here, and `run(options) -> Result`.  `FIGURES` finds it by its number in the paper.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from scripts.bench.results import Result

FIGURES = {
    "3": "radix_steps",  # nine steps of the radix tree
    "4": "automata",  # a pattern, its FSM, and the compressed FSM
    "5": "throughput",
    "6": "latency",
    "7": "mixtral",
    "8ab": "hit_rate_sweep",
    "8c": "ablations",
    "9": "kv_sharing",  # what programs share
    "10": "jump_forward",  # decoding by the plain and the compressed FSM, token by token
    "11": "decoding_process",  # the same in forward passes and seconds
    "12": "tensor_parallel",
    "13": "optimal_hit_rate",
    "14": "program_trace",  # a program as a graph
    "table2": "multimodal",
    "overhead": "overhead",
    "fsm": "constrained",
    "production": "production",
    "goals": "goals",
}


@dataclass(frozen=True)
class Options:
    """What the command line says.

    quick: about two minutes on two cores.
    data: a directory of the workloads' real data; None: the made-up samples.
    peers: other systems to run beside ours, each with the Python of its environment.
    """

    quick: bool = False
    model: str | None = None
    device: str = "auto"
    data: Path | None = None
    peers: tuple[tuple[str, str], ...] = ()
    rounds: int = 1


class Figure(Protocol):
    """What a module of this package is."""

    TITLE: str

    def run(self, options: Options) -> Result:
        """Measure, and say what came out."""
        ...


def find(name: str) -> Figure:
    """By its number in the paper; ValueError names those there are."""
    if name not in FIGURES:
        raise ValueError(f"no figure {name!r}; there are {', '.join(FIGURES)}")
    return importlib.import_module(f"{__name__}.{FIGURES[name]}")  # type: ignore[return-value]

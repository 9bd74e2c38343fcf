"""The paper's evaluation, a file for each figure or table.

A figure is a module with a `TITLE`, a docstring that says what the paper shows there and what is
measured here, and `run(options) -> Result`.  `FIGURES` finds it by its number in the paper.
"""

from __future__ import annotations

import ast
import importlib
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from scripts.bench.peers import SYSTEMS
from scripts.bench.results import Result, own_name

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
    real_shapes: of the figures with models that are too large for most machines, in their real
        sizes; else scaled.
    """

    quick: bool = False
    model: str | None = None
    device: str = "auto"
    data: Path | None = None
    peers: tuple[tuple[str, str], ...] = ()
    rounds: int = 1
    real_shapes: bool = False

    def __post_init__(self) -> None:
        if self.rounds < 1:
            raise ValueError(f"rounds {self.rounds}: at least 1")
        if self.data is not None and not self.data.is_dir():
            raise ValueError(f"data {str(self.data)!r}: not a directory")
        for name, python in self.peers:
            if name not in SYSTEMS:
                raise ValueError(f"peer {name!r}: there are {', '.join(SYSTEMS)}")
            if shutil.which(python) is None:
                raise ValueError(f"peer {name!r}: {python!r} is not a program")

    def arguments(self) -> list[str]:
        """As one would type them; files that are not this project's by a name in capitals.

        >>> Options(quick=True, peers=(("llama.cpp", "/bin/sh"),)).arguments()
        ['--quick', '--peer', 'llama.cpp=SH']
        """
        typed = ["--quick"] if self.quick else []
        for name in ("model", "device", "data", "rounds"):
            value = getattr(self, name)
            if value != getattr(Options, name):
                typed += [f"--{name}", own_name(str(value))]
        for name, python in self.peers:
            is_ours = python == sys.executable
            typed += ["--peer", name if is_ours else f"{name}={own_name(python)}"]
        typed += ["--real-shapes"] if self.real_shapes else []
        return typed


class Figure(Protocol):
    """What a module of this package is."""

    TITLE: str

    def run(self, options: Options) -> Result:
        """Measure, and say what came out."""
        ...


def find(name: str) -> Figure:
    """By its number in the paper."""
    return importlib.import_module(f"{__name__}.{FIGURES[name]}")


def title(name: str) -> str:
    """A figure's TITLE, read and not run: importing it would import the engine."""
    source = Path(__file__).with_name(f"{FIGURES[name]}.py").read_text(encoding="utf-8")
    for node in ast.parse(source).body:
        match node:
            case ast.Assign(targets=[ast.Name("TITLE")], value=value):
                return str(ast.literal_eval(value))
    raise LookupError(f"{FIGURES[name]}.py has no TITLE")

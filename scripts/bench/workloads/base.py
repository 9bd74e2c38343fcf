"""What a workload is: programs with their arguments, and how a batch of them is run and timed."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import minisgl.lang as sgl
from minisgl.lang.backends.base import Backend


@dataclass(frozen=True)
class Job:
    """One run of one program."""

    program: sgl.Function[..., Any]
    arguments: dict[str, Any]


@dataclass(frozen=True)
class Size:
    """How much of a workload is run.

    batch: programs, where throughput is measured.
    single: programs, where they run one at a time and latency is measured.
    scale: in (0, 1]: the share of the paper's examples, lengths and tokens of an answer.
    """

    batch: int
    single: int
    scale: float = 1.0


@dataclass(frozen=True)
class Run:
    """What a run of jobs came to.

    states: in the order of the jobs.
    seconds: of the wall, for all of them.
    latencies: of each program, from its start to its end, in seconds.
    prompt_tokens, cached_tokens: of all calls, hints of forks included; None: it doesn't tell.
    """

    states: list[sgl.ProgramState]
    seconds: float
    latencies: list[float]
    prompt_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def hit_rate(self) -> float | None:
        """Cached over all prompt tokens (paper section 3); None: the backend doesn't tell."""
        if not self.prompt_tokens or self.cached_tokens is None:
            return None
        return self.cached_tokens / self.prompt_tokens


@dataclass(frozen=True)
class Workload:
    """One of the paper's workloads (section 6.1).

    settings: what is run at a scale, for a reader: "5-shot, 1 token".
    jobs: at most `count` of them, from a directory of data, or made up if that is None; always the
        same ones.  ValueError says which file is missing.
    answers: everything that the model said in a run, branches included.
    paper, cpu, quick: its size as published, on a CPU, and in about ten seconds on a CPU.
    parallel: most programs at a time in a batch; 1: each needs what the one before it said.
    """

    name: str
    title: str
    settings: Callable[[float], str]
    jobs: Callable[[Path | None, int, float], list[Job]]
    answers: Callable[[sgl.ProgramState], list[str]]
    paper: Size
    cpu: Size
    quick: Size
    parallel: int = 64

    def run(self, backend: Backend, jobs: Sequence[Job], parallel: int | None = None) -> Run:
        """Run `jobs` greedily, at most `parallel` at a time (None: as many as the workload allows).

        Raises:
            Exception: what the first program that failed, in the order of the jobs, raised.
        """
        parallel = self.parallel if parallel is None else min(parallel, self.parallel)
        latencies = [0.0] * len(jobs)

        def run(number: int) -> sgl.ProgramState:
            start = time.perf_counter()
            job = jobs[number]
            state = job.program.run(**job.arguments, backend=backend, temperature=0)
            latencies[number] = time.perf_counter() - start
            return state

        before, start = _tokens(backend), time.perf_counter()
        if parallel > 1 and sgl.global_config.enable_precache_with_tracing:
            _cache_beginnings(backend, jobs)
        with ThreadPoolExecutor(parallel) as pool:
            states = list(pool.map(run, range(len(jobs))))
        seconds, after = time.perf_counter() - start, _tokens(backend)
        if before is None or after is None:
            return Run(states, seconds, latencies)
        return Run(states, seconds, latencies, after[0] - before[0], after[1] - before[1])


def _tokens(backend: Backend) -> tuple[int, int] | None:
    """(prompt tokens, cached ones of them) so far; None: the backend doesn't tell."""
    info = backend.info()
    if "cached_tokens" not in info:
        return None
    return info["prompt_tokens"], info["cached_tokens"]


def _cache_beginnings(backend: Backend, jobs: Sequence[Job]) -> None:
    """What `run_batch` does for one program, for each that occurs in `jobs` more than once."""
    for program, count in Counter(job.program for job in jobs).items():
        if count > 1:
            with contextlib.suppress(Exception):  # what is wrong, the programs will say
                program.cache(backend, temperature=0)


def share(most: int, scale: float) -> int:
    """`most` at a scale, at least 1.

    >>> share(20, 0.25), share(1, 0.25)
    (5, 1)
    """
    return max(1, round(most * scale))


def file_of(data: Path, name: str) -> Path:
    """The file or directory `name` of `data`; ValueError if it isn't there."""
    path = data / name
    if not path.exists():
        raise ValueError(
            f"{path} is missing: --data is a directory with {name} in it, among others"
        )
    return path

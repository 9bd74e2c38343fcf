"""All workloads on all systems, in turn."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from scripts.bench.figures import Options
from scripts.bench.peers.backend import PeerBackend
from scripts.bench.peers.process import PeerError
from scripts.bench.workloads import WORKLOADS
from scripts.bench.workloads.base import Job, Run, Size, Workload
from scripts.bench.workloads.systems import OURS, System, has_gpu, open_systems

SHORT_LINGER = 0.002  # seconds: the branches of one program come within it


@dataclass
class Outcome:
    """What a system made of a workload.

    runs: one a round; none if it refused.
    refusal: why it did.
    free_tokens: it has no patterns, and wrote so many tokens of free text in their place.
    """

    runs: list[Run] = field(default_factory=list)
    refusal: str = ""
    free_tokens: int | None = None


@dataclass(frozen=True)
class Comparison:
    """One workload, what was run of it, and the outcome of each system by its name.

    parallel: most programs at a time; None: as many as the workload allows.
    """

    workload: Workload
    scale: float
    jobs: list[Job]
    parallel: int | None
    outcomes: dict[str, Outcome]

    def round(self, system: System) -> None:
        """One more run of a system, unless it has refused; one line on stderr."""
        outcome = self.outcomes[system.name]
        if outcome.refusal:
            return
        print(f"{self.workload.title}: {system.name} ", end="", file=sys.stderr, flush=True)
        try:
            run = self._run(system, outcome)
        except (ValueError, PeerError) as error:
            if not isinstance(system.backend, PeerBackend):
                raise
            outcome.refusal = str(error)
            print(f"can't: {error}", file=sys.stderr)
        else:
            outcome.runs.append(run)
            print(f"{run.seconds:.1f} s", file=sys.stderr)

    def _run(self, system: System, outcome: Outcome) -> Run:
        peer = system.backend
        if not isinstance(peer, PeerBackend):
            return system.run(self.workload, self.jobs, self.parallel)
        peer.free_tokens = outcome.free_tokens
        try:
            return system.run(self.workload, self.jobs, self.parallel)
        except ValueError:  # perhaps it has no patterns; if it was something else, it is so again
            peer.free_tokens = outcome.free_tokens = self._tokens_of_an_answer()
            return system.run(self.workload, self.jobs, self.parallel)

    def _tokens_of_an_answer(self) -> int:
        """The mean of ours."""
        spent = [state.usage().spent for state in self.outcomes[OURS].runs[0].states]
        calls = sum(tally.calls for tally in spent)
        return max(1, round(sum(tally.completion_tokens for tally in spent) / calls))

    def equal(self, name: str) -> tuple[int, int] | None:
        """(answers of a system equal to ours, answers), in the first round; None: it has no such
        answers."""
        theirs = self.outcomes[name]
        if not theirs.runs or theirs.free_tokens is not None:
            return None
        a, b = (self._answers(outcome.runs[0]) for outcome in (self.outcomes[OURS], theirs))
        return sum(x == y for x, y in zip(a, b, strict=True)), len(a)

    def _answers(self, run: Run) -> list[str]:
        return [answer for state in run.states for answer in self.workload.answers(state)]


def compare_all(
    options: Options,
    names: Sequence[str],
    count_of: Callable[[Size], int],
    parallel: int | None = None,
) -> list[Comparison]:
    """Each of the workloads on each system, `options.rounds` times in turn.

    count_of: how many programs, of what a size says.
    """
    comparisons = []
    with open_systems(options) as systems:
        for system in systems:
            if parallel == 1 and isinstance(system.backend, PeerBackend):
                system.backend.linger = SHORT_LINGER
        _warm_up(systems)
        for name in names:
            workload = WORKLOADS[name]
            size = size_of(workload, options)
            jobs = workload.jobs(options.data, count_of(size), size.scale)
            outcomes = {system.name: Outcome() for system in systems}
            comparison = Comparison(workload, size.scale, jobs, parallel, outcomes)
            rounds = options.rounds + has_gpu(options)  # the first compiles kernels for the shapes
            for number in range(rounds):
                for system in systems:
                    comparison.round(system)
                if number < rounds - options.rounds:
                    for outcome in outcomes.values():
                        outcome.runs.clear()
            comparisons.append(comparison)
    return comparisons


def _warm_up(systems: Sequence[System]) -> None:
    """What is made on first use: threads, memory, and the one pattern that there is, compiled."""
    print("Warming up.  ", end="", file=sys.stderr)
    workload = WORKLOADS["json_decoding"]
    outcomes = {system.name: Outcome() for system in systems}
    first = Comparison(workload, 0.05, workload.jobs(None, 1, 0.05), 1, outcomes)
    for system in systems:
        first.round(system)


def size_of(workload: Workload, options: Options) -> Size:
    """On a GPU the paper's, or with --quick what a CPU does without."""
    if has_gpu(options):
        return workload.cpu if options.quick else workload.paper
    return workload.quick if options.quick else workload.cpu

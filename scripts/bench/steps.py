"""`Steps`: what each step of an engine computed, and how long it took; kept in memory."""

from __future__ import annotations

from dataclasses import dataclass

from minisgl import Engine
from minisgl.engine.req import Req
from minisgl.engine.scheduler import Scheduler
from minisgl.engine.step import Step
from minisgl.engine.trace import Times


@dataclass(frozen=True)
class StepRecord:
    """One step.

    seconds: from before it was scheduled until its requests were dealt with.
    prefilled: tokens of prompts that were computed.
    decoding: requests that got one more token.
    rows: of logits.
    """

    seconds: float
    prefilled: int
    decoding: int
    rows: int

    @property
    def tokens(self) -> int:
        """Computed in it."""
        return self.prefilled + self.decoding


class Steps:
    """Records the steps of `engine` from now on, in the place of its trace."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._records: list[StepRecord] = []
        engine.call(self._attach)

    def take(self) -> list[StepRecord]:
        """Those since the last call."""
        return self._engine.call(self._take)  # between two steps, so that none is half told

    def _attach(self) -> None:
        self._engine.loop.trace = self  # type: ignore[assignment]  # all that a loop asks of one

    def _take(self) -> list[StepRecord]:
        taken, self._records = self._records, []
        return taken

    def step(self, step: Step, times: Times, scheduler: Scheduler) -> None:
        """See `Trace.step`."""
        prefilled = sum(map(len, step.extends))
        seconds = times.end - times.start
        record = StepRecord(seconds, prefilled, len(step.decodes), step.rows)
        self._records.append(record)

    def end(self, req: Req, reason: str) -> None:
        """See `Trace.end`."""

    def close(self) -> None:
        """See `Trace.close`."""

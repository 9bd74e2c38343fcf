"""A trace of every step, to look at in https://ui.perfetto.dev or chrome://tracing.

    engine thread   |- prefill ----------------------------------|- decode ---|- decode ---|
                    | schedule | forward | sample | detokenize   | ...
    request 7   |- waiting -|- prefill --------------------------|- decode --------------->
    counters    slots (free, cached, locked, of requests), queue, tokens of the step

The file is Chrome's "Trace Event Format" in its array form, in which the closing bracket may be
missing: one event a line, appended step by step, so that a trace of an engine that died still
opens, up to its last whole step.  Nothing is kept open between two steps.

On a GPU `forward` is the time to launch the kernels, and `sample`, which waits for the sampled ids,
has the rest of theirs.  Source of the format: "Trace Event Format", the Chromium project.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from minisgl.engine.req import Req
from minisgl.engine.scheduler import Scheduler
from minisgl.engine.step import Step

Event = dict[str, Any]

_ENGINE = {"pid": 1, "tid": 1}


class Times(NamedTuple):
    """When each part of a step was over; seconds of `time.perf_counter`."""

    start: float
    scheduled: float
    computed: float
    sampled: float
    end: float


@dataclass
class _Life:
    """A request as the last step left it."""

    phase: str = "waiting"
    retractions: int = 0
    reached: int = 0  # how far its chunks have come since it was admitted


class Trace:
    """Writes one engine's trace.  For the engine thread only.

    Args:
        path: the file; one that exists is replaced.

    Raises:
        ValueError: it can't be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).absolute()  # the program may change its directory later
        self._zero = time.perf_counter()
        self._lives: dict[int, _Life] = {}  # of the requests under way, by their ids
        self._ended: list[tuple[Req, str, float]] = []
        self._steps = self._retractions = 0
        names = [("process_name", "minisgl"), ("thread_name", "engine")]
        header = [{"ph": "M", "name": n, **_ENGINE, "args": {"name": text}} for n, text in names]
        try:
            self.path.write_text("[\n" + _lines(header), encoding="utf-8")
        except OSError as error:
            raise ValueError(
                f"trace={str(path)!r} can't be written ({error}): give a file in a directory that "
                "exists and that you may write to"
            ) from error
        self._works = True

    def step(self, step: Step, times: Times, scheduler: Scheduler) -> None:
        """A step is over, and its requests have been dealt with."""
        moves = self._transitions(step, times, scheduler)
        cached = self._cached_tokens(step)
        extended = sum(e.stop - e.start for e in step.extends)
        retracted = scheduler.retractions - self._retractions
        self._steps += 1
        self._retractions = scheduler.retractions
        kinds = [
            kind for kind, there in (("decode", step.decodes), ("prefill", step.extends)) if there
        ]
        args = {
            "step": self._steps,
            "decode": [req.id for req in step.decodes],
            "prefill": {e.req.id: [e.start, e.stop] for e in step.extends},
            "cached_tokens": cached,
            "extended_tokens": extended,
            "retractions": retracted,
        }
        events = [
            self._slice("mixed" if len(kinds) == 2 else kinds[0], times.start, times.end, args),
            self._slice("schedule", times.start, times.scheduled),
            self._slice("forward", times.scheduled, times.computed),
            self._slice("sample", times.computed, times.sampled),
            self._slice("detokenize", times.sampled, times.end),
        ]
        tokens = {"decode": len(step.decodes), "prefill": extended, "cached": cached}
        events += self._counters(scheduler, tokens, times.end)
        self._append(events + moves + self._last_of_ended())

    def end(self, req: Req, reason: str) -> None:
        """`req` has ended; it is written with the step under way, or the next."""
        self._ended.append((req, reason, time.perf_counter()))

    def close(self) -> None:
        """Write what is left, and the closing bracket."""
        self._append(self._last_of_ended(), end="\n]\n")

    # ------------------------------------------------------------------ the engine thread's track

    def _slice(self, name: str, start: float, stop: float, args: Event | None = None) -> Event:
        event = {"ph": "X", "name": name, "cat": "step", **_ENGINE, "ts": self._us(start)}
        # subtle: of rounded times, so that the last part ends when its step does, to the nanosecond
        event["dur"] = round(self._us(stop) - self._us(start), 3)
        return event if args is None else event | {"args": args}

    def _counters(self, s: Scheduler, tokens: dict[str, int], at: float) -> list[Event]:
        free, tree = s.pool.available_size, s.tree
        slots = {
            "free": free,
            "cached": tree.evictable_size,
            "locked": tree.protected_size,
            "of requests": s.pool.num_slots - free - tree.total_size,
        }
        queue = {
            "waiting": len(s.waiting),
            "prefilling": len(s.prefilling),
            "running": len(s.running),
        }
        counters = {"slots": slots, "queue": queue, "tokens": tokens}
        return [
            {"ph": "C", "name": name, **_ENGINE, "ts": self._us(at), "args": values}
            for name, values in counters.items()
        ]

    # ------------------------------------------------------------------ requests' life-lines

    def _transitions(self, step: Step, times: Times, s: Scheduler) -> list[Event]:
        """Who is in another phase than before, seen from where they are now."""
        events: list[Event] = []
        for req in s.waiting:  # new, or retracted
            events += self._enter(req, "waiting", times.start)
        for extend in step.extends:
            events += self._enter(extend.req, "prefill", times.start)
        for req in s.running:
            events += self._enter(req, "decode", times.end)
        return events

    def _enter(self, req: Req, phase: str, at: float) -> list[Event]:
        events = []
        life = self._lives.get(req.id)
        if life is None:
            life = self._lives[req.id] = _Life()
            args = {"prompt_tokens": len(req.prompt_ids), "max_tokens": req.max_tokens}
            events.append(self._async("b", f"request {req.id}", req, req.submitted_at, args))
            events.append(self._async("b", "waiting", req, req.submitted_at))
        if life.retractions < req.retractions:  # and perhaps admitted again in the same moment
            life.retractions, life.reached = req.retractions, 0
            events += self._switch(req, life, "waiting", at)
        return events + self._switch(req, life, phase, at)

    def _switch(self, req: Req, life: _Life, phase: str, at: float) -> list[Event]:
        before, life.phase = life.phase, phase
        if before == phase:
            return []
        return [self._async("e", before, req, at), self._async("b", phase, req, at)]

    def _cached_tokens(self, step: Step) -> int:
        """Prompt tokens that the step's chunks need not compute: what is between them."""
        cached = 0
        for extend in step.extends:
            life = self._lives[extend.req.id]
            cached += extend.start - life.reached
            life.reached = extend.stop
        return cached

    def _last_of_ended(self) -> list[Event]:
        ended, self._ended = self._ended, []
        events: list[Event] = []
        for req, reason, at in ended:
            if req.id not in self._lives:  # it left before any step saw it
                events += self._enter(req, "waiting", at)
            args = {
                "finish_reason": reason,
                "cached_tokens": req.cached_tokens,
                "output_tokens": len(req.output_ids),
            }
            events.append(self._async("e", self._lives.pop(req.id).phase, req, at))
            events.append(self._async("e", f"request {req.id}", req, at, args))
        return events

    def _async(self, ph: str, name: str, req: Req, at: float, args: Event | None = None) -> Event:
        event = {"ph": ph, "name": name, "cat": "request", "id": req.id, **_ENGINE}
        event["ts"] = self._us(at)
        return event if args is None else event | {"args": args}

    # ------------------------------------------------------------------ the file

    def _us(self, seconds: float) -> float:
        return round((seconds - self._zero) * 1e6, 3)

    def _append(self, events: list[Event], end: str = "") -> None:
        if not self._works:
            return
        text = (",\n" + _lines(events) if events else "") + end
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(text)
        except OSError as error:  # a full disk must not take the answers with it
            self._works = False
            warnings.warn(f"the trace {self.path} ends here: {error}", stacklevel=2)


def _lines(events: list[Event]) -> str:
    return ",\n".join(json.dumps(event) for event in events)

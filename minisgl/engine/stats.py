"""`Stats`: what the engine has done and is doing; `Meter` counts it."""

from __future__ import annotations

import math
import time
from bisect import bisect_left
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from minisgl.engine.req import Req

RECENT = 1024  # requests, or steps, that a percentile looks back at
BOUNDS = tuple(round(m * 10.0**e, 3) for e in range(-3, 2) for m in (1, 2.5, 5))  # seconds


@dataclass(frozen=True)
class Histogram:
    """How often a time came, since the start.

    bounds: in seconds, ascending.
    counts: of times up to each bound and above the one before; last, of those above all bounds.
    sum: of all times, in seconds.
    """

    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: float


class Counter:
    """Counts times into a `Histogram`.

    >>> counter = Counter((0.1, 1.0))
    >>> for seconds in (0.05, 0.1, 5.0):
    ...     counter.add(seconds)
    >>> counter.histogram
    Histogram(bounds=(0.1, 1.0), counts=(2, 0, 1), sum=5.15)
    """

    def __init__(self, bounds: tuple[float, ...] = BOUNDS) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        """One more."""
        self._counts[bisect_left(self._bounds, seconds)] += 1
        self._sum += seconds

    @property
    def histogram(self) -> Histogram:
        """What was counted so far."""
        return Histogram(self._bounds, tuple(self._counts), self._sum)


@dataclass(frozen=True)
class Stats:
    """Counters since the start, and what is going on now.  Tokens unless said otherwise.

    `str()` is what the chat's `/stats` shows.
    """

    requests: int  # submitted
    prompt_tokens: int  # of requests that were admitted and have ended
    cached_tokens: int  # of prompt_tokens, found in the radix cache
    output_tokens: int
    steps: int
    retractions: int
    busy_seconds: float

    waiting: int  # requests
    running: int  # requests, those that prefill included

    pool_slots: int  # = free + tree + request
    free_slots: int
    tree_slots: int
    locked_slots: int  # of tree_slots: running requests read them, so they can't be evicted
    request_slots: int  # computed by running requests and not (yet) the tree's

    ttft_p50: float  # seconds from submission to the first token, of the last 1,024 requests
    ttft_p99: float
    step_p50: float  # seconds, of the last 1,024 steps
    step_p99: float

    first_token: Histogram = Counter().histogram  # from submission
    inter_token: Histogram = Counter().histogram  # between two passes that gave a request tokens

    images: int = 0  # that prompts came to in their prefill: not those found in the radix cache
    encoded_images: int = 0  # of images, those that the vision tower ran for
    vision_bytes: int = 0  # of image features, kept now

    @property
    def hit_rate(self) -> float:
        """Cached over all prompt tokens (paper section 3)."""
        return self.cached_tokens / self.prompt_tokens if self.prompt_tokens else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Output tokens per second of work; idle time does not count."""
        return self.output_tokens / self.busy_seconds if self.busy_seconds else 0.0

    def __str__(self) -> str:
        ttft50, ttft99, step50, step99 = (
            f"{seconds * 1000:.1f} ms"
            for seconds in (self.ttft_p50, self.ttft_p99, self.step_p50, self.step_p99)
        )
        images = ""
        if self.images:
            images = (
                f"\nimages: {self.images}, {self.encoded_images} of them through the vision tower; "
                f"{self.vision_bytes / 2**20:.1f} MiB of features kept"
            )
        return (
            f"engine: {self.requests} requests, {self.running} running, {self.waiting} waiting\n"
            f"prompts: {self.prompt_tokens} tokens, "
            f"{self.cached_tokens} ({self.hit_rate:.0%}) of them cached\n"
            f"answers: {self.output_tokens} tokens in {self.steps} steps and "
            f"{self.busy_seconds:.1f} s ({self.tokens_per_second:.1f} tokens/s), "
            f"{self.retractions} retractions\n"
            f"first token: {ttft50} (p99 {ttft99}); step: {step50} (p99 {step99})\n"
            f"KV pool: {self.pool_slots} slots: {self.free_slots} free, "
            f"{self.tree_slots} in the radix tree ({self.locked_slots} locked), "
            f"{self.request_slots} of running requests{images}"
        )


@dataclass
class Meter:
    """The engine thread's own counters."""

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    steps: int = 0
    busy_seconds: float = 0.0
    ttft: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    step: deque[float] = field(default_factory=lambda: deque(maxlen=RECENT))
    first_token: Counter = field(default_factory=Counter)
    inter_token: Counter = field(default_factory=Counter)

    def token_came(self, req: Req) -> None:
        """A pass gave `req` a token, and its `passes` does not count it yet."""
        now = time.perf_counter()
        if req.passes:
            self.inter_token.add(now - req.last_token_at)
        else:
            self.ttft.append(now - req.submitted_at)
            self.first_token.add(now - req.submitted_at)
        req.last_token_at = now


def percentile(values: deque[float], p: float) -> float:
    """The smallest value that `p` percent of all do not exceed; 0 if there are none.

    >>> percentile(deque([5.0, 1.0, 3.0]), 50)
    3.0
    """
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, math.ceil(len(ordered) * p / 100) - 1)]

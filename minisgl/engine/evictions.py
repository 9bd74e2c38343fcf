"""What the radix cache has forgotten, for somebody outside who remembers what it had: a router.

    tree --add--> [ 17: "You are helpful. What"  18: "You are kind" ] --since(17)--> 18

A report is the path to what is gone, and ends with the first token that is.  Reports are numbered,
so that any number of readers can follow, and none misses one because an answer got lost.  They are
kept within a bound; who comes too late is told that reports are missing, and that everything may be
gone by now.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

MOST_TOKENS = 2**20  # of all the reports that are kept


@dataclass(frozen=True)
class Report:
    """Nothing that begins with `tokens` is cached any more; what comes before the last of them may
    be."""

    namespace: str | None
    tokens: tuple[int, ...]


@dataclass(frozen=True)
class News:
    """Some reports, in order.

    last: the number of the last one: ask for those after it next time.
    missing: whether earlier ones are lost.
    """

    last: int
    missing: bool
    reports: list[Report]


class Evictions:
    """Written by the engine thread, read by any.

    >>> evictions = Evictions(start=0)
    >>> evictions.add(None, [1, 2, 3, 4], keep=2)
    >>> evictions.since(0)
    News(last=1, missing=False, reports=[Report(namespace=None, tokens=(1, 2, 3))])
    >>> evictions.since(1).reports
    []

    Args:
        most_tokens: the bound on what is kept.
        start: the number before the first report's.  None: from the clock, so that those who read
            another engine at the same address, before this one, see that they missed something.
    """

    def __init__(self, most_tokens: int = MOST_TOKENS, start: int | None = None) -> None:
        self._most = most_tokens
        self._lock = threading.Lock()
        self._reports: deque[Report] = deque()
        self._tokens = 0
        self._last = time.time_ns() // 1000 if start is None else start

    def add(self, namespace: str | None, tokens: Sequence[int], keep: int) -> None:
        """Of a cached path, all but the first `keep` tokens is gone: `RadixCache.on_evict`."""
        report = Report(namespace, tuple(tokens[: keep + 1]))
        with self._lock:
            self._reports.append(report)
            self._last += 1
            self._tokens += len(report.tokens)
            while self._tokens > self._most:
                self._tokens -= len(self._reports.popleft().tokens)

    def since(self, after: int) -> News:
        """The reports after number `after`.  Any other number than one that was told (0, say) gives
        all that are kept."""
        with self._lock:
            before = self._last - len(self._reports)  # the number before the first that is kept
            missing = not before <= after <= self._last
            known = 0 if missing else after - before
            return News(self._last, missing, list(islice(self._reports, known, None)))

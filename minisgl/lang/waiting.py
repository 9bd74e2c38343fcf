"""Waits that Ctrl-C ends.

A signal wakes a main thread that waits for a lock.  One that comes in the moment before it begins
to wait does not: CPython has noted it, and looks at its notes when the wait is over.  With hundreds
of threads that moment is long.  So nobody in the language waits without end, but again and again.
"""

from __future__ import annotations

from concurrent import futures
from typing import Any

SLICE = 0.5  # seconds


def until_done(future: futures.Future[Any]) -> None:
    """Wait until `future` has a result or an error, or was cancelled."""
    while not futures.wait([future], SLICE).done:
        pass

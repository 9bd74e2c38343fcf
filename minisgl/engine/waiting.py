"""`WaitingQueue`: the requests that are not admitted, and whose turn it is.

A policy may let later arrivals pass, but not for ever.  Each request counts how often it was
overtaken; at `max_overtakes` it is *overdue*, and goes before all but those that arrived earlier
and are overdue too.  So do requests that were retracted: they have begun to answer.  Nobody is
admitted past one of these that does not fit yet.

    of 128, in order of arrival --.--> retracted or overdue, in order of arrival --.--> next
                                  '--> all others, as the policy likes ------------'
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterator

from minisgl.cache.radix_cache import Peek
from minisgl.engine.policy import ORDERS
from minisgl.engine.req import Req

WINDOW = 128  # a policy looks at the earliest so many: the cost of a choice does not grow for ever


class WaitingQueue:
    """Waiting requests in order of arrival, whatever order they were added in.

    Args:
        policy: a name in `ORDERS`.
        max_overtakes: how many later arrivals may be admitted while a request waits.
    """

    def __init__(self, policy: str, max_overtakes: int) -> None:
        self.max_overtakes = max_overtakes
        self._order = ORDERS[policy]
        self._reqs: list[Req] = []  # by `id`, which rises with arrival

    def __len__(self) -> int:
        return len(self._reqs)

    def __iter__(self) -> Iterator[Req]:
        return iter(self._reqs)

    def add(self, req: Req) -> None:
        """`req` waits; one that was retracted gets its old place back."""
        insort(self._reqs, req, key=lambda other: other.id)

    def remove(self, req: Req) -> None:
        """`req` waits no longer, and was not admitted."""
        self._reqs.remove(req)

    def candidates(self, peek: Callable[[Req], Peek]) -> Iterator[Req]:
        """In the order in which they should be admitted; ask for the next one after `admitted`."""
        window = self._reqs[:WINDOW]
        urgent = [req for req in window if self._is_urgent(req)]
        others = [req for req in window if not self._is_urgent(req)]
        yield from urgent
        yield from self._order(others, peek)

    def admitted(self, req: Req) -> bool:
        """`req` waits no longer.  True: it was one too many for somebody, whose turn it is now.

        subtle: the window is the earliest 128, so whoever is outside was not overtaken.
        """
        place = self._reqs.index(req)
        del self._reqs[place]
        earlier = self._reqs[:place]
        for other in earlier:
            other.overtakes += 1
        return any(other.overtakes >= self.max_overtakes for other in earlier)

    def check(self) -> None:
        """Raises AssertionError if somebody was overtaken too often, or the order is lost."""
        ids = [req.id for req in self._reqs]
        assert ids == sorted(set(ids)), f"waiting out of order: {ids[:16]}"
        for req in self._reqs:
            assert req.overtakes <= self.max_overtakes, (
                f"request {req.id} was overtaken {req.overtakes} times, "
                f"more than {self.max_overtakes}"
            )

    def _is_urgent(self, req: Req) -> bool:
        return req.retractions > 0 or req.overtakes >= self.max_overtakes

"""In which order waiting requests are admitted (paper section 3, "cache-aware scheduling").

Pure functions: requests and what the tree holds of them in, an order out.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

R = TypeVar("R")

MATCHED_AT_MOST = 128  # matching costs O(prompt); of a longer queue only the head is sorted


def fcfs(waiting: Sequence[R], matched: Callable[[R], int]) -> list[R]:
    """First come, first served.

    >>> fcfs(["aa", "b"], len)
    ['aa', 'b']
    """
    return list(waiting)


def lpm(waiting: Sequence[R], matched: Callable[[R], int]) -> list[R]:
    """Longest prefix match first: requests whose prefix is cached run while it still is.  Ties, and
    all past the first 128, come first come, first served.

    >>> lpm(["b", "aaa", "aa", "c"], len)
    ['aaa', 'aa', 'b', 'c']
    """
    head = sorted(waiting[:MATCHED_AT_MOST], key=matched, reverse=True)  # sorted() is stable
    return head + list(waiting[MATCHED_AT_MOST:])


ORDERS: dict[str, Callable[[Sequence[R], Callable[[R], int]], list[R]]] = {
    "lpm": lpm,
    "fcfs": fcfs,
}

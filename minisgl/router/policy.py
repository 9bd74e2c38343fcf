"""Where a request goes: the prefix it shares with what a worker has cached, against who has time.

Work is measured in tokens to compute: a worker's load is what it has been sent and has not yet
done.  `cache_aware` sends a request to the worker on which

    load  +  affinity · tokens of its prompt that would have to be computed there

is least.  With affinity 1 that is the worker that is done with it first.  More than 1 counts a
cached token for more than it saves now, since who asks once asks again.

**Its bound on imbalance.**  Let m be the least loaded worker and n the prompt's length.  The chosen
worker w has load(w) + affinity · uncached(w) <= load(m) + affinity · uncached(m), so

    load(w) <= load(m) + affinity · n

No request is ever sent to a worker that has more than `affinity` times its prompt more to do than
some other.  A prefix that everybody asks for therefore spreads to as many workers as it needs: each
new copy is bought when the queue before the old ones is longer than computing it anew.

The others are there to compare with.  All are pure but for `random`, which is given its generator.
"""

from __future__ import annotations

import random as _random
from collections.abc import Mapping
from dataclasses import dataclass

POLICIES = ("cache-aware", "round-robin", "least-loaded", "random")


@dataclass(frozen=True)
class Choice:
    """A worker, and how many tokens of the prompt it is believed to have."""

    worker: int
    cached: int


def cache_aware(
    length: int, cached: Mapping[int, int], loads: Mapping[int, float], affinity: float = 2.0
) -> Choice:
    """The worker that is done first, cached tokens counted `affinity` times.

    Args:
        length: of the prompt, in tokens.
        cached: of it, how many tokens a worker has; who is left out has none.
        loads: tokens that each worker that can be chosen has to compute.

    >>> cache_aware(100, {0: 90}, {0: 50, 1: 0})  # 50 + 2 · 10 against 0 + 2 · 100
    Choice(worker=0, cached=90)
    >>> cache_aware(100, {0: 90}, {0: 500, 1: 0})
    Choice(worker=1, cached=0)
    """
    worker = min(
        loads, key=lambda w: (loads[w] + affinity * (length - cached.get(w, 0)), loads[w], w)
    )
    return Choice(worker, cached.get(worker, 0))


def least_loaded(cached: Mapping[int, int], loads: Mapping[int, float]) -> Choice:
    """The worker with least to do; of equals, that with the lowest number.

    >>> least_loaded({}, {0: 5, 1: 3, 2: 3})
    Choice(worker=1, cached=0)
    """
    worker = min(loads, key=lambda w: (loads[w], w))
    return Choice(worker, cached.get(worker, 0))


def round_robin(cached: Mapping[int, int], loads: Mapping[int, float], turn: int) -> Choice:
    """The workers one after the other; `turn` counts the requests.

    >>> [round_robin({}, {0: 0, 2: 9}, turn).worker for turn in range(3)]
    [0, 2, 0]
    """
    worker = sorted(loads)[turn % len(loads)]
    return Choice(worker, cached.get(worker, 0))


def random(
    cached: Mapping[int, int], loads: Mapping[int, float], generator: _random.Random
) -> Choice:
    """Any worker."""
    worker = generator.choice(sorted(loads))
    return Choice(worker, cached.get(worker, 0))


class Policy:
    """One of `POLICIES`, with what it remembers from request to request.

    Raises:
        ValueError: an unknown name, or an affinity that is no number of at least 0.
    """

    def __init__(self, name: str = "cache-aware", *, affinity: float = 2.0, seed: int = 0) -> None:
        if name not in POLICIES:
            raise ValueError(f"policy={name!r}: choose one of {', '.join(POLICIES)}")
        if not affinity >= 0:
            raise ValueError(f"affinity={affinity!r}: give a number of at least 0")
        self.name = name
        self.affinity = affinity
        self._turn = -1
        self._random = _random.Random(seed)

    def choose(self, length: int, cached: Mapping[int, int], loads: Mapping[int, float]) -> Choice:
        """A worker out of `loads`, of which there is at least one; arguments as `cache_aware`."""
        self._turn += 1
        match self.name:
            case "cache-aware":
                return cache_aware(length, cached, loads, self.affinity)
            case "least-loaded":
                return least_loaded(cached, loads)
            case "round-robin":
                return round_robin(cached, loads, self._turn)
            case _:
                return random(cached, loads, self._random)

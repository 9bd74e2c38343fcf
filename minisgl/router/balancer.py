"""`Balancer`: what each worker has to do, what it is believed to have cached, and where the next
question goes.

    question --match--> MetaTree --cached--> Policy --worker--> Ticket: its tokens, until it is done
                                   loads ----^                          |
                                     ^----------------------------------'

No sockets, no clock and no threads: the server (forward.py) and the simulator
(scripts/bench/simulate.py) run the same code.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

from minisgl.router.meta_tree import MetaTree
from minisgl.router.policy import Policy

ROOM = 0.9  # of a full worker's capacity what we believe it to hold after we forgot something


@dataclass(frozen=True)
class Question:
    """One request: its prompts, which go to one worker, and how many tokens its answers may have.

    A batch goes as a whole: its prompts are about the same thing more often than not, one worker
    computes them together anyway, and its answer needs no putting together.
    """

    prompts: Sequence[Sequence[int]] = ()
    output: int = 0

    @property
    def length(self) -> int:
        """Tokens of all prompts."""
        return sum(map(len, self.prompts))


@dataclass(eq=False)
class Seat:
    """A worker from when it joins to when it leaves.

    load: tokens that it has to compute and has not yet.
    capacity: tokens that it can keep; None: nobody knows.
    """

    worker: int
    capacity: int | None
    load: float = 0.0


@dataclass(eq=False)
class Ticket:
    """A question that went to a worker; a context manager that ends with the answer.

    cached: of each prompt, how many tokens the worker was believed to have.
    """

    seat: Seat
    question: Question
    cached: list[int]
    _left: float = field(init=False)

    def __post_init__(self) -> None:
        to_prefill = self.question.length - sum(self.cached)
        self._left = float(to_prefill + self.question.output)
        self.seat.load += self._left

    @property
    def worker(self) -> int:
        """Its number."""
        return self.seat.worker

    def answers(self) -> None:
        """The first of the answer is there, so the prompts are computed."""
        self._take_off(self._left - self.question.output)

    def wrote(self, tokens: int) -> None:
        """So many more tokens of the answer are there."""
        self._take_off(tokens)

    def _take_off(self, tokens: float) -> None:
        tokens = max(0.0, min(tokens, self._left))
        self._left -= tokens
        self.seat.load -= tokens

    def __enter__(self) -> Ticket:
        return self

    def __exit__(self, *_: object) -> None:
        self._take_off(self._left)


class Balancer:
    """Sends questions to those workers that have joined."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.tree = MetaTree()
        self.seats: dict[int, Seat] = {}

    def join(self, worker: int, capacity: int | None = None) -> None:
        """`worker` is there, with nothing cached and nothing to do."""
        self.leave(worker)
        self.seats[worker] = Seat(worker, capacity)

    def leave(self, worker: int) -> None:
        """It is gone, with all that it had."""
        self.seats.pop(worker, None)
        self.tree.drop(worker)

    def send(self, question: Question, avoid: Collection[int] = ()) -> Ticket | None:
        """The worker to ask, which counts as having the prompts from now on; None: there is none
        but those to `avoid`."""
        loads = {w: seat.load for w, seat in self.seats.items() if w not in avoid}
        if not loads:
            return None
        found: dict[int, int] = {}
        for prompt in question.prompts:
            for w, length in self.tree.match(prompt).items():
                found[w] = found.get(w, 0) + length
        worker = self.policy.choose(question.length, found, loads).worker
        seat, cached = self.seats[worker], []
        for prompt in question.prompts:  # one by one: what they have in common is computed once
            cached.append(self.tree.match(prompt).get(worker, 0))
            self.tree.add(prompt, worker)
        if seat.capacity is not None and self.tree.sizes.get(worker, 0) > seat.capacity:
            self.tree.trim(worker, int(ROOM * seat.capacity))
        return Ticket(seat, question, cached)

    def refused(self, ticket: Ticket) -> None:
        """It computed nothing of the question: it does not have what it had not before."""
        if self.seats.get(ticket.worker) is ticket.seat:
            for prompt, keep in zip(ticket.question.prompts, ticket.cached, strict=True):
                self.tree.evicted(prompt, ticket.worker, keep)

    def evicted(self, worker: int, reports: Iterable[tuple[str | None, Sequence[int]]]) -> None:
        """What `worker` says that it forgot: (namespace, tokens), and nothing of what begins with
        them is left."""
        for namespace, tokens in reports:
            path = in_namespace(namespace, tokens)
            self.tree.evicted(path, worker, keep=len(path) - 1)

    def forget(self, worker: int) -> None:
        """`worker` may have forgotten anything."""
        self.tree.drop(worker)


def in_namespace(namespace: str | None, tokens: Sequence[int]) -> list[int]:
    """Tokens that agree with another namespace's in nothing.

    >>> in_namespace(None, [1, 2])
    [1, 2]
    >>> in_namespace("a", [1, 2])[1:], in_namespace("a", [1])[0] == in_namespace("b", [1])[0]
    ([1, 2], False)
    """
    return list(tokens) if namespace is None else [stand_in("namespace", namespace), *tokens]


def stand_in(kind: str, what: str) -> int:
    """A token for what has none: negative, as ids of the vocabulary never are."""
    digest = blake2b(what.encode("utf-8", "surrogatepass"), digest_size=8, person=kind.encode())
    return -1 - int.from_bytes(digest.digest(), "big")

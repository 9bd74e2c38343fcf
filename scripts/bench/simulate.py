"""The router at scale, without a model: 1 to 256 workers, in simulated time.

    python -m scripts.bench.simulate [--workers 1,4,16,64,256] [--svg FILE]
    python -m scripts.bench.simulate --workers 16 --policies cache-aware --affinity 1,2,4 --hot 0,.5
    python -m scripts.bench.simulate --calibrate MODEL    # steps as this machine takes them

Each worker is a real `RadixCache` with so many slots, and takes for a step

    a  +  b · tokens to prefill  +  c · requests that decode         seconds

The router is the real one too: `Balancer`, `MetaTree` and `Policy`, and the caches report what they
evict, a step later.  Only the model, the sockets and the clock are left out.

The load grows with the workers: `--subjects` prefixes for each, with `--questions` requests each,
all in random order; `--clients` requests for each worker are under way at any time.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from minisgl.cache.radix_cache import RadixCache, TreeNode
from minisgl.engine.evictions import Evictions
from minisgl.router.balancer import Balancer, Question, Ticket
from minisgl.router.policy import POLICIES, Policy
from minisgl.svg import FAINT, INK, document, path, text
from scripts.bench.common import report
from scripts.bench.results import Cell, Table

COLOURS = dict(zip(POLICIES, ("#0969da", "#bf3989", "#1a7f37", "#9a6700"), strict=True))


@dataclass(frozen=True)
class Costs:
    """Seconds of a step, and what a worker holds.  The defaults are of the order of an 8B model on
    one GPU: prefill 20,000 tokens per second, a decode step 12 ms and 0.1 ms per request."""

    step: float = 0.012
    prefill_token: float = 5e-5
    decode_request: float = 1e-4
    slots: int = 60_000
    budget: int = 4096
    """Most tokens to prefill in a step."""


@dataclass(eq=False)
class Job:
    """A request at its worker."""

    ticket: Ticket
    tokens: tuple[int, ...]
    output: int
    node: TreeNode | None = None
    to_prefill: int = 0


@dataclass(eq=False)
class Simulated:
    """A worker: continuous batching around a real cache."""

    costs: Costs
    cache: RadixCache = field(default_factory=RadixCache)
    evictions: Evictions = field(default_factory=lambda: Evictions(start=0))
    waiting: deque[Job] = field(default_factory=deque)
    running: list[Job] = field(default_factory=list)
    told: int = 0
    cached: int = 0
    is_awake: bool = False

    def __post_init__(self) -> None:
        self.cache.on_evict = self.evictions.add

    def step(self) -> tuple[float, list[Job]]:
        """(Seconds, the requests that ended with it)."""
        budget = self.costs.budget
        while self.waiting and budget > 0 and self._admit(self.waiting[0]):
            self.running.append(self.waiting.popleft())
            budget -= self.running[-1].to_prefill
        prefilled, decoding, done = 0, 0, []
        for job in self.running:
            if job.to_prefill:  # in one go: a long prompt makes a long step
                prefilled += job.to_prefill
                job.to_prefill = 0
                job.ticket.answers()
            else:
                decoding += 1
            job.output -= 1
            job.ticket.wrote(1)
            if job.output <= 0:
                done.append(job)
        for job in done:
            self.running.remove(job)
            assert job.node is not None
            self.cache.unlock(job.node)
        costs = self.costs
        seconds = costs.step + costs.prefill_token * prefilled + costs.decode_request * decoding
        return seconds, done

    def _admit(self, job: Job) -> bool:
        """Make room for the prompt, and lock it; False: there is none."""
        cached = self.cache.match_prefix(job.tokens[:-1])
        new = len(job.tokens) - len(cached.slots)
        room = self.costs.slots - self.cache.total_size
        self.cache.lock(cached.node)
        if new > room:
            room += len(self.cache.evict(new - room))
        if new > room:
            self.cache.unlock(cached.node)
            return False
        job.to_prefill, self.cached = new, self.cached + len(cached.slots)
        self.cache.insert(job.tokens, range(len(job.tokens)))
        job.node = self.cache.match_prefix(job.tokens).node
        self.cache.lock(job.node)
        self.cache.unlock(cached.node)
        return True


@dataclass(frozen=True)
class Result:
    """Of one run: requests per second, cached over all prompt tokens, greatest over mean number of
    tokens under way (averaged over arrivals)."""

    throughput: float
    hit_rate: float
    imbalance: float


def simulate(
    prompts: Sequence[tuple[int, ...]],
    workers: int,
    policy: str,
    *,
    clients: int,
    output: int,
    costs: Costs,
    affinity: float = 2.0,
) -> Result:
    """Answer all `prompts`, `clients` per worker at a time."""
    balancer = Balancer(Policy(policy, affinity=affinity))
    pool = [Simulated(costs) for _ in range(workers)]
    for number in range(workers):
        balancer.join(number, costs.slots)
    todo = deque(prompts)
    events: list[tuple[float, int]] = []  # when a worker's step ends
    ending: dict[int, list[Job]] = {}
    now, skew, looks = 0.0, 0.0, 0

    def send() -> None:
        nonlocal skew, looks
        if not todo:
            return
        tokens = todo.popleft()
        ticket = balancer.send(Question([tokens], output))
        assert ticket is not None
        worker = pool[ticket.worker]
        worker.waiting.append(Job(ticket, tokens, output))
        loads = [seat.load for seat in balancer.seats.values()]
        skew += max(loads) * len(loads) / sum(loads)
        looks += 1
        if not worker.is_awake:
            wake(ticket.worker)

    def wake(number: int) -> None:
        worker = pool[number]
        worker.is_awake = bool(worker.waiting or worker.running)
        if worker.is_awake:
            seconds, ending[number] = worker.step()
            heapq.heappush(events, (now + seconds, number))

    for _ in range(clients * workers):
        send()
    while events:
        now, number = heapq.heappop(events)
        worker = pool[number]
        news = worker.evictions.since(worker.told)
        worker.told = news.last
        balancer.evicted(number, [(report.namespace, report.tokens) for report in news.reports])
        done = ending.pop(number)
        worker.is_awake = False
        for job in done:
            with job.ticket:  # its load ends
                pass
        wake(number)
        for _ in done:
            send()
    total = sum(map(len, prompts))
    return Result(len(prompts) / now, sum(worker.cached for worker in pool) / total, skew / looks)


def few_shot(subjects: int, questions: int, hot: float = 0.0) -> list[tuple[int, ...]]:
    """Prompts of MMLU's shape: a prefix of five examples for each subject (400 to 1,000 tokens, of
    which the first 20 are the same for all), then a question of 40 to 200 tokens; in random
    order.  `hot`: so large a share of them has the first subject's prefix instead of its own."""
    rng = random.Random(0)
    token = lambda: rng.randrange(32_000)  # noqa: E731
    head = tuple(token() for _ in range(20))
    prompts, first = [], None
    for _ in range(subjects):
        prefix = head + tuple(token() for _ in range(rng.randrange(380, 980)))
        first = prefix if first is None else first
        for _ in range(questions):
            its = first if hot and rng.random() < hot else prefix
            prompts.append(its + tuple(token() for _ in range(rng.randrange(40, 200))))
    rng.shuffle(prompts)
    return prompts


def best_hit_rate(prompts: Sequence[tuple[int, ...]]) -> float:
    """Of one cache that forgets nothing: a prompt finds whatever it shares with one before it."""
    cache, cached = RadixCache(), 0
    for tokens in prompts:
        cached += len(cache.match_prefix(tokens[:-1]).slots)
        cache.insert(tokens, range(len(tokens)))
    return cached / sum(map(len, prompts))


def plot(results: dict[str, dict[int, Result]], title: str) -> str:
    """Throughput per worker, hit rate and imbalance over the number of workers, as SVG."""
    counts = list(next(iter(results.values())))
    panels = (
        ("requests / s / worker", lambda n, r: r.throughput / n),
        ("hit rate", lambda n, r: r.hit_rate),
        ("imbalance: max / mean load", lambda n, r: r.imbalance),
    )
    parts, width, height, gap = [], 200.0, 150.0, 60.0
    for column, (name, of) in enumerate(panels):
        left, top = 40 + column * (width + gap), 40.0
        most = max(of(n, r) for each in results.values() for n, r in each.items()) * 1.05
        parts.append(text(left, top - 12, name, bold=True))
        parts.append(path(f"M {left} {top} V {top + height} H {left + width}", INK))
        for share in (0.5, 1.0):
            at = top + height * (1 - share)
            parts.append(path(f"M {left} {at:g} H {left + width}", "#eaeef2"))
            parts.append(text(left - 4, at + 4, f"{most * share:.3g}", anchor="end", size=9))
        places = [left + width * i / max(1, len(counts) - 1) for i in range(len(counts))]
        for x, n in zip(places, counts, strict=True):
            parts.append(text(x, top + height + 14, str(n), anchor="middle", size=9, fill=FAINT))
        for policy, each in results.items():
            points = " L ".join(
                f"{x:g} {top + height * (1 - of(n, r) / most):g}"
                for x, (n, r) in zip(places, each.items(), strict=True)
            )
            parts.append(path(f"M {points}", COLOURS[policy]))
    for i, policy in enumerate(results):
        parts.append(text(40 + 130 * i, 230, policy, fill=COLOURS[policy], bold=True))
    parts.append(text(40 + 130 * len(results), 230, "(x: number of workers)", fill=FAINT))
    return document(40 + 3 * (width + gap), 245, parts, title)


def calibrate(model: str) -> tuple[Costs, str]:
    """Costs as an engine of `model` has them on this machine, and how well they fit."""
    from minisgl import Engine  # here: the simulation itself needs no model
    from scripts.bench.step_costs import fit, measure

    with Engine(model) as engine:
        fitted = fit(measure(engine))
        slots, budget = engine.memory.slots, engine.config.prefill_budget
    costs = Costs(fitted.step, fitted.prefill_token, fitted.decode_request, slots, budget)
    return costs, str(fitted)


def numbers(words: str) -> list[float]:
    """
    >>> numbers("1,2.5")
    [1.0, 2.5]
    """
    return [float(word) for word in words.split(",")]


def row(got: Result, best: float, workers: int, **settings: str | float) -> dict[str, Cell]:
    """One line of the table."""
    return {
        "workers": workers,
        **settings,
        "requests/s": round(got.throughput),
        "per worker": f"{got.throughput / workers:.1f}",
        "hit rate": got.hit_rate,
        "of the best": got.hit_rate / best,
        "max / mean load": f"{got.imbalance:.2f}",
    }


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--workers", default="1,4,16,64,256")
    p.add_argument("--subjects", type=int, default=6, help="prefixes for each worker")
    p.add_argument("--questions", type=int, default=12, help="requests for each prefix")
    p.add_argument("--clients", type=int, default=16, help="requests under way for each worker")
    p.add_argument("--output", type=int, default=1, help="tokens of an answer")
    p.add_argument("--hot", default="0", help="shares of requests with one prefix")
    p.add_argument("--affinity", default="2")
    p.add_argument("--policies", default=",".join(POLICIES))
    p.add_argument("--calibrate", metavar="MODEL", help="measure the costs of a step (`default`)")
    for name, value in vars(Costs()).items():
        p.add_argument(f"--{name.replace('_', '-')}", type=type(value), help=f"default: {value}")
    p.add_argument("--svg", type=Path, help="draw into this file")
    p.add_argument("--json", type=Path, default=None)
    args = p.parse_args()
    costs, notes = Costs(), []
    if args.calibrate:
        costs, said = calibrate(args.calibrate)
        notes.append(f"{args.calibrate}: {said}")
    given = {name: getattr(args, name) for name in vars(costs)}
    costs = replace(costs, **{name: v for name, v in given.items() if v is not None})
    rows: list[dict[str, Cell]] = []
    results: dict[str, dict[int, Result]] = {}  # by policy, as it is drawn
    for workers, hot in itertools.product(map(int, args.workers.split(",")), numbers(args.hot)):
        prompts = few_shot(args.subjects * workers, args.questions, hot)
        best = best_hit_rate(prompts)
        for policy, affinity in itertools.product(args.policies.split(","), numbers(args.affinity)):
            got = simulate(
                prompts,
                workers,
                policy,
                clients=args.clients,
                output=args.output,
                costs=costs,
                affinity=affinity,
            )
            settings = {"policy": policy, "affinity": f"{affinity:g}", "hot": f"{hot:g}"}
            rows.append(row(got, best, workers, **settings))
            results.setdefault(policy, {})[workers] = got
    title = "Router policies over the number of workers"
    drawing = plot(results, title)
    if args.svg:
        args.svg.write_text(drawing, encoding="utf-8")
    is_one_line_each = "," not in args.affinity + args.hot
    pictures = {"policies": drawing} if "," in args.workers and is_one_line_each else {}
    report(Table.of(rows, title, digits=3), out=args.json, notes=notes, pictures=pictures)


if __name__ == "__main__":
    main()

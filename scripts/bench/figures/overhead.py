"""What the radix tree costs where it can't help: its share of a run in which nothing repeats.

The paper (section 6.3): 100 ShareGPT requests without reuse took 74.3 s, of which the tree took
0.2 s, less than 0.3 %.  Here: 100 prompts of random tokens that share not even a first one, in a
pool so small that most of what the tree learns is evicted again.  Every public method of the tree
is timed inside the run (a call within a call counts once), and the sum is divided by the run's
wall-clock time.  The default model is small, which makes the share larger, not smaller.
"""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from minisgl import Engine, SamplingParams
from minisgl.cache.radix_cache import RadixCache
from scripts.bench.common import seconds
from scripts.bench.figures import Options
from scripts.bench.results import Chart, Result, Table

TITLE = "The radix tree's share of a run without reuse"
GOAL = 0.003
NOT_BOOKKEEPING = {"check", "nodes", "render", "reset"}  # nobody calls these in a run
REQUESTS, PROMPT, RUNNING = 100, 256, 16
NEW, QUICK_NEW = 64, 8  # tokens of each answer


class Stopwatch:
    """Times the methods of one object, outermost calls only."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()  # Counter sums floats as well
        self._is_running = False

    def attach(self, target: object, names: Sequence[str]) -> None:
        for name in names:
            setattr(target, name, self._timed(name, getattr(target, name)))

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any, **kw: Any) -> Any:
            if self._is_running:
                return method(*args, **kw)
            self._is_running = True
            start = time.perf_counter()
            try:
                return method(*args, **kw)
            finally:
                self.seconds[name] += time.perf_counter() - start
                self.calls[name] += 1
                self._is_running = False

        return timed


def prompts(count: int, length: int, vocab_size: int) -> list[list[int]]:
    """Random tokens; no two begin with the same one."""
    rng = random.Random(0)
    firsts = rng.sample(range(3, vocab_size), count)
    return [[first, *rng.choices(range(3, vocab_size), k=length - 1)] for first in firsts]


def run(options: Options) -> Result:
    """The sum over the tree's methods, and the run they are a part of."""
    new = QUICK_NEW if options.quick else NEW
    pool = 2 * RUNNING * (PROMPT + new)
    names = [
        name
        for name, member in vars(RadixCache).items()
        if callable(member) and not name.startswith("_") and name not in NOT_BOOKKEEPING
    ]
    watch, walls, shares, spent = Stopwatch(), [], [], 0.0
    with Engine(
        options.model, device=options.device, max_running=RUNNING, kv_tokens=pool
    ) as engine:
        asked = prompts(REQUESTS, PROMPT, engine.model_config.vocab_size)
        params = SamplingParams(max_tokens=new, temperature=0.0, ignore_eos=True)
        engine.generate(asked[:2], params)  # warm up
        tree = engine.loop.scheduler.tree
        engine.flush_cache()
        engine.call(lambda: watch.attach(tree, names))
        before = engine.stats().cached_tokens
        for _ in range(options.rounds):
            engine.flush_cache()
            walls.append(seconds(lambda: engine.generate(asked, params)))
            shares.append((watch.seconds.total() - spent) / walls[-1])
            spent = watch.seconds.total()
        cached = engine.stats().cached_tokens - before
    return result(watch, walls, shares, cached, REQUESTS * (PROMPT + new))


def result(
    watch: Stopwatch, walls: list[float], shares: list[float], cached: int, tokens: int
) -> Result:
    """Of all rounds together."""
    run_s = sum(walls)

    def row(method: str, calls: int, taken: float) -> dict[str, Any]:
        return {
            "method": method,
            "calls": calls,
            "ms": 1000 * taken,
            "µs per call": 1e6 * taken / calls,
            "share of the run": f"{taken / run_s:.4%}",
        }

    rows = [row(name, calls, watch.seconds[name]) for name, calls in watch.calls.items()]
    rows.append(row("all", watch.calls.total(), watch.seconds.total()))
    share = statistics.median(shares)
    verdict = "within" if share < GOAL else "MISSES"
    return Result(
        tables=[Table.of(rows, "In the tree's methods, all rounds together")],
        charts=[
            Chart(
                "bars", "Time in the radix tree, over the whole run", "", "ms",
                list(watch.calls), {"ms": [1000 * watch.seconds[name] for name in watch.calls]},
            )
        ],
        notes=[
            f"{REQUESTS} requests of {tokens:,} tokens a round, {cached} of them cached, "
            f"in {statistics.median(walls):.1f} s.",
            f"{share:.3%} of the run: {verdict} the goal of {GOAL:.1%}.",
        ],
        raw={
            "run seconds": walls,
            "shares": shares,
            "cached": cached,
            "calls": dict(watch.calls),
            "method seconds": dict(watch.seconds),
        },
    )  # fmt: skip

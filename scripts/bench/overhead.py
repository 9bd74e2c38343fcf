"""What the radix cache costs where it can't help: its share of a run in which nothing repeats.

    python -m scripts.bench.overhead
    python -m scripts.bench.overhead --requests 30 --new 16

Random prompts that share not even a first token, in a pool so small that most of what the tree
learns is evicted again.  Every public method of the tree is timed inside the run (a call within a
call counts once), and the sum is divided by the run's wall-clock time.  The paper's figure (section
6.3): 100 requests without reuse, 0.2 s of 74.3 s, less than 0.3 %.
"""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minisgl import Engine, SamplingParams
from minisgl.cache.radix_cache import RadixCache
from scripts.bench.common import report, seconds

GOAL = 0.003
NOT_BOOKKEEPING = {"check", "nodes", "render"}  # nobody calls these in a run


class Stopwatch:
    """Times the methods of one object, outermost calls only."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()  # Counter sums floats as well
        self._is_running = False

    def attach(self, target: object, names: list[str]) -> None:
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--prompt", type=int, default=256, help="tokens of each")
    parser.add_argument("--new", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--running", type=int, default=16, help="requests at the same time")
    parser.add_argument("--model", default=None)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    if min(args.requests, args.prompt, args.new, args.running) < 1:
        parser.error("every number must be at least 1")

    pool = 2 * args.running * (args.prompt + args.new)
    with Engine(args.model, max_running=args.running, kv_tokens=pool) as engine:
        asked = prompts(args.requests, args.prompt, engine.model_config.vocab_size)
        params = SamplingParams(max_tokens=args.new, temperature=0.0, ignore_eos=True)
        engine.generate(asked[:2], params)  # warm up
        engine.flush_cache()
        names = [
            name
            for name, member in vars(RadixCache).items()
            if callable(member) and not name.startswith("_") and name not in NOT_BOOKKEEPING
        ]
        watch = Stopwatch()
        tree = engine.loop.scheduler.tree
        engine.call(lambda: watch.attach(tree, names))
        before = engine.stats()
        run = seconds(lambda: engine.generate(asked, params))
        stats = engine.stats()

    cached = stats.cached_tokens - before.cached_tokens
    tokens = args.requests * (args.prompt + args.new)
    rows = [
        {
            "method": name,
            "calls": calls,
            "ms": 1000 * watch.seconds[name],
            "µs per call": 1e6 * watch.seconds[name] / calls,
            "share of the run": f"{watch.seconds[name] / run:.4%}",
        }
        for name, calls in watch.calls.items()
    ]
    total = sum(watch.seconds.values())
    calls = sum(watch.calls.values())
    rows.append(
        {
            "method": "all",
            "calls": calls,
            "ms": 1000 * total,
            "µs per call": 1e6 * total / calls,
            "share of the run": f"{total / run:.4%}",
        }
    )
    report(
        f"Radix bookkeeping in a run without reuse: {args.requests} requests, {tokens:,} tokens "
        f"({cached} of them cached), {run:.1f} s",
        rows,
        args.json,
    )
    verdict = "within" if total / run < GOAL else "MISSES"
    print(f"\n{total / run:.3%} of the run: {verdict} the goal of {GOAL:.1%}.")


if __name__ == "__main__":
    main()

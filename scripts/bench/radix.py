"""What the radix tree costs per request, at a thousand to a million cached tokens.

    python -m scripts.bench.radix
    python -m scripts.bench.radix --sizes 1000 100000 --rounds 500

The trees hold prompts of 256 tokens in families of eight that share their first 128. Per round, on
a tree that stays at its size: match a cached prompt, insert a new one, evict as many tokens as that
took. Beside it stands the eviction of a simpler cache, which looks at every node to find the leaf
that was used longest ago.

Figures are medians in microseconds; in brackets, the ratio to the smallest tree.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
from pathlib import Path

from minisgl.cache.radix_cache import RadixCache, TreeNode
from scripts.bench.common import report, seconds
from scripts.bench.results import Table

SHARED, OWN, FAMILY = 128, 128, 8
VOCAB = 128_000


class Workload:
    """A tree of about `size` tokens, and prompts to ask it for."""

    def __init__(self, size: int, seed: int = 0) -> None:
        self.rng = random.Random(seed)
        self.cache = RadixCache()
        self.next_slot = 0
        count = max(1, round(size / (SHARED + FAMILY * OWN)))
        self.families = [self.tokens(SHARED) for _ in range(count)]
        self.cached = [family + self.tokens(OWN) for family in self.families for _ in range(FAMILY)]
        for prompt in self.cached:
            self.insert(prompt)

    def tokens(self, count: int) -> list[int]:
        return [self.rng.randrange(VOCAB) for _ in range(count)]

    def insert(self, prompt: list[int]) -> int:
        slots = range(self.next_slot, self.next_slot + len(prompt))
        self.next_slot += len(prompt)
        return self.cache.insert(prompt, slots)

    def round(self) -> dict[str, float]:
        """One request's worth of work; seconds for each part of it."""
        # A request brings its own int objects: equal to the tree's, not the same ones.
        old = [token + VOCAB - VOCAB for token in self.rng.choice(self.cached)]
        new = self.rng.choice(self.families) + self.tokens(OWN)
        before = self.cache.total_size
        match = seconds(lambda: self.cache.match_prefix(old))
        insert = seconds(lambda: self.insert(new))
        grown = self.cache.total_size - before
        evict = seconds(lambda: self.cache.evict(grown))
        return {"match": match, "insert": insert, "evict": evict}


def oldest_leaf_by_walking(cache: RadixCache) -> TreeNode:
    """What eviction would do without a queue."""
    return min((node for node in cache.nodes() if node.evictable), key=lambda node: node.last_used)


def measure(size: int, rounds: int) -> tuple[int, dict[str, float]]:
    """Cached tokens, and the median microseconds of each part."""
    load = Workload(size)
    for _ in range(20):
        load.round()
    results = [load.round() for _ in range(rounds)]
    load.cache.check()
    medians = {part: 1e6 * statistics.median(r[part] for r in results) for part in results[0]}
    # Apart from the rounds: it would push everything else out of the processor's caches.
    walks = [seconds(lambda: oldest_leaf_by_walking(load.cache)) for _ in range(5)]
    return load.cache.total_size, medians | {"evict by walking": 1e6 * statistics.median(walks)}


def verdict(part: str, cost: float, size: float) -> str:
    """In words, how the cost of `part` followed the size of the tree."""
    exponent = math.log(cost) / math.log(size)
    if exponent < 0.2:
        words = "does not grow with the tree, beyond the memory it misses in the processor's caches"
    elif exponent < 0.7:
        words = "GROWS, more slowly than the tree"
    else:
        words = "GROWS WITH THE TREE"
    growth = f"{size:,.0f} times the tokens cost {cost:.1f} times the time (size^{exponent:.2f})"
    return f"{part}: {growth}: {words}."


def main() -> None:
    parser = argparse.ArgumentParser(description="Microseconds per operation on the radix tree.")
    parser.add_argument("--sizes", type=int, nargs="+", default=[10**3, 10**4, 10**5, 10**6])
    parser.add_argument("--rounds", type=int, default=300, help="rounds on each tree")
    parser.add_argument("--json", type=Path, help="also write the result as JSON")
    arguments = parser.parse_args()
    if min(arguments.sizes) < 1 or arguments.rounds < 1:
        parser.error("--sizes and --rounds must be at least 1")

    measured = [measure(size, arguments.rounds) for size in sorted(arguments.sizes)]
    (first_size, first), (last_size, last) = measured[0], measured[-1]
    growth = last_size / first_size
    rows = [
        {"cached tokens": size}
        | {part: f"{cost:,.1f} ({cost / first[part]:.1f}x)" for part, cost in parts.items()}
        for size, parts in measured
    ]
    report(
        Table.of(rows, "µs per operation on a 256-token prompt (ratio to the smallest tree)"),
        out=arguments.json,
        notes=[verdict(part, last[part] / first[part], growth) for part in first if growth > 1],
    )


if __name__ == "__main__":
    main()

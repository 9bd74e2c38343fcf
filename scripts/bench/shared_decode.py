"""Decode speed with and without shared decode, where requests share a prefix and where they don't.

    python -m scripts.bench.shared_decode                  # 32 and 8 sharing, 32 sharing nothing
    python -m scripts.bench.shared_decode --cases 4x1000 2x500 --always    # to find the threshold

A case BxP is B requests that begin with the same P tokens and go on with 68 of their own (256 where
P is 0), then 64 new tokens, greedy; the time of one new token is taken off, so the prompts, which
are cached, do not count.  One engine is asked in turn with sharing on and off: the same weights and
the same memory.  --always shares whatever can be shared, also where it doesn't pay: a segment
breaks even where the ratio is 1 (`WORTH_ON_CPU` in minisgl/engine/segments.py).
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from minisgl import Engine, SamplingParams
from scripts.bench.common import interleave, median_ratio, prompts, report, seconds
from scripts.bench.results import Table

OWN, OWN_ALONE = 68, 256
Ids = list[list[int]]


class Bench:
    """One engine, and the two ways to ask it."""

    def __init__(self, model: str | None, dtype: str, new: int, *, always: bool) -> None:
        self.new = new
        self.engine = Engine(model, dtype=dtype, max_running=64)
        min_saved = self.engine.loop.runner.min_saved
        assert min_saved is not None
        self.min_saved = 1 if always else min_saved

    def case(self, batch: int, prefix: int) -> Ids:
        """`batch` prompts that share their first `prefix` tokens and nothing more."""

        def encode(text: str) -> list[int]:
            return self.engine.tokenizer.encode(text, add_special_tokens=False)

        if prefix == 0:
            return prompts(encode, batch, OWN_ALONE)
        shared = prompts(encode, 1, prefix)[0]
        own = prompts(encode, batch, OWN)
        # The first own token differs: nothing but `shared` is shared.
        return [[*shared, 100 + i, *ids[1:]] for i, ids in enumerate(own)]

    def answers(self, ids: Ids, new: int, *, share: bool) -> Ids:
        runner = self.engine.loop.runner
        self.engine.call(lambda: setattr(runner, "min_saved", self.min_saved if share else None))
        params = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True)
        return [c.token_ids for c in self.engine.generate(ids, params)]

    def speed(self, ids: Ids, *, share: bool) -> float:
        """Tokens per second of the 2nd to the last new token, over the whole batch."""
        first = seconds(lambda: self.answers(ids, 1, share=share))
        rest = seconds(lambda: self.answers(ids, self.new, share=share)) - first
        return len(ids) * (self.new - 1) / rest

    def row(self, batch: int, prefix: int, rounds: int) -> dict[str, Any]:
        ids = self.case(batch, prefix)
        answers = [self.answers(ids, self.new, share=share) for share in (True, False)]
        same = [a == b for a, b in zip(*answers, strict=True)]
        results = interleave(
            {
                "shared": lambda: self.speed(ids, share=True),
                "each alone": lambda: self.speed(ids, share=False),
            },
            rounds,
        )
        self.engine.flush_cache()
        medians = {name: statistics.median(values) for name, values in results.items()}
        ratio = median_ratio(results["shared"], results["each alone"])
        return {
            "requests": batch,
            "shared tokens": prefix,
            **medians,
            "ratio": ratio,
            "a segment would save": f"{(batch - 1) * prefix} tokens a step",
            "so it": "is made" if (batch - 1) * prefix >= self.min_saved else "is not",
            "equal answers": f"{sum(same)} of {len(same)}",
        }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", nargs="*", default=["32x1000", "8x200", "32x0"], metavar="BxP")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--new", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--always", action="store_true", help="share what does not pay as well")
    parser.add_argument("--model", default=None)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    if args.new < 2:
        parser.error(f"--new {args.new}: at least 2, since the first token does not count")

    bench = Bench(args.model, args.dtype, args.new, always=args.always)
    sizes = [tuple(map(int, case.split("x"))) for case in args.cases]
    rows = [bench.row(batch, prefix, args.rounds) for batch, prefix in sizes]
    bench.engine.close()
    report(Table.of(rows, "Decode, tokens per second (medians)"), out=args.json)


if __name__ == "__main__":
    main()

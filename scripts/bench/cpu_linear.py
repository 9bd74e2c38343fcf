"""One linear layer on a CPU: `F.linear` beside the layouts of kernels/cpu_linear.py.

python -m scripts.bench.cpu_linear
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from minisgl.kernels.cpu_linear import CPULinear
from scripts.bench.common import interleave, report, seconds
from scripts.bench.results import Table

SHAPES = {"qkv": (576, 960), "gate|up": (576, 3072), "down": (1536, 576), "head": (576, 49152)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    rows = []
    for name, (k, n) in SHAPES.items():
        copies = max(2, int(200e6 / (4 * k * n)))  # more than the caches hold, as in a model
        weights = [torch.randn(n, k) for _ in range(copies)]
        packed = [CPULinear(w) for w in weights]
        half = [CPULinear(w, half_weights=True) for w in weights]
        for m in (1, 8, 32):
            x = torch.randn(m, k)

            def timed(ops: list[Callable[[torch.Tensor], torch.Tensor]]) -> Callable[[], float]:
                turn = itertools.cycle(ops)
                return lambda x=x: 1e6 * seconds(lambda: next(turn)(x))  # noqa: B023

            plain = [lambda x, w=w: F.linear(x, w) for w in weights]
            runs = {"F.linear": timed(plain), "packed": timed([*packed]), "half": timed([*half])}
            us = {k: statistics.median(v) for k, v in interleave(runs, 2 * copies, 3).items()}
            rows.append(
                {
                    "layer": f"{name} {k}x{n}",
                    "rows": m,
                    "F.linear float32, µs": us["F.linear"],
                    "packed, times as fast": us["F.linear"] / us["packed"],
                    "half, times as fast": us["F.linear"] / us["half"],
                }
            )
    report(Table.of(rows, "A linear layer on the CPU (medians)"), out=args.json)


if __name__ == "__main__":
    main()

"""What a bound on overtaking costs in hit rate and saves in waiting; and what looking ahead saves.

    python -m scripts.bench.starvation
    python -m scripts.bench.starvation --requests 4000 --slots 20000

No model: the scheduler plans, and each step is taken as computed.  Requests arrive a little faster
than they can be served, in families of common prefixes, some of which are asked for far more often
than others (Zipf), so "longest prefix match" always has somebody popular to prefer.

Hit rate: cached over all prompt tokens.  Waiting: steps from arrival to admission.  Prefilled:
tokens computed in chunks, retracted requests' once more.

The second table is about memory: long answers, nothing in common, and a pool for about 25 of them.
"""

from __future__ import annotations

import argparse
import random
import statistics
from pathlib import Path
from typing import Any, cast

import torch

from minisgl import SamplingParams
from minisgl.cache.kv_pool import KVPool
from minisgl.cache.req_to_token import ReqToToken
from minisgl.detokenizer import Detokenizer
from minisgl.engine.req import Req
from minisgl.engine.scheduler import Scheduler
from scripts.bench.common import report
from scripts.bench.results import Table

FAMILIES, CONTEXT = 60, 1024
NO_BOUND = 10**9


def workload(
    requests: int, rate: float, *, prefix: int = 400, own: int = 40, answer: int = 24, seed: int = 0
) -> list[tuple[float, Req]]:
    """(step of arrival, request), `rate` of them a step; answers of `answer` tokens on average."""
    rng = random.Random(seed)
    prefixes = [[rng.randrange(100_000) for _ in range(prefix)] for _ in range(FAMILIES)]
    weights = [1 / (rank + 1) for rank in range(FAMILIES)]
    arrivals, now = [], 0.0
    for family in rng.choices(range(FAMILIES), weights, k=requests):
        now += rng.expovariate(rate)
        prompt = prefixes[family] + [rng.randrange(100_000) for _ in range(own)]
        req = Req(
            prompt_ids=prompt,
            params=SamplingParams(),
            max_tokens=rng.randint(1, 2 * answer - 1),
            stop_ids=frozenset(),
            seed=0,
            detokenizer=cast(Detokenizer, None),
        )
        arrivals.append((now, req))
    return arrivals


def simulate(
    arrivals: list[tuple[float, Req]], slots: int, rows: int, **settings: Any
) -> dict[str, Any]:
    """Serve them all; what came of it."""
    pool = KVPool(slots, 1, num_kv_heads=1, head_dim=1, dtype=torch.float32, device="cpu")
    table = ReqToToken(rows, CONTEXT, "cpu")
    scheduler = Scheduler(pool, table, prefill_budget=256, **settings)
    left, step_number, prefilled = arrivals[::-1], 0, 0
    waited: dict[Req, float] = {}
    while left or not scheduler.is_idle:
        while left and left[-1][0] <= step_number:
            scheduler.submit(left.pop()[1])
        step = scheduler.next_step()
        for extend in step.extends:
            waited.setdefault(extend.req, step_number)
            prefilled += extend.stop - extend.start
        scheduler.after_step(step)
        for req in step.decodes + [e.req for e in step.extends if e.is_last]:
            req.output_ids.append(0)
            if len(req.output_ids) == req.max_tokens:
                scheduler.finish(req)
        step_number += 1
    waits = sorted(waited[req] - at for at, req in arrivals)
    reqs = [req for _, req in arrivals]
    prompt_tokens = sum(len(req.prompt_ids) for req in reqs)
    return {
        "hit rate": sum(req.cached_tokens for req in reqs) / prompt_tokens,
        "steps": step_number,
        "waiting p50": round(statistics.median(waits)),
        "p99": round(waits[int(len(waits) * 0.99)]),
        "max": round(waits[-1]),
        "overtaken at most": max(req.overtakes for req in reqs),
        "retractions": scheduler.retractions,
        "prefilled": prefilled,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=1500)
    parser.add_argument("--slots", type=int, default=12_000, help="of the KV pool")
    parser.add_argument("--rate", type=float, default=0.7, help="requests that arrive in a step")
    parser.add_argument("--json", type=Path, help="write the table here too")
    args = parser.parse_args()

    contestants: list[tuple[str, dict[str, Any]]] = [
        ("lpm, no bound", {"policy": "lpm", "max_overtakes": NO_BOUND}),
        *((f"lpm, {n}", {"policy": "lpm", "max_overtakes": n}) for n in (512, 128, 32, 8)),
        ("dfs-weight, 128", {"policy": "dfs-weight"}),
        ("random, 128", {"policy": "random"}),
        ("fcfs", {"policy": "fcfs"}),
    ]
    rows = []
    for name, settings in contestants:
        came_of_it = simulate(workload(args.requests, args.rate), args.slots, 16, **settings)
        rows.append({"policy, bound": name, **came_of_it})
    looking = []
    for ahead in (1, 8, 32, 64, 128):
        arrivals = workload(args.requests // 4, args.rate, prefix=0, own=110, answer=155)
        looking.append({"look_ahead": ahead, **simulate(arrivals, 6000, 64, look_ahead=ahead)})
        del looking[-1]["hit rate"], looking[-1]["overtaken at most"]
    load = f"{FAMILIES} families, {args.slots} slots, {args.rate} a step"
    report(
        Table.of(rows, f"{args.requests} requests, {load}"),
        Table.of(looking, f"{args.requests // 4} requests with long answers, 6000 slots"),
        out=args.json,
    )


if __name__ == "__main__":
    main()

"""Decode and prefill speed of a Mixtral with random weights, ours beside transformers, in one run.

    python -m scripts.bench.moe                        # as large as the memory allows
    python -m scripts.bench.moe --hidden 512 --rounds 3 --json out.json

Eight experts of which a token takes two, an MLP of 3.5 times the hidden size and four query heads
to a key head, as Mixtral-8x7B has them, in fewer and narrower layers.  Decode: prompts of 64 tokens
and 32 new ones, greedy, counted from the moment when every prompt has its first, without prefill.
transformers multiplies the experts one by one ("eager") or by one grouped product ("grouped"); the
better of the two in each row is the baseline.  All in float32, so all must answer alike.  Each
engine has a process of its own and they take turns; nothing is cached between rounds.  On a busy
machine, `OMP_NUM_THREADS=1` and `--clock processor` count only what each engine itself takes.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch

from minisgl.engine.hardware import free_memory
from scripts.bench.common import interleave, median_ratio, report
from scripts.bench.contestants import Contestant, Ids
from scripts.bench.results import Table
from scripts.make_tiny_model import make_tiny_model

LAYERS, EXPERTS, VOCAB = 8, 8, 384
PROMPT, NEW = 64, 32
COPIES = 4  # of the weights, in all processes together, each in float32
OURS, BASELINES = "ours", ("transformers eager", "transformers grouped")


def hidden_size(memory: int) -> int:
    """The widest of a few models whose copies fit into half of `memory` bytes.

    >>> hidden_size(24 << 30), hidden_size(4 << 30)
    (1024, 256)
    """
    return max(
        h
        for h in (256, 512, 1024, 2048)
        if h == 256 or COPIES * 4 * LAYERS * EXPERTS * 3 * h * h * 7 // 2 < memory / 2
    )


def make_model(path: Path, hidden: int) -> Path:
    """Mixtral's proportions."""
    return make_tiny_model(
        path,
        architecture="MixtralForCausalLM",
        vocab_size=VOCAB,
        hidden_size=hidden,
        intermediate_size=hidden * 7 // 2,
        num_layers=LAYERS,
        num_heads=hidden // 64,
        num_kv_heads=hidden // 256,
        num_experts=EXPERTS,
    )


def decode_speed(engine: Contestant, ids: Ids, clock: str) -> float:
    """Tokens per second of the 2nd to the last new token, over the whole batch."""
    return engine.decode_speed(ids, NEW, clock)


def prefill_speed(engine: Contestant, ids: Ids, clock: str) -> float:
    """Prompt tokens per second, the first new token included."""
    return sum(map(len, ids)) / engine.seconds(ids, 1, clock)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hidden", type=int, default=None, help="a multiple of 256")
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clock", choices=["seconds", "processor"], default="seconds")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    hidden = args.hidden or hidden_size(free_memory(torch.device("cpu")))
    with tempfile.TemporaryDirectory() as directory:
        path = make_model(Path(directory), hidden)
        engines = {
            OURS: Contestant("minisgl", path, dtype="float32"),
            BASELINES[0]: Contestant("transformers-eager", path, dtype="float32"),
            BASELINES[1]: Contestant("transformers", path, dtype="float32"),
        }
        rows = [measure(engines, batch, args.rounds, args.clock) for batch in args.batch]
        for engine in engines.values():
            engine.close()
    unit = "second" if args.clock == "seconds" else "second of processor time"
    title = f"Tokens per {unit}, a Mixtral of {LAYERS} layers and hidden size {hidden} (medians)"
    report(Table.of([row for pair in rows for row in pair], title), out=args.json)


def measure(
    engines: dict[str, Contestant], batch: int, rounds: int, clock: str
) -> list[dict[str, Any]]:
    """Decode and prefill of `batch` prompts that have nothing in common."""
    pick = random.Random(batch)
    ids = [[pick.randrange(3, VOCAB) for _ in range(PROMPT)] for _ in range(batch)]
    answers = [engine.ask(ids=ids, new=NEW)["ids"] for engine in engines.values()]
    same = sum(all(a[i] == answers[0][i] for a in answers) for i in range(batch))
    rows = []
    for name, speed in (("decode", decode_speed), ("prefill", prefill_speed)):
        runs = {n: lambda e=e, s=speed: s(e, ids, clock) for n, e in engines.items()}
        results = interleave(runs, rounds)
        medians = {n: statistics.median(v) for n, v in results.items()}
        best = max(BASELINES, key=lambda n: medians[n])
        ratio = median_ratio(results[OURS], results[best])
        rows.append(
            {"": f"{name}, batch {batch}"}
            | medians
            | {"ours / the better": ratio, "answers equal": f"{same} of {batch}"}
        )
    return rows


if __name__ == "__main__":
    main()

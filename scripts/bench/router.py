"""MMLU, few-shot, over several real workers: how much of the prompts is cached, by policy (A.4).

    python -m scripts.bench.router [--data DIR] [--model DIR] [--workers 4] [--subjects 57]

DIR has mmlu/dev/*_dev.csv and mmlu/test/*_test.csv: question, choice0 .. choice3, answer (0 to 3).
Without --data questions of the same shape are made up.  Each policy gets a router and workers of
its own, by `python -m minisgl.router`; the answers say how many tokens were cached.

The optimum is that of one cache which forgets nothing and sees the prompts one after the other.
Without --model, a random two-layer model answers: hit rates are those of any model with its
tokenizer and as many slots, and times mean nothing.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import httpx

from minisgl.models.hub import resolve_model
from minisgl.router.policy import POLICIES
from minisgl.router.reader import Reader
from minisgl.router.usage import usage_of
from scripts.bench.common import report, sample_text
from scripts.bench.results import Table
from scripts.bench.simulate import best_hit_rate
from scripts.make_tiny_model import make_tiny_model

SHOTS = 5
Row = Sequence[str]


def prompts(subjects: dict[str, tuple[list[Row], list[Row]]], most: int) -> list[str]:
    """Of `most` questions of each subject, each after the subject's examples; shuffled."""
    made = []
    for name, (dev, test) in subjects.items():
        head = f"The following are multiple choice questions (with answers) about {name}.\n\n"
        head += "".join(f"{shown(row)} {'ABCD'[int(row[5])]}\n\n" for row in dev[:SHOTS])
        made += [head + shown(row) for row in test[:most]]
    random.Random(0).shuffle(made)
    return made


def shown(row: Row) -> str:
    """A question, as MMLU's own code writes it."""
    choices = "".join(f"\n{letter}. {row[i]}" for i, letter in enumerate("ABCD", 1))
    return f"{row[0]}{choices}\nAnswer:"


def read(data: Path, most: int) -> dict[str, tuple[list[Row], list[Row]]]:
    """The first `most` subjects of a directory."""
    found = {}
    for file in sorted(data.glob("mmlu/test/*_test.csv"))[:most]:
        name = file.name.removesuffix("_test.csv")
        both = (data / "mmlu" / "dev" / f"{name}_dev.csv", file)
        dev, test = (list(csv.reader(each.open(encoding="utf-8", newline="")))[1:] for each in both)
        found[name.replace("_", " ")] = (dev, test)
    if not found:
        raise SystemExit(f"{data}: there is no mmlu/test/*_test.csv")
    return found


def make_up(most: int) -> dict[str, tuple[list[Row], list[Row]]]:
    """Questions of MMLU's length about nothing, `most` subjects of them."""
    rng, words = random.Random(0), sample_text().split()

    def phrase(least: int, longest: int) -> str:
        return " ".join(rng.choices(words, k=rng.randint(least, longest)))

    def rows(count: int) -> list[Row]:
        return [[phrase(8, 40), *(phrase(1, 8) for _ in range(4)), "2"] for _ in range(count)]

    return {phrase(2, 3): (rows(SHOTS), rows(40)) for _ in range(most)}


@contextmanager
def routed(arguments: Sequence[str]) -> Iterator[str]:
    """A router with workers; its URL."""
    command = [sys.executable, "-m", "minisgl.router", "--port", "0", "--no-access-log", *arguments]
    with (
        ThreadPoolExecutor(1) as pool,
        subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process,
    ):
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            if line.startswith("http://"):
                break
            said.append(line)
        else:
            raise SystemExit("".join(said))
        pool.submit(process.stderr.read)  # so that it never waits for somebody to read
        try:
            yield line.strip()
        finally:
            process.terminate()


def measure(url: str, texts: Sequence[str], clients: int) -> tuple[float, float, Counter[str]]:
    """(Hit rate, seconds, requests by worker) of all prompts, one token each."""
    told: list[tuple[int, int]] = []
    workers: Counter[str] = Counter()
    with httpx.Client(base_url=url, timeout=None) as client, ThreadPoolExecutor(clients) as pool:

        def ask(text: str) -> httpx.Response:
            body = {"prompt": text, "max_tokens": 1, "temperature": 0}
            return client.post("/v1/completions", json=body)

        ask("warm")
        start = time.perf_counter()
        for answer in pool.map(ask, texts):
            answer.raise_for_status()
            used = usage_of("application/json", answer.content)
            assert used is not None
            told.append(used)
            workers[answer.headers["x-worker"]] += 1
        seconds = time.perf_counter() - start
    return sum(c for _, c in told) / sum(p for p, _ in told), seconds, workers


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    p.add_argument("--data", type=Path, help="a directory that has MMLU's CSV files in mmlu")
    p.add_argument("--model", help="default: a random tiny one")
    p.add_argument("--workers", type=int, default=4)
    p.add_argument("--subjects", type=int, default=57, help="at most")
    p.add_argument("--questions", type=int, default=20, help="of each subject, at most")
    p.add_argument("--clients", type=int, default=16, help="requests under way")
    p.add_argument("--kv-tokens", type=int, default=65536, help="slots of each worker")
    p.add_argument("--affinity", type=float, default=2.0)
    p.add_argument("--policies", default=",".join(POLICIES))
    p.add_argument("--json", type=Path, default=None)
    args = p.parse_args()
    subjects = read(args.data, args.subjects) if args.data else make_up(args.subjects)
    texts = prompts(subjects, args.questions)
    with tempfile.TemporaryDirectory() as directory:
        model = args.model or str(make_tiny_model(Path(directory) / "tiny", max_position=16384))
        reader = Reader(resolve_model(model))
        ids = [
            reader.read("/v1/completions", json.dumps({"prompt": text}).encode()).prompts[0]
            for text in texts
        ]
        best = best_hit_rate([tuple(each) for each in ids])
        total = sum(map(len, ids))
        rows = []
        for policy in args.policies.split(","):
            arguments = ["--model", model, "--workers", str(args.workers), "--policy", policy]
            arguments += ["--kv-tokens", str(args.kv_tokens), "--affinity", str(args.affinity)]
            with routed(arguments) as url:
                hit, seconds, workers = measure(url, texts, args.clients)
            rows.append(
                {
                    "policy": policy,
                    "hit rate": hit,
                    "of the best": hit / best,
                    "seconds": seconds,
                    "requests by worker": " ".join(
                        str(workers[str(w)]) for w in range(args.workers)
                    ),
                }
            )
    title = (
        f"{len(texts)} prompts of {len(subjects)} subjects, {total:,} tokens; "
        f"{args.workers} workers of {args.kv_tokens} slots; best hit rate {best:.3f}"
    )
    report(Table.of(rows, title, digits=3), out=args.json)


if __name__ == "__main__":
    main()

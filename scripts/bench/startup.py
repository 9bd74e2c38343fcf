"""From the command to the first token of the default model, and where the time goes.

    python -m scripts.bench.startup

Each round is a new Python process, after set-up (the model is converted already).  `the same, by
transformers` loads the same directory and makes one token.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

from scripts.bench.common import ROOT, report
from scripts.bench.results import Table

OURS = """
import json, time
t = [time.perf_counter()]
import torch
t.append(time.perf_counter())
from minisgl import Engine, SamplingParams
from minisgl.models.hub import resolve_model
import minisgl.engine.engine
t.append(time.perf_counter())
resolve_model(None)
t.append(time.perf_counter())
engine = Engine()
t.append(time.perf_counter())
messages = [{"role": "user", "content": "What is the capital of France?"}]
ids = engine.chat_template.encode(messages, engine.tokenizer)
t.append(time.perf_counter())
next(iter(engine.stream(ids, SamplingParams(max_tokens=8, temperature=0.0))))
t.append(time.perf_counter())
engine.close()
print(json.dumps([b - a for a, b in zip(t, t[1:])]))
"""
PARTS = [
    "import torch",
    "import minisgl",
    "find the model",
    "load, pack",
    "template",
    "first token",
]

THEIRS = """
import json, time
t = time.perf_counter()
from minisgl.models.hub import resolve_model
path = resolve_model(None)
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(path)
model = AutoModelForCausalLM.from_pretrained(path, dtype="float32")
messages = [{"role": "user", "content": "What is the capital of France?"}]
x = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
)
model.generate(**x, max_new_tokens=1, do_sample=False, pad_token_id=0)
print(json.dumps([time.perf_counter() - t]))
"""


def run(code: str) -> list[float]:
    """The list that `code` prints last, from a Python of its own."""
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    seconds: list[float] = json.loads(out.stdout.splitlines()[-1])
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    ours, theirs = [], []
    for _ in range(args.rounds):
        ours.append(run(OURS))
        theirs.append(run(THEIRS))
    rows = [
        {"part": part, "seconds": statistics.median(column)}
        for part, column in zip(PARTS, zip(*ours, strict=True), strict=True)
    ]
    total = statistics.median(map(sum, ours))
    rows.append({"part": "all", "seconds": total})
    baseline = statistics.median(t[0] for t in theirs)
    rows.append({"part": "the same, by transformers", "seconds": baseline})
    rows.append({"part": "ours / transformers", "seconds": total / baseline})
    report(Table.of(rows, "Start-up to the first token (medians)"), out=args.json)


if __name__ == "__main__":
    main()

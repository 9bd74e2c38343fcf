"""Decode and prefill speed of the default model, ours beside transformers, in one process.

    python -m scripts.bench.generate                 # batches 1, 8, 32 and a 1,024-token prefill
    python -m scripts.bench.generate --batch 8 --rounds 3 --json out.json

Decode: 256-token prompts, 64 new tokens, greedy; the time of one new token is taken off, so prefill
does not count.  Prefill: one prompt of 1,024 tokens, one new token.  transformers runs `generate`
with SDPA in float32 and in bfloat16, and the better of the two is the baseline.  Nothing is cached
between rounds.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from minisgl import Engine, SamplingParams
from minisgl.engine.hardware import cpu_multiplies_bfloat16
from minisgl.models.hub import resolve_model
from scripts.bench.common import interleave, median_ratio, prompts, report, seconds

NEW = 64


class Transformers:
    """`generate` as its users write it: SDPA, KV cache, one batch, no padding (equal lengths)."""

    def __init__(self, path: Path, dtype: torch.dtype) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, attn_implementation="sdpa"
        ).eval()

    @torch.inference_mode()
    def generate(self, ids: list[list[int]], new: int) -> list[list[int]]:
        x = torch.tensor(ids)
        out = self.model.generate(
            x,
            attention_mask=torch.ones_like(x),
            max_new_tokens=new,
            min_new_tokens=new,
            do_sample=False,
            pad_token_id=0,
        )
        answers: list[list[int]] = out[:, x.shape[1] :].tolist()
        return answers


class Ours:
    """The engine with its cache emptied before each call."""

    def __init__(self, path: Path, **settings: Any) -> None:
        self.engine = Engine(str(path), **settings)

    def generate(self, ids: list[list[int]], new: int) -> list[list[int]]:
        self.engine.flush_cache()
        params = SamplingParams(max_tokens=new, temperature=0.0, ignore_eos=True)
        return [c.token_ids for c in self.engine.generate(ids, params)]


def decode_speed(model: Transformers | Ours, ids: list[list[int]]) -> Callable[[], float]:
    """Tokens per second of the 2nd to the last new token, over the whole batch."""

    def run() -> float:
        first = seconds(lambda: model.generate(ids, 1))
        return len(ids) * (NEW - 1) / (seconds(lambda: model.generate(ids, NEW)) - first)

    return run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--prefill", type=int, nargs="*", default=[1024])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default=None)
    parser.add_argument("--dtype", default="auto", help="ours; transformers runs both")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()

    path = resolve_model(args.model, progress=True)
    theirs = {name: Transformers(path, getattr(torch, name)) for name in ("float32", "bfloat16")}
    ours = Ours(path, dtype=args.dtype)
    encode = lambda text: ours.engine.tokenizer.encode(text, add_special_tokens=False)  # noqa: E731
    rows = []
    # Without bfloat16 products a bfloat16 prefill takes minutes, and loses by 5x and more.
    slow = set() if cpu_multiplies_bfloat16() else {"bfloat16"}
    for batch in args.batch:
        ids = prompts(encode, batch, 256)
        runs = {
            name: decode_speed(m, ids)
            for name, m in {"ours": ours, **theirs}.items()
            if batch == 1 or name not in slow
        }
        same = [
            a == b
            for a, b in zip(
                ours.generate(ids, NEW), theirs["float32"].generate(ids, NEW), strict=True
            )
        ]
        rows.append(row(f"decode, batch {batch}", interleave(runs, args.rounds), same))
    for length in args.prefill:
        ids = prompts(encode, 1, length)

        def prefill(model: Transformers | Ours, ids: list[list[int]] = ids) -> float:
            return len(ids[0]) / seconds(lambda: model.generate(ids, 1))

        runs = {
            n: lambda m=m: prefill(m) for n, m in {"ours": ours, **theirs}.items() if n not in slow
        }
        same = [ours.generate(ids, 1) == theirs["float32"].generate(ids, 1)]
        rows.append(row(f"prefill, {length} tokens", interleave(runs, args.rounds), same))
    ours.engine.close()
    report("Tokens per second, default model, greedy (medians)", rows, args.json)


def row(name: str, results: dict[str, list[float]], same: list[bool]) -> dict[str, Any]:
    """Medians, and the ratio to transformers' better dtype."""
    medians = {k: statistics.median(v) for k, v in results.items()}
    best = max((k for k in medians if k != "ours"), key=lambda k: medians[k])
    return {
        "": name,
        "ours": medians["ours"],
        "transformers float32": medians["float32"],
        "transformers bfloat16": medians.get("bfloat16", "-"),
        "ours / the better": median_ratio(results["ours"], results[best]),
        "answers equal to float32's": f"{sum(same)} of {len(same)}",
    }


if __name__ == "__main__":
    main()

"""Decode and prefill speed of the default model, ours beside others, in one run.

    python -m scripts.bench.generate                 # batches 1, 8, 32 and a 1,024-token prefill
    python -m scripts.bench.generate --batch 8 --rounds 3 --json out.json
    python -m scripts.bench.generate --llama PYTHON MODEL.gguf       # llama-cpp-python as well
    python -m scripts.bench.generate --vllm PYTHON                   # vLLM as well

Decode: 256-token prompts, 64 new tokens, greedy; tokens and time count from the moment when every
prompt has its first token, so prefill does not.  Prefill: one prompt of 1,024 tokens, one new
token.  transformers runs `generate` with SDPA in float32, and in bfloat16 where that is not
hopeless; the better is the baseline.  `ceiling` is what the products with the weights alone allow
us.  Each engine has a process of its own and they take turns; nothing is cached between rounds.
PYTHON is that of an environment with llama-cpp-python or vLLM (see scripts/bench/peers), MODEL.gguf
the same model (scripts/bench/gguf_as.py writes one).  vLLM runs in bfloat16 where the processor
multiplies it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from minisgl.engine.hardware import cpu_multiplies_bfloat16
from minisgl.models.hub import resolve_model
from minisgl.tokenizer import Tokenizer
from scripts.bench.common import interleave, median_ratio, prompts, report
from scripts.bench.contestants import Contestant, Ids
from scripts.bench.results import Table

NEW = 64
PROMPT = 256
OURS, CEILING, BASELINES = "ours", "ceiling", ("transformers float32", "transformers bfloat16")


def decode_speed(engine: Contestant, ids: Ids) -> float:
    """Tokens per second of the 2nd to the last new token, over the whole batch."""
    return engine.decode_speed(ids, NEW)


def prefill_speed(engine: Contestant, ids: Ids) -> float:
    """Prompt tokens per second, the first new token included."""
    return sum(map(len, ids)) / engine.seconds(ids, 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, nargs="*", default=[1, 8, 32])
    parser.add_argument("--prefill", type=int, nargs="*", default=[1024])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", default=None)
    parser.add_argument("--dtype", default="auto", help="ours; transformers runs both")
    parser.add_argument("--llama", nargs=2, metavar=("PYTHON", "GGUF"), default=None)
    parser.add_argument("--vllm", metavar="PYTHON", default=None)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()

    path = resolve_model(args.model, progress=True)
    engines = {
        OURS: Contestant("minisgl", path, dtype=args.dtype),
        CEILING: Contestant("linear-layers", path, dtype=args.dtype),
        BASELINES[0]: Contestant("transformers", path, dtype="float32"),
        BASELINES[1]: Contestant("transformers", path, dtype="bfloat16"),
    }
    if args.llama:
        python, gguf = args.llama
        engines["llama.cpp"] = Contestant("llama.cpp", Path(gguf).resolve(), python)
    if args.vllm:
        dtype = "bfloat16" if cpu_multiplies_bfloat16() else "float32"
        engines["vllm"] = Contestant("vllm", path, args.vllm, dtype)
    tokenizer = Tokenizer(path)

    def measure(
        name: str, ids: Ids, new: int, speed: Callable[[Contestant, Ids], float]
    ) -> dict[str, Any]:
        # Without bfloat16 products, more than one row in bfloat16 takes minutes.
        is_slow = len(ids) > 1 or len(ids[0]) > PROMPT
        hopeless = {BASELINES[1]} if is_slow and not cpu_multiplies_bfloat16() else set()
        runs = {n: lambda e=e: speed(e, ids) for n, e in engines.items() if n not in hopeless}
        answers = {n: engines[n].ask(ids=ids, new=new)["ids"] for n in (OURS, BASELINES[0])}
        same = [a == b for a, b in zip(*answers.values(), strict=True)]
        return row(name, interleave(runs, args.rounds), same, engines)

    def encode(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    rows = [
        measure(f"decode, batch {batch}", prompts(encode, batch, PROMPT), NEW, decode_speed)
        for batch in args.batch
    ]
    rows += [
        measure(f"prefill, {length} tokens", prompts(encode, 1, length), 1, prefill_speed)
        for length in args.prefill
    ]
    for engine in engines.values():
        engine.close()
    title = "Tokens per second, default model, greedy (medians)"
    report(Table.of(rows, title), out=args.json)


def row(
    name: str, results: dict[str, list[float]], same: list[bool], engines: dict[str, Contestant]
) -> dict[str, Any]:
    """Medians, and the median ratios of a round."""
    medians = {k: statistics.median(v) for k, v in results.items()}
    best = max((b for b in BASELINES if b in medians), key=lambda k: medians[k])
    ratio = {n: median_ratio(results[OURS], results[n]) for n in results if n not in BASELINES}
    cells: dict[str, Any] = {"": name}
    cells |= {n: medians.get(n, "-") for n in engines}
    cells["ours / transformers' better"] = median_ratio(results[OURS], results[best])
    cells["ceiling / transformers' better"] = median_ratio(results[CEILING], results[best])
    for name in ("llama.cpp", "vllm"):
        if name in ratio:
            cells[f"ours / {name}"] = ratio[name]
    cells["answers equal to float32's"] = f"{sum(same)} of {len(same)}"
    return cells


if __name__ == "__main__":
    main()

"""How a GPU run judges and times one case, and how it writes down what it found."""

from __future__ import annotations

import json
import math
import statistics
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from scripts.kernel_inputs import Case

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.5e-2}  # of ||out||
GOALS = {  # ratio to the yardstick: bandwidth of a copy, or the vendor's kernel
    "rms_norm": 0.80,
    "add_rms_norm": 0.80,
    "rotary_": 0.60,
    "silu_and_mul": 0.85,
    "embedding": 0.80,
    "kv_store": 0.75,
    "linear": 0.75,
    "route": 0.30,  # a token's row is read once, the router's rows by every token
    "moe": 0.60,
    "layer_norm": 0.80,
    "add_layer_norm": 0.80,
    "gelu": 0.85,
    "pool_grid": 0.60,
    "extend_attention": 0.85,
    "decode_attention": 0.75,
    "cascade_attention": 0.40,  # of reading each different key once
    "sample": 0.10,
    "logprob": 0.80,
    "top_tokens": 0.30,
    "vocab_mask": 0.30,  # one program a row: a small batch leaves most of the GPU idle
}
SPLIT_SAMPLE = 0.98  # rows whose token must equal the reference's: a sum's last bit may move one


class Log:
    """Results as they come: printed, and appended to a file."""

    def __init__(self, directory: Path):
        directory.mkdir(parents=True, exist_ok=True)
        self.path = directory / "gpu_check.jsonl"
        self.rows: list[dict[str, Any]] = []
        self.start = time.perf_counter()

    def attempt(self, phase: str, name: str, measure: Callable[[], dict[str, Any]]) -> None:
        """Record what `measure` returns, or the exception that it raises."""
        try:
            row = measure()
        except Exception as error:
            where = traceback.format_exc().splitlines()[-8:]
            row = {"ok": False, "error": f"{type(error).__name__}: {error}"[:500], "where": where}
        at = round(time.perf_counter() - self.start, 1)
        row = {"phase": phase, "name": name, "at": at, **row}
        self.rows.append(row)
        with self.path.open("a") as file:
            file.write(json.dumps(row) + "\n")
        shown = {k: v for k, v in row.items() if k not in ("phase", "name", "where")}
        print(f"{phase:12} {name:48} {shown}", flush=True)

    @property
    def failed(self) -> list[dict[str, Any]]:
        """The rows that are wrong; block sizes that a GPU has no room for are not."""
        rows = [row for row in self.rows if row["phase"] != "blocks"]
        return [row for row in rows if not row.get("ok", True)]

    def read(self) -> None:
        """Take in the rows that other processes have written."""
        self.rows = [json.loads(line) for line in self.path.read_text().splitlines()]


def compare(case: Case, dtype: torch.dtype) -> dict[str, Any]:
    """Error against the float32 reference, and whether a second run repeats its bits."""
    expected = case.reference()
    out = case.result()
    again = case.result()
    repeats = all(torch.equal(_bits(a), _bits(b)) for a, b in zip(out, again, strict=True))
    if case.kernel == "sample":
        agree = (out[0] == expected[0]).float().mean().item()
        return {"ok": repeats and agree >= SPLIT_SAMPLE, "agree": agree, "repeats": repeats}
    pairs = list(zip(out, expected, strict=True))
    if case.exact:
        same = all(torch.equal(_bits(a), _bits(b.to(a.dtype))) for a, b in pairs)
        return {"ok": repeats and same, "equal": same, "repeats": repeats}
    errors = [_relative_error(a, b) for a, b in pairs]
    finite = all(bool(torch.isfinite(a).all()) for a in out)
    ok = repeats and finite and max(errors) <= TOLERANCE[dtype]
    return {"ok": ok, "error_norm": max(errors), "finite": finite, "repeats": repeats}


def _bits(x: torch.Tensor) -> torch.Tensor:
    """A view that compares NaN as equal to the same NaN."""
    return x.contiguous().view(
        {1: torch.int8, 2: torch.int16, 4: torch.int32}.get(x.element_size(), torch.int64)
    )


def _relative_error(out: torch.Tensor, expected: torch.Tensor) -> float:
    """Of floats; integers are equal or wrong."""
    if not out.is_floating_point():
        return 0.0 if torch.equal(out, expected) else math.inf
    difference = torch.linalg.vector_norm(out.float() - expected.float())
    return (difference / torch.linalg.vector_norm(expected.float()).clamp(min=1e-30)).item()


def seconds(call: Callable[[], object], replays: int = 20) -> float:
    """Median time of a call inside a CUDA graph, with the L2 cache full of something else.

    A short call is captured twenty times in one graph, which is then read from L2: launches of a
    few microseconds cannot be told apart one by one.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            call()
    stream.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call()
    end.record()
    end.synchronize()
    repeat = 20 if begin.elapsed_time(end) < 0.05 else 1
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(repeat):
            call()
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    times = []
    for _ in range(replays):
        flush.zero_()
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) / 1e3 / repeat)
    return statistics.median(times)


def timing(case: Case, bandwidth: float) -> dict[str, Any]:
    """Time of one case, and its ratio to a vendor's kernel or to the bandwidth of a copy."""
    ours = seconds(case.run)
    row: dict[str, Any] = {"us": round(ours * 1e6, 1)}
    if case.flops:
        row["tflops"] = round(case.flops / ours / 1e12, 1)
    by_memory = case.bytes / bandwidth / ours if bandwidth else 0.0
    ratio = by_memory
    row["of_bandwidth"] = round(by_memory, 3)
    if case.baseline is not None:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            ratio = seconds(case.baseline) / ours
        row["of_baseline"] = round(ratio, 3)
    row["of_goal"] = round(ratio / GOALS[case.kernel], 2)
    return row

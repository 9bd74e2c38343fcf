"""One prepared run on a real GPU: are the kernels right there, and how near are they to its limits?

    python -m scripts.gpu_check --out build/gpu            # all phases, in at most nine minutes
    python -m scripts.gpu_check --phase correctness edges --model llama-3-8b

Every phase stands alone, in a process of its own: what fails is recorded and the next thing runs,
even after an illegal access, which no process survives. Each result is one JSON line in
OUT/gpu_check.jsonl, written at once, so a run that is cut off keeps what it found. Speeds
are ratios to what the same GPU does in the same run: bytes moved against a plain copy, linear
layers against cuBLAS, prefill attention against torch's flash attention, a whole decode step
against the time that reading the weights takes. What matters most runs first: after `--seconds`
no phase begins any more.

Exit code: 0 all right, 1 something failed, 2 no GPU.
"""

from __future__ import annotations

import argparse
import itertools
import json
import operator
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from scripts.compile_driver import SHARED_LIMIT
from scripts.gpu_graphs import graphs
from scripts.gpu_measure import Log, compare, seconds, timing
from scripts.gpu_process import ROOT, run_within, sanitizer
from scripts.kernel_cases import cascade_case, decode_case, extend_case, linear_case
from scripts.kernel_inputs import MODELS, TINY, TINY_MIXTRAL, TOWERS, Case, Maker, Model
from scripts.kernel_lists import edge_cases, model_cases, speed_cases
from scripts.moe_cases import moe_case

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def compile_all(log: Log, models: list[str], dtypes: list[str], limit: float = 130) -> None:
    """Compile every kernel in one process per model and type: the other phases find them cached.

    All of them together get `limit` seconds.
    """
    major, minor = torch.cuda.get_device_capability()
    arch = str(10 * major + minor)
    if int(arch) not in SHARED_LIMIT:
        log.attempt("compile", f"sm_{arch}", lambda: {"skipped": "the report does not know it"})
        return
    running = {}
    for model, dtype in itertools.product(models, [d for d in dtypes if d != "fp32"]):
        command = [sys.executable, "-m", "scripts.kernel_report", "--json"]
        command += ["--arch", arch, "--model", model, "--dtype", dtype]
        running[f"sm_{arch} {model} {dtype}"] = subprocess.Popen(
            command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    deadline = time.perf_counter() + limit
    for name, process in running.items():

        def finish(process: subprocess.Popen[str] = process) -> dict[str, Any]:
            try:
                out, err = process.communicate(timeout=max(1, deadline - time.perf_counter()))
            except subprocess.TimeoutExpired:
                process.kill()  # or it would take the processors from the next phases
                raise
            rows = [json.loads(line) for line in out.splitlines()]
            broken = {row["entry"]: row["broken"] for row in rows if row["broken"]}
            return {"ok": process.returncode == 0, "kernels": len(rows), "broken": broken} | (
                {} if rows else {"error": err[-500:]}
            )

        log.attempt("compile", name, finish)


# ---- is it right?


def correctness(
    log: Log, device: str, models: list[Model], dtypes: list[torch.dtype], **sizes: int
) -> None:
    """Every kernel of every model, at its real shapes, against float32."""
    for model in models:
        for dtype in dtypes:
            make = Maker(dtype, device)
            _compare_each(log, "correctness", model_cases(make, model, **sizes), model.name, dtype)


def edges(log: Log, device: str, dtype: torch.dtype, **sizes: int) -> None:
    """What only a GPU with memory can show: pools and rows past 2**31 elements, 70,000 tokens."""
    _compare_each(log, "edges", edge_cases(Maker(dtype, device), **sizes), "", dtype)


def _compare_each(
    log: Log, phase: str, cases: Iterator[Case], model: str, dtype: torch.dtype
) -> None:
    short = next(name for name, value in DTYPES.items() if value == dtype)
    while True:
        try:
            case = next(cases)
        except StopIteration:
            return
        except Exception as error:  # a case that cannot be built ends its list, not the run
            log.attempt(phase, f"{model} {short} inputs", lambda e=error: _raise(e))
            return
        log.attempt(phase, f"{model} {short} {case.name}".strip(), lambda c=case: compare(c, dtype))


def _raise(error: Exception) -> dict[str, Any]:
    raise error


# ---- how fast is it?


def machine(log: Log) -> float:
    """What this GPU can do. Returns the bandwidth of a copy in bytes per second."""
    bandwidth = [0.0]

    def versions() -> dict[str, Any]:
        import triton

        properties = torch.cuda.get_device_properties(0)
        return {
            "gpu": properties.name,
            "memory_gb": round(properties.total_memory / 1e9, 1),
            "multiprocessors": properties.multi_processor_count,
            "torch": torch.__version__,
            "triton": triton.__version__,
        }

    def copy() -> dict[str, Any]:
        source = torch.empty(2 << 30, dtype=torch.int8, device="cuda")
        target = torch.empty_like(source)
        bandwidth[0] = 2 * source.numel() / seconds(lambda: target.copy_(source))
        return {"gb_per_s": round(bandwidth[0] / 1e9)}

    def matmul() -> dict[str, Any]:
        a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        return {"tflops": round(2 * 8192**3 / seconds(lambda: a @ b) / 1e12)}

    def launch() -> dict[str, Any]:
        from minisgl.kernels.rms_norm import rms_norm

        x = torch.zeros(1, 64, device="cuda")
        rms_norm(x, x[0], 1e-5)
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(1000):
            rms_norm(x, x[0], 1e-5)
        torch.cuda.synchronize()
        in_turn = (time.perf_counter() - start) / 1000
        in_graph = seconds(lambda: rms_norm(x, x[0], 1e-5))
        return {"launch_us": round(in_turn * 1e6, 2), "in_graph_us": round(in_graph * 1e6, 2)}

    for name, measure in (
        ("versions", versions),
        ("copy 2 GB", copy),
        ("matmul 8192 bf16", matmul),
        ("smallest kernel", launch),
    ):
        log.attempt("machine", name, measure)
    return bandwidth[0]


def speed(log: Log, models: list[Model], bandwidth: float) -> None:
    """Each kernel against its yardstick, the ratio against its goal."""
    for model in models:
        for case in speed_cases(Maker(torch.bfloat16, "cuda"), model):
            log.attempt("speed", f"{model.name} {case.name}", lambda c=case: timing(c, bandwidth))


def block_sizes(log: Log) -> None:
    """A few other block sizes for the kernels that decide: the fastest goes to the table."""
    model, mixtral = MODELS["llama-3-8b"], MODELS["mixtral-8x7b"]
    make = Maker(torch.bfloat16, "cuda")
    extend = [(128, 64, 8, 3), (128, 64, 8, 2), (128, 128, 8, 2), (64, 64, 4, 3), (128, 64, 4, 3)]
    cascade = [(64, 64, 8, 3), (64, 64, 8, 2), (64, 32, 4, 3), (128, 64, 8, 3), (128, 64, 8, 2)]
    decode = [(64, 4, 3), (128, 4, 3), (64, 4, 4), (32, 4, 4), (64, 2, 3)]
    tiles = [(128, 256, 64, 8, 3), (128, 128, 64, 8, 4), (128, 128, 64, 4, 4), (256, 128, 64, 8, 3)]
    many = [(128, 128, 64, 8, 3), (128, 64, 64, 8, 4), (128, 64, 64, 4, 4), (64, 128, 64, 8, 3)]
    few = [(32, 128, 4, 4), (16, 128, 4, 4), (32, 256, 4, 3), (64, 64, 4, 4), (16, 256, 4, 4)]
    thin = [(32, 128, 4, 4), (64, 128, 4, 4), (32, 256, 4, 3), (16, 256, 4, 4), (64, 64, 4, 6)]

    def launch(warps: int, stages: int) -> dict[str, Any]:
        return {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": True}

    tries: list[tuple[Case, list[dict[str, Any]]]] = [
        (
            extend_case(make, model, "8192", [8192], [0]),
            [{"BLOCK_M": m, "BLOCK_N": n, **launch(w, s)} for m, n, w, s in extend],
        ),
        (
            decode_case(make, model, "B=32 L=4096", [4096] * 32),
            [{"BLOCK_N": n, **launch(w, s)} for n, w, s in decode],
        ),
        (
            cascade_case(make, model, "B=32", prefix=4096, branch=256, tail=128, groups=[8] * 4),
            [{"BLOCK_M": m, "BLOCK_N": n, **launch(w, s)} for m, n, w, s in cascade],
        ),
        (
            linear_case(make, "gate_up", 4096, 2 * model.intermediate, model.hidden),
            [{"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, **launch(w, s)} for m, n, k, w, s in tiles],
        ),
        (
            linear_case(make, "o", 16, model.hidden, model.hidden),
            [{"BLOCK_N": n, "BLOCK_K": k, **launch(w, s)} for n, k, w, s in thin],
        ),
        (
            moe_case(make, mixtral, 4096),
            [{"BLOCK_M": m, "BLOCK_N": n, "BLOCK_K": k, **launch(w, s)} for m, n, k, w, s in many],
        ),
        (
            moe_case(make, mixtral, 16),
            [{"BLOCK_M": 16, "BLOCK_N": n, "BLOCK_K": k, **launch(w, s)} for n, k, w, s in few],
        ),
    ]
    for case, configurations in tries:
        if case.with_blocks is None:
            continue
        for blocks in configurations:
            call = case.with_blocks(blocks)
            sizes = " ".join(str(v) for v in list(blocks.values())[:-1])
            log.attempt(
                "blocks", f"{case.name}: {sizes}", lambda c=call: {"us": round(seconds(c) * 1e6, 1)}
            )


# ---- does it hold together?


def engine(log: Log, device: str = "cuda") -> None:
    """Tiny models through the whole engine: on the device, with and without graphs, the tokens
    of the CPU; and what a LLaVA sees."""
    from scripts.make_tiny_model import make_tiny_model
    from tests.models.tiny_llava import make_tiny_llava

    for kind in ("Llama", "Mixtral"):
        with tempfile.TemporaryDirectory() as directory:
            path = make_tiny_model(Path(directory) / "tiny", architecture=f"{kind}ForCausalLM")
            log.attempt(
                "engine", f"tiny {kind}, greedy tokens", lambda p=path: _same_tokens(p, device)
            )
    with tempfile.TemporaryDirectory() as directory:
        path = make_tiny_llava(
            Path(directory) / "tiny", architecture="LlavaNextVideoForConditionalGeneration"
        )
        log.attempt("engine", "tiny LLaVA, features", lambda: _same_features(path, device))


def _same_features(path: Path, device: str) -> dict[str, Any]:
    """What a LLaVA makes of an image in tiles and of a video: on the device as on the CPU."""
    from minisgl.models.llava_config import LlavaConfig
    from minisgl.models.pixels import Pixels
    from minisgl.models.registry import load_config, load_model

    config = load_config(path)
    assert isinstance(config, LlavaConfig)
    side, generator = config.vision.image_size, torch.Generator().manual_seed(0)
    values = torch.randn(5, 3, side, side, generator=generator)
    size = (2 * side, 2 * side - 10)
    inputs = [
        Pixels(values, config.num_image_tokens(size), (2, 2), size),
        Pixels(values, config.num_video_tokens(5), None, size, is_video=True),
    ]
    found = []
    for where in ("cpu", device):
        net = load_model(
            path, config, dtype=torch.float32, device=torch.device(where), max_len=64,
            progress=False,
        )  # fmt: skip
        with torch.inference_mode():
            found.append(torch.cat(net.encode_images(inputs)).cpu())
    apart = (found[0] - found[1]).abs().max().item()
    return {"ok": apart < 1e-4, "apart": apart, "tokens": len(found[0])}


def _same_tokens(path: Path, device: str) -> dict[str, Any]:
    from minisgl import Engine, SamplingParams

    prompts = [[5 + i, 17, 33 + 2 * i, 40, 51] * (1 + i) for i in range(4)]
    params = SamplingParams(max_tokens=24, temperature=0.0, ignore_eos=True)
    answers: list[list[int]] = []
    for where, recorded in (("cpu", True), (device, True), (device, False)):
        with Engine(
            str(path), device=where, dtype="float32", kv_tokens=2048, cuda_graphs=recorded
        ) as runner:
            answers.append([t for c in runner.generate(prompts, params) for t in c.token_ids])
            runner.check()
    expected, *found = answers
    agree = [sum(map(operator.eq, a, expected)) / len(expected) for a in found]
    return {"ok": min(agree) == 1.0, "agree": agree, "tokens": len(expected)}


PHASES = ("machine", "compile", "correctness", "engine", "graphs", "edges", "speed", "blocks")
PHASES += ("sanitizer",)


def summary(log: Log) -> str:
    """The slowest kernels first, then what failed."""
    timed = sorted((r for r in log.rows if "of_goal" in r), key=lambda r: r["of_goal"])
    lines = [f"{r['of_goal']:6.2f} of goal  {r['us']:10.1f} us  {r['name']}" for r in timed]
    lines += [f"FAILED {r['phase']}: {r['name']}: {r.get('error', r)}" for r in log.failed]
    return "\n".join([*lines, f"{len(log.rows)} results, {len(log.failed)} failed"])


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    made.add_argument("--phase", nargs="+", choices=[*PHASES, "tiny", "all"], default=["all"])
    made.add_argument("--model", nargs="+", choices=[*MODELS, *TOWERS], default=[*MODELS, *TOWERS])
    made.add_argument("--dtype", nargs="+", choices=DTYPES, default=["bf16", "fp16"])
    made.add_argument("--append", action="store_true", help="keep the results that OUT holds")
    made.add_argument("--phase-timeout", type=float, default=150, help="seconds for one phase")
    made.add_argument("--seconds", type=float, default=540, help="for all phases together")
    made.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "build/gpu_check")))
    return made


def main(arguments: list[str] | None = None) -> int:
    """Run the phases; see the module's docstring for the exit code."""
    options = parser().parse_args(arguments)
    if not torch.cuda.is_available():
        print("gpu_check needs a CUDA GPU, and torch finds none here.", file=sys.stderr)
        print("Without one: TRITON_INTERPRET=1 python -m pytest tests/kernels", file=sys.stderr)
        print("             python -m scripts.kernel_report", file=sys.stderr)
        return 2
    phases = PHASES if "all" in options.phase else options.phase
    log = Log(options.out)
    if not options.append:
        log.path.write_text("")
    if len(phases) > 1:
        for phase in phases:
            left = options.seconds - (time.perf_counter() - log.start)
            _in_a_process(log, phase, options, min(options.phase_timeout, left))
            log.read()
    else:
        _run(log, phases[0], options)
    print(summary(log))
    return 1 if log.failed else 0


def _in_a_process(log: Log, phase: str, options: argparse.Namespace, limit: float) -> None:
    if limit <= 0:
        log.attempt(phase, "process", lambda: {"skipped": "no time is left"})
        return
    command = [sys.executable, "-m", "scripts.gpu_check", "--phase", phase]
    command += ["--model", *options.model, "--dtype", *options.dtype]
    command += ["--append", "--out", str(options.out.resolve())]
    try:
        code, _ = run_within(limit, command)
        if code not in (0, 1):
            log.attempt(phase, "process", lambda: {"ok": False, "exit_code": code})
    except subprocess.TimeoutExpired:
        log.attempt(phase, "process", lambda: {"ok": False, "timeout_s": round(limit)})


def _run(log: Log, phase: str, options: argparse.Namespace) -> None:
    models = [{**MODELS, **TOWERS}[name] for name in options.model]
    dtypes = [DTYPES[name] for name in options.dtype]
    steps: dict[str, Callable[[], object]] = {
        "machine": lambda: machine(log),
        "compile": lambda: compile_all(log, options.model, options.dtype),
        "tiny": lambda: correctness(
            log, "cuda", [TINY, TINY_MIXTRAL], [torch.bfloat16], prompt=24, requests=2, batch=4
        ),
        "correctness": lambda: correctness(log, "cuda", models, dtypes),
        "edges": lambda: edges(log, "cuda", torch.bfloat16),
        "sanitizer": lambda: sanitizer(log),
        "speed": lambda: speed(log, models, machine(log)),
        "blocks": lambda: block_sizes(log),
        "engine": lambda: engine(log),
        "graphs": lambda: graphs(log, "cuda", [m for m in models if m.vocab], machine(log)),
    }
    steps[phase]()


if __name__ == "__main__":
    sys.exit(main())

"""What every kernel needs on every architecture, without a GPU.

    python -m scripts.kernel_report                   # print all, fail where a limit is broken
    python -m scripts.kernel_report --write           # and record it in tests/kernels/ledger.json
    python -m scripts.kernel_report --arch 90 --model llama-3-8b --dtype bf16
    python -m scripts.kernel_report --sweep           # count the cubins over lengths and batches

Each launcher runs at the shapes of real models under a driver that compiles and launches nothing
(compile_driver.py). The ledger keeps one line per kernel and case for each minor version of Triton,
so that a change of registers or shared memory shows in a diff.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from scripts.compile_driver import (
    SHARED_LIMIT,
    CompiledLaunch,
    Resources,
    compile_only,
    no_synchronisation,
    resources,
)
from scripts.kernel_cases import (
    add_rms_norm_case,
    adjust_logits_case,
    cascade_case,
    decode_case,
    embedding_case,
    extend_case,
    kv_store_case,
    linear_case,
    logprob_case,
    rms_norm_case,
    rotary_case,
    sample_case,
    silu_and_mul_case,
    top_tokens_case,
    vocab_mask_case,
)
from scripts.kernel_inputs import MODELS, TOWERS, Case, Maker
from scripts.kernel_lists import model_cases
from scripts.moe_cases import moe_case, route_case
from scripts.vision_cases import (
    add_layer_norm_case,
    gelu_case,
    layer_norm_case,
    pool_grid_case,
)

LEDGER = Path(__file__).resolve().parents[1] / "tests" / "kernels" / "ledger.json"
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
STACK_LIMIT = {80: 64, 86: 64, 90: 0}  # bytes; more than a few saved registers is a spill
MATMUL_TOKENS = 512  # from here a linear layer's tiles are large enough for Hopper's HGMMA


def broken_limits(arch: int, case: str, needs: Resources) -> list[str]:
    """What is wrong with one cubin: a sentence for each limit it breaks.

    >>> broken_limits(86, "rms_norm T=1", Resources(200_000, 32, 0, {}))
    ['shared memory 200000 B > 101376 B']
    """
    found = []
    if needs.shared > SHARED_LIMIT[arch]:
        found.append(f"shared memory {needs.shared} B > {SHARED_LIMIT[arch]} B")
    if needs.stack > STACK_LIMIT[arch]:
        found.append(f"stack {needs.stack} B > {STACK_LIMIT[arch]} B: registers are spilled")
    if "attention" in case and needs.instructions.get("LDG.E.U16"):
        found.append(
            f"{needs.instructions['LDG.E.U16']} loads of two bytes: rows not known aligned"
        )
    if arch == 90 and _wants_hgmma(case, needs) and not needs.instructions.get("HGMMA"):
        found.append("no HGMMA: the tiles are too small for Hopper's tensor cores")
    return found


def _wants_hgmma(case: str, needs: Resources) -> bool:
    if case.startswith("extend_attention"):
        return True
    if case.startswith("moe") and not needs.instructions.get("HMMA"):
        return False  # of its kernels, only the products
    return case.startswith(("linear", "moe")) and int(case.rpartition("T=")[2]) >= MATMUL_TOKENS


def measure(arch: int, model: str, dtype: str) -> Iterator[tuple[str, str, Resources]]:
    """(case, kernel, resources) for each kernel that each case of a model launches on `arch`."""
    maker = Maker(DTYPES[dtype], values=False)
    with compile_only(arch) as launches:
        for case in model_cases(maker, {**MODELS, **TOWERS}[model]):
            for launch in launches_of(case, launches):
                yield case.name, launch.kernel, resources(launch)


def launches_of(case: Case, launches: list[CompiledLaunch]) -> list[CompiledLaunch]:
    """What one case adds to the driver's launches; an error where it reads a value or adds none."""
    start = len(launches)
    with no_synchronisation():
        case.run()
    if len(launches) == start:
        raise RuntimeError(f"{case.name}: the launcher launched no kernel")
    return launches[start:]


def sweep(arch: int) -> dict[str, list[CompiledLaunch]]:
    """The launches of each kernel over lengths, batch sizes and cached prefixes."""
    maker, model = Maker(torch.bfloat16, values=False), MODELS["llama-3-8b"]
    mixtral, tower = MODELS["mixtral-8x7b"], TOWERS["clip-l-336"]
    with compile_only(arch) as launches:
        for n in (1, 2, 3, 8, 15, 16, 17, 64, 100, 256):
            cases = [
                rms_norm_case(maker, model, n),
                add_rms_norm_case(maker, model, n),
                rotary_case(maker, model, n),
                silu_and_mul_case(maker, model, n),
                embedding_case(maker, model, n),
                kv_store_case(maker, model, n, pool_slots=4096),
                linear_case(maker, "o", n, model.hidden, model.hidden),
                route_case(maker, mixtral, n),
                moe_case(maker, mixtral, n),
                layer_norm_case(maker, tower, n),
                add_layer_norm_case(maker, tower, n),
                gelu_case(maker, tower, n),
                pool_grid_case(maker, tower, n, side=24),
                extend_case(maker, model, f"{n} new", [n], [0]),
                extend_case(maker, model, f"{n} over {7 * n}", [n] * 3, [7 * n] * 3),
                decode_case(maker, model, f"B={n}", [1000 + n] * n, columns=4096),
                decode_case(maker, model, f"B={n}, long", [3000 + n] * n, columns=4096),
                cascade_case(
                    maker,
                    model,
                    f"B={n}",
                    prefix=min(100 * n, 3000),
                    branch=n,
                    tail=9,
                    groups=[n],
                    columns=4096,
                ),
                sample_case(maker, f"B={n}", n, model.vocab, filters=True),
                logprob_case(maker, n, model.vocab),
                top_tokens_case(maker, n, model.vocab, k=min(n, 20)),
                adjust_logits_case(maker, n, model.vocab, 10 * n),
                vocab_mask_case(maker, n, model.vocab),
            ]
            for case in cases:
                launches_of(case, launches)
    by_kernel: dict[str, list[CompiledLaunch]] = {}
    for launch in launches:
        by_kernel.setdefault(launch.kernel, []).append(launch)
    return by_kernel


def triton_version() -> str:
    """The installed Triton without its patch number: ``3.9``."""
    import triton

    return ".".join(triton.__version__.split(".")[:2])


def line(needs: Resources) -> str:
    """One cubin in a line: what the ledger stores.

    >>> line(Resources(32, 40, 0, {"LDGSTS": 6}))
    'shared 32 regs 40 stack 0 LDGSTS 6'
    """
    counts = [f"{name} {n}" for name, n in needs.instructions.items()]
    return " ".join([f"shared {needs.shared} regs {needs.registers} stack {needs.stack}", *counts])


def read_ledger() -> dict[str, str] | None:
    """What the ledger says for exactly this release of Triton; None where it holds another."""
    import triton

    recorded = json.loads(LEDGER.read_text()).get(triton_version(), {})
    return recorded["kernels"] if recorded.get("release") == triton.__version__ else None


def write_ledger(entries: dict[str, str]) -> None:
    """Record what was measured: its models, types and architectures lose their old entries.

    The entries of other minor versions of Triton stay; those of another patch release go.
    """
    import triton

    ledger: dict[str, Any] = json.loads(LEDGER.read_text()) if LEDGER.exists() else {}
    kept = read_ledger() or {} if LEDGER.exists() else {}
    measured = {_combination(entry) for entry in entries}
    kept = {entry: value for entry, value in kept.items() if _combination(entry) not in measured}
    ledger[triton_version()] = {"release": triton.__version__, "kernels": {**kept, **entries}}
    LEDGER.write_text(json.dumps(ledger, indent=1, sort_keys=True) + "\n")


def _combination(entry: str) -> tuple[str, ...]:
    """Architecture, model and dtype of an entry.

    >>> _combination("sm_90 llama-3-8b bf16 linear qkv T=16: _linear_kernel")
    ('sm_90', 'llama-3-8b', 'bf16')
    """
    return tuple(entry.split()[:3])


def main(arguments: list[str] | None = None) -> int:
    """Print the report; 1 where a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--arch", type=int, nargs="+", choices=SHARED_LIMIT, default=[*SHARED_LIMIT]
    )
    parser.add_argument(
        "--model", nargs="+", choices=[*MODELS, *TOWERS], default=[*MODELS, *TOWERS]
    )
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=[*DTYPES])
    parser.add_argument("--write", action="store_true", help=f"record the result in {LEDGER.name}")
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--sweep", action="store_true", help="count cubins over many lengths")
    options = parser.parse_args(arguments)
    if options.sweep:
        for arch in options.arch:
            _print_sweep(arch, options)
        return 0
    entries: dict[str, str] = {}
    faults = 0
    for arch, model, dtype in itertools.product(options.arch, options.model, options.dtype):
        for case, kernel, needs in measure(arch, model, dtype):
            entry = f"sm_{arch} {model} {dtype} {case}: {kernel}"
            if entry in entries:
                continue
            entries[entry] = line(needs)
            broken = broken_limits(arch, case, needs)
            faults += len(broken)
            if options.json:
                print(json.dumps({"entry": entry, "line": line(needs), "broken": broken}))
            else:
                print(f"{entry}: {line(needs)}", *(f"\n    BROKEN: {b}" for b in broken))
            sys.stdout.flush()
    if options.write:
        write_ledger(entries)
    summary = f"{len(entries)} kernels, triton {triton_version()}, {faults} broken limits"
    print(summary, file=sys.stderr)
    return 1 if faults else 0


def _print_sweep(arch: int, options: argparse.Namespace) -> None:
    for kernel, launches in sweep(arch).items():
        cubins = len({id(launch.compiled) for launch in launches})
        grids = sorted({launch.grid for launch in launches})
        row = {"kernel": kernel, "launches": len(launches), "cubins": cubins}
        if options.json:
            print(json.dumps({**row, "grids": grids}))
        else:
            print(f"sm_{arch} {kernel}: {len(launches)} launches, {cubins} cubins")


if __name__ == "__main__":
    sys.exit(main())

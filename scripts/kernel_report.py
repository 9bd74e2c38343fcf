"""What every kernel needs on every architecture, without a GPU.

    python -m scripts.kernel_report                   # print all, fail where a limit is broken
    python -m scripts.kernel_report --write           # and record it in tests/kernels/ledger.json
    python -m scripts.kernel_report --arch 90 --model llama-3-8b --dtype bf16

Each launcher runs at the shapes of real models under a driver that compiles and launches nothing
(compile_driver.py). The ledger keeps one line per kernel and case for each version of Triton, so
that a change of registers or shared memory shows in a diff.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from scripts.compile_driver import SHARED_LIMIT, Resources, compile_only, resources
from scripts.kernel_cases import MODELS, Maker, model_cases

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
    if arch == 90 and _wants_hgmma(case) and not needs.instructions.get("HGMMA"):
        found.append("no HGMMA: the tiles are too small for Hopper's tensor cores")
    return found


def _wants_hgmma(case: str) -> bool:
    if case.startswith("extend_attention"):
        return True
    return case.startswith("linear") and int(case.rpartition("T=")[2]) >= MATMUL_TOKENS


def measure(arch: int, model: str, dtype: str) -> Iterator[tuple[str, str, Resources]]:
    """(case, kernel, resources) for each kernel that each case of a model launches on `arch`."""
    known: dict[int, Resources] = {}
    maker = Maker(DTYPES[dtype], values=False)
    with compile_only(arch) as launches:
        for case in model_cases(maker, MODELS[model]):
            start = len(launches)
            case.run()
            for launch in launches[start:]:
                key = id(launch.compiled)  # alive in `launches`, so no other object has this id
                if key not in known:
                    known[key] = resources(launch)
                yield case.name, launch.kernel, known[key]


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


def write_ledger(entries: dict[str, str]) -> None:
    """Replace the entries of this version of Triton, and keep those of the others."""
    ledger: dict[str, Any] = json.loads(LEDGER.read_text()) if LEDGER.exists() else {}
    ledger[triton_version()] = {**ledger.get(triton_version(), {}), **entries}
    LEDGER.write_text(json.dumps(ledger, indent=1, sort_keys=True) + "\n")


def main(arguments: list[str] | None = None) -> int:
    """Print the report; 1 where a limit is broken."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument(
        "--arch", type=int, nargs="+", choices=SHARED_LIMIT, default=[*SHARED_LIMIT]
    )
    parser.add_argument("--model", nargs="+", choices=MODELS, default=[*MODELS])
    parser.add_argument("--dtype", nargs="+", choices=DTYPES, default=[*DTYPES])
    parser.add_argument("--write", action="store_true", help=f"record the result in {LEDGER.name}")
    parser.add_argument("--json", action="store_true", help="print one JSON object per kernel")
    options = parser.parse_args(arguments)
    entries: dict[str, str] = {}
    faults = 0
    for arch in options.arch:
        for model in options.model:
            for dtype in options.dtype:
                for case, kernel, needs in measure(arch, model, dtype):
                    entry = f"sm_{arch} {model} {dtype} {case}: {kernel}"
                    if entry in entries:
                        continue
                    entries[entry] = line(needs)
                    broken = broken_limits(arch, case, needs)
                    faults += len(broken)
                    if options.json:
                        print(json.dumps({"entry": entry, "broken": broken, **asdict(needs)}))
                    else:
                        print(f"{entry}: {entries[entry]}", *(f"\n    BROKEN: {b}" for b in broken))
                    sys.stdout.flush()
    if options.write:
        write_ledger(entries)
    print(
        f"{len(entries)} kernels, triton {triton_version()}, {faults} broken limits",
        file=sys.stderr,
    )
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())

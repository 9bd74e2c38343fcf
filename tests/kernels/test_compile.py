"""The real launchers, compiled for GPUs that are not here (see scripts/compile_driver.py).

Compiling needs a process without ``TRITON_INTERPRET``, so it runs in one of its own. By default
one model on one architecture of each kind; ``-m slow`` compiles all that the ledger holds.
"""

import difflib
import json
import os
import subprocess
import sys
from operator import methodcaller
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")
if sys.platform != "linux" or os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("compiles in the plain test run, on Linux", allow_module_level=True)

from scripts import kernel_report
from scripts.compile_driver import Resources, compile_only, no_synchronisation
from scripts.kernel_cases import rms_norm_case
from scripts.kernel_inputs import TINY, Maker
from scripts.kernel_report import broken_limits

ROOT = Path(__file__).parents[2]
MOST_CUBINS = 6  # variants of one kernel over all lengths and batch sizes


def report(*arguments: str) -> list[dict]:
    command = [sys.executable, "-m", "scripts.kernel_report", "--json", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode in (0, 1), done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows, done.stderr
    return rows


def check(rows: list[dict]) -> None:
    """No limit is broken, and the ledger of this very version of Triton says the same."""
    assert {row["entry"]: row["broken"] for row in rows if row["broken"]} == {}
    recorded = kernel_report.read_ledger()
    if recorded is None:
        return  # another patch release may choose other registers: then only the limits count
    mine = {row["entry"]: row["line"] for row in rows}
    before = [f"{entry}: {recorded.get(entry, 'not recorded')}" for entry in mine]
    now = [f"{entry}: {value}" for entry, value in mine.items()]
    changed = [d for d in difflib.ndiff(before, now) if d[0] in "+-"]
    assert not changed, "record it with `python -m scripts.kernel_report --write`:\n" + "\n".join(
        changed
    )


@pytest.mark.parametrize("arch", ["86", "90"])
def test_kernels_of_one_model_fit(arch):
    check(report("--arch", arch, "--model", "llama-3-8b", "--dtype", "bf16"))


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["80", "86", "90"])
@pytest.mark.parametrize("model", [*kernel_report.MODELS, *kernel_report.TOWERS])
def test_every_kernel_fits(arch, model):
    check(report("--arch", arch, "--model", model))


@pytest.fixture(scope="module")
def swept() -> list[dict]:
    return report("--sweep", "--arch", "90")


def test_lengths_and_batch_sizes_share_their_cubins(swept):
    assert {row["kernel"]: row["cubins"] for row in swept if row["cubins"] > MOST_CUBINS} == {}
    assert {row["kernel"] for row in swept} >= {
        "_extend_attention_kernel",
        "_decode_attention_kernel",
        "_linear_kernel",
        "_rms_norm_kernel",
    }


def test_the_grid_of_decode_does_not_know_the_lengths(swept):
    decode = next(row for row in swept if row["kernel"] == "_decode_attention_kernel")
    grids = {tuple(grid) for grid in decode["grids"]}
    batches = {grid[0] for grid in grids}
    assert len(batches) > 3
    assert len(grids) == len(batches)


@pytest.mark.parametrize(
    ("arch", "case", "needs", "sentence"),
    [
        (86, "rms_norm T=1", Resources(101_377, 32, 0, {}), "shared memory"),
        (80, "rms_norm T=1", Resources(0, 255, 65, {}), "stack"),
        (90, "rms_norm T=1", Resources(0, 255, 8, {}), "stack"),
        (80, "decode_attention plain", Resources(0, 99, 0, {"LDG.E.U16": 2}), "two bytes"),
        (90, "extend_attention prefix", Resources(0, 99, 0, {"HMMA": 64}), "HGMMA"),
        (90, "linear qkv T=2048", Resources(0, 99, 0, {"HMMA": 64}), "HGMMA"),
    ],
)
def test_a_broken_limit_is_seen(arch, case, needs, sentence):
    (broken,) = broken_limits(arch, case, needs)
    assert sentence in broken


@pytest.mark.parametrize(
    ("arch", "case", "needs"),
    [
        (86, "rms_norm T=1", Resources(101_376, 32, 64, {})),
        (80, "extend_attention prefix", Resources(0, 255, 24, {"HMMA": 64})),
        (90, "extend_attention prefix", Resources(0, 255, 0, {"HGMMA": 64})),
        (90, "linear qkv T=16", Resources(0, 99, 0, {"HMMA": 64})),
    ],
)
def test_a_kept_limit_is_silent(arch, case, needs):
    assert broken_limits(arch, case, needs) == []


@pytest.mark.parametrize("read", [methodcaller("item"), methodcaller("tolist"), bool, int, float])
def test_a_launcher_that_waits_for_the_gpu_is_seen(read):
    with no_synchronisation(), pytest.raises(RuntimeError, match="waits for the GPU"):
        read(torch.zeros(1))
    read(torch.zeros(1))


def test_the_driver_names_what_it_knows():
    with pytest.raises(ValueError, match=r"arch 75: known are \[80, 86, 90\]"), compile_only(75):
        pass


def test_a_case_that_launches_nothing_is_an_error():
    case = rms_norm_case(Maker(torch.float32), TINY, 0)
    with compile_only(90) as launches, pytest.raises(RuntimeError, match="launched no kernel"):
        kernel_report.launches_of(case, launches)

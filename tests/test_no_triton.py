"""Where there is no Triton wheel (macOS, Windows) the package imports and answers all the same.

Triton is hidden from a fresh process by a finder that refuses it, as if it were not installed.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

HIDE_TRITON = """
import os, sys

os.environ.pop("TRITON_INTERPRET", None)

class NoTriton:
    def find_spec(self, name, path=None, target=None):
        if name == "triton" or name.startswith("triton."):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, NoTriton())
"""

IMPORT_EVERYTHING = """
import importlib, importlib.util, pkgutil
import minisgl

# Extras that no test run installs.
needs = {"minisgl.lang.dspy": "dspy", "minisgl.router.ray_workers": "ray"}

for module in pkgutil.walk_packages(minisgl.__path__, "minisgl."):
    name = module.name
    if name in needs and importlib.util.find_spec(needs[name]) is None:
        continue
    if not name.endswith("__main__"):
        importlib.import_module(name)
"""

RUN_A_REFERENCE = """
import torch
from minisgl.kernels.activation import silu_and_mul
from minisgl.kernels.rms_norm import rms_norm

x = torch.tensor([[3.0, 4.0]])
w = torch.tensor([1.0, 2.0])
torch.testing.assert_close(rms_norm(x, w, 0.0), torch.tensor([[3.0, 8.0]]) / 12.5**0.5)
torch.testing.assert_close(silu_and_mul(x), torch.nn.functional.silu(x[:, :1]) * x[:, 1:])
"""

GENERATE = """
from minisgl import Engine, SamplingParams

with Engine({model!r}, dtype="float32", kv_tokens=64) as engine:
    done = engine.generate("The radix tree", SamplingParams(max_tokens=4, ignore_eos=True))
assert done.completion_tokens == 4, done
"""


def run_without_triton(code: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", HIDE_TRITON + code], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_every_module_imports() -> None:
    run_without_triton(IMPORT_EVERYTHING)


def test_references_run() -> None:
    run_without_triton(RUN_A_REFERENCE)


def test_the_engine_answers(tiny_model_dir: Path) -> None:
    run_without_triton(GENERATE.format(model=str(tiny_model_dir)))

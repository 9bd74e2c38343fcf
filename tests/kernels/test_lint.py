"""What no kernel may contain: each breaks in one version of Triton, or on one GPU only."""

import ast
from pathlib import Path

import pytest

import minisgl.kernels

KERNELS = sorted(Path(minisgl.kernels.__file__).parent.glob("*.py"))
FORBIDDEN = {
    "make_block_ptr": "removed in Triton 3.9",
    "libdevice": "not there in the interpreter",
    "inline_asm_elementwise": "not there in the interpreter",
    "autotune": "needs a GPU to import, and chooses differently from run to run",
    "atomic_add": "the order of float additions changes the answer: sum in a fixed order",
}


def faults(source: str) -> list[str]:
    """A sentence for each forbidden name and for each masked load with undefined lanes."""
    found = []
    for node in ast.walk(ast.parse(source)):
        name = getattr(node, "attr", getattr(node, "id", None))
        if isinstance(node, ast.alias):
            name = node.name.rpartition(".")[2]
        if name in FORBIDDEN:
            found.append(f"{name}: {FORBIDDEN[name]}")
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "tl.load":
            given = {keyword.arg for keyword in node.keywords}
            masked = "mask" in given or len(node.args) > 1
            if masked and "other" not in given and len(node.args) < 3:
                found.append(f"line {node.lineno}: tl.load with mask and without other")
    return found


@pytest.mark.parametrize("path", KERNELS, ids=lambda path: path.stem)
def test_kernels_hold_nothing_forbidden(path):
    assert faults(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "p = tl.make_block_ptr(x)",
        "from triton.language.extra import libdevice",
        "tl.inline_asm_elementwise('')",
        "@triton.autotune(configs=[])\ndef f(): pass",
        "tl.atomic_add(x, 1.0)",
        "x = tl.load(p, mask=m)",
        "x = tl.load(p, m)",
    ],
)
def test_the_lint_sees(source):
    assert len(faults(source)) == 1


@pytest.mark.parametrize(
    "source", ["tl.load(p)", "tl.load(p, mask=m, other=0)", "tl.load(p, m, 0)"]
)
def test_the_lint_passes(source):
    assert faults(source) == []

"""Imports point down only.  `MAY_IMPORT` is the rule, and also the diagram of the house."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "minisgl"

# Each room of the package, and the rooms it may import: always ones further up this list.
MAY_IMPORT: dict[str, set[str]] = {
    "config": set(),
    "sampling": set(),
    "parallel": set(),
    "tokenizer": set(),
    "chat_template": set(),
    "svg": set(),
    "kernels": set(),
    "cache": set(),
    "fsm": set(),
    "detokenizer": {"tokenizer", "fsm"},
    "media": set(),
    "models": {"kernels", "parallel"},
    "engine": {
        "config", "sampling", "parallel", "tokenizer", "detokenizer", "chat_template",
        "kernels", "cache", "fsm", "media", "models",
    },
    "chat_media": {"media", "engine"},
    "chat_turns": {"sampling", "engine", "chat_media"},
    "chat_commands": {"sampling", "fsm", "chat_media", "chat_turns"},
    "chat": {"config", "sampling", "models", "engine", "chat_turns", "chat_commands"},
    "lang": {"sampling", "chat_template", "fsm", "media", "engine", "svg"},  # engine: see below
    "serve": {
        "config", "sampling", "tokenizer", "chat_template", "cache", "media", "models", "engine",
        "lang",
    },
    "router": {"chat_template", "tokenizer", "models", "engine", "serve"},
    "__init__": {"config", "sampling", "engine"},
}  # fmt: skip

FILES = sorted(PACKAGE.rglob("*.py"))


def room(module: str) -> str:
    """minisgl.cache.radix_cache -> cache;  minisgl -> __init__."""
    return module.split(".")[1] if "." in module else "__init__"


def imports(path: Path) -> Iterator[str]:
    """Every module that the file imports, anywhere in it, by its full name."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: a relative import hides the layer"
            assert node.module is not None
            if node.module == "minisgl":  # from minisgl import cache
                yield from (f"minisgl.{alias.name}" for alias in node.names)
            else:
                yield node.module


def room_of_file(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def top(module: str) -> str:
    return module.split(".")[0]


def test_the_diagram_has_no_upward_edge() -> None:
    order = list(MAY_IMPORT)
    for name, below in MAY_IMPORT.items():
        if name != "__init__":
            assert all(order.index(other) < order.index(name) for other in below), name


def test_the_diagram_names_every_room() -> None:
    assert {room_of_file(path) for path in FILES} <= set(MAY_IMPORT)


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    here = room_of_file(path)
    for module in imports(path):
        if top(module) == "minisgl":
            there = room(module)
            assert there == here or there in MAY_IMPORT[here], (
                f"{path.relative_to(ROOT)} imports {module}: {here} may import only "
                f"{sorted(MAY_IMPORT[here])}"
            )


def test_the_language_knows_the_engine_in_one_file_only() -> None:
    allowed = {"backends/engine.py": {"engine", "media"}, "images.py": {"media"}}
    for path in (PACKAGE / "lang").rglob("*.py"):
        below = {room(m) for m in imports(path) if top(m) == "minisgl"} & {"engine", "media"}
        assert below <= allowed.get(path.relative_to(PACKAGE / "lang").as_posix(), set()), path


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_third_parties_stay_in_their_rooms(path: Path) -> None:
    here = room_of_file(path)
    outside = {top(m) for m in imports(path)} - set(sys.stdlib_module_names) - {"minisgl"}
    assert "transformers" not in outside, "the models are our own; transformers is for tests"
    if here == "kernels":
        assert outside <= {"torch", "triton"}
    if "triton" in outside:
        assert path.name == "dispatch.py", "`from minisgl.kernels.dispatch import tl, triton`"
    if here == "fsm":
        assert outside <= {"numpy"}, "fsm is usable alone"
    if here == "lang":
        clients = {"openai.py": {"openai"}, "anthropic.py": {"anthropic"}, "dspy.py": {"dspy"}}
        clients["per_loop.py"] = {"certifi"}  # which comes with the first two
        allowed = {"typing_extensions"} | clients.get(path.name, set())  # for type checkers only
        assert outside <= allowed, "each client in a file of its own"
    if here == "serve":
        assert outside <= {"fastapi", "pydantic", "starlette", "uvicorn"}
    if here == "router":
        alone = path.name in ("meta_tree.py", "policy.py", "balancer.py")  # the simulator's, too
        placing = {"ray"} if path.name == "ray_workers.py" else set()
        assert outside <= placing | (
            set() if alone else {"fastapi", "httpx", "starlette", "torch", "uvicorn"}
        )
    if here in ("config", "sampling") or path.name == "radix_cache.py":
        assert outside == set(), f"{here} is stdlib only"


def test_import_minisgl_does_not_wait_for_torch() -> None:
    code = (
        "import sys, minisgl; assert 'torch' not in sys.modules; "
        "minisgl.SamplingParams, minisgl.EngineConfig; assert 'torch' not in sys.modules; "
        "import minisgl.cache.radix_cache; assert 'torch' not in sys.modules; "
        "import minisgl.lang; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_every_public_name_loads() -> None:
    import minisgl

    for name in minisgl.__all__:
        assert getattr(minisgl, name) is not None
    assert set(minisgl.__all__) <= set(dir(minisgl))
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        minisgl.Motor  # noqa: B018

    import minisgl.lang

    for name in minisgl.lang.__all__:
        assert getattr(minisgl.lang, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Motor'"):
        minisgl.lang.Motor  # noqa: B018

"""The documentation cannot rot: links reach their file and symbol, every setting is described, the
help text is current, the README's commands exist.  (Its snippets are run by --markdown-docs.)"""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from minisgl.config import EngineConfig
from minisgl.media import Limits
from minisgl.router.config import RouterConfig
from minisgl.sampling import SamplingParams

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
TOUR = sorted((ROOT / "docs" / "tour").glob("[0-9]*.md"))

LINK = re.compile(r"\[(?P<text>[^\]\n]+)\]\((?P<target>[^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def page_id(path: Path) -> str:
    return str(path.relative_to(ROOT))


def prose(path: Path) -> str:
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def anchors(path: Path) -> set[str]:
    """The anchors that GitHub gives the headings of a page."""
    titles = re.findall(r"^#+ +(.+)$", prose(path), re.MULTILINE)
    kept = (re.sub(r"[^\w\- ]", "", title.lower()) for title in titles)
    return {title.strip().replace(" ", "-") for title in kept}


def defines(tree: ast.AST, dotted: str) -> bool:
    """Whether a module's source defines `name` or `Class.member` (methods, fields, assignments)."""
    scope: ast.AST = tree
    for name in dotted.split("."):
        for node in ast.iter_child_nodes(scope):
            names: list[str] = []
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                names = [node.name]
            elif isinstance(node, ast.AnnAssign):
                names = [node.target.id] if isinstance(node.target, ast.Name) else []
            elif isinstance(node, ast.Assign):
                names = [t.id for t in node.targets if isinstance(t, ast.Name)]
            if name in names:
                scope = node
                break
        else:
            return False
    return True


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_reach_their_file_heading_and_symbol(page: Path) -> None:
    for match in LINK.finditer(prose(page)):
        text, target = match["text"], match["target"]
        if re.match(r"https?:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        assert path.exists(), f"{page_id(page)}: {target} does not exist"
        if anchor:
            assert anchor in anchors(path), f"{page_id(page)}: {target}: no such heading"
        symbol = re.fullmatch(r"`([A-Za-z_][\w.]*?)(\(\))?`", text)
        is_file_name = text.strip("`").endswith(path.name) or "/" in text
        if symbol and path.suffix == ".py" and not is_file_name:
            tree = ast.parse(path.read_text(encoding="utf-8"))
            assert defines(tree, symbol[1]), f"{page_id(page)}: {symbol[1]} is not in {target}"


def test_the_symbol_check_bites() -> None:
    tree = ast.parse("class A:\n    x: int = 1\n    def f(self): pass\nB = 2\n")
    assert all(defines(tree, name) for name in ("A", "A.x", "A.f", "B"))
    assert not any(defines(tree, name) for name in ("f", "A.g", "B.x", "C"))


def knobs(page: str, config: str) -> list[list[str]]:
    """The rows of a class's table: setting, default, what it is, turn it when."""
    section = page.split(f"## `{config}`", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    assert rows[0] == ["setting", "default", "what it is", "turn it when"]
    return rows[2:]


@pytest.mark.parametrize("config", [EngineConfig, SamplingParams, Limits, RouterConfig])
def test_every_knob_is_in_the_table_with_its_default(config: type) -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    rows = knobs(page, config.__name__)
    assert [row[0] for row in rows] == [f"`{f.name}`" for f in dataclasses.fields(config)]
    assert [row[1] for row in rows] == [
        f"`{python(f.default)}`" for f in dataclasses.fields(config)
    ]
    assert all(len(row) == 4 and all(row) for row in rows)


def python(value: object) -> str:
    """As the page writes it: strings in double quotes."""
    return f'"{value}"' if isinstance(value, str) else repr(value)


def test_the_help_text_in_the_docs_is_current() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    shown = page.split("$ python -m minisgl.chat --help\n", 1)[1].split("```", 1)[0]
    printed = subprocess.run(
        [sys.executable, "-m", "minisgl.chat", "--help"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "100", "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert shown.split() == printed.split(), "run it and paste its output into the page"


def test_every_chat_command_is_described() -> None:
    from minisgl.chat_commands import COMMANDS

    page = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    assert all(f"| `{command}` | {does} |" in page for command, does in COMMANDS.items())


def test_the_readme_names_both_commands_and_they_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in ("chat", "test"):
        assert f"make {command}" in readme
        assert re.search(rf"^{command}:", makefile, re.MULTILINE)


def test_the_ten_lines_print_what_the_readme_shows(default_model_dir: Path) -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("## Ten lines", 1)[1]
    program, shown = re.findall(
        r"^```(?:python|text)\n(.*?)^```", section, re.DOTALL | re.MULTILINE
    )[:2]
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout == shown


def test_the_readme_says_at_once_whose_import_name_it_shares() -> None:
    head = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## ", 1)[0]
    assert "sgl-project/mini-sglang" in head and "import" in head


def test_the_readme_says_what_is_not_there_and_where_the_exercises_are() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    missing = readme.split("## What is not supported, and why", 1)[1].split("\n## ", 1)[0]
    for name in ("Quantised", "Expert parallelism", "LoRA", "draft models", "Training"):
        assert name in missing, f"{name}: README.md says nowhere that it is missing"
    assert re.search(r"tour ends in exercises", readme)


@pytest.mark.parametrize("chapter", TOUR, ids=page_id)
def test_tour_chapters_keep_their_form(chapter: Path) -> None:
    text = chapter.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 200, "a chapter is at most 200 lines"
    assert re.search(r"^\*\*Open beside you:\*\*", text, re.MULTILINE), "which files to have open"
    assert "```mermaid" in text or "```text" in text, "one figure"
    assert "```python" in text, "something to run"
    assert "## Exercises" in text

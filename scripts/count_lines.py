"""How many lines the essay judge takes, in the language and on a plain chat API.

    python -m scripts.count_lines

Counted are the functions that do the work, without blank lines, comments and docstrings: not
`main`, which reads data and prints, not imports, and not the constants, which both have.  The two
files are formatted by the same rules (`ruff format`), and have the same features.
"""

from __future__ import annotations

import ast
import io
import tokenize
from pathlib import Path

EXAMPLES = Path(__file__).parent / "examples"
NOT_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def code_lines(source: str) -> int:
    """The lines of the functions of a module.

    >>> code_lines('def f():\\n    "Says nothing."\\n\\n    # why\\n    return [\\n        1]\\n')
    3
    """
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NOT_CODE:
            lines.update(range(token.start[0], token.end[0] + 1))
    functions: set[int] = set()
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name != "main":
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            functions.update(range(first, end(node) + 1))
            functions -= docstrings(node)
    return len(lines & functions)


def docstrings(function: ast.FunctionDef) -> set[int]:
    """The lines of the docstrings in `function`."""
    lines: set[int] = set()
    for node in ast.walk(function):
        if isinstance(node, ast.FunctionDef) and ast.get_docstring(node) is not None:
            lines.update(range(node.body[0].lineno, end(node.body[0]) + 1))
    return lines


def end(node: ast.stmt) -> int:
    assert node.end_lineno is not None
    return node.end_lineno


def main() -> None:
    program, plain = (
        code_lines((EXAMPLES / name).read_text(encoding="utf-8"))
        for name in ("essay_judge.py", "plain/essay_judge.py")
    )
    print(f"minisgl.lang: {program} lines, chat API: {plain} lines, {plain / program:.1f} to 1")


if __name__ == "__main__":
    main()

"""Patterns as llama.cpp's grammars (GBNF), for whom regular expressions are nothing.

Read by Python's own parser of patterns, whose tree is written down anew.  Without anchors, looking
around and references back.  `\\w` is the letters of Latin scripts only: GBNF knows no classes.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

_parser = importlib.import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
_CLASSES = {
    "CATEGORY_WORD": "A-Za-z0-9_\\u00C0-\\u024F",
    "CATEGORY_DIGIT": "0-9",
    "CATEGORY_SPACE": " \\t\\n\\r\\x0B\\x0C",
}
_MOST = _parser.MAXREPEAT


def gbnf(pattern: str) -> str:
    """A grammar of the same texts.

    >>> gbnf('"(yes|no)": [0-9]{1,2}')
    'root ::= "\\\\x22" ("yes" | "no") "\\\\x22" "\\\\x3A" " " [0-9]{1,2}'

    Raises:
        ValueError: a construction that GBNF has not.
    """
    return f"root ::= {_sequence(_parser.parse(pattern))}"


def _sequence(items: Any) -> str:
    parts: list[str] = []
    literal = ""
    for op, value in [*items, (None, None)]:
        if str(op) == "LITERAL" and chr(value).isalnum():
            literal += _char(value)
            continue
        if literal:
            parts.append(f'"{literal}"')
            literal = ""
        if op is not None:
            parts.append(_item(str(op), value))
    return " ".join(parts) or '""'


def _item(op: str, value: Any) -> str:
    match op, value:
        case "LITERAL", code:
            return f'"{_char(code)}"'
        case "NOT_LITERAL", code:
            return f"[^{_char(code)}]"
        case "ANY", _:
            return "[^\\n]"
        case "IN", members:
            return f"[{''.join(_member(str(kind), member) for kind, member in members)}]"
        case "BRANCH", (_, branches):
            return f"({' | '.join(map(_sequence, branches))})"
        case "SUBPATTERN", (_, _, _, items):
            inner = _sequence(items)
            return (
                inner
                if inner.startswith("(") and inner.find(")") == len(inner) - 1
                else f"({inner})"
            )
        case (("MAX_REPEAT" | "MIN_REPEAT"), (least, most, items)):
            inner = _sequence(items)
            inner = inner if len(items) == 1 else f"({inner})"
            return inner + f"{{{least},{'' if most == _MOST else most}}}"
    raise ValueError(f"{op} in a pattern: llama.cpp's grammars have no such thing")


def _member(kind: str, value: Any) -> str:
    match kind, value:
        case "NEGATE", _:
            return "^"
        case "LITERAL", code:
            return _char(code)
        case "RANGE", (first, last):
            return f"{_char(first)}-{_char(last)}"
        case "CATEGORY", name if str(name) in _CLASSES:
            return _CLASSES[str(name)]
    raise ValueError(f"{kind} {value} in a pattern: llama.cpp's grammars have no such class")


def _char(code: int) -> str:
    """One character, as it stands in a string or in a class."""
    char = chr(code)
    if char == " " or (char.isascii() and char.isalnum()):
        return char
    return (
        f"\\x{code:02X}" if code < 256 else f"\\u{code:04X}" if code < 65536 else f"\\U{code:08X}"
    )

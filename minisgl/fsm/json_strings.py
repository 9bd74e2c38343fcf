"""Strings of a JSON schema: patterns, formats and lengths."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from minisgl.fsm.charset import EVERYTHING
from minisgl.fsm.json_text import (
    ANY_CONTENT,
    STRING_CHAR,
    all_of,
    content_other_than,
    string,
    written_in_string,
)
from minisgl.fsm.nodes import Chars, Choice, Look, Node, Repeat, Sequence
from minisgl.fsm.regex import parse
from minisgl.fsm.regex_chars import PatternError
from minisgl.fsm.schema_keywords import NOT_IN, NOT_PATTERN, fail, listed, nothing_valid

_HEX4 = "[0-9a-fA-F]{1,4}"
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4 = rf"{_BYTE}(?:\.{_BYTE}){{3}}"
_DATE = (
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]"
    r"|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])"
    r"|(?:[02468][048]|[13579][26])00)-02-29)"
)
_TIME = (
    r"(?:(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?"
    r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])|23:59:60(?:\.[0-9]+)?[Zz])"
)
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
_ATOM = "[a-zA-Z0-9!#$%&'*+/=?^_`{|}~-]+"
_POINTER = "(?:/(?:[^~/]|~[01])*)*"
_HOURS = "(?:[0-9]+H(?:[0-9]+M(?:[0-9]+S)?)?|[0-9]+M(?:[0-9]+S)?|[0-9]+S)"
_DAYS = "(?:[0-9]+Y(?:[0-9]+M(?:[0-9]+D)?)?|[0-9]+M(?:[0-9]+D)?|[0-9]+D)"
# The usual forms: of those that a specification allows besides (quoted e-mail addresses, leap
# seconds anywhere but in UTC, URIs with an IPv6 address) none is written.
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}[Tt]{_TIME}",
    "duration": f"P(?:{_DAYS}(?:T{_HOURS})?|T{_HOURS}|[0-9]+W)",
    "json-pointer": f"(?s){_POINTER}",
    "relative-json-pointer": f"(?s)(?:0|[1-9][0-9]*)(?:#|{_POINTER})",
    "uuid": "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "email": rf"{_ATOM}(?:\.{_ATOM})*@{_LABEL}(?:\.{_LABEL})+",
    "hostname": rf"{_LABEL}(?:\.{_LABEL})*",
    "ipv4": _IPV4,
    "ipv6": "|".join(
        [f"(?:{_HEX4}:){{7}}{_HEX4}", f"(?:{_HEX4}:){{1,7}}:", "::"]
        + [f"(?:{_HEX4}:){{1,{7 - n}}}(?::{_HEX4}){{1,{n}}}" for n in range(1, 7)]
        + [f":(?::{_HEX4}){{1,7}}", f"(?:{_HEX4}:){{6}}{_IPV4}", f"::(?:{_HEX4}:){{0,5}}{_IPV4}"]
        + [f"(?:{_HEX4}:){{1,{6 - n}}}(?::{_HEX4}){{{n - 1}}}:{_IPV4}" for n in range(1, 6)]
    ),
    "uri": r"[a-zA-Z][a-zA-Z0-9+.-]*:(?:[a-zA-Z0-9._~:/?#@!$&'()*+,;=-]|%[0-9a-fA-F]{2})+",
}


def string_node(schema: Mapping[str, Any], path: str) -> Node:
    """The strings that `minLength`, `maxLength`, `pattern` and `format` allow."""
    low, high = counts(schema, "minLength", "maxLength", path)
    contents: list[Node] = []
    for pattern in listed(schema.get("pattern", [])):
        contents.append(written_in_string(pattern_node(pattern, path)))
    for name in listed(schema.get("format", [])):
        if name not in FORMATS:
            fail(path, f"format {name!r} can't be enforced; {', '.join(FORMATS)} can")
        contents.append(_format(name))
    others = [written_in_string(pattern_node(p, path)) for p in schema.get(NOT_PATTERN, [])]
    excluded = [value for value in schema.get(NOT_IN, []) if isinstance(value, str)]
    if excluded:
        contents.append(content_other_than(excluded))
    if not contents and not others:
        return string(Repeat(STRING_CHAR, low, high))
    if not contents:
        contents.append(ANY_CONTENT)
    if low > 0 or high is not None:
        contents.insert(0, Repeat(STRING_CHAR, low, high))
    return all_of(contents, others)


@cache
def _format(name: str) -> Node:
    return written_in_string(parse(FORMATS[name]))


def pattern_node(pattern: Any, path: str) -> Node:
    """A pattern is found anywhere in the string, unless it says where it begins and ends."""
    if not isinstance(pattern, str):
        fail(path, f"a pattern is a text, not {pattern!r}")
    try:
        tree = parse(pattern, javascript=True)
    except PatternError as error:
        fail(path, str(error))
    options = tree.options if isinstance(tree, Choice) else (tree,)
    return Choice(tuple(_anywhere(option) for option in options))


def counts(
    schema: Mapping[str, Any], least: str, most: str, path: str, default: int = 0
) -> tuple[int, int | None]:
    """Two keywords that say how many at least, and at most (None: any number)."""
    low, high = schema.get(least, default), schema.get(most)
    for name, value in ((least, low), (most, 0 if high is None else high)):
        if not is_number(value) or value != int(value) or value < 0:
            fail(path, f"{name!r} is a whole number from 0 up, not {value!r}")
    if high is not None and high < low:
        nothing_valid(path, f"{least!r} is {low}, but {most!r} is {high}")
    return int(low), None if high is None else int(high)


def is_number(value: Any) -> bool:
    """Whether it is a number of JSON."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _anywhere(option: Node) -> Node:
    """With anything before and after, unless the pattern's own ends are fixed."""
    parts = list(option.parts) if isinstance(option, Sequence) else [option]
    anything = parse("(?s).*")
    before = [] if parts and _is_edge(parts[0], behind=True) else [anything]
    after = [] if parts and _is_edge(parts[-1], behind=False) else [anything]
    middle = parts[1 - len(before) : len(parts) - 1 + len(after)]
    return Sequence((*before, *middle, *after))


def _is_edge(node: Node, *, behind: bool) -> bool:
    """Whether it is ^ (behind) or $: nothing at all stands on that side."""
    return (
        isinstance(node, Look)
        and (node.behind, node.negative) == (behind, True)
        and isinstance(node.body, Chars)
        and node.body.ranges == EVERYTHING
    )

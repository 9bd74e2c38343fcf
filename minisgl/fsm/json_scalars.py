"""Strings and numbers of a JSON schema: patterns, formats, lengths, bounds and multiples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, NoReturn

from minisgl.fsm.charset import EVERYTHING
from minisgl.fsm.json_text import (
    ABOVE_ZERO,
    EMPTY,
    FRACTION,
    INTEGER,
    NUMBER,
    STRING_CHAR,
    ZEROS,
    integers_between,
    optional,
    sequence,
    string,
    text,
    written_in_string,
)
from minisgl.fsm.nodes import Chars, Choice, Look, Node, Repeat, Rule, Sequence
from minisgl.fsm.regex import parse
from minisgl.fsm.regex_chars import PatternError

MAX_MULTIPLE = 1000

_HEX4 = "[0-9a-fA-F]{1,4}"
_BYTE = r"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_DATE = (
    r"(?:[0-9]{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-(?:0[1-9]|[12][0-9]"
    r"|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))|(?:[0-9]{2}(?:0[48]|[2468][048]|[13579][26])"
    r"|(?:[02468][048]|[13579][26])00)-02-29)"
)
_TIME = (
    r"(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\.[0-9]+)?"
    r"(?:[Zz]|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
)
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9-]{0,61}[a-zA-Z0-9])?"
FORMATS = {
    "date": _DATE,
    "time": _TIME,
    "date-time": rf"{_DATE}[Tt]{_TIME}",
    "uuid": "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}",
    "email": rf"[a-zA-Z0-9_+-]+(?:\.[a-zA-Z0-9_+-]+)*@{_LABEL}(?:\.{_LABEL})+",
    "hostname": rf"{_LABEL}(?:\.{_LABEL})*",
    "ipv4": rf"{_BYTE}(?:\.{_BYTE}){{3}}",
    "ipv6": "|".join(
        [f"(?:{_HEX4}:){{7}}{_HEX4}", f"(?:{_HEX4}:){{1,7}}:", "::"]
        + [f"(?:{_HEX4}:){{1,{7 - n}}}(?::{_HEX4}){{1,{n}}}" for n in range(1, 7)]
        + [f":(?::{_HEX4}){{1,7}}"]
    ),
    "uri": r"[a-zA-Z][a-zA-Z0-9+.-]*:(?:[a-zA-Z0-9._~:/?#@!$&'()*+,;=-]|%[0-9a-fA-F]{2})+",
}


class SchemaError(ValueError):
    """A schema that can't be enforced: says where, and what."""


def fail(path: str, what: str) -> NoReturn:
    """Refuse a schema, at a place in it."""
    raise SchemaError(f"JSON schema, at {path}: {what}")


# ------------------------------------------------------------------ strings


def string_node(schema: Mapping[str, Any], path: str) -> Node:
    """The strings that `minLength`, `maxLength`, `pattern` and `format` allow."""
    low, high = counts(schema, "minLength", "maxLength", path)
    contents = []
    if "pattern" in schema:
        contents.append(written_in_string(_pattern(schema["pattern"], path)))
    if "format" in schema:
        if schema["format"] not in FORMATS:
            known = ", ".join(FORMATS)
            fail(path, f"format {schema['format']!r} can't be enforced; {known} can")
        contents.append(_format(schema["format"]))
    if not contents:
        return string(Repeat(STRING_CHAR, low, high))
    if low > 0 or high is not None:
        contents.insert(0, Repeat(STRING_CHAR, low, high))
    # All of them at once: each but the last looks ahead to the closing quote.
    looks = [Look(sequence(c, text('"')), behind=False, negative=False) for c in contents[:-1]]
    return string(sequence(*looks, contents[-1]))


@cache
def _format(name: str) -> Node:
    return written_in_string(parse(FORMATS[name]))


def _pattern(pattern: Any, path: str) -> Node:
    """A pattern is found anywhere in the string, unless it says where it begins and ends."""
    if not isinstance(pattern, str):
        fail(path, f"a pattern is a text, not {pattern!r}")
    try:
        tree = parse(pattern, javascript=True)
    except PatternError as error:
        fail(path, str(error))
    options = tree.options if isinstance(tree, Choice) else (tree,)
    return Choice(tuple(_anywhere(option) for option in options))


def counts(schema: Mapping[str, Any], least: str, most: str, path: str) -> tuple[int, int | None]:
    """Two keywords that say how many at least, and at most (None: any number)."""
    low, high = schema.get(least, 0), schema.get(most)
    for name, value in ((least, low), (most, 0 if high is None else high)):
        if not _is_number(value) or value != int(value) or value < 0:
            fail(path, f"{name!r} is a whole number from 0 up, not {value!r}")
    if high is not None and high < low:
        fail(path, f"{least!r} is {low}, but {most!r} is {high}")
    return int(low), None if high is None else int(high)


# ------------------------------------------------------------------ numbers


def number_node(schema: Mapping[str, Any], path: str, *, whole: bool) -> Node:
    """The numbers within the bounds, and of them the multiples of `multipleOf`."""
    bounds = _bounds(schema, path, whole=whole)
    node = INTEGER if whole else NUMBER
    if bounds != Bounds():
        pattern = integers_between(bounds.low, bounds.high) if whole else _decimals(bounds)
        if not pattern:
            fail(path, f"no number is within the bounds {bounds.low} and {bounds.high}")
        node = parse(pattern)
    step = schema.get("multipleOf")
    if step is None:
        return node
    if not _is_number(step) or step <= 0:
        fail(path, f"'multipleOf' is a number above 0, not {step!r}")
    if step == int(step) and int(step) <= MAX_MULTIPLE:
        multiples = sequence(optional(text("-")), _multiples(int(step)))
    else:
        places = round(-math.log10(step))
        if whole or step != float(f"1e{-places}") or places < 1:
            fail(
                path,
                f"'multipleOf' {step!r} can't be enforced; whole numbers up to "
                f"{MAX_MULTIPLE} and, for numbers, 0.1, 0.01 and so on can",
            )
        multiples = parse(rf"-?(?:0|[1-9][0-9]*)(?:\.[0-9]{{1,{places}}})?")
    if node in (INTEGER, NUMBER):
        return multiples
    end = parse(r"(?=[^0-9.])|\Z")  # the two hold of the same number if both end where it does
    return sequence(Look(sequence(node, end), behind=False, negative=False), multiples)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True)
class Bounds:
    """The least and the greatest number, and whether each itself is left out."""

    low: int | None = None
    high: int | None = None
    without_low: bool = False
    without_high: bool = False

    def mirrored(self) -> Bounds:
        """Those of the same numbers with the other sign."""
        return Bounds(
            None if self.high is None else -self.high,
            None if self.low is None else -self.low,
            self.without_high,
            self.without_low,
        )


def _bounds(schema: Mapping[str, Any], path: str, *, whole: bool) -> Bounds:
    low, without_low = _end(schema, "minimum", "exclusiveMinimum", 1, path, whole=whole)
    high, without_high = _end(schema, "maximum", "exclusiveMaximum", -1, path, whole=whole)
    return Bounds(low, high, without_low, without_high)


def _end(
    schema: Mapping[str, Any], name: str, exclusive: str, sign: int, path: str, *, whole: bool
) -> tuple[int | None, bool]:
    """One of the bounds, and whether it itself is left out."""
    end: Any = schema.get(name)
    without: Any = schema.get(exclusive)
    is_out = without is True  # as JSON Schema had it until draft 4
    if _is_number(without):
        is_out = end is None or sign * without >= sign * end
        end = without if is_out else end
    if end is None:
        return None, False
    if not _is_number(end):
        fail(path, f"{name!r} is a number, not {end!r}")
    if whole:
        rounded = math.ceil(end) if sign > 0 else math.floor(end)
        return rounded + sign * (is_out and rounded == end), False
    if end != int(end):
        fail(path, f"{name!r} of {end!r}: only whole bounds can be enforced")
    return int(end), is_out


def _decimals(bounds: Bounds) -> str:
    """A regex of the decimal numbers within bounds; without exponents."""
    low, high = bounds.low, bounds.high
    options = []
    if high is None or high > 0 or (high == 0 and not bounds.without_high):
        at_zero = low is None or low < 0
        options.append(_positive(replace(bounds, low=0, without_low=False) if at_zero else bounds))
    if low is None or low < 0:
        mirrored = bounds.mirrored()
        if mirrored.low is None or mirrored.low < 0:
            mirrored = replace(mirrored, low=0, without_low=False)
        below = _positive(mirrored)
        options.append(f"-(?:{below})" if below else "")
    return "|".join(option for option in options if option)


def _positive(bounds: Bounds) -> str:
    """Those from 0 up."""
    low, high = bounds.low or 0, bounds.high
    if high is not None and high < low:
        return ""
    if high == low:
        return "" if bounds.without_low or bounds.without_high else f"{low}{ZEROS}"
    options = []
    if bounds.without_low:
        options.append(f"{low}{ABOVE_ZERO}")
        low += 1
    if high is None or low < high:
        inside = integers_between(low, None if high is None else high - 1)
        options.append(f"(?:{inside}){FRACTION}")
    if high is not None and not bounds.without_high:
        options.append(f"{high}{ZEROS}")
    return "|".join(options)


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


def _multiples(step: int) -> Node:
    """The natural numbers that `step` divides: a rule for each remainder of the digits so far."""
    rules = [Rule(f"{remainder} modulo {step}") for remainder in range(step)]
    for remainder, rule in enumerate(rules):
        options: list[Node] = [
            sequence(text(str(digit)), rules[(10 * remainder + digit) % step])
            for digit in range(10)
        ]
        rule.body = Choice((*options, EMPTY) if remainder == 0 else tuple(options))
    leading = [sequence(text(str(digit)), rules[digit % step]) for digit in range(1, 10)]
    return Choice((text("0"), *leading))

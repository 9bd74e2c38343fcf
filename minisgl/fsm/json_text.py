"""JSON as nodes: white space, strings, numbers, and any value at all."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

from minisgl.fsm import charset
from minisgl.fsm.nodes import Chars, Choice, Look, Node, Repeat, Rule, Sequence
from minisgl.fsm.regex import parse

EMPTY = Sequence(())
NOTHING = Chars(())  # matches no text
# A character of a string that needs no escape; and in an escape, what one letter stands for.
RAW = charset.complement(charset.union(((0, 0x20),), charset.single(0x22), charset.single(0x5C)))
SHORT_ESCAPES = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
# One character each, so that lengths are right: surrogates only as a pair.
STRING_CHAR = parse(
    r'[^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u(?:[0-9abcefABCEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}'
    r"|[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2})"
)
INTEGER = parse(r"-?(?:0|[1-9][0-9]*)")
NUMBER = parse(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")
FRACTION, ZEROS, ABOVE_ZERO = r"(?:\.[0-9]+)?", r"(?:\.0+)?", r"\.[0-9]*[1-9][0-9]*"


@cache
def text(literal: str) -> Node:
    """Exactly this text."""
    return Sequence(tuple(Chars(charset.single(ord(c))) for c in literal))


def sequence(*parts: Node) -> Node:
    """The parts in this order."""
    return Sequence(parts)


def optional(node: Node) -> Node:
    """The node or nothing."""
    return Repeat(node, 0, 1)


def choice(options: list[Node]) -> Node:
    """Any one of the nodes; `NOTHING` itself if none of them is anything else."""
    some = [option for option in options if option is not NOTHING]
    if len(some) == 1:
        return some[0]
    return Choice(tuple(some)) if some else NOTHING


def string(content: Node) -> Node:
    """A string of this content, which is nodes over characters as JSON writes them."""
    return sequence(text('"'), content, text('"'))


def string_literal(value: str) -> Node:
    """A given string: other than ASCII may be written as it is or by its code."""
    # subtle: flat, so that a choice among many strings can group those that begin alike
    quote = Chars(charset.single(ord('"')))
    return Sequence((quote, *(_char_literal(c) for c in value), quote))


@cache
def _char_literal(char: str) -> Node:
    forms = {json.dumps(char, ensure_ascii=False)[1:-1], json.dumps(char)[1:-1]}
    if forms == {char}:
        return Chars(charset.single(ord(char)))
    return Choice(tuple(text(form) for form in sorted(forms)))


def written_in_string(node: Node) -> Node:
    """A pattern's node, with each character as JSON writes it: raw, or by its short escape.

    Look-arounds stay right: a quote ends the string, and no written character contains one bare.
    """
    match node:
        case Chars(ranges):
            return _written(ranges)
        case Sequence(parts):
            return Sequence(tuple(written_in_string(part) for part in parts))
        case Choice(options):
            return Choice(tuple(written_in_string(option) for option in options))
        case Repeat(body, low, high):
            return Repeat(written_in_string(body), low, high)
        case Look(body, behind, negative):
            return Look(written_in_string(body), behind, negative)
        case Rule():
            raise AssertionError("a regex has no rules")


@lru_cache(maxsize=1024)
def _written(ranges: charset.Ranges) -> Node:
    raw = charset.complement(charset.union(charset.complement(ranges), charset.complement(RAW)))
    escapes = [text("\\" + e) for c, e in SHORT_ESCAPES.items() if charset.contains(ranges, ord(c))]
    codes = [
        text(f"\\u{c:04x}")
        for c in range(0x20)
        if charset.contains(ranges, c) and chr(c) not in SHORT_ESCAPES
    ]
    return Choice((Chars(raw), *escapes, *codes))


def all_of(contents: list[Node], none_of: list[Node] | None = None) -> Node:
    """A string whose content is of all the first kinds and of none of the second."""
    # Each but one looks ahead to the closing quote.
    quote = text('"')
    looks = [Look(sequence(c, quote), behind=False, negative=False) for c in contents[:-1]]
    looks += [Look(sequence(c, quote), behind=False, negative=True) for c in none_of or ()]
    return string(sequence(*looks, contents[-1]))


def content_other_than(names: list[str]) -> Node:
    """The content of any string but these; written with raw characters and short escapes only.

    A tree of the names: a string leaves it at some character, or ends within it.
    """
    return _other_than([_units(name) for name in names], 0)


def _units(name: str) -> list[str]:
    return [json.dumps(char, ensure_ascii=False)[1:-1] for char in name]


def _other_than(names: list[list[str]], depth: int) -> Node:
    if not names:
        return ANY_CONTENT
    onward: dict[str, list[list[str]]] = {}
    for name in names:
        if len(name) > depth:
            onward.setdefault(name[depth], []).append(name)
    raw = charset.union(tuple((ord(u), ord(u) + 1) for u in sorted(onward) if len(u) == 1))
    others = charset.complement(charset.union(raw, charset.complement(RAW)))
    escapes = [text("\\" + e) for e in SHORT_ESCAPES.values() if "\\" + e not in onward]
    options: list[Node] = [
        sequence(text(unit), _other_than(below, depth + 1)) for unit, below in onward.items()
    ]
    options.append(sequence(Choice((Chars(others), *escapes)), ANY_CONTENT))
    if all(len(name) != depth for name in names):
        options.append(EMPTY)
    return Choice(tuple(options))


ANY_CONTENT = Repeat(
    Choice((Chars(RAW), *(text("\\" + e) for e in SHORT_ESCAPES.values()))), 0, None
)  # fmt: skip


@dataclass(frozen=True)
class Layout:
    """How much white space there may be where JSON allows any.

    Args:
        most: characters of it in one place; 0: none.
    """

    most: int = 32

    @property
    def space(self) -> Node:
        """White space, or nothing."""
        return _space(self.most)

    def listed(self, opening: str, items: Node, closing: str) -> Node:
        """Items between brackets."""
        return sequence(text(opening), self.space, items, self.space, text(closing))

    def comma(self) -> Node:
        """What stands between two items."""
        return sequence(self.space, text(","), self.space)

    def pair(self, key: Node, value: Node) -> Node:
        """A property."""
        return sequence(key, self.space, text(":"), self.space, value)

    def repeated(self, item: Node, low: int, high: int | None) -> Node:
        """The item `low` to `high` times, with commas between."""
        if high == 0:
            return EMPTY
        more = Repeat(
            sequence(self.comma(), item), max(low - 1, 0), None if high is None else high - 1
        )
        some = sequence(item, more)
        return some if low else optional(some)

    def literal(self, value: Any) -> Node:
        """A given value."""
        match value:
            case str():
                return string_literal(value)
            case list():
                items = _joined([self.literal(item) for item in value], self.comma())
                return self.listed("[", items, "]")
            case dict():
                pairs = [self.pair(string_literal(k), self.literal(v)) for k, v in value.items()]
                return self.listed("{", _joined(pairs, self.comma()), "}")
            case float() if value.is_integer():
                return Choice((text(json.dumps(int(value))), text(json.dumps(value))))
        return text(json.dumps(value))


@cache
def _space(most: int) -> Node:
    return Repeat(Chars(charset.union(((9, 11), (13, 14), (32, 33)))), 0, most)


def _joined(items: list[Node], comma: Node) -> Node:
    parts: list[Node] = []
    for item in items:
        parts += [comma, item] if parts else [item]
    return Sequence(tuple(parts))


@cache
def any_value(layout: Layout) -> Rule:
    """Any JSON, nested as deep as one likes: a rule that holds itself."""
    value = Rule("any JSON value")
    whole_string = string(Repeat(STRING_CHAR, 0, None))
    value.body = Choice(
        (
            whole_string,
            NUMBER,
            text("true"),
            text("false"),
            text("null"),
            layout.listed("{", layout.repeated(layout.pair(whole_string, value), 0, None), "}"),
            layout.listed("[", layout.repeated(value, 0, None), "]"),
        )
    )
    return value


# ---------------------------------------------------------------------- numbers within bounds


def integers_between(low: int | None, high: int | None) -> str:
    """A regex of the integers from `low` to `high`; empty if there is none.

    >>> integers_between(7, 123)
    '[7-9]|[1-9][0-9]|1(?:[0-1][0-9]|2[0-3])'
    >>> integers_between(-1, None)
    '-1|0|[1-9][0-9]{0,}'
    """
    options = []
    if low is None or low < 0:
        most = None if low is None else -low
        below = _naturals(max(1, 0 if high is None else -high), most)
        options += [f"-(?:{below})" if "|" in below else f"-{below}"] if below else []
    if high is None or high >= 0:
        options.append(_naturals(max(low or 0, 0), high))
    return "|".join(option for option in options if option)


def _naturals(low: int, high: int | None) -> str:
    options = []
    start = low
    while high is None or start <= high:
        digits = len(str(start))
        if high is None and start in (1, 10 ** (digits - 1)):
            options.append(f"[1-9][0-9]{{{digits - 1},}}")
            break
        stop = 10**digits - 1 if high is None else min(high, 10**digits - 1)
        if start == 0 and stop > 0:
            options.append("0")
            start = 1
            continue
        options.append(_same_length(str(start), str(stop)))
        start = stop + 1
    return "|".join(options)


def _same_length(low: str, high: str) -> str:
    """The numbers between two of equally many digits."""
    if low == high:
        return low
    digits = len(low) - 1
    if low[0] == high[0]:
        rest = _same_length(low[1:], high[1:])
        return low[0] + (f"(?:{rest})" if "|" in rest else rest)
    first, last = int(low[0]), int(high[0])
    options = []
    if digits and low[1:] != "0" * digits:
        rest = _same_length(low[1:], "9" * digits)
        options.append(low[0] + (f"(?:{rest})" if "|" in rest else rest))
        first += 1
    ends_short = bool(digits) and high[1:] != "9" * digits
    last -= ends_short
    if first <= last:
        lead = str(first) if first == last else f"[{first}-{last}]"
        options.append(lead + "[0-9]" * digits)
    if ends_short:
        rest = _same_length("0" * digits, high[1:])
        options.append(high[0] + (f"(?:{rest})" if "|" in rest else rest))
    return "|".join(options)

"""Sets of characters as ranges of code points, and what Unicode says belongs together.

A set is a sorted tuple of half-open ranges that neither overlap nor touch:

    [a-cx]  ->  ((97, 100), (120, 121))

`\\w`, `\\d`, `\\s`, upper and lower case and general categories come from the running Python, so
that they mean here what they mean to its `re`.  Scripts, which Python doesn't know, are a table.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Iterable, Iterator
from functools import cache, lru_cache
from pathlib import Path

Ranges = tuple[tuple[int, int], ...]

MAX_CHAR = 0x110000  # one more than the last code point
EVERYTHING: Ranges = ((0, MAX_CHAR),)
SHORTHANDS_ASCII: dict[str, Ranges] = {
    "d": ((0x30, 0x3A),),
    "w": ((0x30, 0x3A), (0x41, 0x5B), (0x5F, 0x60), (0x61, 0x7B)),
    "s": ((0x09, 0x0E), (0x20, 0x21)),
}


# What JavaScript's \\s stands for: its white space and ends of lines.
JAVASCRIPT_SPACE: Ranges = (
    (0x09, 0x0E), (0x20, 0x21), (0xA0, 0xA1), (0x1680, 0x1681), (0x2000, 0x200B), (0x2028, 0x202A),
    (0x202F, 0x2030), (0x205F, 0x2060), (0x3000, 0x3001), (0xFEFF, 0xFF00),
)  # fmt: skip


@lru_cache(maxsize=1024)  # a class of many ranges, such as [\w\s], comes up again and again
def union(*sets: Ranges) -> Ranges:
    """
    >>> union(((5, 9),), ((1, 3), (3, 4)), ((7, 12),))
    ((1, 4), (5, 12))
    """
    out: list[tuple[int, int]] = []
    for start, stop in sorted(r for ranges in sets for r in ranges):
        if out and start <= out[-1][1]:
            out[-1] = (out[-1][0], max(stop, out[-1][1]))
        else:
            out.append((start, stop))
    return tuple(out)


def complement(ranges: Ranges) -> Ranges:
    """
    >>> complement(((0, 10), (11, 0x110000)))
    ((10, 11),)
    """
    edges = [0, *(edge for r in ranges for edge in r), MAX_CHAR]
    return tuple((a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if a < b)


def single(char: int) -> Ranges:
    """The set of one code point."""
    return ((char, char + 1),)


def _ranges_of(chars: Iterable[int]) -> Ranges:
    return union(tuple((c, c + 1) for c in chars))


@cache
def _every_character() -> str:
    """All code points in their order, so that an index is a code point."""
    return "".join(map(chr, range(MAX_CHAR)))


@cache
def shorthand(letter: str, *, ascii_only: bool) -> Ranges:
    """What `\\d`, `\\w` or `\\s` stands for, by the letter; what Python's `re` takes it for."""
    if ascii_only:
        return SHORTHANDS_ASCII[letter]
    return tuple(m.span() for m in re.finditer(rf"\{letter}+", _every_character()))


# ---------------------------------------------------------------------- upper and lower case


def _lower(char: int) -> int:
    # subtle: [0], since "İ" has two characters in lower case; `re` compares the first
    return ord(chr(char).lower()[0])


@cache
def _cases() -> dict[int, frozenset[int]]:
    """Each character that has a case -> those that `(?i)` takes for the same."""
    cased: list[int] = []
    for start in range(0, MAX_CHAR, 256):  # by blocks: nearly all have no cases
        block = _every_character()[start : start + 256]
        if not block.lower() == block == block.upper():
            cased += [ord(c) for c in block if not c.lower() == c == c.upper()]
    by_upper: dict[str, set[int]] = {}  # σ and ς have one upper case, so they are the same
    for char in cased:
        by_upper.setdefault(chr(char).upper(), set()).add(_lower(char))
    same_lower: dict[int, frozenset[int]] = {}
    for lowers in by_upper.values():
        if len(lowers) > 1:
            same_lower |= dict.fromkeys(lowers, frozenset(lowers))
    group_of: dict[frozenset[int], set[int]] = {}
    key_of = {c: same_lower.get(_lower(c), frozenset([_lower(c)])) for c in cased}
    for char, key in key_of.items():
        group_of.setdefault(key, set()).add(char)
    return {char: frozenset(group_of[key] | key) for char, key in key_of.items()}


def ignore_case(ranges: Ranges, *, ascii_only: bool) -> Ranges:
    """The set with the other cases of its characters.

    >>> ignore_case(single(ord("k")), ascii_only=True)
    ((75, 76), (107, 108))
    >>> [hex(start) for start, _ in ignore_case(single(ord("k")), ascii_only=False)]
    ['0x4b', '0x6b', '0x212a']
    """
    if ascii_only:
        letters = [c for c in _members(ranges) if c < 128 and chr(c).isalpha()]
        return union(ranges, _ranges_of(c ^ 0x20 for c in letters))
    cases = _cases()
    inside = cases if sum(b - a for a, b in ranges) > len(cases) else _members(ranges)
    return union(
        ranges,
        _ranges_of(
            other
            for c in inside
            if c in cases and contains(ranges, c)
            for other in cases[c]
        ),
    )  # fmt: skip


def contains(ranges: Ranges, char: int) -> bool:
    """Whether the character is in the set."""
    return any(start <= char < stop for start, stop in ranges)


def _members(ranges: Ranges) -> Iterator[int]:
    for start, stop in ranges:
        yield from range(start, stop)


# ---------------------------------------------------------------------- \p{...}

# Unicode's long names of the general categories.
_CATEGORIES = {
    "Letter": "L", "Cased_Letter": "LC", "Uppercase_Letter": "Lu", "Lowercase_Letter": "Ll",
    "Titlecase_Letter": "Lt", "Modifier_Letter": "Lm", "Other_Letter": "Lo", "Mark": "M",
    "Nonspacing_Mark": "Mn", "Spacing_Mark": "Mc", "Enclosing_Mark": "Me", "Number": "N",
    "Decimal_Number": "Nd", "Letter_Number": "Nl", "Other_Number": "No", "Punctuation": "P",
    "Connector_Punctuation": "Pc", "Dash_Punctuation": "Pd", "Open_Punctuation": "Ps",
    "Close_Punctuation": "Pe", "Initial_Punctuation": "Pi", "Final_Punctuation": "Pf",
    "Other_Punctuation": "Po", "Symbol": "S", "Math_Symbol": "Sm", "Currency_Symbol": "Sc",
    "Modifier_Symbol": "Sk", "Other_Symbol": "So", "Separator": "Z", "Space_Separator": "Zs",
    "Line_Separator": "Zl", "Paragraph_Separator": "Zp", "Other": "C", "Control": "Cc",
    "Format": "Cf", "Surrogate": "Cs", "Private_Use": "Co", "Unassigned": "Cn",
}  # fmt: skip


def _plain(name: str) -> str:
    """Unicode compares names of properties without case, spaces, - and _."""
    return re.sub(r"[\s_-]", "", name).lower()


_SHORT_CATEGORY = {_plain(long): short for long, short in _CATEGORIES.items()} | {
    _plain(short): short for short in _CATEGORIES.values()
}


@cache
def _categories() -> dict[str, Ranges]:
    """Each two-letter general category -> its characters."""
    found: dict[str, list[tuple[int, int]]] = {}
    start, current = 0, unicodedata.category("\0")
    for char, category in enumerate(map(unicodedata.category, _every_character())):
        if category != current:
            found.setdefault(current, []).append((start, char))
            start, current = char, category
    found.setdefault(current, []).append((start, MAX_CHAR))
    return {category: tuple(ranges) for category, ranges in found.items()}


@cache
def _scripts() -> dict[str, tuple[str, Ranges]]:
    """Each script's plain name -> its name and characters."""
    file = Path(__file__).with_name("scripts.json")
    table = json.loads(file.read_text(encoding="utf-8"))["scripts"]
    # Stored as the distances between one edge and the next.
    found = {}
    for name, distances in table.items():
        edges, at = [], 0
        for distance in distances:
            at += distance
            edges.append(at)
        found[_plain(name)] = (name, tuple(zip(edges[::2], edges[1::2], strict=True)))
    return found


@cache
def unicode_property(name: str) -> Ranges:
    """The characters of `\\p{name}`: a general category or a script.

    >>> unicode_property("Lu")[0], unicode_property("Script=Hiragana")[0] == (0x3041, 0x3097)
    ((65, 91), True)

    Raises:
        ValueError: no such category or script.
    """
    kind, _, value = name.rpartition("=")
    kind, value = _plain(kind), _plain(value)
    short = _SHORT_CATEGORY.get(value)
    if short is not None and kind in ("", "gc", "generalcategory"):
        wanted = ("Lu", "Ll", "Lt") if short == "LC" else (short,)
        return union(
            *(ranges for c, ranges in _categories().items() if c.startswith(wanted))
        )  # fmt: skip
    if value in _scripts() and kind in ("", "sc", "script"):
        return _scripts()[value][1]
    raise ValueError(
        f"no Unicode property {name!r}; known are general categories ({', '.join(_CATEGORIES)}, "
        f"or their short names) and scripts ({', '.join(n for n, _ in _scripts().values())})"
    )

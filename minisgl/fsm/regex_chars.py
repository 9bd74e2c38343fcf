"""The characters of a regular expression: what escapes and classes such as `[^\\w-]` stand for.

This is the lower half of the parser in regex.py, with what reads the pattern's text.
"""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import NamedTuple, NoReturn

from minisgl.fsm import charset
from minisgl.fsm.charset import Ranges
from minisgl.fsm.nodes import Chars

DIGITS = "0123456789"
OCTAL = "01234567"
_HEX = "0123456789abcdefABCDEF"
MAX_LITERALS = 4096  # to keep
_CONTROL = {"a": 7, "f": 12, "n": 10, "r": 13, "t": 9, "v": 11}
_HEX_DIGITS = {"x": 2, "u": 4, "U": 8}


class PatternError(ValueError):
    """A pattern that can't be used: says what it is, where, and why.

    Attributes:
        position: index into the pattern of what is refused.
    """

    def __init__(self, pattern: str, position: int, what: str) -> None:
        shown = pattern if len(pattern) <= 80 else pattern[:77] + "..."
        super().__init__(f"regex {shown!r}, position {position}: {what}")
        self.position = position


class Flags(NamedTuple):
    """The switches (?i), (?m), (?s), (?x) and (?a)."""

    i: bool = False
    m: bool = False
    s: bool = False
    x: bool = False
    a: bool = False


class CharReader:
    """Reads a pattern from left to right.

    Args:
        text: the pattern.
        javascript: as JSON Schema has it.
    """

    def __init__(self, text: str, *, javascript: bool) -> None:
        self._text = text
        self._javascript = javascript
        self._at = 0

    # ------------------------------------------------------------------ reading

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _take(self, text: str) -> bool:
        found = self._peek(text)
        self._at += len(text) * found
        return found

    def _next(self, what: str) -> str:
        if self._at >= len(self._text):
            self._fail(f"the pattern ends where {what} should be")
        self._at += 1
        return self._text[self._at - 1]

    def _take_while(self, allowed: str, most: int | None = None) -> str:
        start = self._at
        stop = len(self._text) if most is None else min(len(self._text), start + most)
        while self._at < stop and self._text[self._at] in allowed:
            self._at += 1
        return self._text[start : self._at]

    def _until(self, end: str, what: str, start: int) -> str:
        stop = self._text.find(end, self._at)
        if stop < 0:
            self._fail(f"{what} without its {end!r}", start)
        found = self._text[self._at : stop]
        self._at = stop + len(end)
        return found

    def _fail(self, what: str, at: int | None = None) -> NoReturn:
        raise PatternError(self._text, self._at if at is None else at, what)

    # ------------------------------------------------------------------ escapes

    def _octal(self, digits: str, start: int) -> int:
        if int(digits, 8) > 0o377:
            self._fail(f"\\{digits} is beyond \\377", start)
        return int(digits, 8)

    def _class_escape(self, flags: Flags) -> Ranges:
        """A backslash and what it makes, wherever that is a character or a set of them."""
        start = self._at
        self._at += 1
        letter = self._next("what is escaped")
        if letter in "dDwWsS":
            known = charset.shorthand(letter.lower(), ascii_only=flags.a)
            if self._javascript and letter in "sS":
                known = charset.JAVASCRIPT_SPACE
            return known if letter.islower() else charset.complement(known)
        if letter in "pP":
            found = self._property(start)
            return found if letter == "p" else charset.complement(found)
        return cased(charset.single(self._code(letter, start)), flags)

    def _property(self, start: int) -> Ranges:
        name = self._next("the name of a Unicode property")
        if name == "{":
            name = self._until("}", "a Unicode property", start)
        try:
            return charset.unicode_property(name)
        except ValueError as error:
            raise PatternError(self._text, start, str(error)) from error

    def _code(self, letter: str, start: int) -> int:
        """The code point that an escape stands for."""
        if letter in _CONTROL:
            return _CONTROL[letter]
        if letter in _HEX_DIGITS:
            digits = self._take_while(_HEX, _HEX_DIGITS[letter])
            if len(digits) != _HEX_DIGITS[letter]:
                self._fail(f"\\{letter} takes {_HEX_DIGITS[letter]} hexadecimal digits", start)
            if int(digits, 16) >= charset.MAX_CHAR:
                self._fail(f"\\{letter}{digits} is beyond the last character", start)
            return int(digits, 16)
        if letter == "N" and self._take("{"):
            name = self._until("}", "the name of a character", start)
            try:
                return ord(unicodedata.lookup(name))
            except (KeyError, TypeError):  # a TypeError: the name of several characters
                self._fail(f"no character is named {name!r}", start)
        if letter.isascii() and letter.isalnum():
            self._fail(f"the escape \\{letter} is unknown", start)
        return ord(letter)

    # ------------------------------------------------------------------ classes

    def _class(self, flags: Flags, start: int) -> Ranges:
        negative = self._take("^")
        sets: list[Ranges] = []
        is_first = True
        while is_first or not self._take("]"):
            is_first = False
            at = self._at
            low = self._class_item(flags, start)
            if not self._peek("-") or self._peek("-]"):
                sets.append(cased(low, flags) if _is_single(low) else low)
                continue
            self._at += 1
            high = self._class_item(flags, start)
            if not (_is_single(low) and _is_single(high)):
                self._fail("a range goes from one character to another, not to a set", at)
            if low[0][0] > high[0][0]:
                self._fail(f"the range {self._text[at : self._at]} goes backwards", at)
            sets.append(cased(((low[0][0], high[0][1]),), flags))
        found = charset.union(*sets)
        return charset.complement(found) if negative else found

    def _class_item(self, flags: Flags, start: int) -> Ranges:
        if self._at >= len(self._text):
            self._fail("'[' without its ']'", start)
        if not self._peek("\\"):
            self._at += 1
            return charset.single(ord(self._text[self._at - 1]))
        at = self._at
        following = self._text[at + 1 : at + 2]
        if following == "b":
            self._at += 2
            return charset.single(8)  # in a class \b is a backspace
        if following and following in OCTAL:
            self._at += 1
            return charset.single(self._octal(self._take_while(OCTAL, 3), at))
        return self._class_escape(flags._replace(i=False))  # a whole range gets its cases


def cased(ranges: Ranges, flags: Flags) -> Ranges:
    """The set, with the other cases of its characters if the flags ask for them."""
    return charset.ignore_case(ranges, ascii_only=flags.a) if flags.i else ranges


class Literals(dict[str, Chars]):
    """Characters that stand for themselves, by character; of equal ones there is one node.

    Args:
        flags: what may change what they stand for.
    """

    def __init__(self, flags: Flags) -> None:
        self._flags = flags

    def __missing__(self, char: str) -> Chars:
        if len(self) >= MAX_LITERALS:
            self.clear()
        node = self[char] = Chars(cased(charset.single(ord(char)), self._flags))
        return node


literals = lru_cache(maxsize=32)(Literals)  # of the same flags, the same


def _is_single(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][1] - ranges[0][0] == 1

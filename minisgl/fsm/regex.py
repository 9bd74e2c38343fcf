"""A regular expression in Python's syntax, parsed to a tree of nodes.

What the pattern matches is what `re.fullmatch` matches.  Greedy and lazy quantifiers are the same
here, since what counts is whether a text matches and not which group matched what; names and
numbers of groups are checked and forgotten.  Beyond `re` there is `\\p{..}` and `\\P{..}`, with
general categories and scripts, and a look-behind may be of any length.

No finite automaton can do what depends on what a group matched or on the order of trying:
back-references, conditionals, atomic groups, and possessive quantifiers of anything but a single
character.  They are refused by their name and place, as is every error of syntax.
"""

from __future__ import annotations

import sys
import unicodedata
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NoReturn

from minisgl.fsm import charset
from minisgl.fsm.charset import EVERYTHING, Ranges
from minisgl.fsm.nodes import Chars, Choice, Look, Node, Repeat, Sequence

MAX_NESTING = 100  # groups within groups
MAX_REPEAT = 2**32 - 1  # as `re`

_ANY = Chars(EVERYTHING)
_NEWLINE = charset.single(ord("\n"))
_NOT_NEWLINE = Chars(charset.complement(_NEWLINE))
_DIGITS = "0123456789"
_OCTAL = "01234567"
_HEX = "0123456789abcdefABCDEF"
_SPECIAL = "\\.^$|?*+()[{"
_VERBOSE_SPACE = " \t\n\r\v\f"
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


@dataclass(frozen=True)
class _Flags:
    """The switches (?i), (?m), (?s), (?x) and (?a)."""

    i: bool = False
    m: bool = False
    s: bool = False
    x: bool = False
    a: bool = False


def parse(pattern: str, *, javascript: bool = False) -> Node:
    """The tree of a pattern.

    Args:
        pattern: in Python's syntax.
        javascript: as JSON Schema has it: \\d and \\w are ASCII, $ is at the very end only.

    >>> parse("a{2,3}")
    Repeat(body=Chars(ranges=((97, 98),)), low=2, high=3)

    Raises:
        PatternError: a ValueError with the place of what is wrong or can't be an automaton.
    """
    return _Parser(pattern, javascript=javascript).pattern()


class _Parser:
    """Recursive descent: a choice holds sequences, which hold atoms with quantifiers."""

    def __init__(self, text: str, *, javascript: bool) -> None:
        self._text = text
        self._javascript = javascript
        self._at = 0
        self._nesting = 0
        self._names: set[str] = set()

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

    # ------------------------------------------------------------------ structure

    def pattern(self) -> Node:
        tree = self._choice(self._global_flags())
        if self._at < len(self._text):
            self._fail("')' without its '('")
        return tree

    def _global_flags(self) -> _Flags:
        """Those of (?i)(?m)..., which stand at the start."""
        flags = _Flags(a=self._javascript)
        while self._peek("(?"):
            start = self._at
            if self._take("(?#"):
                self._until(")", "a comment", start)
                continue
            self._at += 2
            scoped = self._flags(flags, start) if self._text[self._at : self._at + 1] else None
            if scoped is None or not self._take(")"):
                self._at = start
                break
            flags = scoped
        return flags

    def _choice(self, flags: _Flags) -> Node:
        options = [self._sequence(flags)]
        while self._take("|"):
            options.append(self._sequence(flags))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self, flags: _Flags) -> Node:
        parts: list[Node] = []
        text, end = self._text, len(self._text)
        while self._at < end and text[self._at] not in "|)":
            if (  # by far the most common: a character that stands for itself, alone
                text[self._at] not in _SPECIAL
                and (self._at + 1 == end or text[self._at + 1] not in "*+?{(")
                and not flags.x
            ):
                parts.append(_literal(text[self._at], flags))
                self._at += 1
            elif flags.x and self._text[self._at] in _VERBOSE_SPACE:
                self._at += 1
            elif flags.x and self._text[self._at] == "#":
                self._at = (self._text.find("\n", self._at) + 1) or len(self._text)
            elif self._peek("(?#"):
                self._until(")", "a comment", self._at)
            else:
                parts.append(self._quantified(flags))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _quantified(self, flags: _Flags) -> Node:
        start = self._at
        if self._bounds() is not None:
            self._fail("nothing to repeat", start)
        atom = self._atom(flags)
        self._skip_verbose(flags)
        at = self._at
        bounds = self._bounds()
        if bounds is None:
            return atom
        if self._text[start] in "^$" or self._text[start : start + 2] in _PLACES:
            self._fail("nothing to repeat: this matches a place and no text", at)
        node = self._repeat(atom, *bounds, at)
        self._skip_verbose(flags)
        at = self._at
        if self._bounds() is not None:
            self._fail("a quantifier after a quantifier; put the first in a group", at)
        return node

    def _skip_verbose(self, flags: _Flags) -> None:
        """What may stand between an atom and its quantifier: comments, and with (?x) spaces."""
        while True:
            if self._peek("(?#"):
                self._until(")", "a comment", self._at)
            elif flags.x and self._at < len(self._text) and self._peek("#"):
                self._at = (self._text.find("\n", self._at) + 1) or len(self._text)
            elif not (flags.x and self._take_while(_VERBOSE_SPACE)):
                return

    def _bounds(self) -> tuple[int, int | None] | None:
        """Those of a quantifier; None, and nothing read, if there is none here."""
        start = self._at
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        if not self._take("{") or self._peek("}"):
            self._at = start
            return None
        low = self._take_while(_DIGITS)
        high = self._take_while(_DIGITS) if self._take(",") else low
        if not self._take("}"):  # then the brace is an ordinary character
            self._at = start
            return None
        for number in (low, high):
            if number and int(number[:11]) > MAX_REPEAT:
                self._fail(f"{number[:11]}... is too large; {MAX_REPEAT} is the most", start)
        least, most = int(low or 0), int(high) if high else None
        if most is not None and most < least:
            self._fail(f"{{{low},{high}}} asks for at least {low} and at most {high}", start)
        return least, most

    def _repeat(self, body: Node, low: int, high: int | None, at: int) -> Node:
        if self._take("?"):
            pass  # lazy: the same texts
        elif self._take("+"):
            # X{0,5}+ never gives back: after fewer than 5 no X may follow.
            if not isinstance(body, Chars):
                self._fail(
                    "a possessive quantifier of more than a single character depends on the order "
                    "of trying, which no automaton has",
                    at,
                )
            stop = Look(body, behind=False, negative=True)
            if high is None:
                return Sequence((Repeat(body, low, None), stop))
            if low == high:
                return Repeat(body, low, high)
            return Choice((Repeat(body, high, high), Sequence((Repeat(body, low, high - 1), stop))))
        return Repeat(body, low, high)

    # ------------------------------------------------------------------ atoms

    def _atom(self, flags: _Flags) -> Node:
        start = self._at
        char = self._next("something")
        match char:
            case "(":
                return self._group(flags, start)
            case "[":
                return Chars(self._class(flags, start))
            case ".":
                return _ANY if flags.s else _NOT_NEWLINE
            case "^":
                return _look_behind(_NOT_NEWLINE if flags.m else _ANY, negative=True)
            case "$":
                if flags.m:
                    return _look_ahead(_NOT_NEWLINE, negative=True)
                if self._javascript:
                    return _END
                # At the end, or before the line break that ends the text.
                last_newline = Sequence((Chars(_NEWLINE), _END))
                return Choice((_END, _look_ahead(last_newline, negative=False)))
            case "\\":
                return self._escape(flags, start)
        return _literal(char, flags)

    def _escape(self, flags: _Flags, start: int) -> Node:
        letter = self._next("what is escaped")
        if letter in "AZbB":
            return _place(letter, flags)
        if letter in _DIGITS:
            digits = letter + self._take_while(_DIGITS, 1)
            if letter == "0" or (digits[-1:] in _OCTAL and letter in _OCTAL and len(digits) == 2):
                self._at = start + 1  # perhaps an octal code: \0, \07, \123
                octal = self._take_while(_OCTAL, 3)
                if letter == "0" or len(octal) == 3:
                    return Chars(_cased(charset.single(self._octal(octal, start)), flags))
                self._at = start + 1 + len(digits)
            self._fail(f"the back-reference \\{digits} depends on what a group matched", start)
        self._at = start
        return Chars(self._class_escape(flags))

    def _octal(self, digits: str, start: int) -> int:
        if int(digits, 8) > 0o377:
            self._fail(f"\\{digits} is beyond \\377", start)
        return int(digits, 8)

    def _class_escape(self, flags: _Flags) -> Ranges:
        """A backslash and what it makes, wherever that is a character or a set of them."""
        start = self._at
        self._at += 1
        letter = self._next("what is escaped")
        if letter in "dDwWsS":
            is_ascii = flags.a and not (self._javascript and letter in "sS")
            known = charset.shorthand(letter.lower(), ascii_only=is_ascii)
            return known if letter.islower() else charset.complement(known)
        if letter in "pP":
            found = self._property(start)
            return found if letter == "p" else charset.complement(found)
        return _cased(charset.single(self._code(letter, start)), flags)

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

    def _class(self, flags: _Flags, start: int) -> Ranges:
        negative = self._take("^")
        sets: list[Ranges] = []
        is_first = True
        while is_first or not self._take("]"):
            is_first = False
            at = self._at
            low = self._class_item(flags, start)
            if not self._peek("-") or self._peek("-]"):
                sets.append(_cased(low, flags) if _is_single(low) else low)
                continue
            self._at += 1
            high = self._class_item(flags, start)
            if not (_is_single(low) and _is_single(high)):
                self._fail("a range goes from one character to another, not to a set", at)
            if low[0][0] > high[0][0]:
                self._fail(f"the range {self._text[at : self._at]} goes backwards", at)
            sets.append(_cased(((low[0][0], high[0][1]),), flags))
        found = charset.union(*sets)
        return charset.complement(found) if negative else found

    def _class_item(self, flags: _Flags, start: int) -> Ranges:
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
        if following and following in _OCTAL:
            self._at += 1
            return charset.single(self._octal(self._take_while(_OCTAL, 3), at))
        return self._class_escape(replace(flags, i=False))  # a whole range gets its cases

    # ------------------------------------------------------------------ groups

    def _group(self, flags: _Flags, start: int) -> Node:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            self._fail(f"groups are nested more than {MAX_NESTING} deep", start)
        node = self._group_body(flags, start)
        if not self._take(")"):
            self._fail("'(' without its ')'", start)
        self._nesting -= 1
        return node

    def _group_body(self, flags: _Flags, start: int) -> Node:
        if not self._take("?"):
            return self._choice(flags)
        for sign, behind, negative in (
            ("=", False, False), ("!", False, True), ("<=", True, False), ("<!", True, True)
        ):  # fmt: skip
            if self._take(sign):
                return Look(self._choice(flags), behind, negative)
        if self._take(":"):
            return self._choice(flags)
        if self._take("P"):
            return self._named(flags, start)
        if self._take("("):
            self._fail("a conditional group depends on what another group matched", start)
        if self._take(">"):
            self._fail("an atomic group depends on the order of trying, no automaton has it", start)
        scoped = self._flags(flags, start)
        if scoped is None:
            self._fail(f"the group (?{self._text[self._at : self._at + 1]} is unknown", start)
        if self._peek(")"):
            self._fail("flags for the whole pattern stand at its start; or write (?i:...)", start)
        if not self._take(":"):
            self._fail("flags end with ')' or ':'", start)
        return self._choice(scoped)

    def _named(self, flags: _Flags, start: int) -> Node:
        """(?P<name>...), whose name is checked and forgotten."""
        if self._take("="):
            name = self._until(")", "a back-reference", start)
            self._fail(f"the back-reference (?P={name}) depends on what a group matched", start)
        if not self._take("<"):
            self._fail("after (?P comes <name> or =name", start)
        name = self._until(">", "the name of a group", start)
        if not name.isidentifier():
            self._fail(f"{name!r} can't name a group: letters, digits and _ can", start)
        if name in self._names:
            self._fail(f"two groups are named {name!r}", start)
        self._names.add(name)
        return self._choice(flags)

    def _flags(self, flags: _Flags, start: int) -> _Flags | None:
        """`flags` with those read here switched; None if what stands here are no flags."""
        switched_on = self._take_while("imsxauL")
        minus = self._take("-")
        switched_off = self._take_while("imsxauL") if minus else ""
        if not switched_on and not minus:
            return None
        if "L" in switched_on + switched_off:
            self._fail("the flag L is for bytes, and this is text", start)
        if set("au") & set(switched_off):
            self._fail("the flags a and u can't be switched off", start)
        if {"a", "u"} <= set(switched_on):
            self._fail("the flags a and u exclude each other", start)
        if set(switched_on) & set(switched_off):
            self._fail("a flag is switched both on and off", start)
        if minus and not switched_off:
            self._fail("'-' without a flag to switch off", start)
        on = dict.fromkeys(switched_on.replace("u", ""), True)
        if "u" in switched_on:
            on["a"] = False
        return replace(flags, **on, **dict.fromkeys(switched_off, False))


def _cased(ranges: Ranges, flags: _Flags) -> Ranges:
    return charset.ignore_case(ranges, ascii_only=flags.a) if flags.i else ranges


@lru_cache(maxsize=4096)
def _literal(char: str, flags: _Flags) -> Chars:
    return Chars(_cased(charset.single(ord(char)), flags))


# ---------------------------------------------------------------------- places

_PLACES = ("\\A", "\\Z", "\\b", "\\B")


def _look_ahead(body: Node, *, negative: bool) -> Look:
    return Look(body, behind=False, negative=negative)


def _look_behind(body: Node, *, negative: bool) -> Look:
    return Look(body, behind=True, negative=negative)


_END = _look_ahead(_ANY, negative=True)


def _place(letter: str, flags: _Flags) -> Node:
    r"""\A, \Z, \b and \B by what stands before and after."""
    if letter == "A":
        return _look_behind(_ANY, negative=True)
    if letter == "Z":
        return _END
    word = Chars(charset.shorthand("w", ascii_only=flags.a))
    starts = (_look_behind(word, negative=True), _look_ahead(word, negative=False))
    ends = (_look_behind(word, negative=False), _look_ahead(word, negative=True))
    if letter == "b":
        return Choice((Sequence(starts), Sequence(ends)))
    inside, outside = (ends[0], starts[1]), (starts[0], ends[1])
    if sys.version_info < (3, 14):  # until then \B never matches the empty text
        some = Choice((_look_behind(_ANY, negative=False), _look_ahead(_ANY, negative=False)))
        outside = (*outside, some)  # type: ignore[assignment]
    return Choice((Sequence(inside), Sequence(outside)))


def _is_single(ranges: Ranges) -> bool:
    return len(ranges) == 1 and ranges[0][1] - ranges[0][0] == 1

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

import re

from minisgl.fsm import charset
from minisgl.fsm.nodes import Chars, Choice, Look, Node, Repeat, Sequence
from minisgl.fsm.regex_chars import DIGITS, OCTAL, CharReader, Flags, cased, literals
from minisgl.fsm.regex_places import ANY, NOT_NEWLINE, PLACES, place

MAX_NESTING = 100  # groups within groups
MAX_REPEAT = 2**32 - 1  # as `re`

_PLAIN = re.compile(r"(?:[^\\.^$|?*+()\[{](?![*+?{(]))+")
_QUANTIFIERS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}
_VERBOSE_SPACE = " \t\n\r\v\f"


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


class _Parser(CharReader):
    """Recursive descent: a choice holds sequences, which hold atoms with quantifiers."""

    def __init__(self, text: str, *, javascript: bool) -> None:
        super().__init__(text, javascript=javascript)
        self._nesting = 0
        self._names: set[str] = set()

    # ------------------------------------------------------------------ structure

    def pattern(self) -> Node:
        tree = self._choice(self._global_flags())
        if self._at < len(self._text):
            self._fail("')' without its '('")
        return tree

    def _global_flags(self) -> Flags:
        """Those of (?i)(?m)..., which stand at the start."""
        flags = Flags(a=self._javascript)
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

    def _choice(self, flags: Flags) -> Node:
        options = [self._sequence(flags)]
        while self._take("|"):
            options.append(self._sequence(flags))
        return options[0] if len(options) == 1 else Choice(tuple(options))

    def _sequence(self, flags: Flags) -> Node:
        parts: list[Node] = []
        while self._at < len(self._text) and self._text[self._at] not in "|)":
            plain = None if flags.x else _PLAIN.match(self._text, self._at)
            if plain:  # by far the most common: characters that stand for themselves, once
                parts += map(literals(flags).__getitem__, plain.group())
                self._at = plain.end()
            elif flags.x and self._text[self._at] in _VERBOSE_SPACE:
                self._at += 1
            elif flags.x and self._text[self._at] == "#":
                self._at = (self._text.find("\n", self._at) + 1) or len(self._text)
            elif self._peek("(?#"):
                self._until(")", "a comment", self._at)
            else:
                parts.append(self._quantified(flags))
        return parts[0] if len(parts) == 1 else Sequence(tuple(parts))

    def _quantified(self, flags: Flags) -> Node:
        start = self._at
        if self._bounds() is not None:
            self._fail("nothing to repeat", start)
        atom = self._atom(flags)
        self._skip_verbose(flags)
        at = self._at
        bounds = self._bounds()
        if bounds is None:
            return atom
        if self._text[start] in "^$" or self._text[start : start + 2] in PLACES:
            self._fail("nothing to repeat: this matches a place and no text", at)
        node = self._repeat(atom, *bounds, at)
        self._skip_verbose(flags)
        at = self._at
        if self._bounds() is not None:
            self._fail("a quantifier after a quantifier; put the first in a group", at)
        return node

    def _skip_verbose(self, flags: Flags) -> None:
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
        sign = self._text[start : start + 1]
        if sign in _QUANTIFIERS:
            self._at += 1
            return _QUANTIFIERS[sign]
        if sign != "{" or self._text.startswith("{}", start):
            return None
        self._at += 1
        low = self._take_while(DIGITS)
        high = self._take_while(DIGITS) if self._take(",") else low
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

    def _atom(self, flags: Flags) -> Node:
        start = self._at
        char = self._next("something")
        match char:
            case "(":
                return self._group(flags, start)
            case "[":
                return Chars(self._class(flags, start))
            case ".":
                return ANY if flags.s else NOT_NEWLINE
            case "^" | "$":
                return place(char, flags, javascript=self._javascript)
            case "\\":
                return self._escape(flags, start)
        return literals(flags)[char]

    def _escape(self, flags: Flags, start: int) -> Node:
        letter = self._next("what is escaped")
        if letter in "AZbB":
            return place(letter, flags)
        if letter in DIGITS:
            digits = letter + self._take_while(DIGITS, 1)
            if letter == "0" or (digits[-1:] in OCTAL and letter in OCTAL and len(digits) == 2):
                self._at = start + 1  # perhaps an octal code: \0, \07, \123
                octal = self._take_while(OCTAL, 3)
                if letter == "0" or len(octal) == 3:
                    return Chars(cased(charset.single(self._octal(octal, start)), flags))
                self._at = start + 1 + len(digits)
            self._fail(f"the back-reference \\{digits} depends on what a group matched", start)
        self._at = start
        return Chars(self._class_escape(flags))

    # ------------------------------------------------------------------ groups

    def _group(self, flags: Flags, start: int) -> Node:
        self._nesting += 1
        if self._nesting > MAX_NESTING:
            self._fail(f"groups are nested more than {MAX_NESTING} deep", start)
        node = self._group_body(flags, start)
        if not self._take(")"):
            self._fail("'(' without its ')'", start)
        self._nesting -= 1
        return node

    def _group_body(self, flags: Flags, start: int) -> Node:
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

    def _named(self, flags: Flags, start: int) -> Node:
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

    def _flags(self, flags: Flags, start: int) -> Flags | None:
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
        return flags._replace(**on, **dict.fromkeys(switched_off, False))

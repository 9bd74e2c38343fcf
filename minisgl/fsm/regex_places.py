"""The places of a regular expression, ^ $ \\A \\Z \\b \\B, by what stands before and after."""

from __future__ import annotations

import sys

from minisgl.fsm import charset
from minisgl.fsm.nodes import Chars, Choice, Look, Node, Sequence
from minisgl.fsm.regex_chars import Flags

ANY = Chars(charset.EVERYTHING)
NOT_NEWLINE = Chars(charset.complement(charset.single(ord("\n"))))
PLACES = ("\\A", "\\Z", "\\b", "\\B")  # those that are an escape


def ahead(body: Node, *, negative: bool) -> Look:
    """What comes next begins so, or (negative) doesn't."""
    return Look(body, behind=False, negative=negative)


def behind(body: Node, *, negative: bool) -> Look:
    """What came before ends so, or (negative) doesn't."""
    return Look(body, behind=True, negative=negative)


_START = behind(ANY, negative=True)
_END = ahead(ANY, negative=True)


def place(sign: str, flags: Flags, *, javascript: bool = False) -> Node:
    """The place that one of ^ $ A Z b B, the letters after a backslash, stands for."""
    match sign:
        case "A":
            return _START
        case "Z":
            return _END
        case "^":
            return behind(NOT_NEWLINE, negative=True) if flags.m else _START
        case "$":
            if flags.m:
                return ahead(NOT_NEWLINE, negative=True)
            if javascript:
                return _END
            # At the end, or before the line break that ends the text.
            last_newline = Sequence((Chars(charset.single(ord("\n"))), _END))
            return Choice((_END, ahead(last_newline, negative=False)))
    word = Chars(charset.shorthand("w", ascii_only=flags.a))
    starts = (behind(word, negative=True), ahead(word, negative=False))
    ends = (behind(word, negative=False), ahead(word, negative=True))
    if sign == "b":
        return Choice((Sequence(starts), Sequence(ends)))
    outside: list[Node] = [starts[0], ends[1]]
    if sys.version_info < (3, 14):  # until then \B never matches the empty text
        outside.append(Choice((behind(ANY, negative=False), ahead(ANY, negative=False))))
    return Choice((Sequence((ends[0], starts[1])), Sequence(tuple(outside))))

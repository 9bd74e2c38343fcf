"""Where a pattern first matches in a text that grows: for stop patterns.

    text    a n   E N D                pattern  E[A-Z]+D
                  ^---'  begun here: nothing from here on may be shown, a match could take it back

A match may begin at each character, so a state of the pattern is kept for each beginning that can
still become one, and of beginnings in one state only the first: later they do the same.  It ends as
early as it can, and of those that end there it is the one that begins first.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from minisgl.fsm.automaton import Automaton, NoTextError
from minisgl.fsm.byte_automaton import ByteAutomaton
from minisgl.fsm.node_facts import all_nodes
from minisgl.fsm.nodes import Chars, Look, Node, Sequence
from minisgl.fsm.regex import parse
from minisgl.fsm.regex_places import ANY

MOST_CHARS = 256  # of a match: so much, at most, waits for what comes


class Match(NamedTuple):
    """Characters [start, end) of the text."""

    end: int
    start: int


class Pattern(NamedTuple):
    """What to look for, compiled.

    first: of a match at the beginning of the text; None: there can be none.
    later: of the character before a match, and the match; None, if all are at the beginning.
    """

    first: ByteAutomaton | None
    later: ByteAutomaton | None


@lru_cache(maxsize=256)
def compile_search(pattern: str) -> Pattern:
    """A pattern in Python's syntax, to be looked for; compiled once, then shared.

    Raises:
        ValueError: it has a mistake, matches the empty text, looks behind for more than one
            character, or is too complex; in words.
    """
    node = parse(pattern)
    shown = pattern if len(pattern) <= 80 else pattern[:77] + "..."
    looks = [n for n in all_nodes(node) if isinstance(n, Look) and n.behind]
    if not all(isinstance(look.body, Chars) for look in looks):
        raise ValueError(f"stop_regex {shown!r} looks behind for more than one character")
    found = Pattern(_compiled(node), _compiled(Sequence((ANY, node))))
    if found.first is None and found.later is None:
        raise ValueError(f"stop_regex {shown!r}: no text matches it")
    if found.first is not None and found.first.accepts(found.first.start):
        raise ValueError(f"stop_regex {shown!r} matches the empty text, which is everywhere")
    return found


def _compiled(node: Node) -> ByteAutomaton | None:
    """None: no text matches it."""
    try:
        return ByteAutomaton(Automaton(node))
    except NoTextError:
        return None


class Search:
    """One text's search for one pattern.

    >>> search = Search("E[A-Z]+D")
    >>> [search.read(piece) for piece in ("an E", "N")], search.begun
    ([None, None], 3)
    >>> search.read("D now")
    Match(end=6, start=3)
    """

    def __init__(self, pattern: str) -> None:
        self.pattern = pattern
        self._compiled = compile_search(pattern)
        self._states: dict[tuple[ByteAutomaton, int], int] = {}  # and where the match began
        self._read = 0  # characters
        self._last = b""  # of them, the last one

    @property
    def begun(self) -> int | None:
        """The first character that may be a match's; None: none that was read."""
        return min(self._states.values(), default=None)

    def read(self, text: str) -> Match | None:
        """The first match, if it ends within `text`, which comes next.

        Raises:
            TooComplexError: the pattern grew too complex.
        """
        for char in text:
            self._begin()
            start = self._step(char.encode())
            if start is not None:
                return Match(self._read, start)
        return None

    def skip(self, text: str) -> None:
        """`text` comes next, and no match has any of it."""
        self._states.clear()
        self._read += len(text)
        self._last = text[-1:].encode() or self._last

    def _begin(self) -> None:
        """A match may begin with the next character."""
        automaton = self._compiled.later if self._read else self._compiled.first
        if automaton is None:
            return
        state = automaton.walk(automaton.start, self._last)
        if state:
            self._states.setdefault((automaton, state), self._read)

    def _step(self, char: bytes) -> int | None:
        """Where the match began that ends with `char`, the next one; None: none does."""
        self._read += 1
        self._last = char
        states, self._states = self._states, {}
        found = None
        for (automaton, state), start in sorted(states.items(), key=lambda item: item[1]):
            after = automaton.walk(state, char)
            if not after:
                continue
            if found is None and automaton.accepts(after):
                found = start
            if self._read - start < MOST_CHARS:
                self._states.setdefault((automaton, after), start)
        return found

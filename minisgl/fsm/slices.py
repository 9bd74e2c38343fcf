"""Masks of wide states at a gather's price: what of each token is made of one set of characters.

Within a string nearly every token is allowed, and walking the tree of all of them again for each
state is a waste: they differ only in how many more characters may come, and in what may end it.
So for a set X of characters each token is cut in two, once for all patterns:

    X = [a-z ]        "hello" -> 5 of X and nothing else        " or\\"," -> 3 of X, and then \\",

For a state that X leads along a chain (to itself, or for a count one by one), the tokens wholly
of X are known by how many the chain takes; only the others' second parts are walked, and nearly
all of those end at their first byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from minisgl.fsm.byte_automaton import ByteAutomaton
from minisgl.fsm.charset import Ranges

MIN_ASCII = 16  # characters of ASCII that make a set a wide one
MIN_SPACES = 8  # a set with the space in it is one if so many may follow: runs of spaces are long

Int = npt.NDArray[np.int64]
Int32 = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class Slice:
    """The tokens by how many characters of one set they begin with."""

    whole: Int = field(repr=False)  # tokens of nothing else, shortest first
    num_whole: Int = field(repr=False)  # [longest + 1] how many of them have at most so many
    longest: int  # the most characters of the set in any token
    # The other tokens, in groups that begin with as many of the set and then with the same byte:
    rest: Int = field(repr=False)
    at: Int = field(repr=False)  # where, in all bytes, that byte stands
    chars: Int = field(repr=False)  # [groups]
    byte: Int = field(repr=False)  # [groups]
    first: Int = field(repr=False)  # [groups] where in `rest` each begins
    size: Int = field(repr=False)  # [groups]


class TokenChars:
    """The tokens as characters.

    Args:
        tokens: the bytes of each; some may end (or begin) within a character.
    """

    def __init__(self, tokens: Sequence[bytes]) -> None:
        self._ids = np.array([i for i, data in enumerate(tokens) if data], np.int64)
        with_text = [data for data in tokens if data]
        self._bytes = np.frombuffer(b"".join(with_text), np.uint8)
        lengths = np.array([len(data) for data in with_text], np.int64)
        self._end = np.zeros(len(tokens), np.int64)  # of each token, in all bytes
        self._end[self._ids] = np.cumsum(lengths)
        self._start = np.cumsum(lengths) - lengths
        texts = [_readable(data) for data in with_text]
        joined = np.frombuffer("".join(texts).encode("utf-32-le"), "<u4")
        self._chars, self._char = np.unique(joined, return_inverse=True)
        self._num_chars = np.array([len(text) for text in texts], np.int64)
        self._longest = int(self._num_chars.max(initial=0))
        self._token = np.repeat(np.arange(len(texts)), self._num_chars)  # of each character
        first = np.cumsum(self._num_chars) - self._num_chars
        # Of each character: its place in its token, and how many bytes stand before it there.
        self._place = np.arange(len(joined)) - np.repeat(first, self._num_chars)
        size = 1 + (joined >= 0x80) + (joined >= 0x800) + (joined >= 0x10000)
        before = np.cumsum(size) - size
        first = np.cumsum(self._num_chars) - self._num_chars
        self._offset = before - np.repeat(
            before[np.minimum(first, len(before) - 1)], self._num_chars
        )
        readable = np.bincount(self._token, size, minlength=len(texts)).astype(np.int64)
        self._readable = readable  # bytes of whole characters at its start
        self._is_whole = readable == lengths
        self.slice = lru_cache(maxsize=32)(self._slice)

    def _slice(self, ranges: Ranges) -> Slice:
        """The tokens cut after their first characters of a set."""
        edges = np.array(ranges, np.int64).ravel()
        inside = np.searchsorted(edges, self._chars, side="right") % 2 == 1
        outside = np.flatnonzero(~inside[self._char])[::-1]
        count, offset = self._num_chars.copy(), self._readable.copy()
        # subtle: backwards, so that of a token's characters outside the first one is written last
        count[self._token[outside]] = self._place[outside]
        offset[self._token[outside]] = self._offset[outside]
        is_whole = self._is_whole & (count == self._num_chars)
        whole = np.flatnonzero(is_whole)
        whole = whole[np.argsort(count[whole], kind="stable")]
        longest = int(count.max(initial=0))
        rest = np.flatnonzero(~is_whole)
        group = count[rest] * 256 + self._bytes[self._start[rest] + offset[rest]]
        order = np.argsort(group, kind="stable")
        rest = rest[order]
        groups, first, size = np.unique(group[order], return_index=True, return_counts=True)
        return Slice(
            whole=self._ids[whole],
            num_whole=np.searchsorted(count[whole], np.arange(longest + 1), side="right"),
            longest=longest,
            rest=self._ids[rest],
            at=self._start[rest] + offset[rest],
            chars=groups // 256,
            byte=groups % 256,
            first=first,
            size=size,
        )

    def walk(self, automaton: ByteAutomaton, state: int) -> tuple[Int, int] | None:
        """The tokens that may come next, and how far the walk saw; None if no edge is wide."""
        if not automaton.starts_character(state):
            return None
        chars = automaton.chars_of(state)
        size, _, classes = automaton.chars.widest_edge(chars)
        has_space = automaton.chars.alphabet.class_of(ord(" "))
        if size < MIN_ASCII and not (size and classes >> has_space & 1):
            return None
        chain = automaton.chars.chain(chars, classes, self._longest + 1)
        if chain is None or (size < MIN_ASCII and len(chain) < MIN_SPACES):
            return None
        piece = self.slice(automaton.chars.alphabet.ranges(classes))
        chain = chain[: piece.longest + 1]
        most = len(chain) - 1  # so many characters of the set may follow
        allowed = piece.whole[: piece.num_whole[most]]
        along = np.array([automaton.state_of(c) for c in chain], np.int32)
        levels = list(self._walk_rest(automaton, along, piece))
        return np.concatenate([allowed, *levels]), most + 1 + len(levels)

    def _walk_rest(self, automaton: ByteAutomaton, along: Int32, piece: Slice) -> Iterator[Int]:
        """Which of the other tokens live on, from the states along the chain."""
        stop = int(np.searchsorted(piece.chars, len(along)))
        rows = automaton.rows(along)
        states = automaton.table[rows[piece.chars[:stop]], piece.byte[:stop]]
        groups = states.nonzero()[0]  # few: nearly all end at their first byte
        counts = piece.size[groups]
        members = spread(piece.first[groups], counts)
        tokens, at = piece.rest[members], piece.at[members] + 1
        states = np.repeat(states[groups], counts)
        while len(tokens):
            done = at == self._end[tokens]
            yield tokens[done]
            going = (~done).nonzero()[0]
            tokens, at, states = tokens[going], at[going], states[going]
            rows = automaton.rows(states)
            states = automaton.table[rows, self._bytes[at]]
            alive = states.nonzero()[0]
            tokens, at, states = tokens[alive], at[alive] + 1, states[alive]


def _readable(data: bytes) -> str:
    """The whole characters that the bytes begin with."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode()


def spread(firsts: Int, counts: Int) -> Int:
    """All members of stretches of numbers.

    >>> spread(np.array([5, 9]), np.array([3, 1])).tolist()
    [5, 6, 7, 9]
    """
    ends = counts.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(firsts - ends + counts, counts) + np.arange(total)

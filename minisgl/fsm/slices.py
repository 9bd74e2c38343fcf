"""Masks of wide states at a gather's price: what of each token is made of one set of characters.

Within a string nearly every token is allowed, and walking the tree of all of them again for each
state is a waste: they differ only in how many more characters may come, and in what may end it.
So for a set X of characters each token is cut in two, once for all patterns:

    X = [a-z ]        "hello" -> 5 of X and nothing else        " or\\"," -> 3 of X, and then \\",

For a state that X leads along a chain (to itself, or for a count one by one), the tokens wholly
of X are known by how many the chain takes.  Of the others

- those that end within a character (most of the bytes of an emoji, say) are allowed if it may
  become one that the state at that place of the chain wants;
- the rest is walked from there, and nearly all of it ends at its first byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import groupby

import numpy as np
import numpy.typing as npt

from minisgl.fsm.automaton import Automaton
from minisgl.fsm.begun import code_points
from minisgl.fsm.byte_automaton import ByteAutomaton
from minisgl.fsm.mask_bits import set_bits
from minisgl.fsm.token_arrays import TokenArrays

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
    # The same of the tokens of the set and then the first bytes of a character:
    begun: Int = field(repr=False)
    num_begun: Int = field(repr=False)  # [longest + 1]
    which: Int = field(repr=False)  # [begun] those bytes, an index into `Slices._may_become`
    # The other tokens, in groups that begin with as many of the set and then with the same byte:
    rest: Int = field(repr=False)
    at: Int = field(repr=False)  # where, in all bytes, that byte stands
    chars: Int = field(repr=False)  # [groups]
    byte: Int = field(repr=False)  # [groups]
    first: Int = field(repr=False)  # [groups] where in `rest` each begins
    size: Int = field(repr=False)  # [groups]
    masks: dict[int, bytes] = field(repr=False, default_factory=dict)  # see `Slices._mask`


class Slices:
    """The slices of a vocabulary by any set of characters, each made when it is first asked for.

    Args:
        arrays: of the vocabulary.
        vocab_size: how many ids it has.
    """

    def __init__(self, arrays: TokenArrays, vocab_size: int) -> None:
        self._arrays = arrays
        self._longest = int(arrays.num_chars.max(initial=0))
        first = arrays.num_chars.cumsum() - arrays.num_chars
        self._token = np.repeat(np.arange(len(first)), arrays.num_chars)  # of each character
        self._place = np.arange(len(arrays.char)) - first[self._token]  # and where in it
        self._mask_size = 4 * -(-vocab_size // 32)  # bytes
        self._end = np.zeros(vocab_size, np.int64)  # of each id
        self._end[arrays.ids] = arrays.start + arrays.length
        partial = (arrays.readable < arrays.length).nonzero()[0]
        ends = [
            arrays.joined[start:stop].tobytes()
            for start, stop in zip(
                (arrays.start + arrays.readable)[partial].tolist(),
                (arrays.start + arrays.length)[partial].tolist(),
                strict=True,
            )
        ]
        number = {begun: i for i, begun in enumerate(dict.fromkeys(ends))}
        self._begun = np.zeros(len(arrays.length), np.int64)  # of each token that has one
        self._begun[partial] = [number[begun] for begun in ends]
        self._may_become = np.array([code_points(b) for b in number], np.int64).reshape(-1, 2)
        self.slice = lru_cache(maxsize=32)(self._slice)
        self._goes_on = lru_cache(maxsize=128)(self._find_going_on)

    def _slice(self, limits: bytes) -> Slice:
        """The tokens cut after their first characters of a set."""
        arrays = self._arrays
        edges = np.frombuffer(limits, np.int32)
        is_inside = np.searchsorted(edges, arrays.code_points, side="right") % 2 == 1
        outside = (~is_inside[arrays.char]).nonzero()[0][::-1]
        count, offset = arrays.num_chars.copy(), arrays.readable.copy()
        # subtle: backwards, so that of a token's characters outside the first one is written last
        count[self._token[outside]] = self._place[outside]
        offset[self._token[outside]] = arrays.char_offset[outside]
        is_whole = offset == arrays.length
        whole = is_whole.nonzero()[0]
        whole = whole[np.argsort(count[whole], kind="stable")]
        longest = int(count.max(initial=0))
        is_begun = (offset == arrays.readable) & ~is_whole
        begun = is_begun.nonzero()[0]
        begun = begun[np.argsort(count[begun], kind="stable")]
        rest = (~is_whole & ~is_begun).nonzero()[0]
        group = count[rest] * 256 + arrays.joined[arrays.start[rest] + offset[rest]]
        order = np.argsort(group, kind="stable")
        rest = rest[order]
        groups, first, size = np.unique(group[order], return_index=True, return_counts=True)
        return Slice(
            whole=arrays.ids[whole],
            num_whole=np.searchsorted(count[whole], np.arange(longest + 1), side="right"),
            longest=longest,
            begun=arrays.ids[begun],
            num_begun=np.searchsorted(count[begun], np.arange(longest + 1), side="right"),
            which=self._begun[begun],
            rest=arrays.ids[rest],
            at=arrays.start[rest] + offset[rest],
            chars=groups // 256,
            byte=groups % 256,
            first=first,
            size=size,
        )

    def _find_going_on(self, limits: bytes) -> npt.NDArray[np.bool_]:
        """Which of the begun characters may become one of a set.  # [begun]"""
        starts, stops = np.frombuffer(limits, np.int32).reshape(-1, 2).T
        first, stop = self._may_become.T
        # The ranges that begin before its end, against those that end before it begins.
        return (np.searchsorted(starts, stop) > np.searchsorted(stops, first, side="right")) & (
            first < stop
        )

    def _mask(self, piece: Slice, most: int) -> bytearray:
        """The mask of the tokens of at most so many characters, all of the set."""
        known = piece.masks.get(most)
        if known is None:
            mask = bytearray(self._mask_size)
            set_bits(mask, piece.whole[: piece.num_whole[most]])
            known = piece.masks[most] = bytes(mask)
        return bytearray(known)

    def walk(self, automaton: ByteAutomaton, state: int) -> tuple[bytearray, int] | None:
        """The mask of the tokens that may come next, and how many bytes the walk looked at.

        None if no edge is wide.
        """
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
        piece = self.slice(automaton.chars.alphabet.limits(classes))
        chain = chain[: piece.longest + 1]
        most = len(chain) - 1  # so many characters of the set may follow
        mask = self._mask(piece, most)
        self._add_begun(mask, automaton.chars, chain, piece)
        along = np.array([automaton.state_of(c) for c in chain], np.int32)
        seen = most + 1
        for ids in self._walk_rest(automaton, along, piece):
            set_bits(mask, ids)
            seen += 1
        return mask, seen

    def _add_begun(self, mask: bytearray, chars: Automaton, chain: list[int], piece: Slice) -> None:
        """Allow the tokens that end within a character which the chain's states let come."""
        start = count = 0
        for state, same in groupby(chain):
            count += len(list(same))
            stop = int(piece.num_begun[count - 1])
            goes_on = self._goes_on(chars.alphabet.limits(chars.wanted(state)))
            set_bits(mask, piece.begun[start:stop][goes_on[piece.which[start:stop]]])
            start = stop

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
            states = automaton.table[rows, self._arrays.joined[at]]
            alive = states.nonzero()[0]
            tokens, at, states = tokens[alive], at[alive] + 1, states[alive]


def spread(firsts: Int, counts: Int) -> Int:
    """All members of stretches of numbers.

    >>> spread(np.array([5, 9]), np.array([3, 1])).tolist()
    [5, 6, 7, 9]
    """
    ends = counts.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(firsts - ends + counts, counts) + np.arange(total)

"""The tokens of a vocabulary, cut by how many characters of one set they begin with.

    X = [a-z ]        "hello" -> 5 of X and nothing else        " or\\"," -> 3 of X, and then \\",

Made once for each set and shared by all patterns; what they are for is in wide_walk.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from minisgl.fsm.begun import code_points
from minisgl.fsm.mask_bits import set_bits
from minisgl.fsm.token_arrays import TokenArrays

Int = npt.NDArray[np.int64]
Bool = npt.NDArray[np.bool_]


@dataclass(frozen=True, eq=False)
class Slice:
    """The tokens by how many characters of one set they begin with."""

    whole: Int = field(repr=False)  # tokens of nothing else, shortest first
    num_whole: Int = field(repr=False)  # [longest + 1] how many of them have at most so many
    longest: int  # the most characters of the set in any token
    # The same of the tokens of the set and then the first bytes of a character:
    begun: Int = field(repr=False)
    num_begun: Int = field(repr=False)  # [longest + 1]
    which: Int = field(repr=False)  # [begun] those bytes, an index into `Slices.begins`
    # The other tokens, in groups that begin with as many of the set and then the same character:
    rest: Int = field(repr=False)
    at: Int = field(repr=False)  # where, in all bytes, what comes after that character stands
    num_groups: Int = field(repr=False)  # [longest + 1] as above
    chars: Int = field(repr=False)  # [groups] how many of the set
    char: Int = field(repr=False)  # [groups] that character, an index into the code points
    first: Int = field(repr=False)  # [groups] where in `rest` each begins
    size: Int = field(repr=False)  # [groups]
    masks: dict[int, bytes] = field(repr=False, default_factory=dict)  # see `Slices.mask`


class Slices:
    """The slices of a vocabulary by any set of characters, each made when it is first asked for.

    Args:
        arrays: of the vocabulary.
        vocab_size: how many ids it has.

    Attributes:
        longest: the most characters of any token.
        slice: the slice by a set, which is given as `Alphabet.limits` gives it.
        contains: of a set, which of the vocabulary's code points are in it.  # [code points]
        begins: of a set, which first bytes may become a character of it.  # [those bytes]
    """

    def __init__(self, arrays: TokenArrays, vocab_size: int) -> None:
        self._arrays = arrays
        self.longest = int(arrays.num_chars.max(initial=0))
        self._first = arrays.num_chars.cumsum() - arrays.num_chars  # character of each token
        self._token = np.repeat(np.arange(len(arrays.num_chars)), arrays.num_chars)  # of each
        self._place = np.arange(len(arrays.char)) - self._first[self._token]  # and where in it
        self._mask_size = 4 * -(-vocab_size // 32)  # bytes
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
        self.begins = lru_cache(maxsize=128)(self._find_beginnings)
        self.contains = lru_cache(maxsize=128)(self._find_contained)

    def _slice(self, limits: bytes) -> Slice:
        """The tokens cut after their first characters of a set."""
        arrays = self._arrays
        outside = (~self.contains(limits)[arrays.char]).nonzero()[0][::-1]
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
        char = arrays.char[self._first[rest] + count[rest]]
        group = count[rest] * len(arrays.code_points) + char
        order = np.argsort(group, kind="stable")
        rest, char = rest[order], char[order]
        _, first, size = np.unique(group[order], return_index=True, return_counts=True)
        points = arrays.code_points[char]
        num_bytes = 1 + (points >= 0x80) + (points >= 0x800) + (points >= 0x10000)
        upto = np.arange(longest + 1)
        return Slice(
            whole=arrays.ids[whole],
            num_whole=np.searchsorted(count[whole], upto, side="right"),
            longest=longest,
            begun=arrays.ids[begun],
            num_begun=np.searchsorted(count[begun], upto, side="right"),
            which=self._begun[begun],
            rest=arrays.ids[rest],
            at=arrays.start[rest] + offset[rest] + num_bytes,
            num_groups=np.searchsorted(count[rest][first], upto, side="right"),
            chars=count[rest][first],
            char=char[first],
            first=first,
            size=size,
        )

    def _find_contained(self, limits: bytes) -> Bool:
        """Which of the vocabulary's code points are in a set.  # [code points]"""
        edges = np.frombuffer(limits, np.int32)
        inside: Bool = np.searchsorted(edges, self._arrays.code_points, side="right") % 2 == 1
        return inside

    def _find_beginnings(self, limits: bytes) -> Bool:
        """Which of the begun characters may become one of a set.  # [begun characters]"""
        starts, stops = np.frombuffer(limits, np.int32).reshape(-1, 2).T
        first, stop = self._may_become.T
        # The ranges that begin before its end, against those that end before it begins.
        overlap = np.searchsorted(starts, stop) > np.searchsorted(stops, first, side="right")
        begins: Bool = overlap & (first < stop)
        return begins

    def mask(self, piece: Slice, most: int) -> bytearray:
        """The mask of the tokens of at most so many characters, all of the set."""
        known = piece.masks.get(most)
        if known is None:
            mask = bytearray(self._mask_size)
            set_bits(mask, piece.whole[: piece.num_whole[most]])
            known = piece.masks[most] = bytes(mask)
        return bytearray(known)


def spread(firsts: Int, counts: Int) -> Int:
    """All members of stretches of numbers.

    >>> spread(np.array([5, 9]), np.array([3, 1])).tolist()
    [5, 6, 7, 9]
    """
    ends = counts.cumsum()
    total = int(ends[-1]) if len(ends) else 0
    return np.repeat(firsts - ends + counts, counts) + np.arange(total)

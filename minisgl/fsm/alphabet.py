"""A pattern's own alphabet: characters that no part of it tells apart are one class.

`[a-z]+@[a-f]` knows four: a-f, g-z, @, and everything else.  A set of classes is an int with a
bit for each, so that "is there any of these in those" is one `&`, whatever the size of the sets.
Class 0 is what no part of the pattern can match, and what is no character (half a surrogate pair).

Below the characters are their bytes in UTF-8.  A *block* is a stretch of code points whose bytes
begin alike, and so it is what may follow the first bytes of a character:

    é is C3 A9      first byte C3 -> the block U+00C0..U+00FF      its byte A9 -> U+00E9

If all characters of a block are of one class, it isn't looked into any further.  Forms that UTF-8
forbids (overlong, surrogates, beyond U+10FFFF) are class 0, so no automaton accepts them.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from minisgl.fsm.charset import MAX_CHAR, Ranges

Int = npt.NDArray[np.int64]

MAX_SETS = 4096  # different sets in one pattern
NEVER = 0  # the step of a byte that can't come here
_SURROGATES = (0xD800, 0xE000)
# By how many bytes follow the first: less would be overlong.
_SMALLEST = np.array([0, 0, 0x800, 0x10000])
# Of each first byte, how many follow, and the first code point (or beyond the last: never comes).
_LEAD_FOLLOWING = np.repeat([0, 0, 1, 2, 3, 0], [0x80, 0x42, 30, 16, 5, 11])
_LEAD_STARTS = np.concatenate(
    [
        np.arange(0x80),
        np.full(0x42, MAX_CHAR),
        64 * np.arange(2, 32),
        64**2 * np.arange(16),
        64**3 * np.arange(5),
        np.full(11, MAX_CHAR),
    ]
)


class Block:
    """What each byte leads to: a step, which is a number that holds two others.

    One byte more decides, and the step is `following` bytes of any value to a character of
    `char_class`; or it doesn't, and the step is to the block that begins at `start`, where
    `following` bytes select from.  `block_step` takes the latter
    apart.

    Args:
        first_byte: the bytes from this one on lead somewhere.
        step_of: what they lead to.
        inside_of: the classes there; class 0 among them if some of it is no character.

    Attributes:
        steps: each once.
        inside: the classes of each.
        step_of_byte: index into `steps`.  # [256]
        by_class: of a class the steps to it: index, and how many bytes follow.
        to_blocks: the indices of the steps to a block.
    """

    def __init__(self, first_byte: int, step_of: list[int], inside_of: list[int]) -> None:
        inside = {NEVER: 0}  # the step of the bytes that aren't given
        inside.update(zip(step_of, inside_of, strict=True))
        inside[NEVER] = 0  # whatever lies there
        self.steps, self.inside = list(inside), list(inside.values())
        index = {step: i for i, step in enumerate(self.steps)}
        self.step_of_byte: Int = np.zeros(256, np.int64)
        self.step_of_byte[first_byte : first_byte + len(step_of)] = [index[s] for s in step_of]
        self.by_class: dict[int, list[tuple[int, int]]] = {}
        self.to_blocks: list[int] = []
        for i, step in enumerate(self.steps[1:], 1):
            if step > 0:
                self.by_class.setdefault(step >> 2, []).append((i, step & 3))
            else:
                self.to_blocks.append(i)


def following(step: int) -> int:
    """How many bytes follow the one that a step is taken by."""
    return abs(step) & 3


def block_step(step: int) -> tuple[int, int]:
    """The first code point of the block that a step leads to, and how many bytes follow."""
    return -step >> 2, -step & 3


class Alphabet:
    """The classes of the given sets.

    Args:
        sets: some may be equal.

    Attributes:
        masks: of each set the classes that make it up.
        num_classes: they are numbered from 0; class 0 is what can't be matched.
        edges: where a stretch of characters of one class begins.  # [num_stretches]
        classes: the class of each.  # [num_stretches]
        root: the block of a character's first byte.
        ascii_of: how many characters of ASCII are in a class; not all classes are named.
    """

    def __init__(self, sets: Iterable[Ranges]) -> None:
        sets = list(sets)
        if len(sets) > MAX_SETS:
            raise ValueError(
                f"{len(sets)} different sets of characters; {MAX_SETS} in one pattern are known"
            )
        starts, stops = np.array([r for s in sets for r in s], np.int64).reshape(-1, 2).T
        column = np.repeat(np.arange(len(sets)), [len(s) for s in sets])  # the set of each range
        edges = np.unique(np.concatenate([[0, *_SURROGATES, MAX_CHAR], starts, stops]))
        changes = np.zeros((len(edges), max(len(sets), 1)), np.int8)
        changes[np.searchsorted(edges, starts), column] = 1
        changes[np.searchsorted(edges, stops), column] = -1
        edges = edges[:-1]
        member = np.cumsum(changes[:-1], axis=0, dtype=np.int8)  # [stretch, set]
        member[(edges >= _SURROGATES[0]) & (edges < _SURROGATES[1])] = 0
        # Stretches that are in the same sets are of one class; those in none, of class 0.
        packed = np.packbits(member, axis=1)
        in_which = packed.view(f"S{packed.shape[1]}").ravel()  # subtle: sorts b"", in none, first
        distinct, classes = np.unique(np.append(in_which, b""), return_inverse=True)
        self.classes: Int = classes[:-1]
        self.num_classes = len(distinct)
        in_sets = np.zeros((self.num_classes, member.shape[1]), np.int8)  # [class, set]
        in_sets[self.classes] = member
        columns = np.packbits(in_sets, axis=0, bitorder="little").T[: len(sets)]
        self.masks = [int.from_bytes(column.tobytes(), "little") for column in columns]
        is_edge = np.concatenate([[True], self.classes[1:] != self.classes[:-1]])
        self.edges, self.classes = edges[is_edge], self.classes[is_edge]
        bits = [1 << c for c in self.classes.tolist()] + [0]
        self._bits = np.array(bits, np.int64 if self.num_classes < 63 else object)
        self._ranges: dict[int, Ranges] = {}
        self._blocks: dict[tuple[int, int], Block] = {}
        self.root = self._block(0, _LEAD_STARTS, _LEAD_FOLLOWING)
        of_ascii = self.classes[np.searchsorted(self.edges, np.arange(128), side="right") - 1]
        self.ascii_of: dict[int, int] = dict(enumerate(np.bincount(of_ascii).tolist()))

    def class_of(self, char: int) -> int:
        """The class of a code point."""
        return int(self.classes[np.searchsorted(self.edges, char, side="right") - 1])

    def ranges(self, mask: int) -> Ranges:
        """The characters of some classes."""
        known = self._ranges.get(mask)
        if known is None:
            known = self._ranges[mask] = self._find_ranges(mask)
        return known

    def _find_ranges(self, mask: int) -> Ranges:
        wanted = [c for c in range(self.num_classes) if mask >> c & 1]
        inside = np.isin(self.classes, wanted)
        changes = np.flatnonzero(np.diff(inside, prepend=False, append=False))
        edges = np.concatenate([self.edges, [MAX_CHAR]])[changes].tolist()
        return tuple(zip(edges[::2], edges[1::2], strict=True))

    # ------------------------------------------------------------------ bytes

    def block(self, start: int, following: int) -> Block:
        """The block from `start` on, of 64 to the power of `following` code points."""
        known = self._blocks.get((start, following))
        if known is None:
            starts = start + 64 ** (following - 1) * np.arange(64)
            starts[starts + 64 ** (following - 1) <= _SMALLEST[following]] = MAX_CHAR
            known = self._block(0x80, starts, np.full(64, following - 1))
            self._blocks[start, following] = known
        return known

    def _block(self, first_byte: int, starts: Int, following: Int) -> Block:
        """The block whose bytes from `first_byte` on lead to the stretches from `starts` on."""
        stops = starts + 64**following
        smallest = _SMALLEST[following]
        first = np.searchsorted(self.edges, np.maximum(starts, smallest), side="right") - 1
        last = np.searchsorted(self.edges, stops, side="left")
        is_whole = (starts >= smallest) & (stops <= MAX_CHAR)
        classes = self.classes[first]
        decided = (last - first == 1) & is_whole
        steps = np.where(decided, classes << 2 | following, -(starts << 2 | following))
        steps[(starts >= MAX_CHAR) | (decided & (classes == 0))] = NEVER
        ends = np.stack([first, np.minimum(last, len(self.edges))], axis=1).ravel()
        inside = np.bitwise_or.reduceat(self._bits, ends)[::2]
        inside = np.where(is_whole, inside, inside | 1)
        return Block(first_byte, steps.tolist(), inside.tolist())

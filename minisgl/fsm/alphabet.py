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

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from minisgl.fsm.charset import MAX_CHAR, Ranges

Int = npt.NDArray[np.int64]

MAX_SETS = 4096  # different sets in one pattern
NEVER = 0  # the step of a byte that can't come here
_SURROGATES = (0xD800, 0xE000)
_SMALLEST = (0, 0, 0x800, 0x10000)  # by how many bytes follow the first: less would be overlong


@dataclass(frozen=True, eq=False)
class Block:
    """What each byte leads to: a step, which is a number that holds two others.

    One byte more decides, and the step is `following` bytes of any value to a character of
    `char_class`; or it doesn't, and the step is to the block that begins at `start`, where
    `following` bytes select from.  `whole_step` and `block_step` tell which.
    """

    steps: list[int] = field(repr=False)  # each once
    step_of_byte: Int = field(repr=False)  # index into `steps`  # [256]


def whole_step(step: int) -> tuple[int, int] | None:
    """The class and how many bytes of any value follow; None if the step is to a block."""
    return (step >> 2, step & 3) if step >= 0 else None


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
        ascii_of: how many characters of ASCII are in each class that has some.
    """

    def __init__(self, sets: Iterable[Ranges]) -> None:
        sets = list(sets)
        if len(sets) > MAX_SETS:
            raise ValueError(
                f"{len(sets)} different sets of characters; {MAX_SETS} in one pattern are known"
            )
        arrays = [np.array(ranges, np.int64).reshape(-1, 2) for ranges in sets]
        fixed = np.array([0, *_SURROGATES], np.int64)
        edges = np.unique(np.concatenate([fixed, *(array.ravel() for array in arrays)]))
        edges = edges[edges < MAX_CHAR]
        member = np.zeros((len(edges), len(sets)), bool)  # [stretch, set]
        for column, array in enumerate(arrays):
            changes = np.zeros(len(edges) + 1, np.int8)
            bounds = np.searchsorted(edges, array)
            changes[bounds[:, 0]] += 1
            changes[bounds[:, 1]] -= 1
            member[:, column] = np.cumsum(changes[:-1])
        member[(edges >= _SURROGATES[0]) & (edges < _SURROGATES[1])] = False
        class_of: dict[bytes, int] = {bytes((len(sets) + 7) // 8): 0}
        packed = np.packbits(member, axis=1)
        classes = [class_of.setdefault(row.tobytes(), len(class_of)) for row in packed]
        self.masks = [0] * len(sets)
        firsts = {c: stretch for stretch, c in reversed(list(enumerate(classes)))}
        for number, stretch in firsts.items():
            for column in np.flatnonzero(member[stretch]).tolist():
                self.masks[column] |= 1 << number
        self.num_classes = len(class_of)
        self.classes: Int = np.array(classes, np.int64)
        is_edge = np.concatenate([[True], self.classes[1:] != self.classes[:-1]])
        self.edges, self.classes = edges[is_edge], self.classes[is_edge]
        self._ranges: dict[int, Ranges] = {}
        self._blocks: dict[tuple[int, int], Block] = {}
        self._classes_in: dict[tuple[int, int], int] = {}
        self.root = self._root()
        self.ascii_of: dict[int, int] = Counter(
            self.root.steps[i] >> 2 for i in self.root.step_of_byte[:128].tolist()
        )

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
            size = 64 ** (following - 1)
            starts = start + size * np.arange(64)
            steps = self._steps(starts, size, following - 1, smallest=_SMALLEST[following])
            known = self._blocks[start, following] = self._block(0x80, steps)
        return known

    def _root(self) -> Block:
        leads = [np.zeros(0xC2 - 0x80, np.int64)]  # no character begins with these bytes
        for first, last, following in ((0xC2, 0xE0, 1), (0xE0, 0xF0, 2), (0xF0, 0xF5, 3)):
            size = 64**following
            starts = size * np.arange(last - first) + (size * 2 if following == 1 else 0)
            leads.append(self._steps(starts, size, following))
        return self._block(0, np.concatenate([self._steps(np.arange(128), 1, 0), *leads]))

    def _steps(self, starts: Int, size: int, following: int, smallest: int = 0) -> Int:
        """The steps into the stretches of `size` code points from each of `starts` on."""
        first = np.searchsorted(self.edges, starts, side="right") - 1
        last = np.searchsorted(self.edges, starts + size, side="left")
        classes = self.classes[first]
        whole = (last - first == 1) & (starts >= _SMALLEST[following]) & (starts + size <= MAX_CHAR)
        steps: Int = np.where(
            whole,
            np.where(classes > 0, classes << 2 | following, NEVER),
            -(starts << 2 | following),
        )
        steps[(starts + size <= smallest) | (starts >= MAX_CHAR)] = NEVER
        return steps

    def _block(self, first_byte: int, steps: Int) -> Block:
        """The block where the bytes from `first_byte` on lead to `steps`; all others to `NEVER`."""
        of_byte = np.zeros(256, np.int64)
        of_byte[first_byte : first_byte + len(steps)] = steps
        distinct, step_of_byte = np.unique(of_byte, return_inverse=True)
        return Block(distinct.tolist(), step_of_byte)

    def classes_in(self, start: int, following: int) -> int:
        """The classes in a block; class 0 among them if some of its bytes are no character."""
        known = self._classes_in.get((start, following))
        if known is None:
            known = self._classes_in[start, following] = self._find_classes(start, following)
        return known

    def _find_classes(self, start: int, following: int) -> int:
        stop = start + 64**following
        found = int(start < _SMALLEST[following] or stop > MAX_CHAR)
        start = max(start, _SMALLEST[following])  # what lies below has a shorter form
        first = int(np.searchsorted(self.edges, start, side="right")) - 1
        last = int(np.searchsorted(self.edges, stop, side="left"))
        for number in set(self.classes[first:last].tolist()):
            found |= 1 << number
        return found

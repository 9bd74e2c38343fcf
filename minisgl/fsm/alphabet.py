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

MAX_SETS = 4096  # different sets in one pattern
_SURROGATES = (0xD800, 0xE000)
_SMALLEST = (0, 0, 0x800, 0x10000)  # by how many bytes follow the first: less would be overlong


@dataclass(frozen=True, eq=False)
class Block:
    """What each byte leads to, as an index into `steps`; step 0 is never."""

    steps: list[Step] = field(repr=False)
    step_of_byte: npt.NDArray[np.int64] = field(repr=False)  # [256]
    classes: int = field(repr=False)  # all that occur in it
    following: int  # how many bytes follow the byte that is read here, at most


@dataclass(frozen=True)
class Step:
    """One byte's outcome: `char_class` when `following` more bytes of any value are read, or, if
    it depends on them, the block that they select from (its first code point)."""

    char_class: int
    following: int
    start: int | None = None


NEVER = Step(0, 0)


class Alphabet:
    """The classes of the given sets.

    Attributes:
        num_classes: they are numbered from 0; class 0 is what can't be matched.
        edges: where a stretch of characters of one class begins.  # [num_stretches]
        classes: the class of each.  # [num_stretches]
        root: the block of a character's first byte.
        ascii_of: how many characters of ASCII are in each class that has some.
    """

    def __init__(self, sets: Iterable[Ranges]) -> None:
        distinct = list(dict.fromkeys(sets))
        if len(distinct) > MAX_SETS:
            raise ValueError(
                f"{len(distinct)} different sets of characters; {MAX_SETS} in one pattern are known"
            )
        inner = {edge for ranges in distinct for r in ranges for edge in r}
        edges = np.array(sorted(inner | {0, *_SURROGATES} - {MAX_CHAR}), np.int64)
        member = np.zeros((len(edges), len(distinct)), bool)  # [stretch, set]
        for column, ranges in enumerate(distinct):
            bounds = np.searchsorted(edges, np.array(ranges, np.int64).reshape(-1, 2))
            for first, last in bounds.tolist():
                member[first:last, column] = True
        member[(edges >= _SURROGATES[0]) & (edges < _SURROGATES[1])] = False
        class_of: dict[bytes, int] = {bytes((len(distinct) + 7) // 8): 0}
        packed = np.packbits(member, axis=1)
        classes = [class_of.setdefault(row.tobytes(), len(class_of)) for row in packed]
        self._masks = dict.fromkeys(distinct, 0)
        firsts = {c: stretch for stretch, c in reversed(list(enumerate(classes)))}
        for number, stretch in firsts.items():
            for column in np.flatnonzero(member[stretch]).tolist():
                self._masks[distinct[column]] |= 1 << number
        self.num_classes = len(class_of)
        self.classes = np.array(classes, np.int64)
        is_edge = np.concatenate([[True], self.classes[1:] != self.classes[:-1]])
        self.edges, self.classes = edges[is_edge], self.classes[is_edge]
        self._ranges: dict[int, Ranges] = {}
        self._blocks: dict[tuple[int, int], Block] = {}
        self.root = self._root()
        self.ascii_of: dict[int, int] = Counter(
            self.root.steps[i].char_class for i in self.root.step_of_byte[:128].tolist() if i
        )

    def mask(self, ranges: Ranges) -> int:
        """The classes that make up one of the sets, a bit for each."""
        return self._masks[ranges]

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
        stops = [*self.edges[1:].tolist(), MAX_CHAR]
        found: list[tuple[int, int]] = []
        for start, stop, number in zip(
            self.edges.tolist(), stops, self.classes.tolist(), strict=True
        ):
            if mask >> number & 1:
                if found and found[-1][1] == start:
                    found[-1] = (found[-1][0], stop)
                else:
                    found.append((start, stop))
        return tuple(found)

    # ------------------------------------------------------------------ bytes

    def block(self, start: int, following: int) -> Block:
        """The block from `start` on, of 64 to the power of `following` code points."""
        known = self._blocks.get((start, following))
        if known is None:
            size = 64 ** (following - 1)
            starts = start + size * np.arange(64)
            steps = self._steps(starts, size, following - 1, smallest=_SMALLEST[following])
            known = self._blocks[start, following] = self._block(
                dict(zip(range(0x80, 0xC0), steps, strict=True)), following - 1
            )
        return known

    def _root(self) -> Block:
        step_of = dict(enumerate(self._steps(np.arange(128), 1, 0)))
        for first, last, following in ((0xC2, 0xE0, 1), (0xE0, 0xF0, 2), (0xF0, 0xF5, 3)):
            size = 64**following
            starts = size * np.arange(last - first) + (size * 2 if following == 1 else 0)
            step_of |= zip(range(first, last), self._steps(starts, size, following), strict=True)
        return self._block(step_of, 3)

    def _steps(
        self, starts: npt.NDArray[np.int64], size: int, following: int, smallest: int = 0
    ) -> list[Step]:
        """The steps into the stretches of `size` code points from each of `starts` on."""
        first = np.searchsorted(self.edges, starts, side="right") - 1
        last = np.searchsorted(self.edges, starts + size, side="left")
        classes = self.classes[first]
        whole = (last - first == 1) & (starts >= _SMALLEST[following]) & (starts + size <= MAX_CHAR)
        some = (starts + size > smallest) & (starts < MAX_CHAR)
        return [
            (Step(c, following) if is_whole else Step(0, following, at)) if is_some else NEVER
            for c, is_whole, is_some, at in zip(
                classes.tolist(), whole.tolist(), some.tolist(), starts.tolist(), strict=True
            )
        ]

    def _block(self, step_of: dict[int, Step], following: int) -> Block:
        """The block whose bytes lead to `step_of`; all others to `NEVER`."""
        numbers: dict[Step, int] = {NEVER: 0}
        step_of_byte = np.zeros(256, np.int64)
        classes = 0
        for byte, step in step_of.items():
            if step.start is None:
                step = step if step.char_class else NEVER
                classes |= 1 << step.char_class
            else:
                classes |= self._classes_in(step.start, 64**step.following)
            step_of_byte[byte] = numbers.setdefault(step, len(numbers))
        return Block(list(numbers), step_of_byte, classes, following)

    def _classes_in(self, start: int, size: int) -> int:
        """Those from `start` on; class 0 too if some of them have no such bytes."""
        first = int(np.searchsorted(self.edges, start, side="right")) - 1
        last = int(np.searchsorted(self.edges, start + size, side="left"))
        found = 0
        for number in set(self.classes[first:last].tolist()):
            found |= 1 << number
        overlong = size > 64 and start == 0
        return found | (overlong or start + size > MAX_CHAR)

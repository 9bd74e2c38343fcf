"""A pattern's own alphabet: characters that no part of it tells apart are one class.

`[a-z]+@[a-f]` knows four: a-f, g-z, @, and everything else.  A set of classes is an int with a
bit for each, so that "is there any of these in those" is one `&`, whatever the size of the sets.
Class 0 is what no part of the pattern can match, and what is no character (half a surrogate pair).

Below the characters are their bytes in UTF-8.  A *block* is a stretch of code points whose bytes
begin alike, and so it is what may follow the first bytes of a character:

    é is C3 A9      first byte C3 -> the block U+00C0..U+00FF      its byte A9 -> U+00E9

If all characters of a block are of one class, it isn't looked into any further.  Forms that UTF-8
forbids (overlong, surrogates, beyond U+10FFFF) are class 0, so no automaton accepts them.

All of it is made of stretches, not of characters: a pattern has few, and a class of a thousand
ranges, as `\\w`, has two thousand.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate, chain, pairwise
from operator import xor

import numpy as np

from minisgl.fsm.charset import MAX_CHAR, Ranges

MAX_SETS = 4096  # different sets in one pattern
_SURROGATES = (0xD800, 0xE000)
# By how many bytes follow the first: a smaller code point has a shorter form, the only one allowed.
_SMALLEST = (0, 0x80, 0x800, 0x10000)


BlockName = tuple[int, int]  # the first code point, and how many bytes select one


class Block:
    """What the next byte of a character may be, and what each leads to.

    Attributes:
        of_class: of a class the bytes after which it is certain, as stretches: (first, one after
            the last, how many bytes of any value follow).
        classes: those of `of_class`, a bit for each.
        to_blocks: the bytes after which another block decides: (byte, that block, the classes
            there; class 0 among them if some of it is no character).
    """

    def __init__(self) -> None:
        self.of_class: dict[int, list[tuple[int, int, int]]] = {}
        self.classes = 0
        self.to_blocks: list[tuple[int, BlockName, int]] = []


class Alphabet:
    """The classes of the given sets.

    Args:
        sets: some may be equal.

    Attributes:
        masks: of each set the classes that make it up.
        num_classes: they are numbered from 0; class 0 is what can't be matched.
        edges: where a stretch of characters of one class begins, and where the last ends.
        classes: the class of each stretch.
        root: the block of a character's first byte.
    """

    def __init__(self, sets: Iterable[Ranges]) -> None:
        sets = list(sets)
        if len(sets) > MAX_SETS:
            raise ValueError(
                f"{len(sets)} different sets of characters; {MAX_SETS} in one pattern are known"
            )
        # At which code points which sets begin or end: a bit for each set.
        changes = dict.fromkeys((0, *_SURROGATES, MAX_CHAR), 0)
        for i, ranges in enumerate(sets):
            new = dict.fromkeys(chain.from_iterable(ranges), 1 << i)
            for edge in new.keys() & changes.keys():
                new[edge] ^= changes[edge]
            changes.update(new)
        self.edges = sorted(changes)
        members = list(accumulate(map(changes.__getitem__, self.edges[:-1]), xor))  # of stretches
        first, stop = (bisect_left(self.edges, edge) for edge in _SURROGATES)
        members[first:stop] = [0] * (stop - first)
        class_of = {m: i for i, m in enumerate(dict.fromkeys([0, *members]))}
        self.classes = [class_of[member] for member in members]
        self.num_classes = len(class_of)
        self.masks = _transposed(list(class_of), len(sets))
        last = bisect_left(self.edges, 128)
        sizes = [min(stop, 128) - start for start, stop in pairwise(self.edges[: last + 1])]
        self._ascii = list(zip(self.classes[:last], sizes, strict=True))
        self._num_ascii: dict[int, int] = {}
        self._ranges: dict[int, Ranges] = {}
        self._limits: dict[int, bytes] = {}
        self._blocks: dict[BlockName, Block] = {}
        self.root = self._root()

    def class_of(self, char: int) -> int:
        """The class of a code point."""
        return self.classes[bisect_right(self.edges, char) - 1]

    def ranges(self, mask: int) -> Ranges:
        """The characters of some classes."""
        known = self._ranges.get(mask)
        if known is None:
            found: list[tuple[int, int]] = []
            for char_class, (start, stop) in zip(self.classes, pairwise(self.edges), strict=True):
                if mask >> char_class & 1:
                    if found and found[-1][1] == start:
                        start = found.pop()[0]
                    found.append((start, stop))
            known = self._ranges[mask] = tuple(found)
        return known

    def num_ascii(self, mask: int) -> int:
        """How many characters of ASCII some classes have."""
        known = self._num_ascii.get(mask)
        if known is None:
            known = sum(size for c, size in self._ascii if mask >> c & 1)
            self._num_ascii[mask] = known
        return known

    def limits(self, mask: int) -> bytes:
        """The ranges of some classes as an array of int32 in bytes: a key that is hashed once."""
        known = self._limits.get(mask)
        if known is None:
            flat = list(chain.from_iterable(self.ranges(mask)))
            known = self._limits[mask] = np.array(flat, np.int32).tobytes()
        return known

    # ------------------------------------------------------------------ bytes

    def block(self, name: BlockName) -> Block:
        """The block of 64 to the power of name[1] code points."""
        known = self._blocks.get(name)
        if known is None:
            known = self._blocks[name] = Block()
            start, following = name
            first, stop = max(start, _SMALLEST[following]), start + 64**following
            byte = 0x80 + (first - start) // 64 ** (following - 1)
            self._fill(known, byte, first, min(stop, MAX_CHAR), following - 1)
        return known

    def _root(self) -> Block:
        """The first byte, by how many follow; below E0, F0 and F4 some lies out of bounds."""
        root = Block()
        self._fill(root, 0x00, 0, 0x80, 0)
        self._fill(root, 0xC2, 0x80, 0x800, 1)
        root.to_blocks.append((0xE0, (0, 2), self._inside(0x800, 0x1000) | 1))
        self._fill(root, 0xE1, 0x1000, 0x10000, 2)
        root.to_blocks.append((0xF0, (0, 3), self._inside(0x10000, 0x40000) | 1))
        self._fill(root, 0xF1, 0x40000, 0x100000, 3)
        root.to_blocks.append((0xF4, (0x100000, 3), self._inside(0x100000, MAX_CHAR) | 1))
        return root

    def _inside(self, start: int, stop: int) -> int:
        """The classes of a stretch of code points."""
        first = bisect_right(self.edges, start) - 1
        return sum(1 << c for c in set(self.classes[first : bisect_left(self.edges, stop)]))

    def _fill(self, block: Block, byte: int, start: int, stop: int, following: int) -> None:
        """Add the bytes from `byte` on; each has 64**following of the code points from `start`."""
        size = 64**following
        at = bisect_right(self.edges, start) - 1
        while start < stop:
            end = min(self.edges[at + 1], stop)
            alike = (end - start) // size  # so many bytes have characters of one class alone
            if alike:
                block.classes |= 1 << self.classes[at]
                bytes_of = block.of_class.setdefault(self.classes[at], [])
                bytes_of.append((byte, byte + alike, following))
                start += alike * size
                byte += alike
            else:
                inside = self._inside(start, start + size)
                block.to_blocks.append((byte, (start, following), inside))
                start += size
                byte += 1
            while self.edges[at + 1] <= start < stop:
                at += 1


def _transposed(rows: list[int], num_columns: int) -> list[int]:
    """The columns of a matrix of bits, each row and column an int.

    >>> _transposed([0b01, 0b11, 0b00], 2)
    [3, 2]
    """
    width = max(1, -(-num_columns // 8))
    data = b"".join(row.to_bytes(width, "little") for row in rows)
    packed = np.frombuffer(data, np.uint8).reshape(len(rows), width)
    bits = np.unpackbits(packed, axis=1, bitorder="little")  # [rows, columns]
    columns = np.packbits(bits, axis=0, bitorder="little").T[:num_columns]
    return [int.from_bytes(column.tobytes(), "little") for column in columns]

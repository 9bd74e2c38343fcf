"""The first bytes of a character, without its last: which characters it may become.

    E4 B8  ->  U+4E00..U+4E3F        one more byte, of any value

So whether some text may go on with E4 B8 is whether a character of this stretch may come next.
"""

from __future__ import annotations

from minisgl.fsm.charset import MAX_CHAR

# By the number of bytes in all: the first of the first bytes, and the smallest code point, since
# all below have a shorter form.
_FORMS = {2: (0xC0, 0x80), 3: (0xE0, 0x800), 4: (0xF0, 0x10000)}


def code_points(begun: bytes) -> tuple[int, int]:
    """The first and one after the last that begin so; equal if there are none.

    >>> [hex(c) for c in code_points(bytes([0xE4, 0xB8]))]
    ['0x4e00', '0x4e40']
    """
    for size, (lead, smallest) in _FORMS.items():
        if lead <= begun[0] < lead + (1 << 7 - size) and len(begun) < size:
            if any(byte & 0xC0 != 0x80 for byte in begun[1:]):
                break
            start = begun[0] - lead
            for byte in begun[1:]:
                start = start << 6 | byte & 0x3F
            bits_to_come = 6 * (size - len(begun))
            stop = start + 1 << bits_to_come
            start = max(start << bits_to_come, smallest)
            return start, max(start, min(stop, MAX_CHAR))
    return 0, 0

"""Stop strings on our own side: where an API takes too few of them, or was not told of them.

The stop string that is complete first counts, and of several that end at the same place the
longest, as in the engine.
"""

from __future__ import annotations

from collections.abc import Sequence


def cut(text: str, stops: Sequence[str]) -> tuple[str, str | None]:
    """What comes before the first stop string, and which it was.

    >>> cut("Paris\\nLyon.", [".", "\\n"])
    ('Paris', '\\n')
    >>> cut("Paris", [".", "\\n"])
    ('Paris', None)
    """
    ends = [(at + len(stop), at, stop) for stop in stops if (at := text.find(stop)) >= 0]
    if not ends:
        return text, None
    _, start, stop = min(ends)
    return text[:start], stop


class Trimmer:
    """`cut` of a text that comes in pieces; what may be the beginning of a stop string waits.

    >>> trimmer = Trimmer(["END"])
    >>> [trimmer.feed(piece) for piece in ["on", "e E", "L E", "ND two"]]
    ['on', 'e ', 'EL ', '']
    >>> trimmer.flush(), trimmer.matched
    ('', 'END')
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self.matched: str | None = None
        self._stops = stops
        self._held = ""

    def feed(self, piece: str) -> str:
        """The text that is certain with `piece`; "" after a stop string."""
        if self.matched is not None:
            return ""
        text, self.matched = cut(self._held + piece, self._stops)
        kept = 0 if self.matched is not None else self._possible(text)
        self._held = text[len(text) - kept :]
        return text[: len(text) - kept]

    def flush(self) -> str:
        """What has waited, when no more will come."""
        held, self._held = self._held, ""
        return held

    def _possible(self, text: str) -> int:
        """How many last characters may be the beginning of a stop string."""
        longest = max(map(len, self._stops), default=0)
        for size in range(min(longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                return size
        return 0

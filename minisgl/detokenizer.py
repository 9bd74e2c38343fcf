"""Text that grows as tokens come, and is never taken back.

    token bytes --> [incomplete character waits] --> [possible stop string waits] --> delta

Each token costs the same, however long the text is: nothing is decoded twice.  The deltas join to
`Tokenizer.decode` of all the ids, cut at the first stop string.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from minisgl.tokenizer import GrowingBytes, Tokenizer


class Detokenizer:
    """One request's text.

    Args:
        skip_special_tokens: leave special tokens out of the text.
        stop: texts that end it; the one that is complete first counts, and of several that end at
            the same character the longest.
        no_stop_trim: keep the stop string at the end.
        continues: the text goes on from a prompt, so SentencePiece's first space belongs to it.

    Attributes:
        stopped: the stop string that was met, or None.
        stop_token_ids: the ids of stop strings that are one special token, for a caller that looks
            at ids first and so never pushes them.

    >>> tokenizer = Tokenizer("a model's directory")                         # doctest: +SKIP
    >>> detokenizer = Detokenizer(tokenizer, stop=["STOP"])                  # doctest: +SKIP
    >>> [detokenizer.push([i]) for i in tokenizer.encode("ok STOP now")]     # doctest: +SKIP
    ['ok', ' ', '', '', '']
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool = True,
        stop: str | Sequence[str] = (),
        no_stop_trim: bool = False,
        continues: bool = False,
    ) -> None:
        self._stops = (stop,) if isinstance(stop, str) else tuple(stop)
        if "" in self._stops:
            raise ValueError(f"stop={stop!r}: an empty stop string would end every text at once")
        self._longest = max(map(len, self._stops), default=0)
        self._keeps_stop = no_stop_trim
        self.stop_token_ids = stop_token_ids(tokenizer, self._stops)
        # subtle: a special token that is a stop string is never skipped, or it would not be seen
        self._bytes = GrowingBytes(
            tokenizer,
            skipped=tokenizer.special_ids - self.stop_token_ids if skip_special_tokens else (),
            is_start=not continues,
        )
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""  # complete characters that may be the beginning of a stop string
        self._sent: list[str] = []
        self.stopped: str | None = None

    @property
    def text(self) -> str:
        """Every delta so far, joined."""
        if len(self._sent) > 1:
            self._sent = ["".join(self._sent)]
        return self._sent[0] if self._sent else ""

    def push(self, ids: Iterable[int], *, may_stop: bool = True) -> str:
        """What becomes certain with `ids`; "" after a stop string.

        `may_stop`: look for stop strings in what is added; False: whatever it is, it is text.
        """
        return self.push_bytes(self._bytes.push(ids), may_stop=may_stop)

    def push_bytes(self, data: bytes, *, may_stop: bool = True) -> str:
        """`push`, for text that comes as such: bytes in UTF-8, perhaps part of a character."""
        if self.stopped is not None:
            return ""
        new = self._characters.decode(data)
        return self._read(new) if may_stop else self._send(self._held + new, hold="")

    def finish(self) -> str:
        """All that was held back: no more ids come.  Half a character is one U+FFFD."""
        if self.stopped is not None:
            return ""
        delta = self._read(self._characters.decode(b"", final=True))
        return delta + self._send(self._held, hold="")

    def _read(self, new: str) -> str:
        text = self._held + new
        ends = [(at + len(s), at, s) for s in self._stops if (at := text.find(s)) >= 0]
        if ends:
            end, start, self.stopped = min(ends)
            return self._send(text[: end if self._keeps_stop else start], hold="")
        # Hold the longest tail that some stop string begins with.
        for length in range(min(len(text), self._longest - 1), 0, -1):
            tail = text[-length:]
            if any(s.startswith(tail) for s in self._stops):
                return self._send(text[:-length], hold=tail)
        return self._send(text, hold="")

    def _send(self, delta: str, hold: str) -> str:
        self._held = hold
        if delta:
            self._sent.append(delta)
        return delta


def stop_token_ids(tokenizer: Tokenizer, stop: Iterable[str]) -> frozenset[int]:
    """The ids of those stop strings that are one special token."""
    special = tokenizer.special_tokens
    return frozenset(special[s] for s in stop if s in special)

"""Text that grows as tokens come, and is never taken back.

    token bytes --> [incomplete character waits] --> [possible stop waits] --> delta

Each token costs the same, however long the text is: nothing is decoded or searched twice.  The
deltas join to `Tokenizer.decode` of all the ids, cut at the first stop string, or match of a stop
pattern.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable, Sequence

from minisgl.fsm import TooComplexError
from minisgl.fsm.search import Match, Search
from minisgl.tokenizer import GrowingBytes, Tokenizer


class Detokenizer:
    """One request's text.

    Args:
        skip_special_tokens: leave special tokens out of the text.
        stop: texts that end it; the one that is complete first counts, and of several that end at
            the same character the longest.
        stop_regex: patterns whose first match ends it; else as `stop`.
        no_stop_trim: keep the stop string, or the match, at the end.
        continues: the text goes on from a prompt, so SentencePiece's first space belongs to it.

    Attributes:
        stopped: the stop string or pattern that was met, or None.
        fault: why a pattern can't be looked for any more; the text goes on without it.
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
        stop_regex: Sequence[str] = (),
        no_stop_trim: bool = False,
        continues: bool = False,
    ) -> None:
        self._stops = (stop,) if isinstance(stop, str) else tuple(stop)
        if "" in self._stops:
            raise ValueError(f"stop={stop!r}: an empty stop string would end every text at once")
        self._longest = max(map(len, self._stops), default=0)
        self._searches = [Search(pattern) for pattern in stop_regex]
        self._keeps_stop = no_stop_trim
        self.stop_token_ids = stop_token_ids(tokenizer, self._stops)
        # subtle: a special token that is a stop string is never skipped, or it would not be seen
        self._bytes = GrowingBytes(
            tokenizer,
            skipped=tokenizer.special_ids - self.stop_token_ids if skip_special_tokens else (),
            is_start=not continues,
        )
        self._characters = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""  # complete characters that may be the beginning of a stop
        self._num_chars = 0  # complete ones so far
        self._sent: list[str] = []
        self.stopped: str | None = None
        self.fault: TooComplexError | None = None

    @property
    def text(self) -> str:
        """Every delta so far, joined."""
        if len(self._sent) > 1:
            self._sent = ["".join(self._sent)]
        return self._sent[0] if self._sent else ""

    def push(self, ids: Iterable[int], *, may_stop: bool = True) -> str:
        """What becomes certain with `ids`; "" after a stop.

        `may_stop`: look for stops in what is added; False: whatever it is, it is text.
        """
        return self.push_bytes(self._bytes.push(ids), may_stop=may_stop)

    def push_bytes(self, data: bytes, *, may_stop: bool = True) -> str:
        """`push`, for text that comes as such: bytes in UTF-8, perhaps part of a character."""
        if self.stopped is not None:
            return ""
        new = self._characters.decode(data)
        if may_stop:
            return self._read(new)
        for search in self._searches:
            search.skip(new)
        self._num_chars += len(new)
        return self._send(self._held + new)

    def finish(self) -> str:
        """All that was held back: no more ids come.  Half a character is one U+FFFD."""
        if self.stopped is not None:
            return ""
        delta = self._read(self._characters.decode(b"", final=True))
        return delta + self._send(self._held)

    def _read(self, new: str) -> str:
        text = self._held + new
        before = self._num_chars - len(self._held)  # characters that `text` does not have
        self._num_chars += len(new)
        ends = [(at + len(s), at, s) for s in self._stops if (at := text.find(s)) >= 0]
        for search in self._searches:
            match = self._match(search, new)
            if match is not None:
                ends.append((match.end - before, match.start - before, search.pattern))
        if ends:
            end, start, self.stopped = min(ends)
            return self._send(text[: end if self._keeps_stop else start])
        begun = [search.begun - before for search in self._searches if search.begun is not None]
        return self._send(text, hold_from=min([self._stop_begins(text), *begun]))

    def _match(self, search: Search, new: str) -> Match | None:
        try:
            return search.read(new)
        except TooComplexError as fault:
            self.fault = fault
            return None

    def _stop_begins(self, text: str) -> int:
        """Where the longest tail of `text` begins that some stop string begins with."""
        for length in range(min(len(text), self._longest - 1), 0, -1):
            if any(s.startswith(text[-length:]) for s in self._stops):
                return len(text) - length
        return len(text)

    def _send(self, text: str, hold_from: int | None = None) -> str:
        delta, self._held = (
            (text, "") if hold_from is None else (text[:hold_from], text[hold_from:])
        )
        if delta:
            self._sent.append(delta)
        return delta


def stop_token_ids(tokenizer: Tokenizer, stop: Iterable[str]) -> frozenset[int]:
    """The ids of those stop strings that are one special token."""
    special = tokenizer.special_tokens
    return frozenset(special[s] for s in stop if s in special)

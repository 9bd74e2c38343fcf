"""What a model's vocabulary is to its masks: made once, and shared by all patterns.

The tokens that a state allows are found over a tree of them (token_tree.py), or where a pattern
allows nearly all, from what is known of sets of characters (wide_walk.py).  Masks that are equal,
be it of different patterns, are one row of a table, so that a batch only says which rows it needs.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from minisgl.fsm.byte_automaton import ByteAutomaton
from minisgl.fsm.mask_bits import clear_bits, set_bits
from minisgl.fsm.token_arrays import Int, token_arrays
from minisgl.fsm.token_tree import TokenTree
from minisgl.fsm.vocab_cache import cached
from minisgl.fsm.wide_walk import WideWalk

Row = npt.NDArray[np.int32]


class VocabIndex:
    """The vocabulary of one model, made once and shared by all patterns.

    Args:
        token_bytes: what each token adds to a text; empty for ids that add nothing.
        stop_ids: the ids that end an answer, unless its guide is told of others; never text.
        special_ids: other ids whose tokens are no text, whatever their name.
        cache: a directory to keep what is made of the tokens in, for the next time.

    Attributes:
        vocab_size: how many ids there are.
        num_words: the length of a packed mask: a bit for each id, 32 to a word, low bits first.
        reach: the length of the longest token, in bytes.
        rows: the masks of all states that were asked for, each once.  # [capacity, num_words]
        num_rows: how many of the rows are in use.
        generation: how often they were dropped.

    Raises:
        ValueError: a stop id is no id of the vocabulary.
    """

    def __init__(
        self,
        token_bytes: Sequence[bytes],
        stop_ids: Collection[int] = (),
        special_ids: Collection[int] = (),
        *,
        cache: Path | None = None,
    ) -> None:
        self.vocab_size = len(token_bytes)
        self.num_words = -(-self.vocab_size // 32)
        self.stop_ids = self.checked_stop_ids(stop_ids)
        no_text = set(stop_ids) | set(special_ids)
        self._bytes = [
            b"" if i in no_text else data for i, data in enumerate(token_bytes)
        ]  # fmt: skip
        self._arrays = cached(self._bytes, cache) if cache else token_arrays(self._bytes)
        self._tree = TokenTree(self._arrays)
        self._wide = WideWalk(self._arrays, self.vocab_size)
        self.reach = int(self._arrays.length.max(initial=0))
        self.rows: Row = np.zeros((16, self.num_words), np.int32)
        self.num_rows = 0
        self._row_of: dict[bytes, int] = {}
        self.generation = 0
        self._lock = threading.Lock()

    def checked_stop_ids(self, stop_ids: Collection[int]) -> tuple[int, ...]:
        """Stop ids in order, each once.

        Raises:
            ValueError: one is no id of the vocabulary.
        """
        ordered = tuple(sorted(set(stop_ids)))
        if ordered and not 0 <= ordered[0] <= ordered[-1] < self.vocab_size:
            raise ValueError(
                f"stop ids {list(ordered)}: ids of this vocabulary are 0 to {self.vocab_size - 1}"
            )
        return ordered

    def text_of(self, token: int) -> bytes:
        """What the token adds to a text; empty if it is none."""
        return self._bytes[token] if 0 <= token < self.vocab_size else b""

    # ------------------------------------------------------------------ masks

    def walk(self, automaton: ByteAutomaton, state: int) -> tuple[bytearray, int]:
        """The mask of the tokens that may come next, and how many bytes the walk looked at.

        States that differ further on have the same tokens.
        """
        wide = self._wide.mask(automaton, state)
        if wide is not None:
            return wide
        mask = bytearray(4 * self.num_words)
        seen = 0
        for ids in self._tree.levels(automaton, state):
            set_bits(mask, ids)
            seen += 1
        if len(self._arrays.copies):
            set_bits(mask, self._copies_of(mask))
        return mask, seen

    def _copies_of(self, mask: bytearray) -> Int:
        """The ids of the tokens that have equal bytes as one that is allowed."""
        originals = self._arrays.originals
        allowed = np.frombuffer(mask, np.uint8)[originals >> 3] >> (originals & 7) & 1
        copies: Int = self._arrays.copies[allowed > 0]
        return copies

    def allows_longer(
        self, automaton: ByteAutomaton, state: int, start: bytes, stop_ids: tuple[int, ...]
    ) -> bool:
        """Whether a token that is no stop id begins with `start`, is longer, and may come next."""
        node, state = self._tree.find(start), automaton.walk(state, start)
        if node is None or not state:
            return False
        for ids in self._tree.levels(automaton, state, node):
            copies = self._arrays.copies[np.isin(self._arrays.originals, ids)]
            if not {*map(int, ids), *copies.tolist()} <= {*stop_ids}:
                return True
        return False

    def with_stops(self, mask: bytearray, stop_ids: tuple[int, ...], *, is_complete: bool) -> bytes:
        """A mask with the stop ids allowed if and only if the text is complete."""
        clear_bits(mask, stop_ids)
        if is_complete:
            set_bits(mask, stop_ids)
        return bytes(mask)

    def row(self, mask: bytes) -> int:
        """The number of the row of `rows` that holds this mask; equal masks share one."""
        with self._lock:
            number = self._row_of.get(mask)
            if number is None:
                number = self.num_rows
                if number == len(self.rows):
                    self.rows = np.concatenate([self.rows, np.zeros_like(self.rows)])
                self.rows[number] = np.frombuffer(mask, np.int32)
                self._row_of[mask] = number
                self.num_rows += 1
            return number

    def forget(self) -> None:
        """Drop all rows, for a server that has seen too many patterns; between two steps.

        Guides go on working, and find their masks anew.
        """
        with self._lock:
            self.rows, self.num_rows = np.zeros((16, self.num_words), np.int32), 0
            self._row_of.clear()
            self.generation += 1

    def gather(self, rows: Sequence[int]) -> Row:
        """The masks of a batch: one row of the table for each.  # [batch, num_words]"""
        return self.rows.take(rows, axis=0)

    def ids(self, mask: Row) -> list[int]:
        """The ids of a packed mask, in order."""
        return np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist()

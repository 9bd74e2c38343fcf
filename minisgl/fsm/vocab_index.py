"""The tokens of a vocabulary as a tree over their bytes, and the masks of states over it.

The tree is walked level by level, all nodes of a level at once: beside each node stands the
automaton's state after the bytes that lead there, and where that is the dead state, all tokens
below are left out.  A token is allowed if its last byte leads to a state that is not dead, since
from every such state a match can be reached.

    tokens "a", "ab", "b"            root ──a── a ──b── ab
                                          └─b── b
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from minisgl.fsm.byte_automaton import ByteAutomaton
from minisgl.fsm.slices import Slices, spread
from minisgl.fsm.token_arrays import Int, token_arrays
from minisgl.fsm.vocab_cache import cached

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
        self._slices = Slices(self._arrays)
        self.reach = int(self._arrays.length.max(initial=0))
        self.rows: Row = np.zeros((16, self.num_words), np.int32)
        self.num_rows = 0
        self._row_of: dict[bytes, int] = {}
        self.generation = 0
        self._lock = threading.Lock()
        self.no_ids: Int = np.zeros(0, np.int64)
        self._node_of = lru_cache(maxsize=4096)(self._find_node)

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

    def _find_node(self, start: bytes) -> int | None:
        """The node of a token's first bytes; None if no token begins so."""
        node = 0
        for byte in start:
            first = int(self._arrays.first_child[node])
            siblings = self._arrays.node_byte[first : first + int(self._arrays.num_children[node])]
            place = int(np.searchsorted(siblings, byte))
            if place == len(siblings) or siblings[place] != byte:
                return None
            node = first + place
        return node

    # ------------------------------------------------------------------ masks

    def walk(self, automaton: ByteAutomaton, state: int) -> tuple[Int, int]:
        """The ids of the tokens that may come next, in no order; of equal tokens one.

        And how many characters the walk saw: states that differ further on have the same tokens.
        """
        wide = self._slices.walk(automaton, state)
        if wide is not None:
            return wide
        levels = list(self._levels(automaton, state, 0))
        return np.concatenate([self.no_ids, *levels]), len(levels)

    def _levels(self, automaton: ByteAutomaton, state: int, node: int) -> Iterator[Int]:
        """The ids of the tokens below a node that live on, from the state there: level by level."""
        nodes, states = np.array([node], np.int64), np.array([state], np.int32)
        while len(nodes):
            rows = automaton.rows(states)
            counts = self._arrays.num_children[nodes]
            nodes = spread(self._arrays.first_child[nodes], counts)
            states = automaton.table[np.repeat(rows, counts), self._arrays.node_byte[nodes]]
            alive = states.nonzero()[0]
            nodes, states = nodes[alive], states[alive]
            ids = self._arrays.node_token[nodes]
            yield ids[ids >= 0]
            inner = self._arrays.num_children[nodes].nonzero()[0]
            nodes, states = nodes[inner], states[inner]

    def allows_longer(
        self, automaton: ByteAutomaton, state: int, start: bytes, stop_ids: tuple[int, ...]
    ) -> bool:
        """Whether a token that is no stop id begins with `start`, is longer, and may come next."""
        node, state = self._node_of(start), automaton.walk(state, start)
        if node is None or not state:
            return False
        for ids in self._levels(automaton, state, node):
            copies = self._arrays.copies[np.isin(self._arrays.originals, ids)]
            if not {*ids.tolist(), *copies.tolist()} <= {*stop_ids}:
                return True
        return False

    def pack(self, ids: Int, stop_ids: tuple[int, ...], *, is_complete: bool) -> Row:
        """A mask of these ids, and of the stop ids if and only if the text is complete.

        `ids` are as of `walk`; result  # [num_words]
        """
        bits = np.zeros(self.num_words * 32, np.uint8)
        bits[ids] = 1
        if len(self._arrays.copies):
            bits[self._arrays.copies] = bits[self._arrays.originals]
        bits[list(stop_ids)] = is_complete
        return np.packbits(bits, bitorder="little").view(np.int32)

    def row(self, mask: Row) -> int:
        """The number of the row of `rows` that holds this mask; equal masks share one."""
        key = mask.tobytes()
        with self._lock:
            number = self._row_of.get(key)
            if number is None:
                number = self.num_rows
                if number == len(self.rows):
                    self.rows = np.concatenate([self.rows, np.zeros_like(self.rows)])
                self.rows[number] = mask
                self._row_of[key] = number
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

"""The masks of a pattern over a vocabulary, each made when it is first asked for."""

from __future__ import annotations

import threading
from functools import lru_cache

from minisgl.fsm.automaton import ByteAutomaton
from minisgl.fsm.compressed import forced
from minisgl.fsm.vocab_index import VocabIndex

FINISHED = 0  # the state after a stop id, from which nothing goes on


class Masks:
    """The masks of a pattern's states over a vocabulary, each made when it is first asked for.

    Two states whose next bytes are the same, as far as the longest token reaches, have the same
    mask; so `.{0,500}` has as many as the longest token has bytes, and not 500.

    Args:
        automaton: of the pattern.
        vocab: of the model.
    """

    def __init__(self, automaton: ByteAutomaton, vocab: VocabIndex) -> None:
        self.automaton = automaton
        self.vocab = vocab
        self._row: dict[int, int] = {}
        self._generation = vocab.generation
        self._row_of_view: dict[object, int] = {}
        self._after: dict[tuple[int, int], int] = {}
        self._forced: dict[int, tuple[bytes, int]] = {}
        self._lock = threading.Lock()

    def row(self, state: int) -> int:
        """The number of the row of `vocab.rows` that holds the state's mask."""
        if self._generation != self.vocab.generation:
            self._row.clear()
            self._row_of_view.clear()
            self._generation = self.vocab.generation
        row = self._row.get(state)
        if row is None:
            with self._lock:
                row = self._row[state] = self._find_row(state)
        return row

    def _find_row(self, state: int) -> int:
        vocab, automaton = self.vocab, self.automaton
        if state == FINISHED:
            return vocab.row(vocab.pack(vocab.no_ids, is_complete=False))
        view = automaton.view(state, vocab.reach)
        row = self._row_of_view.get(view)
        if row is None:
            ids = vocab.walk(automaton, automaton.saturated(state, vocab.reach))
            row = vocab.row(vocab.pack(ids, is_complete=automaton.accepts(state)))
            self._row_of_view[view] = row
        return row

    def after(self, state: int, token: int) -> int:
        """The state after a token; 0 if it isn't allowed."""
        key = (state, token)
        after = self._after.get(key)
        if after is None:
            data = self.vocab.text_of(token)
            after = self._after[key] = self.automaton.walk(state, data) if data else 0
        return after

    def forced(self, state: int) -> tuple[bytes, int]:
        """What must come next, in whole characters, and the state after it."""
        known = self._forced.get(state)
        if known is None:
            known = self._forced[state] = forced(self.automaton, state)
        return known


@lru_cache(maxsize=256)
def masks_of(automaton: ByteAutomaton, vocab: VocabIndex) -> Masks:
    """The masks that all answers to a pattern share."""
    return Masks(automaton, vocab)

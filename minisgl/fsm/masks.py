"""The masks of a pattern over a vocabulary, each made when it is first asked for."""

from __future__ import annotations

from functools import lru_cache

from minisgl.fsm.byte_automaton import ByteAutomaton
from minisgl.fsm.compressed import forced
from minisgl.fsm.vocab_index import VocabIndex

FINISHED = 0  # the state after a stop id, from which nothing goes on
REACHES = (3, 8, 20)  # characters ahead that are compared before as many as the longest token has


class Masks:
    """The masks of a pattern's states over a vocabulary, each made when it is first asked for.

    Two states whose next characters are the same, as far as the tokens that are allowed there go,
    have the same mask; so `.{0,500}` has as many as the longest token has bytes, and not 500.

    Args:
        automaton: of the pattern.
        vocab: of the model.
        stop_ids: what ends the answer, in order: allowed where the text is complete, and only
            there, be they text elsewhere or not.
    """

    def __init__(
        self, automaton: ByteAutomaton, vocab: VocabIndex, stop_ids: tuple[int, ...]
    ) -> None:
        self.automaton = automaton
        self.vocab = vocab
        self.stop_ids = stop_ids
        self._row: dict[int, int] = {}
        self._generation = vocab.generation
        self._row_of_view: dict[int, dict[object, int]] = {}  # by how far the view reaches
        self._reaches = [reach for reach in REACHES if reach < vocab.reach] + [vocab.reach]
        self._forced: dict[int, tuple[bytes, int]] = {}
        self._must_end: dict[int, bool] = {}
        # Bounded: pairs of a state and a text are without number, while states are not.
        self.after = lru_cache(maxsize=65536)(self._find_after)
        self.allows_longer = lru_cache(maxsize=65536)(self._find_longer)

    def row(self, state: int) -> int:
        """The number of the row of `vocab.rows` that holds the state's mask."""
        if self._generation != self.vocab.generation:
            self._row.clear()
            self._row_of_view.clear()
            self._generation = self.vocab.generation
        row = self._row.get(state)
        if row is None:
            with self.automaton.lock:
                row = self._row[state] = self._find_row(state)
        return row

    def _find_row(self, state: int) -> int:
        vocab, automaton = self.vocab, self.automaton
        if state == FINISHED:
            return self._row_without_text(is_complete=False)
        saturated = automaton.saturated(state, vocab.reach)
        if saturated != state:  # `.{0,400}` is as good as `.*`, as far as one token goes
            return self.row(saturated)
        for reach, known in self._row_of_view.items():
            row = known.get(automaton.view(state, reach))
            if row is not None:
                return row
        mask, seen = vocab.walk(automaton, state)
        is_complete = automaton.accepts(state)
        row = vocab.row(vocab.with_stops(mask, self.stop_ids, is_complete=is_complete))
        # Most walks end early, and nothing that they didn't see makes a difference.
        reach = next(r for r in self._reaches if r >= min(seen, vocab.reach))
        self._row_of_view.setdefault(reach, {})[automaton.view(state, reach)] = row
        return row

    def _find_after(self, state: int, token: int) -> int | None:
        """The state after a token; None if it isn't allowed."""
        if token in self.stop_ids:
            return FINISHED if self.automaton.accepts(state) else None
        data = self.vocab.text_of(token)
        return (self.automaton.walk(state, data) or None) if data else None

    def forced(self, state: int) -> tuple[bytes, int]:
        """What must come next, in whole characters, and the state after it."""
        known = self._forced.get(state)
        if known is None:
            known = self._forced[state] = forced(self.automaton, state)
        return known

    def must_end(self, state: int) -> bool:
        """Whether the text is complete and no token but a stop id may follow."""
        known = self._must_end.get(state)
        if known is None:
            known = self.automaton.accepts(state) and (
                self.row(state) == self._row_without_text(is_complete=True)
            )
            self._must_end[state] = known
        return known

    def _row_without_text(self, *, is_complete: bool) -> int:
        """That of no token but the stop ids, or not even those."""
        mask = bytearray(4 * self.vocab.num_words)
        return self.vocab.row(
            self.vocab.with_stops(mask, self.stop_ids, is_complete=is_complete)
        )  # fmt: skip

    def _find_longer(self, state: int, start: bytes) -> bool:
        """Whether a token may come next that begins with `start` and is longer."""
        return self.vocab.allows_longer(self.automaton, state, start, self.stop_ids)


@lru_cache(maxsize=256)
def masks_of(automaton: ByteAutomaton, vocab: VocabIndex, stop_ids: tuple[int, ...]) -> Masks:
    """The masks that all answers to a pattern, with the same stop ids, share."""
    return Masks(automaton, vocab, stop_ids)

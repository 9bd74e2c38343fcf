"""A guide is one answer's place in a pattern: which tokens may come next, and which must.

automaton (one per pattern)  x  VocabIndex (one per model)  ->  Masks (shared, found as needed)
Guide (one per answer): the states after each of its tokens
"""

from __future__ import annotations

from collections.abc import Collection

from minisgl.fsm.byte_automaton import ByteAutomaton
from minisgl.fsm.masks import FINISHED, masks_of
from minisgl.fsm.vocab_index import Row, VocabIndex


class Guide:
    """The place of one answer in its pattern.

    Args:
        automaton: of the pattern.
        vocab: of the model.
        stop_ids: what ends this answer: allowed exactly where the text is complete, even if such
            a token is text elsewhere.  None: those of `vocab`; empty: it has no end.

    Attributes:
        masks: what it shares with all guides of the same pattern, model and stop ids.
        state: the automaton's state after all tokens so far; 0 once the answer has ended.

    Raises:
        ValueError: a stop id is no id of the vocabulary.
    """

    def __init__(
        self,
        automaton: ByteAutomaton,
        vocab: VocabIndex,
        stop_ids: Collection[int] | None = None,
    ) -> None:
        checked = vocab.stop_ids if stop_ids is None else vocab.checked_stop_ids(stop_ids)
        self.masks = masks_of(automaton, vocab, checked)
        self.state = automaton.start
        self._earlier: list[int] = []  # the state before each step

    @property
    def row(self) -> int:
        """The row of `masks.vocab.rows` that says which tokens may come next."""
        return self.masks.row(self.state)

    def allowed(self) -> Row:
        """The tokens that may come next, a bit for each id.  # [num_words]

        Stop ids are among them exactly where the text is complete.
        """
        number = self.row  # subtle: finding it may replace the table
        row: Row = self.masks.vocab.rows[number]
        return row

    def allows(self, token: int) -> bool:
        """Whether the token may come next."""
        return self.masks.after(self.state, token) is not None

    def allows_longer(self, start: bytes) -> bool:
        """Whether a token may come next that begins with `start` and is longer.

        So `start`, at the end of a forced text, isn't sure to stay a token of its own: the model
        may write one that goes beyond it.
        """
        return self.masks.allows_longer(self.state, start)

    def advance(self, token: int) -> None:
        """Go on by a token that the model chose.

        Raises:
            ValueError: it isn't allowed here; the guide stays where it is.
        """
        state = self.masks.after(self.state, token)
        if state is None:
            text = self.masks.vocab.text_of(token)
            raise ValueError(f"token {token} ({text!r}) isn't allowed here")
        self._earlier.append(self.state)
        self.state = state

    def jump(self) -> bytes:
        """The text that must come next, whatever the model would choose; empty if it may choose.

        In UTF-8, and whole characters: what is begun is completed, and nothing else is begun.
        """
        return b"" if self.state == FINISHED else self.masks.forced(self.state)[0]

    def advance_text(self, text: bytes) -> None:
        """Go on by a text, in one step: what `jump` gave, or a stretch of it.

        Raises:
            ValueError: it isn't allowed here; the guide stays where it is.
        """
        state = self.masks.automaton.walk(self.state, text)
        if not state:
            raise ValueError(f"the text {text!r} isn't allowed here")
        self._earlier.append(self.state)
        self.state = state

    def is_accepting(self) -> bool:
        """Whether the answer may end here."""
        return self.masks.automaton.accepts(self.state)

    @property
    def must_end(self) -> bool:
        """Whether the text is complete and no token but a stop id may follow.

        Then there is nothing to ask the model, and with no stop ids nothing that it could say.
        """
        return self.masks.must_end(self.state)

    @property
    def is_finished(self) -> bool:
        """Whether a stop id has ended it."""
        return self.state == FINISHED

    def rollback(self, steps: int) -> None:
        """Take back the last `steps` calls of `advance` and `advance_text`.

        Raises:
            ValueError: there were fewer.
        """
        if not 0 <= steps <= len(self._earlier):
            raise ValueError(f"can't take back {steps} of {len(self._earlier)} steps")
        if steps:
            self.state = self._earlier[-steps]
            del self._earlier[-steps:]

    def copy(self) -> Guide:
        """Another guide at the same place, for a fork: neither moves the other."""
        other = Guide(self.masks.automaton, self.masks.vocab, self.masks.stop_ids)
        other.state = self.state
        other._earlier = self._earlier.copy()
        return other

"""The automaton of a pattern over bytes of UTF-8.

Its states are those of the automaton over characters, and in between, for a character whose first
bytes are read, that state with the block that they select (alphabet.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from minisgl.fsm.alphabet import Block, block_step, following
from minisgl.fsm.automaton import Automaton, Edges

Int32 = npt.NDArray[np.int32]


class ByteAutomaton:
    """The automaton over bytes of UTF-8: a table of rows, each filled when it is first read.

    State 0 is dead: no match begins with these bytes.  From every other state one can accept.

    Attributes:
        chars: the automaton over characters below.
        start: the state where every text begins.
        lock: to be held while anything but a filled row is read; several engines may share it.
        table: the state after each byte, in rows that `rows` makes.  # [capacity, 256]
    """

    def __init__(self, chars: Automaton) -> None:
        self.chars = chars
        # A state within a character is a state of `chars` with the step to a block (which is
        # negative) or with how many bytes of any value are to come; between characters with 0.
        self._keys: list[tuple[int, int]] = [(-1, 0)]
        self._number: dict[tuple[int, int], int] = {}
        self.table: Int32 = np.zeros((64, 256), np.int32)
        self._num_rows = 1
        self._row: Int32 = np.full(64, -1, np.int32)  # of each state; -1: none yet
        self._row[0] = 0
        self.lock = threading.RLock()
        self.start = self._state(chars.start, 0)

    @property
    def num_states(self) -> int:
        """How many have come up, the dead one included."""
        return len(self._keys)

    def _state(self, state: int, within: int) -> int:
        key = (state, within)
        number = self._number.get(key)
        if number is None:
            number = self._number[key] = len(self._keys)
            self._keys.append(key)
            if number == len(self._row):
                self._row = np.concatenate([self._row, np.full_like(self._row, -1)])
        return number

    def step(self, state: int, byte: int) -> int:
        """The state after one more byte; 0 if no match begins so."""
        row = self._row[state]
        if row >= 0:
            return int(self.table[row, byte])
        with self.lock:  # one step; the whole row would be for the walk of a vocabulary
            chars, within = self._keys[state]
            if within > 0:
                return self._state(chars, within - 1) if 0x80 <= byte < 0xC0 else 0
            block = self._block(within)
            return self._target(chars, block, block.step_of_byte[byte], self.chars.edges(chars))

    def walk(self, state: int, data: bytes) -> int:
        """The state after more bytes; 0 if no match begins so."""
        for byte in data:
            state = self.step(state, byte)
            if not state:
                break
        return state

    def accepts(self, state: int) -> bool:
        """Whether the text that leads here matches."""
        chars, within = self._keys[state]
        if within != 0 or state == 0:
            return False
        with self.lock:
            return self.chars.accepts(chars)

    def starts_character(self, state: int) -> bool:
        """Whether the bytes that lead here are whole characters."""
        return self._keys[state][1] == 0

    def state_of(self, chars: int) -> int:
        """The state where `chars` stands at the start of a character."""
        return self._state(chars, 0)

    def saturated(self, state: int, reach: int) -> int:
        """A state whose next `reach` bytes lead on alike, with counts above that let go."""
        chars, within = self._keys[state]
        with self.lock:
            return self._state(self.chars.saturated(chars, reach), within)

    def chars_of(self, state: int) -> int:
        """The state over characters that this one is in, or in the next character of."""
        return self._keys[state][0]

    def view(self, state: int, reach: int) -> object:
        """Equal for states whose next `reach` bytes, and ends among them, are the same."""
        chars, within = self._keys[state]
        with self.lock:
            return self.chars.view(chars, reach), within

    def rows(self, states: Int32) -> Int32:
        """The rows of `table` of some states; made if they are missing.  # [N] -> [N]

        Making one may replace `table` by a larger one: read it afterwards.
        """
        rows = self._row[states]
        if rows.min(initial=0) < 0:
            with self.lock:
                for state in np.unique(states[rows < 0]).tolist():
                    self._make_row(state)
            rows = self._row[states]
        return rows

    def all_states(self) -> list[int]:
        """Every state that some bytes lead to, the dead one aside; there may be very many.

        Raises:
            TooComplexError: also a ValueError: more than the budget.
        """
        done: set[int] = {0}
        ahead = np.array([self.start], np.int32)
        while len(ahead):
            done.update(ahead.tolist())
            rows = self.rows(ahead)  # subtle: may replace the table
            following = np.unique(self.table[rows])
            ahead = np.array([s for s in following.tolist() if s not in done], np.int32)
        return sorted(done - {0})

    def _make_row(self, state: int) -> None:
        chars, within = self._keys[state]
        if within > 0:  # any byte of a character's rest
            row = np.zeros(256, np.int32)
            row[0x80:0xC0] = self._state(chars, within - 1)
        else:
            block = self._block(within)
            edges = self.chars.edges(chars)
            targets = [0] * len(block.steps)
            for target, classes in edges.items():
                for char_class in _bits(classes):
                    for i, num_more in block.by_class.get(char_class, ()):
                        targets[i] = self._state(target, num_more)
            for i in block.to_blocks:
                targets[i] = self._target(chars, block, i, edges)
            row = np.array(targets, np.int32)[block.step_of_byte]
        if self._num_rows == len(self.table):
            self.table = np.concatenate([self.table, np.zeros_like(self.table)])
        self.table[self._num_rows] = row
        self._row[state] = self._num_rows
        self._num_rows += 1

    def _block(self, within: int) -> Block:
        alphabet = self.chars.alphabet
        return alphabet.block(*block_step(within)) if within else alphabet.root

    def _target(self, chars: int, block: Block, i: int, edges: Edges) -> int:
        """The state that a block's step leads to; 0 if no character that it begins is wanted."""
        step, inside = block.steps[i], block.inside[i]
        wanted = 0
        for target, classes in edges.items():
            if inside and not inside & ~classes:  # all that may come leads to the same state
                return self._state(target, following(step))
            wanted |= classes
        return self._state(chars, step) if inside & wanted else 0


def _bits(mask: int) -> Iterator[int]:
    """
    >>> list(_bits(0b1010))
    [1, 3]
    """
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1

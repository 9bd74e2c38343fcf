"""The automaton of a pattern over bytes of UTF-8.

Its states are those of the automaton over characters, and in between, for a character whose first
bytes are read, that state with the block that they select (alphabet.py).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from minisgl.fsm.alphabet import BlockName
from minisgl.fsm.automaton import Automaton

States = npt.NDArray[np.signedinteger]
Int32 = npt.NDArray[np.int32]

# Beside a state over characters: how many bytes of any value complete the character that is begun,
# or the block that decides; 0 between characters.
Within = int | BlockName
Ways = tuple[tuple[int, int, int], ...]  # (first byte, one after the last, the state after it)


class ByteAutomaton:
    """The automaton over bytes of UTF-8, made as far as it is asked.

    State 0 is dead: no match begins with these bytes.  From every other state one can accept.

    Attributes:
        chars: the automaton over characters below.
        start: the state where every text begins.
        lock: to be held while anything new is made; several engines may share it.
        table: the state after each byte, in rows that `rows` makes.  # [capacity, 256]
    """

    def __init__(self, chars: Automaton) -> None:
        self.chars = chars
        self._keys: list[tuple[int, Within]] = [(-1, 0)]  # of each state, that of `chars`
        self._number: dict[tuple[int, Within], int] = {}
        self._ways: list[Ways | None] = [()]  # of each state; None: not asked for yet
        self._stepped: set[int] = set()  # states that were asked for one byte
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

    def _state(self, state: int, within: Within) -> int:
        key = (state, within)
        number = self._number.get(key)
        if number is None:
            number = self._number[key] = len(self._keys)
            self._ways.append(None)
            if number == len(self._row):
                self._row = np.concatenate([self._row, np.full_like(self._row, -1)])
            self._keys.append(key)
        return number

    def ways(self, state: int) -> Ways:
        """The bytes that may come next, as stretches in order, and the state after each."""
        ways = self._ways[state]
        if ways is None:
            with self.lock:
                ways = self._ways[state] = self._find_ways(state)
        return ways

    def step(self, state: int, byte: int) -> int:
        """The state after one more byte; 0 if no match begins so."""
        if self._ways[state] is None:
            with self.lock:
                if state not in self._stepped:
                    # Only what is asked for: of a long count, each state is met once.
                    self._stepped.add(state)
                    return self._find_step(state, byte)
        for first, stop, after in self.ways(state):
            if byte < stop:
                return after if first <= byte else 0
        return 0

    def _find_step(self, state: int, byte: int) -> int:
        for first, stop, chars, within in self._stretches(*self._keys[state]):
            if first <= byte < stop:
                return self._state(chars, within)
        return 0

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

    def after_char(self, chars: int, char: int) -> int:
        """The state after a whole character from a state over characters; 0 if it can't come."""
        target = self.chars.next(chars, self.chars.alphabet.class_of(char))
        return 0 if target is None else self._state(target, 0)

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

    def rows(self, states: States) -> Int32:
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
        found = {self.start}
        ahead = [self.start]
        for state in ahead:  # grows on the way
            new = {target for _, _, target in self.ways(state)} - found
            found |= new
            ahead += new
        return sorted(found)

    def _make_row(self, state: int) -> None:
        if self._num_rows == len(self.table):
            self.table = np.concatenate([self.table, np.zeros_like(self.table)])
        row = self.table[self._num_rows]
        for first, stop, target in self.ways(state):
            row[first:stop] = target
        self._row[state] = self._num_rows
        self._num_rows += 1

    def _find_ways(self, state: int) -> Ways:
        ways: list[tuple[int, int, int]] = []
        for first, stop, chars, within in sorted(self._stretches(*self._keys[state])):
            after = self._state(chars, within)
            if ways and ways[-1][1:] == (first, after):  # they touch: one stretch
                first = ways.pop()[0]
            ways.append((first, stop, after))
        return tuple(ways)

    def _stretches(self, chars: int, within: Within) -> Iterator[tuple[int, int, int, Within]]:
        """Stretches of bytes that may come next: first, one after the last, key of the state."""
        if isinstance(within, int) and within:  # any byte of a character's rest
            yield 0x80, 0xC0, chars, within - 1
            return
        block = self.chars.alphabet.block(within) if within else self.chars.alphabet.root
        edges = self.chars.edges(chars)
        for target, classes in edges.items():
            for char_class in _bits(classes & block.classes):
                for first, stop, following in block.of_class[char_class]:
                    yield first, stop, target, following
        for byte, name, inside in block.to_blocks:
            wanted = next(((t, c) for t, c in edges.items() if inside & c), None)
            if wanted is not None:
                target, classes = wanted
                if inside & ~classes:
                    yield byte, byte + 1, chars, name
                else:  # all that may come there leads to the same state
                    yield byte, byte + 1, target, name[1]


def _bits(mask: int) -> Iterator[int]:
    """
    >>> list(_bits(0b1010))
    [1, 3]
    """
    while mask:
        yield (mask & -mask).bit_length() - 1
        mask &= mask - 1

"""The automaton of a pattern, built as it is walked: first over characters, then over their bytes.

A state is a set of rests (rests.py), numbered as it comes up.  From every state there is a way to
accept: a set of rests that isn't empty can always be completed, and where look-around says
otherwise, the way is searched for.  So the state that a text leads to tells whether it can become
a match, and nothing needs to be known of the states that no text has led to yet.

`ByteAutomaton` reads UTF-8.  Its states are those of the automaton, and in between, for a
character whose first bytes are read, that state with the block that they select (alphabet.py).
"""

from __future__ import annotations

import threading
from collections import deque

import numpy as np
import numpy.typing as npt

from minisgl.fsm.alphabet import NEVER, Block, block_step, whole_step
from minisgl.fsm.nodes import Node
from minisgl.fsm.rests import Before, Rests, RestTable, TooComplexError

MAX_SEARCH = 20_000  # states visited in search of an accepting one
MAX_STATES = 200_000
MIN_ASCII = 16  # characters of ASCII that make an edge a wide one

Int32 = npt.NDArray[np.int32]
Edges = dict[int, int]  # a state -> the classes that lead there, a bit for each


class Automaton:
    """A deterministic automaton over the classes of `alphabet`, made as far as it is asked.

    Args:
        root: the pattern.

    Attributes:
        alphabet: the classes.
        start: the state where every text begins.

    Raises:
        ValueError: no text at all matches.
        TooComplexError: also a ValueError, from here or a later call: the budget is spent.
    """

    def __init__(self, root: Node) -> None:
        self._rests = RestTable(root)
        self.alphabet = self._rests.alphabet
        self._states: list[tuple[Before, Rests]] = []
        self._number: dict[tuple[Before, Rests], int] = {}
        self._edges: list[Edges | None] = []
        self._is_live: dict[int, bool] = {}
        before, rests = self._rests.start()
        if not rests:
            raise ValueError("no text matches this pattern")
        self.start = self._state(before, rests)
        if self._rests.has_look and not self._can_accept(self.start):
            raise ValueError("no text matches this pattern")

    @property
    def num_states(self) -> int:
        """How many have come up."""
        return len(self._states)

    def _state(self, before: Before, rests: Rests) -> int:
        key = (before, rests)
        number = self._number.get(key)
        if number is None:
            number = self._number[key] = len(self._states)
            if number >= MAX_STATES:
                raise TooComplexError(f"more than {MAX_STATES} states have come up")
            self._states.append(key)
            self._edges.append(None)
        return number

    def accepts(self, state: int) -> bool:
        """Whether a text that leads here matches."""
        return self._rests.accepts(self._states[state][1])

    def edges(self, state: int) -> Edges:
        """The states that one more character leads to, each with its classes."""
        edges = self._edges[state]
        if edges is None:
            if self._rests.has_look:
                ahead = self._edges_looking(state)
                edges = {s: classes for s, classes in ahead.items() if self._can_accept(s)}
            else:
                edges = self._edges_plain(state)
            self._edges[state] = edges
        return edges

    def next(self, state: int, char_class: int) -> int | None:
        """The state after a character of the class; None if no match begins so."""
        for target, classes in self.edges(state).items():
            if classes >> char_class & 1:
                return target
        return None

    def matches(self, text: str) -> bool:
        """Whether all of the text matches."""
        state: int | None = self.start
        for char in text:
            assert state is not None
            state = self.next(state, self.alphabet.class_of(ord(char)))
            if state is None:
                return False
        return state is not None and self.accepts(state)

    def view(self, state: int, reach: int) -> object:
        """Equal for states whose next `reach` characters, and ends among them, are the same."""
        before, rests = self._states[state]
        return self._rests.view(rests, reach) if not before else state

    def saturated(self, state: int, reach: int) -> int:
        """A state whose next `reach` characters are the same, with counts above that let go."""
        if self._rests.has_look:
            return state
        return self._state((), self._rests.saturated(self._states[state][1], reach))

    def widest_edge(self, state: int) -> tuple[int, int] | None:
        """The edge with the most letters of ASCII, if it has many: its state and its classes."""
        letters = self.alphabet.ascii_of
        best = max(
            ((sum(n for c, n in letters.items() if classes >> c & 1), target, classes)
             for target, classes in self.edges(state).items()),
            default=(0, 0, 0),
        )  # fmt: skip
        return best[1:] if best[0] >= MIN_ASCII else None

    # ------------------------------------------------------------------ edges

    def _edges_plain(self, state: int) -> Edges:
        """Without look-around: each rest says what it begins with and what comes after."""
        table = self._rests
        after: dict[int, set[int]] = {}  # by the classes that lead there
        for rest in self._states[state][1]:
            if table.classes[rest]:
                after.setdefault(table.classes[rest], set()).add(table.after[rest])
        edges: Edges = {}
        if len(after) == 1:  # as within a string or a literal: nothing to take apart
            parts = list(after.items())
        else:
            parts = _disjoint(after)
        for classes, rests in parts:
            if len(rests) == 1:
                opened = table.open(next(iter(rests)))
            else:
                opened = frozenset().union(*map(table.open, table.prune(rests)))
            target = self._state((), opened)
            edges[target] = edges.get(target, 0) | classes
        return edges

    def _edges_looking(self, state: int) -> Edges:
        """With look-around, which makes a difference between any two classes."""
        before, rests = self._states[state]
        edges: Edges = {}
        for char_class in range(1, self.alphabet.num_classes):
            next_before, following = self._rests.step(rests, before, char_class)
            if following:
                target = self._state(next_before, following)
                edges[target] = edges.get(target, 0) | 1 << char_class
        return edges

    def _can_accept(self, start: int) -> bool:
        """Whether an accepting state is ahead: a breadth-first search for the nearest."""
        if start in self._is_live:
            return self._is_live[start]
        came_from = {start: start}
        queue = deque([start])
        while queue:
            state = queue.popleft()
            if self._is_live.get(state) or self.accepts(state):
                while True:  # and so have all on the way to it
                    self._is_live[state] = True
                    if state == start:
                        return True
                    state = came_from[state]
            for target in self._edges_looking(state):
                if target not in came_from and self._is_live.get(target, True):
                    came_from[target] = state
                    queue.append(target)
            if len(came_from) > MAX_SEARCH:
                raise TooComplexError(
                    f"whether the look-around can hold isn't known after {MAX_SEARCH} states"
                )
        self._is_live |= dict.fromkeys(came_from, False)
        return False


def _disjoint(after: dict[int, set[int]]) -> list[tuple[int, set[int]]]:
    """Sets of classes that may overlap, cut until they don't, each with what all of them lead to.

    >>> _disjoint({0b011: {7}, 0b110: {8}})
    [(1, {7}), (2, {8, 7}), (4, {8})]
    """
    parts: list[tuple[int, set[int]]] = []
    covered = 0
    for classes, rests in after.items():
        if classes & covered:
            cut: list[tuple[int, set[int]]] = []
            for part, others in parts:
                both = part & classes
                cut += [(part ^ both, others)] if part ^ both else []
                cut += [(both, others | rests)] if both else []
            parts = cut
        new = classes & ~covered
        if new:
            parts.append((new, rests))
        covered |= classes
    return parts


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
            step = block.steps[block.step_of_byte[byte]]
            return self._target(chars, step, self.chars.edges(chars))

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
        missing = states[rows < 0]
        if len(missing):
            with self.lock:
                for state in np.unique(missing).tolist():
                    self._make_row(state)
            rows = self._row[states]
        return rows

    def _make_row(self, state: int) -> None:
        chars, within = self._keys[state]
        if within > 0:  # any byte of a character's rest
            row = np.zeros(256, np.int32)
            row[0x80:0xC0] = self._state(chars, within - 1)
        else:
            block = self._block(within)
            edges = self.chars.edges(chars)
            targets = [self._target(chars, step, edges) for step in block.steps]
            row = np.array(targets, np.int32)[block.step_of_byte]
        if self._num_rows == len(self.table):
            self.table = np.concatenate([self.table, np.zeros_like(self.table)])
        self.table[self._num_rows] = row
        self._row[state] = self._num_rows
        self._num_rows += 1

    def _block(self, within: int) -> Block:
        alphabet = self.chars.alphabet
        return alphabet.block(*block_step(within)) if within else alphabet.root

    def _target(self, chars: int, step: int, edges: Edges) -> int:
        """The state that a step leads to; 0 if no character that it begins is wanted."""
        if step == NEVER:
            return 0
        whole = whole_step(step)
        if whole is not None:
            for target, classes in edges.items():
                if classes >> whole[0] & 1:
                    return self._state(target, whole[1])
            return 0
        start, following = block_step(step)
        inside = self.chars.alphabet.classes_in(start, following)
        wanted = 0
        for target, classes in edges.items():
            if not inside & ~classes:  # all of the block leads to the same state
                return self._state(target, following)
            wanted |= classes
        return self._state(chars, step) if inside & wanted else 0

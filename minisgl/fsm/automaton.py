"""The automaton of a pattern over characters, built as it is walked.

A state is a set of rests (rests.py), numbered as it comes up.  From every state there is a way to
accept: a set of rests that isn't empty can always be completed, and where look-around says
otherwise, the way is searched for.  So the state that a text leads to tells whether it can become
a match, and nothing needs to be known of the states that no text has led to yet.

This one reads characters; byte_automaton.py, above it, their bytes.
"""

from __future__ import annotations

from collections import deque

from minisgl.fsm.look_around import LookTable, rest_table
from minisgl.fsm.nodes import Node
from minisgl.fsm.rests import Before, Rests, TooComplexError

MAX_SEARCH = 20_000  # states visited in search of an accepting one
MAX_STATES = 200_000

Edges = dict[int, int]  # a state -> the classes that lead there, a bit for each


class NoTextError(ValueError):
    """The pattern can't be matched by any text."""


class Automaton:
    """A deterministic automaton over the classes of `alphabet`, made as far as it is asked.

    Args:
        root: the pattern.

    Attributes:
        alphabet: the classes.
        start: the state where every text begins.

    Raises:
        NoTextError: a ValueError: no text at all matches.
        TooComplexError: also a ValueError, from here or a later call: the budget is spent.
    """

    def __init__(self, root: Node) -> None:
        self._rests = rest_table(root)
        self.alphabet = self._rests.alphabet
        self._states: list[tuple[Before, Rests]] = []
        self._number: dict[tuple[Before, Rests], int] = {}
        self._edges: list[Edges | None] = []
        self._is_live: dict[int, bool] = {}
        before, rests = self._rests.start()
        if not rests:
            raise NoTextError("no text matches this pattern")
        self.start = self._state(before, rests)
        if isinstance(self._rests, LookTable) and not self._can_accept(self._rests, self.start):
            raise NoTextError("no text matches this pattern")

    @property
    def num_states(self) -> int:
        """How many have come up."""
        return len(self._states)

    def _state(self, before: Before, rests: Rests) -> int:
        key = (before, rests)
        number = self._number.get(key)
        if number is None:
            number = len(self._states)
            if number >= MAX_STATES:
                raise TooComplexError(f"more than {MAX_STATES} states have come up")
            self._number[key] = number
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
            if isinstance(self._rests, LookTable):
                ahead = self._edges_looking(self._rests, state)
                edges = {
                    s: classes for s, classes in ahead.items() if self._can_accept(self._rests, s)
                }
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
        before, rests = self._states[state]
        return self._state(before, self._rests.saturated(rests, reach))

    def widest_edge(self, state: int) -> int:
        """The classes of the edge with the most characters of ASCII; 0 if there is no edge."""
        return max(self.edges(state).values(), key=self.alphabet.num_ascii, default=0)

    def edge_with(self, state: int, char_class: int) -> int:
        """The classes of the edge that a class is on; 0 if it is on none."""
        edges = self.edges(state).values()
        return next((classes for classes in edges if classes >> char_class & 1), 0)

    def wanted(self, state: int) -> int:
        """The classes that may come next."""
        wanted = 0
        for classes in self.edges(state).values():
            wanted |= classes
        return wanted

    def chain(self, state: int, classes: int, length: int) -> list[int] | None:
        """The states that characters of some classes lead along, from `state` on.

        Those of a count stand for one another: the first of them comes again and again, since on
        other characters they lead to the same.

        At most `length` of them; None if somewhere some of the characters may come, but not all,
        or they don't all lead to the same state.
        """
        chain = [state]
        while len(chain) < length:
            state = chain[-1]
            counted = self._rests.countdown(self._states[state][1], classes)
            if counted is not None:
                count, last = counted
                chain += [state] * min(count - 1, length)
                chain.append(self._state((), last))
                return chain[:length]
            onward = self.edges(state)
            following = next((t for t, c in onward.items() if not classes & ~c), None)
            if following is None:
                return None if any(c & classes for c in onward.values()) else chain
            if following == state:
                return chain + [following] * (length - len(chain))
            chain.append(following)
        return chain

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

    def _edges_looking(self, table: LookTable, state: int) -> Edges:
        """With look-around: of classes that make no difference here, one is tried for all."""
        before, rests = self._states[state]
        edges: Edges = {}
        for alike in table.alike(rests, before):
            one = (alike & -alike).bit_length() - 1
            next_before, following = table.step(rests, before, one)
            if following:
                target = self._state(next_before, following)
                edges[target] = edges.get(target, 0) | alike
        return edges

    def _can_accept(self, table: LookTable, start: int) -> bool:
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
            for target in self._edges_looking(table, state):
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

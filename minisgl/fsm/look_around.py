"""What look-around asks of a text, beside the rests.

A look-ahead runs beside the rest that it stands before, as a *guard*: a state of its own, which
must (or must not) come to accept.  A look-behind needs what came before: for each one in the
pattern a state of "anything, then its body" is carried along, and accepts where it holds.

    (?=.*[0-9])[a-z0-9]{3}  --a-->  [a-z0-9]{2}, guarded by .*[0-9]  --1-->  [a-z0-9]
"""

from __future__ import annotations

from itertools import product

from minisgl.fsm.charset import EVERYTHING
from minisgl.fsm.node_facts import all_nodes, holding_looks
from minisgl.fsm.nodes import Chars, Look, Node, Repeat
from minisgl.fsm.rests import END, NO_GUARDS, Before, Guards, Rests, RestTable

_ANY = Chars(EVERYTHING)
_ANY_TEXT = Repeat(_ANY, 0, None)


def rest_table(root: Node) -> RestTable:
    """The table of a pattern, of the plain kind where that will do."""
    nodes = all_nodes(root)
    looks = any(isinstance(node, Look) for node in nodes)
    return LookTable(root, nodes) if looks else RestTable(root, nodes)


class LookTable(RestTable):
    """The rests of a pattern that looks around; how it is stepped, and which of it hold."""

    def __init__(self, root: Node, nodes: list[Node]) -> None:
        super().__init__(root, [*nodes, _ANY, _ANY_TEXT])
        self._looks = holding_looks(nodes)
        self._looks_behind = [n for n in nodes if isinstance(n, Look) and n.behind]
        self._guards: dict[int, Guards] = {}  # of rests that are guarded; `after` is what by
        self._whatever = self.rest(_ANY_TEXT, END)  # what may come after a look-ahead's match

    def _guarded(self, rest: int, guards: Guards) -> int:
        """`rest`, which begins with a character or is the end, under `guards` too."""
        if not guards:
            return rest
        if rest in self._guards:
            guards, rest = guards | self._guards[rest], self.after[rest]
        number = self._number.get((guards, rest))
        if number is None:
            number = self._number[guards, rest] = len(self.after)
            self._node.append(None)
            self.after.append(rest)
            self.classes.append(0)
            self._guards[number] = guards
        return number

    # ------------------------------------------------------------------ states

    def start(self) -> tuple[Before, Rests]:
        """What each look-behind has seen before the text begins, and the state there."""
        before: Before = ()
        for look in self._looks_behind:
            before += (self.open(self._search(look), before),)
        return before, self.open(self.root, before)

    def _search(self, look: Look) -> int:
        return self.rest(_ANY_TEXT, self.rest(look.body, END))

    def accepts(self, state: Rests) -> bool:
        """Whether the text may end here."""
        if END in state:
            return True
        return any(
            self.after[rest] == END and self._hold_at_end(self._guards[rest])
            for rest in state
            if rest in self._guards
        )

    def _hold_at_end(self, guards: Guards) -> bool:
        return all(self.accepts(state) != negative for negative, state in guards)

    def alike(self, state: Rests, before: Before) -> list[int]:
        """The classes in groups, as masks, of which all members lead to the same."""
        masks: set[int] = set()
        todo = [state, *before]
        while todo:
            for rest in todo.pop():
                guards = self._guards.get(rest, NO_GUARDS)
                masks.add(self.classes[self.after[rest] if guards else rest])
                todo += [guard for _, guard in guards]
        groups = [(1 << self.alphabet.num_classes) - 2]  # all but class 0
        for mask in masks:
            groups = [part for g in groups for part in (g & mask, g & ~mask) if part]
        return groups

    def step(
        self, state: Rests, before: Before, char_class: int, *, next_before: Before | None = None
    ) -> tuple[Before, Rests]:
        """The look-behinds and the state after a character; the slow, general way."""
        if next_before is None:
            next_before = ()
            for behind in before:
                next_before += (
                    self.step(behind, before, char_class, next_before=next_before)[1],
                )  # fmt: skip
        found: set[int] = set()
        for rest in state:
            guards = self._guards.get(rest, NO_GUARDS)
            inner = self.after[rest] if guards else rest
            if not self.classes[inner] >> char_class & 1:
                continue
            stepped = self._step_guards(guards, before, char_class, next_before)
            if stepped is not None:
                opened = self.open(self.after[inner], next_before)
                found.update(self._guarded(rest, stepped) for rest in opened)
        return next_before, frozenset(found)

    def _step_guards(
        self, guards: Guards, before: Before, char_class: int, next_before: Before
    ) -> Guards | None:
        """The guards after a character; None if one of them failed."""
        left: list[tuple[bool, Rests]] = []
        for negative, state in guards:
            after = self.step(state, before, char_class, next_before=next_before)[1]
            holds = self._decided(after)
            if holds is None:
                left.append((negative, after))
            elif holds == negative:
                return None
        return frozenset(left)

    def _decided(self, state: Rests) -> bool | None:
        """Whether a look-ahead's state will accept whatever comes, or never; None: it depends."""
        if END in state:  # the body has matched, and any text may follow
            return True
        return None if state else False

    # ------------------------------------------------------------------ opening

    def _open_look(self, look: Look, before: Before) -> list[Guards]:
        if not look.behind:
            state = self.open(self.rest(look.body, self._whatever), before)
            holds = self._decided(state)
            if holds is None:
                return [frozenset([(look.negative, state)])]
            return [NO_GUARDS] if holds != look.negative else []
        seen = before[self._looks_behind.index(look)]
        # Its matches that end here, each with what its own look-aheads still ask.
        matches = [
            self._guards.get(rest, NO_GUARDS)
            for rest in seen
            if rest == END or (rest in self._guards and self.after[rest] == END)
        ]
        if not look.negative:
            return matches
        # None may match: of each some guard must fail.
        return [
            frozenset((not negative, state) for negative, state in failing)
            for failing in product(*matches)
        ]

    def countdown(self, state: Rests, classes: int) -> tuple[int, Rests] | None:
        """None: a guard may see how many have come."""
        return None

    # ------------------------------------------------------------------ equal as far as one sees

    def view(self, state: Rests, reach: int) -> Rests:
        """The state itself: how far a guard sees isn't known."""
        return state

    def saturated(self, state: Rests, reach: int) -> Rests:
        """The state itself."""
        return state

"""The whole automaton over characters, for looking at: all states, minimised, compressed.

To guide a model none of this is needed; there the automaton is made as it is walked.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from minisgl.fsm.automaton import Automaton
from minisgl.fsm.charset import Ranges, contains
from minisgl.fsm.rests import TooComplexError

MAX_DRAWN = 10_000  # states


@dataclass(frozen=True)
class Dfa:
    """A finite automaton with all its states; state 0 is where a text begins.

    Attributes:
        accepting: whether a text may end in each state.
        edges: from each state what leads where: characters, or in a compressed automaton also
            a text, which is taken in one step.
    """

    accepting: tuple[bool, ...]
    edges: tuple[tuple[tuple[Ranges | str, int], ...], ...]

    def matches(self, text: str) -> bool:
        """Whether all of the text leads to an accepting state."""
        state, at = 0, 0
        while at < len(text):
            for label, target in self.edges[state]:
                if isinstance(label, str):
                    length = len(label) if text.startswith(label, at) else 0
                else:
                    length = int(contains(label, ord(text[at])))
                if length:
                    state, at = target, at + length
                    break
            else:
                return False
        return self.accepting[state]

    def __str__(self) -> str:
        lines = []
        for state, edges in enumerate(self.edges):
            end = " (may end)" if self.accepting[state] else ""
            lines.append(f"state {state}{end}")
            lines += [f"    {label_text(label)} -> {target}" for label, target in edges]
        return "\n".join(lines)


def whole(automaton: Automaton) -> Dfa:
    """All states that a text can lead to.

    Raises:
        TooComplexError: there are more than can be looked at.
    """
    number = {automaton.start: 0}
    order = [automaton.start]
    edges = []
    for state in order:  # grows on the way
        for target in automaton.edges(state):
            if target not in number:
                number[target] = len(order)
                order.append(target)
        if len(order) > MAX_DRAWN:
            raise TooComplexError(f"more than {MAX_DRAWN} states: too many to look at")
        edges.append(
            tuple(
                sorted(
                    (automaton.alphabet.ranges(classes), number[target])
                    for target, classes in automaton.edges(state).items()
                )
            )
        )
    return Dfa(tuple(automaton.accepts(state) for state in order), tuple(edges))


def minimised(dfa: Dfa) -> Dfa:
    """The same with the fewest states: those that no further text tells apart are one (Moore).

    All begin as two groups, those that accept and those that don't; a group is split as long as
    some character leads two of its states to different groups.
    """
    edges = sorted({e for out in dfa.edges for ranges, _ in out for r in ranges for e in r})
    following = np.full((len(dfa.edges) + 1, len(edges)), len(dfa.edges), np.int64)
    for state, out in enumerate(dfa.edges):
        for ranges, target in out:
            assert not isinstance(ranges, str), "minimise first, then compress"
            for first, last in np.searchsorted(edges, np.array(ranges)).tolist():
                following[state, first:last] = target
    group = np.array([*dfa.accepting, False], np.int64)
    while True:
        seen = np.concatenate([group[:, None], group[following]], axis=1)
        finer = np.unique(seen, axis=0, return_inverse=True)[1].ravel()
        if finer.max() == group.max():
            break
        group = finer
    # One state of each group stands for it, in the order in which a walk meets them.
    number: dict[int, int] = {int(group[0]): 0}
    order = [0]
    new_edges = []
    for state in order:
        merged: dict[int, list[tuple[int, int]]] = {}
        for ranges, target in dfa.edges[state]:
            merged.setdefault(int(group[target]), []).extend(ranges)  # type: ignore[arg-type]
            if int(group[target]) not in number:
                number[int(group[target])] = len(order)
                order.append(target)
        new_edges.append(tuple((_joined(r), number[g]) for g, r in merged.items()))
    return Dfa(tuple(dfa.accepting[state] for state in order), tuple(new_edges))


def compressed(dfa: Dfa) -> Dfa:
    """The same with every chain of forced characters as one edge (the paper's figure 4).

    A state within a chain has one edge of one character, can't be an end, and is only reached
    from such states.
    """
    forced = [_forced_char(dfa, state) for state in range(len(dfa.edges))]
    within = [char is not None and state > 0 for state, char in enumerate(forced)]
    for state, out in enumerate(dfa.edges):
        if forced[state] is None:
            for _, target in out:
                within[target] = False
    kept = [state for state in range(len(dfa.edges)) if not within[state]]
    number = {state: i for i, state in enumerate(kept)}
    edges: list[tuple[tuple[Ranges | str, int], ...]] = []
    for state in kept:
        char = forced[state]
        if char is None:
            edges.append(tuple((label, number[target]) for label, target in dfa.edges[state]))
            continue
        text, target = char, dfa.edges[state][0][1]
        while within[target]:
            text += forced[target] or ""
            target = dfa.edges[target][0][1]
        edges.append(((text, number[target]),))
    return Dfa(tuple(dfa.accepting[state] for state in kept), tuple(edges))


def _forced_char(dfa: Dfa, state: int) -> str | None:
    """The only character that may come next; None if there is a choice, to end being one."""
    if dfa.accepting[state] or len(dfa.edges[state]) != 1:
        return None
    label = dfa.edges[state][0][0]
    assert not isinstance(label, str), "compress only once"
    is_single = len(label) == 1 and label[0][1] - label[0][0] == 1
    return chr(label[0][0]) if is_single else None


def _joined(ranges: list[tuple[int, int]]) -> Ranges:
    """Sorted, with those that touch made one."""
    joined: list[tuple[int, int]] = []
    for start, stop in sorted(ranges):
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], stop)
        else:
            joined.append((start, stop))
    return tuple(joined)


def label_text(label: Ranges | str) -> str:
    """
    >>> label_text(((97, 123), (48, 49))), label_text("ab\\n")
    ('[a-z0]', '"ab\\\\n"')
    """
    if isinstance(label, str):
        return '"' + "".join(_char_text(ord(c)) for c in label) + '"'
    if len(label) == 1 and label[0][1] - label[0][0] == 1:
        return _char_text(label[0][0])
    parts = [
        _char_text(start)
        + ("" if stop - start == 1 else ("-" if stop - start > 2 else "") + _char_text(stop - 1))
        for start, stop in label[:8]
    ]
    return "[" + "".join(parts) + ("…" if len(label) > 8 else "") + "]"


def _char_text(char: int) -> str:
    text = chr(char)
    if text == " ":
        return "␣"
    return text if text.isprintable() else repr(text)[1:-1]

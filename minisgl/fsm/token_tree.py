"""The tokens of a vocabulary as a tree over their bytes, and which of them a state allows.

The tree is walked level by level: beside each node stands the automaton's state after the bytes
that lead there, and where no way leads on, all tokens below are left out.  A token is allowed if
its last byte leads to a state, since from every state a match can be reached.

    tokens "a", "ab", "b"            root ──a── a ──b── ab
                                          └─b── b

Where a pattern leaves little choice, a level has a handful of nodes, and Python takes them one
after the other; setting up the arrays for that would take longer.  Where it leaves a lot, there
are thousands, and NumPy takes a level at once.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import lru_cache

import numpy as np

from minisgl.fsm.byte_automaton import ByteAutomaton, States
from minisgl.fsm.slices import spread
from minisgl.fsm.token_arrays import Int, TokenArrays

FEW = 4  # nodes for each different state of a level, that are taken one after the other


class TokenTree:
    """The tree of a vocabulary.

    Args:
        arrays: of the vocabulary.
    """

    def __init__(self, arrays: TokenArrays) -> None:
        self._arrays = arrays
        # The same as Python reads it best.
        self._byte = arrays.node_byte.astype(np.uint8).tobytes()
        self._num_children = arrays.num_children.data
        self._first_child = arrays.first_child.data
        self._token = arrays.node_token.data
        self.find = lru_cache(maxsize=4096)(self._find)

    def _find(self, start: bytes) -> int | None:
        """The node of a token's first bytes; None if no token begins so."""
        node = 0
        for byte in start:
            first, count = self._first_child[node], self._num_children[node]
            node = self._byte.find(byte, first, first + count)
            if node < 0:
                return None
        return node

    def levels(
        self, automaton: ByteAutomaton, state: int, node: int = 0
    ) -> Iterator[Sequence[int] | Int]:
        """The ids of the tokens below a node that live on, from the state there: level by level.

        There are as many levels as bytes that were looked at.  Of equal tokens one is found.
        """
        level = [(node, state)]
        while level:
            if len(level) > FEW * len({state for _, state in level}):
                yield from self._levels_at_once(automaton, np.array(level))
                return
            ids: list[int] = []
            ahead: list[tuple[int, int]] = []
            for node, state in level:
                child = self._first_child[node]
                end = child + self._num_children[node]
                for first, stop, following in automaton.ways(state):
                    child = bisect_left(self._byte, first, child, end)
                    while child < end and self._byte[child] < stop:
                        if self._token[child] >= 0:
                            ids.append(self._token[child])
                        if self._num_children[child]:
                            ahead.append((child, following))
                        child += 1
            yield ids
            level = ahead

    def _levels_at_once(self, automaton: ByteAutomaton, level: Int) -> Iterator[Int]:
        """The same from a level's nodes and their states on."""  # [N, 2]
        arrays = self._arrays
        nodes = level[:, 0]
        states: States = level[:, 1]
        while len(nodes):
            rows = automaton.rows(states)
            counts = arrays.num_children[nodes]
            nodes = spread(arrays.first_child[nodes], counts)
            states = automaton.table[np.repeat(rows, counts), arrays.node_byte[nodes]]
            alive = states.nonzero()[0]
            nodes, states = nodes[alive], states[alive]
            ids = arrays.node_token[nodes]
            yield ids[ids >= 0]
            inner = arrays.num_children[nodes].nonzero()[0]
            nodes, states = nodes[inner], states[inner]

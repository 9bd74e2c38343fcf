"""Masks of wide states, where nearly every token is allowed.

Within a string, walking the tree of all tokens again for each state is a waste: the states differ
only in how many more characters may come, and in what may end it.  So if the characters of a set X
lead along a chain (to the same state, or for a count one by one), the tokens cut by X (slices.py)
tell nearly all:

- those wholly of X are allowed if the chain takes as many;
- those that go on with the first bytes of a character (an emoji's, say), if they may become one
  that is wanted at that place of the chain;
- and those that go on with another character are walked if it is wanted there: few are.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np

from minisgl.fsm.byte_automaton import ByteAutomaton, States
from minisgl.fsm.mask_bits import set_bits
from minisgl.fsm.slices import Slice, Slices, spread
from minisgl.fsm.token_arrays import Int, TokenArrays

MIN_ASCII = 16  # characters of ASCII that make a set a wide one
MIN_SPACES = 8  # a set with the space in it is one too if so many may come: runs are long
FEW = 128  # tokens whose ends are walked one after the other, and not all at once


class WideWalk:
    """Finds the masks of wide states.

    Args:
        arrays: of the vocabulary.
        vocab_size: how many ids it has.
    """

    def __init__(self, arrays: TokenArrays, vocab_size: int) -> None:
        self._arrays = arrays
        self._slices = Slices(arrays, vocab_size)
        self._joined = arrays.joined.tobytes()
        self._end = np.zeros(vocab_size, np.int64)  # of each id, in the bytes of all
        self._end[arrays.ids] = arrays.start + arrays.length

    def mask(self, automaton: ByteAutomaton, state: int) -> tuple[bytearray, int] | None:
        """The mask of the tokens that may come next, and how many bytes the walk looked at.

        None if no edge is wide.
        """
        if not automaton.starts_character(state):
            return None
        chars = automaton.chars
        place = automaton.chars_of(state)
        classes = chars.widest_edge(place)
        is_wide = chars.alphabet.num_ascii(classes) >= MIN_ASCII
        if not is_wide:
            classes = chars.edge_with(place, chars.alphabet.class_of(ord(" ")))
        if not classes:
            return None
        chain = chars.chain(place, classes, self._slices.longest + 1)
        if chain is None or not (is_wide or len(chain) >= MIN_SPACES):
            return None
        piece = self._slices.slice(chars.alphabet.limits(classes))
        chain = chain[: piece.longest + 1]
        most = len(chain) - 1  # so many characters of the set may follow
        mask = self._slices.mask(piece, most)
        members, states = self._go_on(mask, automaton, chain, piece)
        levels = self._finish(mask, automaton, piece.rest[members], piece.at[members], states)
        return mask, most + 1 + levels

    def _go_on(
        self, mask: bytearray, automaton: ByteAutomaton, chain: list[int], piece: Slice
    ) -> tuple[Int, Int]:
        """Allow what ends within a character, and find what has a wanted one after the set's.

        Returns:
            Members of `piece.rest`, and the state of each after that character.  # [N], [N]
        """
        chars, slices = automaton.chars, self._slices
        members = [np.zeros(0, np.int64)]
        states: list[int] = []
        length = begun = group = 0
        for wanted, same in groupby(chain, key=chars.wanted):
            limits = chars.alphabet.limits(wanted)
            length += len(list(same))
            here = slice(begun, begun := int(piece.num_begun[length - 1]))
            set_bits(mask, piece.begun[here][slices.begins(limits)[piece.which[here]]])
            here = slice(group, group := int(piece.num_groups[length - 1]))
            alive = here.start + slices.contains(limits)[piece.char[here]].nonzero()[0]
            members.append(spread(piece.first[alive], piece.size[alive]))
            for place, char, size in zip(
                piece.chars[alive].tolist(),
                self._arrays.code_points[piece.char[alive]].tolist(),
                piece.size[alive].tolist(),
                strict=True,
            ):
                states += [automaton.after_char(chain[place], char)] * size
        return np.concatenate(members), np.array(states, np.int64)

    def _finish(
        self, mask: bytearray, automaton: ByteAutomaton, tokens: Int, at: Int, states: States
    ) -> int:
        """Allow the tokens that live on to their end, from their state at some byte.

        Returns:
            How many bytes further it looked, at most.
        """
        levels = 0
        while len(tokens) > FEW:
            levels += 1
            done = at == self._end[tokens]
            set_bits(mask, tokens[done])
            going = (~done).nonzero()[0]
            tokens, at, states = tokens[going], at[going], states[going]
            rows = automaton.rows(states)
            states = automaton.table[rows, self._arrays.joined[at]]
            alive = states.nonzero()[0]
            tokens, at, states = tokens[alive], at[alive] + 1, states[alive]
        ends = self._end[tokens].tolist()
        lives: dict[tuple[int, bytes], int] = {}  # many go on alike: with what ends a string
        most = 0
        for token, start, end, state in zip(
            tokens.tolist(), at.tolist(), ends, states.tolist(), strict=True
        ):
            rest = self._joined[start:end]
            if (state, rest) not in lives:
                lives[state, rest] = automaton.walk(state, rest)
                most = max(most, len(rest))
            if lives[state, rest]:
                mask[token >> 3] |= 1 << (token & 7)
        return levels + most

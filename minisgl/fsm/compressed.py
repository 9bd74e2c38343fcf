"""What an automaton forces: chains of states with one way on, each chain taken in one jump.

    [state] --{-- [state] --"-- [state] --n-- ...      becomes      [state] --{"n...-- [state]

A state where the text may end is a branch: from there it may also stop.
"""

from __future__ import annotations

from minisgl.fsm.byte_automaton import ByteAutomaton

MAX_JUMP = 4096  # bytes; a longer chain takes several jumps


def forced(automaton: ByteAutomaton, state: int) -> tuple[bytes, int]:
    """The bytes that must come next, as whole characters, and the state after them.

    Where two characters are possible that begin with the same bytes, those are not forced: half
    a character is no text.

    Args:
        automaton: any.
        state: one of its states, but the dead one.
    """
    data = bytearray()
    whole, target = 0, state
    while len(data) < MAX_JUMP and not automaton.accepts(state):
        ways = automaton.ways(state)
        if len(ways) != 1 or ways[0][1] - ways[0][0] > 1:
            break
        ((byte, _, state),) = ways
        data.append(byte)
        if automaton.starts_character(state):
            whole, target = len(data), state
    return bytes(data[:whole]), target

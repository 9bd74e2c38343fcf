"""The tokens of a vocabulary as arrays: a tree over their bytes, and their characters.

Made once for a tokenizer; vocab_cache.py keeps them on the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Int = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TokenArrays:
    """What masks are made from.  Ids that are no text appear nowhere.

    The tree has a node for each distinct start of a token.  Nodes are numbered level by level, so
    that a node's children stand side by side; node 0 is the root.  Of tokens with equal bytes one
    stands in the tree, and the others are its copies.
    """

    node_byte: Int  # [nodes] the last byte of each start
    num_children: Int  # [nodes]
    first_child: Int  # [nodes]
    node_token: Int  # [nodes] the token that ends there; -1: none
    copies: Int
    originals: Int  # of each copy

    joined: npt.NDArray[np.uint8]  # the bytes of all tokens, one after the other, in order of ids
    ids: Int  # [tokens] those with text
    start: Int  # [tokens] where in `joined` each begins
    length: Int  # [tokens] in bytes
    readable: Int  # [tokens] in bytes, what is whole characters at its start
    num_chars: Int  # [tokens] how many characters that are
    code_points: Int  # those that come up at all, in order
    char: Int  # [chars] of the characters of all tokens: index into `code_points`
    char_offset: Int  # [chars] how many bytes of its token stand before it


def token_arrays(tokens: Sequence[bytes]) -> TokenArrays:
    """The arrays of a vocabulary.

    Args:
        tokens: the bytes of each id; empty for ids that are no text.
    """
    ids = [i for i, data in enumerate(tokens) if data]
    with_text = [tokens[i] for i in ids]
    length = np.array([len(data) for data in with_text], np.int64)
    joined = np.frombuffer(b"".join(with_text), np.uint8)
    start = length.cumsum() - length
    order = np.array(sorted(range(len(ids)), key=with_text.__getitem__), np.int64)
    return TokenArrays(
        **_tree(np.array(ids, np.int64)[order], joined, start[order], length[order]),
        joined=joined,
        ids=np.array(ids, np.int64),
        start=start,
        length=length,
        **_characters(with_text),
    )


def _tree(ids: Int, joined: npt.NDArray[np.uint8], start: Int, length: Int) -> dict[str, Int]:
    """The tree of tokens in sorted order, in which equal starts stand side by side."""
    parents, levels = [np.zeros(0, np.int64)], [np.zeros(0, np.uint8)]
    node_of = np.zeros(len(ids), np.int64)  # of each token's first bytes so far
    num_nodes = 1
    for depth in range(int(length.max(initial=0))):
        longer = (length > depth).nonzero()[0]
        byte, parent = joined[start[longer] + depth], node_of[longer]
        is_new = np.ones(len(longer), bool)
        is_new[1:] = (byte[1:] != byte[:-1]) | (parent[1:] != parent[:-1])
        node_of[longer] = num_nodes + is_new.cumsum() - 1
        num_nodes += int(is_new.sum())
        parents.append(parent[is_new])
        levels.append(byte[is_new])
    num_children = np.bincount(np.concatenate(parents), minlength=num_nodes)
    node_token = np.full(num_nodes, -1, np.int64)
    node_token[node_of] = ids
    original = node_token[node_of]
    return {
        "node_byte": np.concatenate([[0], *levels]).astype(np.int64),
        "num_children": num_children,
        # subtle: children of earlier nodes come earlier, so counting up gives each first child
        "first_child": num_children.cumsum() - num_children + 1,
        "node_token": node_token,
        "copies": ids[original != ids],
        "originals": original[original != ids],
    }


def _characters(tokens: Sequence[bytes]) -> dict[str, Int]:
    texts = [_readable(data) for data in tokens]
    joined = np.frombuffer("".join(texts).encode("utf-32-le"), "<u4")
    code_points, char = np.unique(joined, return_inverse=True)
    num_chars = np.array([len(text) for text in texts], np.int64)
    size = 1 + (joined >= 0x80) + (joined >= 0x800) + (joined >= 0x10000)
    before = np.concatenate([[0], size.cumsum()])  # bytes before each character, in all texts
    first = num_chars.cumsum() - num_chars  # of each text
    readable = before[first + num_chars] - before[first]
    return {
        "readable": readable,
        "num_chars": num_chars,
        "code_points": code_points.astype(np.int64),
        "char": char,
        "char_offset": before[:-1] - np.repeat(before[first], num_chars),
    }


def _readable(data: bytes) -> str:
    """The whole characters that the bytes begin with."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        return data[: error.start].decode()

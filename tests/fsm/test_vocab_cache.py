"""The cached arrays of a vocabulary are the built ones, whatever became of their file."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisgl.fsm import Guide, VocabIndex, compile_regex, vocab_cache
from minisgl.fsm.token_arrays import TokenArrays, token_arrays
from minisgl.fsm.vocab_cache import cached
from tests.fsm.test_masks import SMALL, STOP


def assert_equal(one: TokenArrays, other: TokenArrays) -> None:
    for field in fields(TokenArrays):
        a, b = getattr(one, field.name), getattr(other, field.name)
        assert a.dtype == b.dtype
        assert np.array_equal(a, b), field.name


@given(st.lists(st.binary(max_size=4) | st.text("aé世😊", max_size=3).map(str.encode), max_size=30))
def test_arrays_say_what_the_tokens_are(tokens: list[bytes]) -> None:
    arrays = token_arrays(tokens)
    assert [tokens[i] for i in arrays.ids] == [data for data in tokens if data]
    for i, start, length, readable, count in zip(
        arrays.ids, arrays.start, arrays.length, arrays.readable, arrays.num_chars, strict=True
    ):
        data = bytes(arrays.joined[start : start + length])
        assert data == tokens[i]
        assert len(data[:readable].decode()) == count
        with pytest.raises(UnicodeDecodeError):  # and it is the longest such start
            data[readable:].decode("utf-8") if readable < length else b"\xff".decode()
    found = {}  # every node by its path from the root
    todo = [(0, b"")]
    while todo:
        node, path = todo.pop()
        found[path] = int(arrays.node_token[node])
        first = arrays.first_child[node]
        children = range(first, first + arrays.num_children[node])
        bytes_of = [int(arrays.node_byte[child]) for child in children]
        assert bytes_of == sorted(set(bytes_of))
        todo += [(c, path + bytes([b])) for c, b in zip(children, bytes_of, strict=True)]
    assert found.keys() == {data[:n] for data in tokens for n in range(len(data) + 1)} | {b""}
    for path, token in found.items():
        assert (tokens[token] == path) if token >= 0 else (path not in tokens or not path)
    pairs = zip(arrays.copies.tolist(), arrays.originals.tolist(), strict=True)
    assert all(tokens[a] == tokens[b] and found[tokens[a]] == b for a, b in pairs)


def test_the_second_time_nothing_is_built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = tmp_path / "not there yet"
    first = cached(SMALL, directory)
    assert_equal(first, token_arrays(SMALL))
    monkeypatch.setattr(vocab_cache, "token_arrays", None)  # calling it would fail
    assert_equal(cached(SMALL, directory), first)
    assert len(list(directory.iterdir())) == 1


def test_a_cached_vocabulary_has_the_same_masks(tmp_path: Path) -> None:
    automaton = compile_regex(r"[ab]*(é|1)?")
    plain = VocabIndex(SMALL, [STOP])
    for _ in range(2):
        vocab = VocabIndex(SMALL, [STOP], cache=tmp_path)
        guides = Guide(automaton, plain), Guide(automaton, vocab)
        assert np.array_equal(guides[0].allowed(), guides[1].allowed())
    other_stops = VocabIndex(SMALL, [0], cache=tmp_path)  # ids that aren't text are another tree
    assert 0 not in other_stops.ids(Guide(compile_regex("a"), other_stops).allowed())


def test_other_tokens_are_another_file(tmp_path: Path) -> None:
    for tokens in ([b"ab", b"c"], [b"a", b"bc"], [b"abc", b""], [b"ab", b"c", b""]):
        assert_equal(cached(tokens, tmp_path), token_arrays(tokens))
    assert len(list(tmp_path.iterdir())) == 4


@given(st.integers(0), st.integers(1, 255), st.booleans())
def test_a_damaged_file_is_made_anew(
    tmp_path_factory: pytest.TempPathFactory, at: int, change: int, cut: bool
) -> None:
    directory = tmp_path_factory.mktemp("cache")
    expected = cached(SMALL, directory)
    (file,) = directory.iterdir()
    good = file.read_bytes()
    at %= len(good)
    bad = good[:at] if cut else good[:at] + bytes([good[at] ^ change]) + good[at + 1 :]
    file.write_bytes(bad)
    assert_equal(cached(SMALL, directory), expected)
    assert file.read_bytes() == good


def test_where_no_file_can_be_written_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert_equal(cached(SMALL, tmp_path / "file"), token_arrays(SMALL))

"""The automata: lazy and over bytes, against `re` and against Python's own UTF-8 decoder."""

from __future__ import annotations

import itertools
import re
import threading

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from minisgl.fsm import Automaton, ByteAutomaton, TooComplexError, compile_regex, parse
from minisgl.fsm.begun import code_points
from tests.fsm.patterns import compiled, looking_patterns, plain_patterns, texts


def accepts(automaton: ByteAutomaton, text: str) -> bool:
    return automaton.accepts(automaton.walk(automaton.start, text.encode()))


@given(plain_patterns, st.lists(texts, min_size=1, max_size=8))
def test_over_bytes_as_over_characters(pattern: str, samples: list[str]) -> None:
    automaton = compile_or_skip(pattern)
    for text in samples:
        assert accepts(automaton, text) == bool(re.fullmatch(pattern, text)), (pattern, text)


def compile_or_skip(pattern: str) -> ByteAutomaton:
    assume(compiled(pattern) is not None)
    try:
        return compile_regex(pattern)
    except ValueError as error:
        assert "no text matches" in str(error)
        assume(False)
        raise AssertionError from error


@given(looking_patterns, texts, st.binary(max_size=2))
def test_a_step_is_as_in_the_whole_row(pattern: str, text: str, more: bytes) -> None:
    """Whichever was asked for first: a step makes one state, a row those of all bytes."""
    assume(compile_or_skip(pattern))
    automaton = ByteAutomaton(Automaton(parse(pattern)))
    state = automaton.walk(automaton.start, text.encode() + more)
    some = [*range(0, 256, 9), *more]
    before = []
    for byte in some:
        automaton._stepped.clear()  # so that each is the first
        before.append(automaton.step(state, byte))
    (row,) = automaton.rows(np.array([state]))
    assert automaton.table[row, some].tolist() == before
    assert [automaton.step(state, byte) for byte in some] == before


def test_what_the_first_bytes_of_a_character_may_become() -> None:
    """All that any character has, surrogates too, and all pairs of bytes that none has."""
    members: dict[bytes, list[int]] = {}
    for block in range(0, 0x110000, 64):
        for char in (block, block + 63):  # the first and the last of those that differ in one byte
            data = chr(char).encode(errors="surrogatepass")
            for size in range(1, len(data)):
                members.setdefault(data[:size], []).append(char)
    for begun, chars in members.items():
        assert code_points(begun) == (chars[0], chars[-1] + 1), begun
    for data in map(bytes, itertools.product(range(256), repeat=2)):
        if data not in members:
            first, stop = code_points(data)
            assert first == stop, data


ENDINGS = [
    bytes(e) for n in range(4) for e in itertools.product([0x80, 0x90, 0xA0, 0xBF], repeat=n)
]


def begins_utf8(data: bytes) -> bool:
    """Whether some ending makes it whole: 80, 90, A0 and BF tell all forms apart."""
    return any(decodes(data + ending) for ending in ENDINGS)


def decodes(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def test_only_utf8_is_read() -> None:
    """All of two bytes, and for every lead of a long form the whole second and third byte."""
    automaton = compile_regex(r"[\s\S]*")
    for data in map(bytes, itertools.product(range(256), repeat=2)):
        assert bool(automaton.walk(automaton.start, data)) == begins_utf8(data), data
    for lead, second, third in itertools.product(
        [0xE0, 0xED, 0xEF, 0xF0, 0xF4], range(0x80, 0xC0), [0, 0x7F, 0x80, 0xBF, 0xC0, 0xFF]
    ):
        data = bytes([lead, second, third])
        assert bool(automaton.walk(automaton.start, data)) == begins_utf8(data), data


@pytest.mark.parametrize("pattern", [r"[\ud800-\udfff]", r"[^\0-\ud7ff\ue000-\U0010ffff]"])
def test_half_a_surrogate_pair_is_no_character(pattern: str) -> None:
    with pytest.raises(ValueError, match="no text matches"):
        compile_regex(pattern)


@given(st.text(min_size=1, max_size=3), st.data())
def test_a_class_holds_its_characters_and_no_others(chars: str, data: st.DataObject) -> None:
    automaton = compile_regex("[" + "".join(f"\\U{ord(c):08x}" for c in chars) + "]")
    other = data.draw(st.one_of(st.characters(), st.sampled_from(chars)))
    assert accepts(automaton, other) == (other in chars)


@given(looking_patterns, texts)
def test_every_live_state_reaches_a_match(pattern: str, text: str) -> None:
    """No dead ends: from wherever a text leads, some way of at most `num_states` steps accepts."""
    automaton = compile_or_skip(pattern).chars
    state: int | None = automaton.start
    for char in text:
        assert state is not None
        following = automaton.next(state, automaton.alphabet.class_of(ord(char)))
        if following is None:
            break
        state = following
    assert state is not None
    seen, layer = {state}, {state}
    while not any(automaton.accepts(s) for s in layer):
        layer = {t for s in layer for t in automaton.edges(s)} - seen
        seen |= layer
        assert layer, (pattern, text)


@given(looking_patterns, texts, st.binary(max_size=2))
def test_every_live_state_over_bytes_reaches_a_match(pattern: str, text: str, more: bytes) -> None:
    """Half a character too, whatever its bytes: some bytes that may follow complete it."""
    automaton = compile_or_skip(pattern)
    state = automaton.start
    for byte in text.encode() + more:
        following = [automaton.step(state, b) for b in range(256)]
        assert automaton.accepts(state) or any(following), (pattern, text, more)
        if not following[byte]:
            break
        state = following[byte]
    while not automaton.starts_character(state):
        state = next(filter(None, (automaton.step(state, b) for b in range(256))))


@pytest.mark.parametrize("pattern", ["a", "é", "[世-界]", "\U00010400", "[^\\0-\\ufeff]", "(?i)k"])
def test_each_byte_is_read_exactly_where_a_character_has_it(pattern: str) -> None:
    automaton = compile_regex(pattern)
    characters = "".join(chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000)
    matching = re.findall(pattern, characters)
    begun = {data[:n] for data in (c.encode() for c in matching) for n in range(len(data))}
    ends = {c.encode() for c in matching}
    some = sorted(begun)[:: max(1, len(begun) // 200)]
    for data in some:
        state = automaton.walk(automaton.start, data)
        for byte in range(256):
            longer = data + bytes([byte])
            expected = longer in begun or longer in ends
            assert bool(automaton.step(state, byte)) == expected, longer


HUGE = [
    r".{0,100000}", r"(.{0,1000}a){0,1000}", r"((a?){100}){100}", r"(a|aa)*", r"(a*)*", r"(a|a)*b",
    r"(.*a){20}", r".*a.{0,100000}", r"([a-z]{1,100000},){1,100000}", "(" * 90 + "a*" + ")*" * 90,
    r"((((a{0,1000}){0,1000}){0,1000}){0,1000})", r"(a?){4294967295}", r"(a{100000}){100000}",
]  # fmt: skip


@pytest.mark.parametrize("pattern", HUGE)
def test_huge_and_nested_counts_stay_small(pattern: str) -> None:
    """What `re` would try in exponential time is a handful of states."""
    automaton = compile_regex(pattern).chars
    state = automaton.start
    for char in "aaaa,aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa":
        following = automaton.next(state, automaton.alphabet.class_of(ord(char)))
        state = state if following is None else following
    assert automaton.num_states < 250


@pytest.mark.parametrize("length", [4, pytest.param(5, marks=pytest.mark.slow)])
def test_a_hundred_thousand_words(length: int) -> None:
    words = ["".join(w) for w in itertools.product("abcdefghij", repeat=length)]
    automaton = compile_regex("|".join(words))
    assert accepts(automaton, "fghij"[:length])
    assert not accepts(automaton, "fghij"[: length - 1])
    assert not accepts(automaton, "fghik"[-length:])
    assert automaton.chars.num_states < 100


def test_what_would_take_too_long_is_refused_and_says_so() -> None:
    with pytest.raises(TooComplexError, match=r"isn't known after 20000 states"):
        compile_regex(r"(?=.{100000}x).*(?!x).")
    many = "|".join(chr(0x4E00 + i) for i in range(5000))
    with pytest.raises(ValueError, match="5000 different sets of characters; 4096"):
        compile_regex(many)


def test_a_spent_budget_is_told_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    automaton = compile_regex("([ab]c){9}d")
    monkeypatch.setattr("minisgl.fsm.automaton.MAX_STATES", 4)
    for _ in range(3):
        with pytest.raises(TooComplexError, match="more than 4 states"):
            accepts(automaton, "acbcacbc")
    assert automaton.chars.num_states == 4
    assert not accepts(automaton, "d")  # what is known stays usable


def test_a_text_that_no_pattern_allows() -> None:
    for pattern in (r"a(?=b)", r"(?!)", r"[^\s\S]", r"a\bb", r"(?=a)b", r"$a"):
        with pytest.raises(ValueError, match="no text matches"):
            compile_regex(pattern)


def test_parts_that_cannot_match_are_left_out() -> None:
    automaton = compile_regex(r"a|b[^\s\S]|(?:[^\s\S]c)*d")
    assert accepts(automaton, "a")
    assert accepts(automaton, "d")
    assert not automaton.walk(automaton.start, b"b")


def test_an_automaton_is_shared_by_threads() -> None:
    pattern = r"(\w+, ){3,50}\w+\."
    shared = compile_regex(pattern)
    text = "Müller, 世界, " * 12 + "ok."
    found: list[bool] = []
    threads = [
        threading.Thread(target=lambda: found.append(accepts(shared, text))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = ByteAutomaton(Automaton(parse(pattern)))
    assert found == [accepts(alone, text) for _ in range(8)]
    assert shared.num_states == alone.num_states

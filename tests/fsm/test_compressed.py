"""Whole, minimised and compressed automata say the same; forced text is what cannot be chosen."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisgl.fsm import ByteAutomaton, Guide, TooComplexError, VocabIndex, compile_regex
from minisgl.fsm.__main__ import main
from minisgl.fsm.compressed import forced
from minisgl.fsm.dfa import Dfa, compressed, minimised, whole
from minisgl.fsm.picture import graphviz, svg
from tests.fsm.patterns import looking_patterns, texts
from tests.fsm.test_automaton import compile_or_skip

BYTES = VocabIndex([*(bytes([b]) for b in range(256)), b""], stop_ids=[256])


@given(looking_patterns, st.lists(texts, min_size=1, max_size=6))
def test_all_forms_match_the_same(pattern: str, samples: list[str]) -> None:
    lazy = compile_or_skip(pattern).chars
    plain = whole(lazy)
    minimal = minimised(plain)
    small = compressed(minimal)
    assert len(small.edges) <= len(minimal.edges) <= len(plain.edges)
    for text in samples:
        expected = bool(re.fullmatch(pattern, text))
        for form in (lazy, plain, minimal, small, compressed(plain)):
            assert form.matches(text) == expected, (pattern, text, form)


@given(looking_patterns)
def test_minimal_is_minimal(pattern: str) -> None:
    """Any two states are told apart by some text: of all pairs, those that are grow to all."""
    minimal = minimised(whole(compile_or_skip(pattern).chars))
    again = minimised(minimal)
    assert len(again.edges) == len(minimal.edges)
    states = range(len(minimal.edges))
    ends = {(a, b) for a in states for b in states if minimal.accepting[a] != minimal.accepting[b]}
    told = set(ends)
    edges = sorted({e for out in minimal.edges for r, _ in out for pair in r for e in pair})
    dead = len(minimal.edges)
    step = {(s, e): follow(minimal, s, chr(e)) for s in states for e in edges if e < 0x110000}
    growing = True
    while growing:
        growing = False
        for a in states:
            for b in range(a):
                if (a, b) in told:
                    continue
                pairs = [(step[a, e], step[b, e]) for e in edges if e < 0x110000]
                if any((x == dead) != (y == dead) or (x, y) in told for x, y in pairs):
                    told |= {(a, b), (b, a)}
                    growing = True
    assert all((a, b) in told for a in states for b in range(a)), pattern


def follow(dfa: Dfa, state: int, char: str) -> int:
    for label, target in dfa.edges[state]:
        if any(start <= ord(char) < stop for start, stop in label):  # type: ignore[misc]
            return target
    return len(dfa.edges)


@given(looking_patterns, texts)
def test_forced_text_is_what_one_byte_at_a_time_allows_no_choice_of(
    pattern: str, text: str
) -> None:
    automaton = compile_or_skip(pattern)
    state = automaton.start
    for byte in text.encode():
        following = automaton.step(state, byte)
        if not following:
            break
        state = following
    data, target = forced(automaton, state)
    assert automaton.walk(state, data) == target
    for byte in data:
        assert not automaton.accepts(state)
        assert [b for b in range(256) if automaton.step(state, b)] == [byte]
        state = automaton.step(state, byte)
    if automaton.starts_character(state) and not automaton.accepts(state):
        beyond, _ = forced(automaton, state)
        assert beyond == b""


def jump(pattern: str, text: str = "") -> str:
    guide = Guide(compile_regex(pattern), BYTES)
    guide.advance_text(text.encode()) if text else None
    return guide.jump().decode()


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("a(bc)?", "", "a"),  # where it may end, nothing is forced
        ("a(bc)?", "a", ""),
        ("(put|putin)", "", "put"),
        ("(put|putin)", "puti", "n"),
        (r"[-+]?[0-9]+[ ]*", "7", ""),  # an end with a way back to itself
        (r"\[\"(春天|春分|夏至)\"\]", "", '["'),  # E6 98 A5 and E5 A4 8F: nothing shared
        (r"(春天|春分)", "", "春"),
        (r"[春昤]x", "", ""),  # E6 98 is shared, and half a character is no text
        (r"(春|昤)x", "春", "x"),
        (r"abc[d]{3}e*", "", "abcddd"),
        (r"(?=abc)[a-z]+", "", "abc"),
        ("x{5000}", "", "x" * 4096),
    ],
)
def test_jumps(pattern: str, text: str, expected: str) -> None:
    assert jump(pattern, text) == expected


def test_a_jump_finishes_the_character_that_is_begun() -> None:
    guide = Guide(compile_regex("[春昤]x"), BYTES)
    guide.advance_text("春".encode()[:2])
    assert guide.jump() == b""
    guide.advance_text("春".encode()[2:])
    assert guide.jump() == b"x"
    guide = Guide(compile_regex("é!"), BYTES)
    guide.advance_text("é".encode()[:1])
    assert guide.jump() == "é".encode()[1:] + b"!"


def test_the_papers_figure() -> None:
    """{"age": [0-9]+}: five edges stay of ten."""
    small = compressed(minimised(whole(compile_regex(r'\{"age": [0-9]+\}').chars)))
    labels = [[label for label, _ in out] for out in small.edges]
    assert labels[0] == ['{"age": ']
    assert len(small.edges) == 4
    assert str(small) == (
        'state 0\n    "{"age":␣" -> 1\nstate 1\n    [0-9] -> 2\n'
        "state 2\n    [0-9] -> 2\n    } -> 3\nstate 3 (may end)"
    )


def test_pictures_show_every_state_and_edge() -> None:
    dfa = minimised(whole(compile_regex(r'("<a>"|b+\\)*').chars))
    drawn = ET.fromstring(svg(dfa))
    names = [element.tag.split("}")[1] for element in drawn.iter()]
    num_edges = sum(len(out) for out in dfa.edges)
    assert names.count("circle") == len(dfa.edges) + sum(dfa.accepting)
    assert names.count("text") == len(dfa.edges) + num_edges
    assert graphviz(dfa).count("->") == num_edges + 1
    assert r'[label="\""]' in graphviz(dfa)
    assert r'[label="\\"]' in graphviz(dfa)


def test_too_many_states_to_look_at() -> None:
    with pytest.raises(TooComplexError, match="10000 states"):
        whole(compile_regex(".{20000}").chars)


def test_byte_automaton_of_a_schema_sized_pattern_is_lazy() -> None:
    automaton: ByteAutomaton = compile_regex("|".join(f"key{i}: .{{0,1000}}" for i in range(200)))
    assert automaton.num_states == 2


def test_the_command_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    main([r'\{"age": [0-9]+\}'])
    assert '"{"age":␣" -> 1' in capsys.readouterr().out
    main(["--dot", "yes|no"])
    assert capsys.readouterr().out.startswith("digraph {")
    main(["--svg", str(tmp_path / "a.svg"), "yes|no"])
    assert ET.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")
    main(["(yes|no)!?", "no"])
    assert capsys.readouterr().out.splitlines() == [
        "''       then 2 bytes may follow",
        "'n'      then always 'o'",
        "'o'      then 1 bytes may follow, or the end",
    ]
    schema = tmp_path / "schema.json"
    schema.write_text('{"enum": [1, 2]}', encoding="utf-8")
    main(["--json-schema", str(schema)])
    assert "[12] -> 1" in capsys.readouterr().out
    for wrong in (["("], ["a", "b"], ["--json-schema", "no such file"]):
        with pytest.raises(SystemExit, match=r"position 0|isn't allowed|No such file"):
            main(wrong)

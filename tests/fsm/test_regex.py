"""Our patterns match what Python's `re.fullmatch` matches, and errors name their place."""

from __future__ import annotations

import re
import sys
import unicodedata

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from minisgl.fsm import charset
from minisgl.fsm.automaton import Automaton
from minisgl.fsm.regex import parse
from minisgl.fsm.regex_chars import PatternError
from tests.fsm.patterns import compiled, looking_patterns, plain_patterns, texts


def matches(pattern: str, text: str) -> bool:
    try:
        automaton = Automaton(parse(pattern))
    except ValueError as error:
        if "no text matches" in str(error):
            return False
        raise
    return automaton.matches(text)


@given(plain_patterns, st.lists(texts, min_size=1, max_size=8))
def test_a_random_pattern_matches_as_in_re(pattern: str, samples: list[str]) -> None:
    for text in samples:
        assert matches(pattern, text) == bool(re.fullmatch(pattern, text)), (pattern, text)


@given(looking_patterns, st.lists(texts, min_size=1, max_size=8))
def test_a_random_pattern_that_looks_around_matches_as_in_re(
    pattern: str, samples: list[str]
) -> None:
    theirs = compiled(pattern)
    assume(theirs is not None)
    assert theirs is not None
    for text in samples:
        assert matches(pattern, text) == bool(theirs.fullmatch(text)), (pattern, text)


SAME_AS_RE = [
    r"a{2,3}", r"x{,2}", r"x{,}", r"x{a}", r"x{}", r"{", r"a{1", r"[]a]+", r"[^]a]+", r"[a\]b]",
    r"[-a]", r"[a-]", r"[\w-]+", r"\x41\u0042\U00000043\N{BULLET}", r"\101\0\07\t\a",
    r"[\b\101\0]+", r"(?P<n>a)b", r"(?#note)a(?#note)*", "(?x) a  b # rest\n c [ ] \\ ",
    "(?x)a (?#c) +", r"(?i)straße", r"(?i)[k-m]", r"(?ai)k", r"(?i)[^k]", r"(?s).",
    r"(?m)^a$\n^b$", r"^a$\n", r"a$b", r"\Aa\Z", r"a(?-i:b)", r"(?i)a(?-i:b)", r"(?im-s:A.)",
    r"\ba\b", r"a\Bb", r"(?=a)ab", r"(?!ab)a.", r"(?<=a)b|a(?<=a)b", r"(?<!a)b|ab",
    r"(?=.*\d)(?=.*[a-z]).{2,4}", r"(?!.*(ab|1)$).*", r"(a|aa)*", r"(a*)*b", r"((a?){4}){3}",
    r"(|a)b", r"(?:)", r"a||b", r"()*", r"(^)*a", r"(a|^)*", r"[^\W\d]", r"[\s\S]", r"(?u:é)",
    r"(?<!^a)b|ab", r"\.\*\[", r"a*?b+?", r"(?:(?=a)|b){2}a", r"(?i)ſ", r"(?i)İ", r"(?i)ς",
    r"(?i)[\U00010400-\U0001044f]",
]  # fmt: skip
SAMPLES = [
    "", "a", "b", "aa", "ab", "aaa", "aab", "abc", "ba", "A", "AB", "Ab", "aB", "k", "K",
    "\u212a", "l", "straße", "STRASSE", "STRAẞE", "a\n", "a\nb", "\n", "1", "a1", "1a", "ab1",
    "-", "]", "]a", "{", "x{a}", "x{}", "a{1", "xx", "xxx", "ABC•", "A\0\x07\t\a", "\x08A\0",
    " ", "abc ", "é", "É", "s", "S", "ſ", "i", "İ", "ı", "I", "Σ", "σ", "ς", "_", "aab",
    "\U00010400", "\U00010428", ".*[", "b1", "aaaab",
]  # fmt: skip


@pytest.mark.parametrize("pattern", SAME_AS_RE)
def test_each_construct_matches_as_in_re(pattern: str) -> None:
    theirs = re.compile(pattern)
    automaton = Automaton(parse(pattern)) if pattern != r"a$b" else None
    for text in SAMPLES:
        ours = automaton is not None and automaton.matches(text)
        assert ours == bool(theirs.fullmatch(text)), text


@pytest.mark.skipif(sys.version_info < (3, 11), reason="re has no possessive quantifiers yet")
@pytest.mark.parametrize("pattern", ["a*+b", "a*+a", "a?+a", "[ab]{1,2}+a", "a{2}+a", "(a++b)*"])
def test_a_possessive_character_matches_as_in_re(pattern: str) -> None:
    for text in SAMPLES:
        assert matches(pattern, text) == bool(re.fullmatch(pattern, text)), text


def every_character() -> str:
    return "".join(map(chr, range(0x110000)))


def spans(pattern: str) -> charset.Ranges:
    return tuple(m.span() for m in re.finditer(f"(?:{pattern})+", every_character()))


@pytest.mark.parametrize("letter", "dws")
@pytest.mark.parametrize("flag", ["", "(?a)"])
def test_shorthands_are_pythons(letter: str, flag: str) -> None:
    expected = charset.union(
        tuple(m.span() for m in re.finditer(rf"{flag}\{letter}", every_character()))
    )
    assert charset.shorthand(letter, ascii_only=bool(flag)) == expected


def test_ignoring_case_is_pythons_for_every_character() -> None:
    """One set that holds each cased character is split by what `(?i)` takes for the same."""
    letters = [c for c in every_character() if not c.lower() == c == c.upper()]
    for text in letters[::40]:
        theirs = {m.start() for m in re.finditer(f"(?i){text}", "".join(letters))}
        ours = charset.ignore_case(charset.single(ord(text)), ascii_only=False)
        assert {i for i, c in enumerate(letters) if charset.contains(ours, ord(c))} == theirs, text


@pytest.mark.parametrize(
    ("name", "kind"), [("Lu", "Lu"), ("Letter", "L"), ("gc=Nd", "Nd"), ("P", "P")]
)
def test_categories_are_those_of_unicodedata(name: str, kind: str) -> None:
    found = charset.unicode_property(name)
    members = {char for start, stop in found for char in range(start, stop)}
    expected = {c for c in range(0x110000) if unicodedata.category(chr(c)).startswith(kind)}
    assert members == expected


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        (r"\p{L}+", "aé世", "a1"),
        (r"[\p{L}\p{Nd}]+", "a1", "a-"),
        (r"\P{L}+", "1-", "a"),
        (r"\pL\PL", "a1", "1a"),
        (r"\p{Greek}+", "αβγ", "abc"),
        (r"\p{Script=Han}+", "世界", "カナ"),
        (r"\p{sc=Cyrillic}{3}", "мир", "mir"),
        (r"[^\p{Lu}]+", "ab1", "aB"),
        (r"\p{uppercase letter}", "É", "é"),
    ],
)
def test_unicode_properties(pattern: str, yes: str, no: str) -> None:
    assert matches(pattern, yes)
    assert not matches(pattern, no)


REFUSED = [
    ("(a)\\1", 3, "back-reference"),
    ("(?P<x>a)-(?P=x)", 9, "back-reference"),
    ("([a-z])-\\12", 8, "back-ref"),
    ("(a)?(?(1)b|c)", 4, "conditional"),
    ("(?>ab)", 0, "atomic"),
    ("(ab)++", 4, "possessive"),
    ("a**", 2, "quantifier after"),
    ("*a", 0, "nothing to repeat"),
    ("a|*", 2, "nothing to repeat"),
    ("^*", 1, "nothing to repeat"),
    ("\\b+", 2, "nothing to"),
    ("(a", 0, r"without its '\)'"),
    ("a)", 1, r"without its '\('"),
    ("[a", 0, "without its"),
    ("[", 0, "without its"),
    ("[b-a]", 1, "backwards"),
    ("[a-\\d]", 1, "range"),
    ("a{3,2}", 1, "at least 3"),
    ("\\q", 0, "unknown"),
    ("\\x1", 0, "hexadecimal"),
    ("\\U00110000", 0, "beyond"),
    ("\\N{no such}", 0, "named"),
    ("\\", 1, "ends"),
    ("\\p{Foo}", 0, "Foo"),
    ("(?z)", 0, "unknown"),
    ("(?L)a", 0, "bytes"),
    ("a(?i)b", 1, "start"),
    ("(?i", 0, "flags"),
    ("(?-u:a)", 0, "switched off"),
    ("(?P<1>a)", 0, "name"),
    ("(?P<a>a)(?P<a>b)", 8, "two groups"),
    ("\\477", 0, "beyond"),
    ("(?#", 0, "comment"),
    ("a{5000000000}", 1, "too large"),
    ("(" * 101 + ")" * 101, 100, "nested"),
    ("(" * 10000, 100, "nested"),
    ("[\\8]", 1, "unknown"),
    ("(?ua:b)", 0, "exclude"),
    ("(?i-i:b)", 0, "both"),
]


@pytest.mark.parametrize(("pattern", "position", "what"), REFUSED)
def test_an_error_names_its_place(pattern: str, position: int, what: str) -> None:
    with pytest.raises(PatternError, match=what) as raised:
        parse(pattern)
    assert raised.value.position == position
    assert f"position {position}" in str(raised.value)


@given(st.text("ab(?)[]{}*+|^$\\.,1-:=!<>Pixm#dwpN \n", max_size=12))
def test_any_text_is_a_pattern_or_a_pattern_error(pattern: str) -> None:
    """And what `re` refuses is refused, but for what it doesn't know or is stricter about."""
    try:
        tree = parse(pattern)
    except PatternError:
        return
    if compiled(pattern) is None:
        assert re.search(r"\\[pP]|\(\?<|\+", pattern), pattern
    else:
        try:
            Automaton(tree)
        except ValueError as error:
            assert "no text matches" in str(error)

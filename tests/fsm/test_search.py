"""Patterns that are looked for in a text that grows, beside `re` that looks at all of it."""

from __future__ import annotations

import re

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minisgl.fsm.search import MOST_CHARS, Match, Search, compile_search

PATTERNS = [
    "ab", "a+b", "a|ba", "(a|b)c", "a.*c", "^b", "(?m)^b", "c$", r"\bab\b", r"\Bb", "(?<=a)b",
    "(?<!a)b", "a(?=b)b", "a(?!b)[abc]", "[^a]b?c", "(ab){2}", "aä|ä", "(?i)AB", r"\n\n", "a?b",
    "(?s:.)c", "[ab]{3}",
]  # fmt: skip
pieces = st.lists(st.text("abcä \n", max_size=4), max_size=8)


def by_re(pattern: str, text: str) -> Match | None:
    """Of the matches in the shortest text that has any, the first.  Not empty."""
    for end in range(1, len(text) + 1):
        for start in range(end):
            if re.compile(pattern).fullmatch(text, start, end):
                return Match(end, start)
    return None


def first_match(search: Search, pieces: list[str]) -> Match | None:
    return next((found for found in map(search.read, pieces) if found), None)


@given(st.sampled_from(PATTERNS), pieces)
@example(r"\bab\b", ["a", "b"])
@example("a.*c", ["aa", "b", "bc"])
def test_the_first_match_is_re_s_however_the_text_comes(pattern: str, pieces: list[str]) -> None:
    search, text = Search(pattern), "".join(pieces)
    assert first_match(search, pieces) == by_re(pattern, text)


@given(st.sampled_from(PATTERNS), pieces, st.text("abcä \n", max_size=6))
def test_what_is_before_the_begun_is_in_no_later_match(
    pattern: str, pieces: list[str], more: str
) -> None:
    search, text = Search(pattern), "".join(pieces)
    if first_match(search, pieces) is not None:
        return
    shown = len(text) if search.begun is None else search.begun
    found = by_re(pattern, text + more)
    assert found is None or found.start >= shown
    assert found == search.read(more)


def test_so_much_waits_and_no_more() -> None:
    search = Search("a.*b")
    for _ in range(2 * MOST_CHARS):
        assert search.read("a") is None
        assert search.begun is not None and search._read - search.begun < MOST_CHARS
    search = Search("ax*b")
    assert search.read("a" + "x" * (MOST_CHARS - 2) + "b") == Match(MOST_CHARS, 0)
    search = Search("ax*b")
    assert search.read("a" + "x" * (MOST_CHARS - 1) + "b") is None


def test_what_is_skipped_is_in_no_match_but_comes_before_one() -> None:
    search = Search(r"ab|\bc|^d")
    search.skip("xa")
    assert search.read("bc d") is None and search.begun is None
    assert search.read(" c") == Match(8, 7)


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        ("a*", "matches the empty text"),
        ("", "matches the empty text"),
        ("(?<=ab)c", "looks behind for more than one character"),
        ("a(", "position"),
        ("(?=b)a", "no text matches"),
    ],
)
def test_patterns_that_are_refused(pattern: str, why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        compile_search(pattern)

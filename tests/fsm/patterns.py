"""Random patterns of Python's `re`, and texts that have a chance to match them."""

from __future__ import annotations

import re
import warnings

from hypothesis import strategies as st

ALPHABET = "abA1_ \néß世\U0001f60a"
texts = st.text(ALPHABET, max_size=6)

_atoms = st.sampled_from(
    [*"abA1é世\U0001f60a", ".", r"\d", r"\w", r"\s", r"\W", r"\D", r"\S", "[ab]", "[^a]", "[a-z]",
     r"[^\w\n]", "[世-界é]", r"[\d_]", r"\n", " ", "[A-c]", "(?i:b)", "(?i:[ß-é])", "(?s:.)",
     r"(?a:\w)", "(?i:A1)", r"\x61", r"\u4e16", "(?a:[\\W])"]
)  # fmt: skip
_quantifiers = st.sampled_from(
    ["*", "+", "?", "{2}", "{1,3}", "{,2}", "{2,}", "*?", "+?", "??", "{1,2}?", "{0}", "{3,5}"]
)
_places = st.sampled_from(["^", "$", r"\A", r"\Z", r"\b", r"\B", "(?m:^)", "(?m:$)", r"(?a:\b)"])
_behind = st.sampled_from(["a", "ab", "[^a]", r"\w", "(?:a|b)", "^a", r"\ba", "(?<=a)b", "a(?=b)"])


def _group(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.lists(inner, min_size=1, max_size=3).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: f"(?:{'|'.join(options)})"),
        st.builds(lambda body, q: f"({body}){q}", inner, _quantifiers),
    )


plain_patterns = st.recursive(
    st.one_of(_atoms, st.builds(lambda a, q: f"(?:{a}){q}", _atoms, _quantifiers)),
    _group,
    max_leaves=8,
)


def _look(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        _group(inner),
        st.builds(lambda sign, body: f"(?{sign}{body})", st.sampled_from("=!"), inner),
        st.builds(lambda sign, body: f"(?<{sign}{body})", st.sampled_from("=!"), _behind),
    )


looking_patterns = st.recursive(
    st.one_of(
        _atoms,
        _places,
        st.builds(lambda a, q: f"(?:{a}){q}", _atoms, _quantifiers),
    ),
    _look,
    max_leaves=8,
)


def compiled(pattern: str) -> re.Pattern[str] | None:
    """Python's own; None where it refuses (a look-behind of varying length)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return re.compile(pattern)
        except re.error:
            return None

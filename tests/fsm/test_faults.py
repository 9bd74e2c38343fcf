"""Faults that real engines had, each as its kind: once wrong somewhere, right here.

D1 and so on: half characters, ends that are branches, several stop ids, silent constructs, ...
"""

from __future__ import annotations

import pytest

from minisgl.fsm import Guide, PatternError, VocabIndex, compile_json_schema, compile_regex

STOP = 256
BYTES = VocabIndex([*(bytes([b]) for b in range(256)), b""], stop_ids=[STOP])


def guide_after(pattern: str, text: str) -> Guide:
    guide = Guide(compile_regex(pattern), BYTES)
    for byte in text.encode():
        guide.advance(byte)
    return guide


def following(pattern: str, text: str) -> list[str]:
    """What may come next, "end" for the stop id."""
    return ["end" if i == STOP else chr(i) for i in BYTES.ids(guide_after(pattern, text).allowed())]


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        (r"a(bc)?", "a", ["b", "end"]),  # a token from an end to no end is allowed all the same
        (r"(put|putin)", "put", ["i", "end"]),
        (r"(yes|no)", "yes", ["end"]),  # complete: nothing but the end
        (r"(yes|no)", "ye", ["s"]),
        (r"[-+]?[0-9]+[ ]*", "7 ", [" ", "end"]),
        (r"(x|)[0-9]", "", [*"0123456789", "x"]),
        (r"[0-9]+(\.[0-9]+)?", "3.5", [*"0123456789", "end"]),  # 3.5.5 is impossible
        (r"[0-9]+(\.[0-9]+)?", "3.", [*"0123456789"]),
        (r"(?!no)[a-z]{2}", "n", [c for c in "abcdefghijklmnopqrstuvwxyz" if c != "o"]),
        (r"\{\}", "{", ["}"]),
        (r"a*", "", ["a", "end"]),
        (r"", "", ["end"]),
    ],
)
def test_what_may_follow(pattern: str, text: str, expected: list[str]) -> None:
    assert following(pattern, text) == expected


def test_an_address_goes_on_as_long_as_it_may() -> None:
    byte = r"(25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)"
    pattern = rf"({byte}\.){{3}}{byte}"
    assert {"1", "2", "end"} <= set(following(pattern, "10.0.0.1"))
    assert following(pattern, "10.0.0.123") == ["end"]
    with pytest.raises(ValueError, match="isn't allowed"):
        guide_after(pattern, "10.0.0.12345")


@pytest.mark.parametrize(
    "words", [("春天", "春分", "夏至"), ("日本", "日光"), ("é", "è"), ("😨", "😊")]
)
def test_characters_that_share_bytes_are_all_reachable(words: tuple[str, ...]) -> None:
    pattern = "|".join(words)
    shared = guide_after(pattern, "").jump().decode()
    assert all(word.startswith(shared) for word in words)
    for word in words:
        assert following(pattern, word) == ["end"]
        for n in range(len(word.encode())):
            guide = Guide(compile_regex(pattern), BYTES)
            guide.advance_text(word.encode()[:n]) if n else None
            assert word.encode()[n] in BYTES.ids(guide.allowed())
            guide.jump()


def test_two_emoji_are_two() -> None:
    assert following("[😀-🙏]{2}", "😨😨") == ["end"]
    assert "end" not in following("[😀-🙏]{2}", "😨")


def test_umlauts_stay_umlauts() -> None:
    pattern = r'\{"straße": "[A-Za-zäöüßÄÖÜ]+"\}'
    guide = guide_after(pattern, "")
    assert guide.jump().decode() == '{"straße": "'
    assert following(pattern, '{"straße": "Mühlweg"}') == ["end"]


@pytest.mark.parametrize("bad", [r"([a-z])-\1", "(", "[z-a]", "a**", r"\q", "(?P<x>.)(?P=x)"])
def test_a_bad_pattern_is_refused_with_its_place_and_the_next_one_is_served(bad: str) -> None:
    with pytest.raises(PatternError, match=r"position \d+"):
        compile_regex(bad)
    assert following("ok", "o") == ["k"]


def test_a_pattern_with_nul() -> None:
    assert following("a\0b", "a") == ["\0"]


def test_a_stop_id_waits_for_the_end_in_the_middle_of_an_object() -> None:
    vocab = VocabIndex([*(bytes([b]) for b in range(256)), b"", b"}"], stop_ids=[256, 257])
    guide = Guide(compile_json_schema({"const": {}}), vocab)
    seen = []
    for byte in b"{ }":
        seen.append([i for i in vocab.ids(guide.allowed()) if i > 255])
        guide.advance(byte)
    assert seen == [[], [], []]
    assert vocab.ids(guide.allowed()) == [256, 257]


def test_white_space_ends_before_the_token_budget_does() -> None:
    guide = Guide(compile_json_schema({"type": "object", "required": ["a"]}), BYTES)
    guide.advance(ord("{"))
    spaces = 0
    while ord(" ") in BYTES.ids(guide.allowed()):
        guide.advance(ord(" "))
        spaces += 1
    assert spaces == 32
    assert BYTES.ids(guide.allowed()) == [ord('"')]

"""What is streamed: nothing is taken back, doubled, lost or leaked.  Each case once went wrong
somewhere (see the case numbers)."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minisgl.detokenizer import Detokenizer, stop_token_ids
from minisgl.fsm import TooComplexError
from minisgl.tokenizer import Tokenizer
from tests import toy_tokenizers as toys


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(toys.byte_level(tmp_path_factory.mktemp("bpe")))


@pytest.fixture(
    scope="module", params=[toys.sentencepiece, toys.metaspace], ids=lambda f: f.__name__
)
def llama2(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return Tokenizer(request.param(tmp_path_factory.mktemp("llama2"), add_bos=False))


@pytest.fixture(scope="module", params=[toys.byte_level, toys.sentencepiece, toys.metaspace],
                ids=lambda f: f.__name__)  # fmt: skip
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    return Tokenizer(request.param(tmp_path_factory.mktemp("any")))


def deltas(detokenizer: Detokenizer, pieces: Sequence[Sequence[int]]) -> list[str]:
    """The delta of each piece, and of finish().  Their join is `.text`, at every moment."""
    out: list[str] = []
    for piece in pieces:
        out.append(detokenizer.push(piece))
        assert detokenizer.text == "".join(out)
    out.append(detokenizer.finish())
    assert detokenizer.text == "".join(out)
    return out


def stream(tokenizer: Tokenizer, pieces: Sequence[str], **options: object) -> list[str]:
    ids = [tokenizer.encode(p, add_special_tokens=False) for p in pieces]
    return deltas(Detokenizer(tokenizer, **options), ids)  # type: ignore[arg-type]


def cut(text: str, stops: Sequence[str], keep: bool) -> str:
    """What should be left of `text`: the obvious way, one character at a time."""
    for end in range(len(text) + 1):
        met = [s for s in stops if text[:end].endswith(s)]
        if met:
            return text[: end if keep else end - max(map(len, met))]
    return text


# ---------------------------------------------------------------------- properties


@given(data=st.data())
def test_deltas_join_to_the_full_decode(data: st.DataObject, tokenizer: Tokenizer) -> None:
    """Any ids at all, so also halves of characters, special tokens, ids without a token."""
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size + 3), max_size=40))
    skip = data.draw(st.booleans())
    one_by_one = deltas(Detokenizer(tokenizer, skip_special_tokens=skip), [[i] for i in ids])
    assert "".join(one_by_one) == tokenizer.decode(ids, skip_special_tokens=skip)
    at = data.draw(st.integers(0, len(ids)))
    in_two = deltas(Detokenizer(tokenizer, skip_special_tokens=skip), [ids[:at], ids[at:]])
    assert "".join(in_two) == "".join(one_by_one)


@given(
    text=st.text("ab é🌶", max_size=30),
    stops=st.lists(st.text("ab é🌶", min_size=1, max_size=4), max_size=3),
    keep=st.booleans(),
    sizes=st.lists(st.integers(1, 5), max_size=40),
)
def test_text_ends_at_the_first_stop_string(
    text: str, stops: list[str], keep: bool, sizes: list[int], tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode(text)
    text = tokenizer.decode(ids)
    pieces, at = [], 0
    for size in sizes:
        pieces.append(ids[at : at + size])
        at += size
    pieces.append(ids[at:])
    detokenizer = Detokenizer(tokenizer, stop=stops, no_stop_trim=keep)
    assert "".join(deltas(detokenizer, pieces)) == cut(text, stops, keep)
    assert (detokenizer.stopped is not None) == any(s in text for s in stops)
    if detokenizer.stopped is not None:
        assert detokenizer.stopped in text


@given(
    text=st.text("ab é🌶", max_size=20),
    patterns=st.lists(st.sampled_from(["a+ ", "é.", "b(?=a)a", r"\bab", "🌶"]), max_size=2),
    stop=st.lists(st.text("ab é🌶", min_size=1, max_size=3), max_size=1),
    keep=st.booleans(),
)
def test_text_ends_where_a_pattern_or_a_stop_string_first_matches(
    text: str, patterns: list[str], stop: list[str], keep: bool, tokenizer: Tokenizer
) -> None:
    ids = tokenizer.encode(text)
    text = tokenizer.decode(ids)
    detokenizer = Detokenizer(tokenizer, stop=stop, stop_regex=patterns, no_stop_trim=keep)
    looked_for = [*map(re.escape, stop), *patterns]
    places = [
        (end, start)
        for end in range(1, len(text) + 1)
        for start in range(end)
        if any(re.compile(p).fullmatch(text, start, end) for p in looked_for)
    ]
    end, start = min(places, default=(len(text), len(text)))
    assert "".join(deltas(detokenizer, [[i] for i in ids])) == text[: end if keep else start]
    assert (detokenizer.stopped in [*stop, *patterns]) == bool(places)


def test_patterns_are_looked_for_only_where_it_may_stop(bpe: Tokenizer) -> None:
    detokenizer = Detokenizer(bpe, stop_regex=["b+c"])
    assert detokenizer.push(bpe.encode("abcb"), may_stop=False) == "abcb"
    assert detokenizer.push(bpe.encode("c b")) == "c "
    assert detokenizer.push(bpe.encode("bcd")) == "" and detokenizer.stopped == "b+c"


def test_a_pattern_that_grows_too_complex_is_told_and_the_text_goes_on(
    bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fault(*_: object) -> None:
        raise TooComplexError("on purpose")

    monkeypatch.setattr("minisgl.fsm.search.ByteAutomaton.walk", fault)
    detokenizer = Detokenizer(bpe, stop_regex=["b+c"])
    assert detokenizer.push(bpe.encode("ab")) == "ab"
    assert str(detokenizer.fault) == "on purpose"


@given(text=st.text("abc 🌶", max_size=40), stop=st.text("abc ", min_size=1, max_size=3))
def test_nothing_is_held_without_need(text: str, stop: str, bpe: Tokenizer) -> None:
    """What is withheld could still become the stop string, or is half a character."""
    detokenizer = Detokenizer(bpe, stop=stop)
    data = b""
    for i in bpe.encode(text):
        detokenizer.push([i])
        if detokenizer.stopped is not None:
            break
        data += bpe.token_bytes(i)
        held = data.decode(errors="ignore").removeprefix(detokenizer.text)
        assert stop.startswith(held) and held != stop


@given(prompt=st.text("Hi the🌶", max_size=12), answer=st.text("Hi the🌶", max_size=12))
def test_a_continuation_adds_what_the_whole_has_more(
    prompt: str, answer: str, tokenizer: Tokenizer
) -> None:
    before, after = tokenizer.encode(prompt + "."), tokenizer.encode(answer)
    detokenizer = Detokenizer(tokenizer, continues=True)
    detokenizer.push(after)
    detokenizer.finish()
    assert tokenizer.decode(before) + detokenizer.text == tokenizer.decode([*before, *after])


# ---------------------------------------------------------------------- cases from users


def test_stop_over_token_borders(bpe: Tokenizer) -> None:
    detokenizer = Detokenizer(bpe, stop="STOP")
    ids = [bpe.encode(piece) for piece in ("ok S", "T", "OP now")]
    assert deltas(detokenizer, ids) == ["ok ", "", "", ""]
    assert detokenizer.stopped == "STOP"
    assert detokenizer.push(bpe.encode(" more")) == detokenizer.finish() == ""


def test_held_text_is_released_when_the_stop_does_not_come(bpe: Tokenizer) -> None:
    assert stream(bpe, ["say", " when", " he"], stop=" when it") == ["say", "", " when he", ""]
    assert stream(bpe, ["say", " when"], stop="when it") == ["say", " ", "when"]


def test_held_text_is_released_between_pieces(llama2: Tokenizer) -> None:
    ids = llama2.encode("say when he")
    out = deltas(Detokenizer(llama2, stop=" when it"), [[i] for i in ids])
    assert out[-3:] == ["", " when he", ""] and "".join(out) == "say when he"


@pytest.mark.parametrize(("keep", "text"), [(False, "It ended"), (True, "It ended.")])
def test_stop_string_is_trimmed_or_kept(bpe: Tokenizer, keep: bool, text: str) -> None:
    assert "".join(stream(bpe, ["It ended", ". And"], stop=".", no_stop_trim=keep)) == text


def test_emoji_waits_for_its_last_byte(llama2: Tokenizer) -> None:
    ids = llama2.encode("Hi 🌶!")
    out = deltas(Detokenizer(llama2), [[i] for i in ids])
    assert "".join(out) == "Hi 🌶!"
    assert "🌶" in out and "\ufffd" not in "".join(out)


def test_spaces_stay(llama2: Tokenizer) -> None:
    hi, there = llama2.encode("Hi there")
    assert deltas(Detokenizer(llama2), [[hi], [there]]) == ["Hi", " there", ""]


def test_first_character_is_not_cut_blindly(llama2: Tokenizer) -> None:
    brace, quote = llama2.encode('{"')[-2:]
    assert deltas(Detokenizer(llama2), [[brace], [quote]]) == ["{", '"', ""]
    hi = llama2.encode("Hi")
    assert deltas(Detokenizer(llama2), [hi]) == ["Hi", ""]
    assert deltas(Detokenizer(llama2, continues=True), [hi]) == [" Hi", ""]


def test_sent_text_never_moves_back(bpe: Tokenizer) -> None:
    ids = bpe.encode("A ") + [i for b in "世".encode() for i in byte_ids(bpe, b)]
    assert deltas(Detokenizer(bpe), [[i] for i in ids])[-4:] == ["", "", "世", ""]


def byte_ids(tokenizer: Tokenizer, byte: int) -> list[int]:
    every = range(tokenizer.vocab_size)
    return [next(i for i in every if tokenizer.token_bytes(i) == bytes([byte]))]


def test_eos_in_the_middle_of_a_character(tokenizer: Tokenizer) -> None:
    half = [i for b in "世".encode()[:2] for i in byte_ids(tokenizer, b)]
    ids = [*tokenizer.encode("A"), *half, min(tokenizer.eos_token_ids)]
    out = deltas(Detokenizer(tokenizer), [[i] for i in ids])
    assert out[-1] == "\ufffd"
    assert "".join(out) == tokenizer.decode(ids) == "A\ufffd"


def test_space_before_punctuation(tokenizer: Tokenizer) -> None:
    assert "".join(stream(tokenizer, ["Hi there !"])) == "Hi there !"


def test_added_token_without_spaces(bpe: Tokenizer) -> None:
    assert stream(bpe, ["<think>", "1"]) == ["<think>", "1", ""]


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize(("keep", "text"), [(False, "Hi"), (True, "Hi<end>")])
def test_stop_string_that_is_a_special_token(
    bpe: Tokenizer, skip: bool, keep: bool, text: str
) -> None:
    detokenizer = Detokenizer(bpe, skip_special_tokens=skip, stop=["<end>", "x"], no_stop_trim=keep)
    assert (
        detokenizer.stop_token_ids
        == stop_token_ids(bpe, ["<end>", "x"])
        == set(bpe.encode("<end>"))
    )
    assert "".join(deltas(detokenizer, [[i] for i in bpe.encode("Hi<end> there")])) == text
    assert detokenizer.stopped == "<end>"


def test_special_tokens_skipped_or_shown(bpe: Tokenizer) -> None:
    assert stream(bpe, ["Hi", "<|im_end|>"]) == ["Hi", "", ""]
    assert stream(bpe, ["Hi", "<|im_end|>"], skip_special_tokens=False) == ["Hi", "<|im_end|>", ""]


def test_the_text_of_eos_is_not_eos(bpe: Tokenizer) -> None:
    name = "<|im_end|>"
    ids = bpe.encode(name, as_text=[(0, len(name))])
    detokenizer = Detokenizer(bpe)
    assert "".join(deltas(detokenizer, [ids])) == name
    assert detokenizer.stopped is None and not bpe.eos_token_ids & set(ids)


# ---------------------------------------------------------------------- the rule for several stops


@pytest.mark.parametrize(
    ("stops", "text", "stopped"),
    [
        (["abcd", "bc"], "xa", "bc"),  # complete first
        (["bc", "abc"], "x", "abc"),  # both at once: the longest
        (["zz"], "xabcd", None),
        (["aaab"], "xabcd", None),
    ],
)
def test_which_of_several_stops_counts(
    bpe: Tokenizer, stops: list[str], text: str, stopped: str | None
) -> None:
    for pieces in (["xabcd"], ["x", "a", "b", "c", "d"], ["xab", "cd"]):
        detokenizer = Detokenizer(bpe, stop=stops)
        assert "".join(deltas(detokenizer, [bpe.encode(p) for p in pieces])) == text
        assert detokenizer.stopped == stopped


def test_stop_that_begins_like_itself(bpe: Tokenizer) -> None:
    assert "".join(stream(bpe, ["a", "a", "a", "b", "c"], stop="aab")) == "a"


def test_stop_completed_by_the_flush(bpe: Tokenizer) -> None:
    half = byte_ids(bpe, 0xE4)
    detokenizer = Detokenizer(bpe, stop="a\ufffd")
    assert "".join(deltas(detokenizer, [bpe.encode("xa"), half])) == "x"


@given(
    before=st.text("ab ", max_size=8),
    after=st.text("ab ", max_size=8),
    stop=st.text("ab ", min_size=1, max_size=3),
)
def test_a_stop_counts_only_in_what_comes_when_it_may(
    before: str, after: str, stop: str, bpe: Tokenizer
) -> None:
    detokenizer = Detokenizer(bpe, stop=stop)
    for i in bpe.encode(before, add_special_tokens=False):
        assert detokenizer.push([i], may_stop=False)  # nothing is held
    assert detokenizer.text == before
    for i in bpe.encode(after, add_special_tokens=False):
        detokenizer.push([i])
    detokenizer.finish()
    assert detokenizer.text == before + cut(after, [stop], keep=False)
    assert (detokenizer.stopped == stop) == (stop in after)


def test_empty_stop_is_refused(bpe: Tokenizer) -> None:
    with pytest.raises(ValueError, match="empty stop string"):
        Detokenizer(bpe, stop=["a", ""])


def test_cost_of_a_token_does_not_grow(bpe: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many token look-ups as tokens, however long the text: nothing is decoded twice."""
    looked_up: list[int] = []
    whole = bpe.token_bytes
    monkeypatch.setattr(bpe, "token_bytes", lambda i: looked_up.append(i) or whole(i))
    detokenizer = Detokenizer(bpe, stop="STOP")
    ids = bpe.encode("Hi there, how are you? " * 40)
    for i in ids:
        detokenizer.push([i])
    assert looked_up == ids

"""Every bit of every mask, against each token walked by itself; and guides."""

from __future__ import annotations

import itertools
import random
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from minisgl.fsm import (
    Automaton,
    ByteAutomaton,
    Guide,
    VocabIndex,
    compile_regex,
    mask_bits,
    parse,
    token_tree,
    wide_walk,
)
from tests.fsm.patterns import looking_patterns
from tests.fsm.test_automaton import compile_or_skip

PIECES = [
    "a",
    "b",
    "ab",
    "aab",
    "ba",
    "A1",
    "_",
    " ",
    "\n",
    "é",
    "世",
    "世界",
    "😊",
    " a",
    "1",
    "ß",
]
SPLIT = [
    b"\xc3",
    b"\xa9",
    b"\xe4",
    b"\xe4\xb8",
    b"\x96",
    b"\xb8\x96",
    b"\xf0\x9f",
    b"\x98\x8a",
    b"a\xc3",
]
# 0..: text, with a twin, half characters, bytes that never are UTF-8, and an id without a token.
SMALL = [*(p.encode() for p in PIECES), *SPLIT, b"a", b"\xff", b"\xc0\x80", b"", b"<|end|>", b"<s>"]
STOP, SPECIAL = len(SMALL) - 2, len(SMALL) - 1


def small_vocab() -> VocabIndex:
    return VocabIndex(SMALL, stop_ids=[STOP], special_ids=[SPECIAL])


VOCAB = small_vocab()


def brute_force(guide: Guide) -> list[int]:
    """Each token by itself: its bytes lead to a live state; the stop ids where it accepts."""
    automaton, vocab, stop_ids = guide.masks.automaton, guide.masks.vocab, guide.masks.stop_ids
    allowed = [
        i
        for i in range(vocab.vocab_size)
        if i not in stop_ids and vocab.text_of(i) and automaton.walk(guide.state, vocab.text_of(i))
    ]
    return sorted(allowed + (list(stop_ids) if guide.is_accepting() else []))


# Of the vocabulary; none; text, one of two equal tokens, the other; half a character and no token.
A, TWIN = SMALL.index(b"a"), len(SMALL) - 6
stop_sets = st.sampled_from(
    [None, [], [STOP], [A], [TWIN], [A, TWIN, STOP], [SMALL.index(b"\xc3"), SMALL.index(b"")]]
)


@given(looking_patterns, stop_sets, st.randoms(use_true_random=False))
def test_masks_are_what_each_token_gives_alone(
    pattern: str, stop_ids: list[int] | None, rnd: random.Random
) -> None:
    guide = Guide(compile_or_skip(pattern), VOCAB, stop_ids)
    for _ in range(12):
        allowed = VOCAB.ids(guide.allowed())
        assert allowed == brute_force(guide), pattern
        assert allowed == [i for i in range(-1, len(SMALL) + 1) if guide.allows(i)]
        assert SPECIAL not in allowed
        going_on = [i for i in allowed if i not in guide.masks.stop_ids]
        assert guide.must_end == (guide.is_accepting() and not going_on)
        if not going_on:
            break
        guide.advance(rnd.choice(going_on))


@given(looking_patterns, stop_sets, st.randoms(use_true_random=False))
def test_what_goes_beyond_a_text_is_found_token_by_token(
    pattern: str, stop_ids: list[int] | None, rnd: random.Random
) -> None:
    guide = Guide(compile_or_skip(pattern), VOCAB, stop_ids)
    starts = {data[:n] for data in SMALL for n in range(len(data) + 1)}
    for _ in range(4):
        texts = [VOCAB.text_of(i) for i in brute_force(guide) if i not in guide.masks.stop_ids]
        for start in starts:
            expected = any(t.startswith(start) and len(t) > len(start) for t in texts)
            assert guide.allows_longer(start) == expected, (pattern, start)
        if not texts:
            break
        guide.advance_text(rnd.choice(texts))


@given(looking_patterns, st.randoms(use_true_random=False))
def test_a_random_walk_ends_in_a_match(pattern: str, rnd: random.Random) -> None:
    """Along tokens until the stop id: and then the text is one that `re` matches in full."""
    guide = Guide(compile_or_skip(pattern), VOCAB)
    data = b""
    for step in range(200):
        allowed = VOCAB.ids(guide.allowed())
        if not allowed:
            assume(False)  # a character that this vocabulary can't write
        token = STOP if STOP in allowed and step > 5 else rnd.choice(allowed)
        guide.advance(token)
        if guide.is_finished:
            assert re.fullmatch(pattern, data.decode())
            assert VOCAB.ids(guide.allowed()) == []
            return
        data += VOCAB.text_of(token)
    assume(False)


_ab = st.recursive(
    st.sampled_from(["a", "b", ".", "[ab]", "(?=a)", "(?!b)", "(?<=a)", r"\b", "$"]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=2).map("".join),
        st.lists(inner, min_size=2, max_size=2).map(lambda o: f"(?:{'|'.join(o)})"),
        st.builds("(?:{}){}".format, inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}"])),
    ),
    max_leaves=4,
)


@given(_ab)
def test_a_token_is_allowed_if_and_only_if_a_match_begins_so(pattern: str) -> None:
    """By hand: all texts over a and b up to nine letters, and which of them match."""
    everything = ["".join(t) for n in range(10) for t in itertools.product("ab", repeat=n)]
    matching = [t for t in everything if re.fullmatch(pattern, t)]
    assume(matching)
    begun = {t[:n] for t in matching for n in range(len(t) + 1)}
    vocab = VocabIndex([b"a", b"b", b"ab", b"bba", b""], stop_ids=[4])
    automaton = compile_regex(pattern)
    for text in (t for t in begun if len(t) <= 3):
        guide = Guide(automaton, vocab)
        for letter in text:
            guide.advance("ab".index(letter))
        expected = [i for i, t in enumerate(["a", "b", "ab", "bba"]) if text + t in begun]
        expected += [4] if text in matching else []
        assert vocab.ids(guide.allowed()) == expected, (pattern, text)


def test_half_a_character_leads_only_to_its_other_half() -> None:
    guide = Guide(compile_regex("é|世"), VOCAB)
    guide.advance(SMALL.index(b"\xe4\xb8"))
    assert not guide.is_accepting()
    assert [SMALL[i] for i in VOCAB.ids(guide.allowed())] == [b"\x96"]
    guide.advance(SMALL.index(b"\x96"))
    assert VOCAB.ids(guide.allowed()) == [STOP]


def test_counts_beyond_the_longest_token_share_a_mask() -> None:
    vocab = small_vocab()
    guide = Guide(compile_regex(r".{0,500}"), vocab)
    rows = set()
    for _ in range(500):
        rows.add(guide.row)
        guide.advance(SMALL.index(b"a"))
    assert vocab.ids(guide.allowed()) == [STOP]
    assert len(rows) <= vocab.reach + 1
    assert vocab.num_rows <= vocab.reach + 2


def test_equal_masks_of_different_patterns_are_one_row() -> None:
    vocab = small_vocab()
    assert Guide(compile_regex("ab?"), vocab).row == Guide(compile_regex("ab{0,1}"), vocab).row
    rows = [Guide(compile_regex(p), vocab).row for p in ("a", "b", "a")]
    batch = vocab.gather(rows)
    assert batch.shape == (3, vocab.num_words)
    assert np.array_equal(batch[0], batch[2])
    assert [vocab.ids(row)[0] for row in batch] == [
        PIECES.index("a"),
        PIECES.index("b"),
        PIECES.index("a"),
    ]


def test_a_vocabulary_forgets_its_rows_and_guides_go_on() -> None:
    vocab = small_vocab()
    guide = Guide(compile_regex("[ab]{3}1"), vocab)
    before = vocab.ids(guide.allowed())
    guide.advance(PIECES.index("a"))
    assert vocab.num_rows == 1
    vocab.forget()
    assert vocab.num_rows == 0
    assert vocab.ids(guide.allowed()) == brute_force(guide)
    guide.rollback(1)
    assert vocab.ids(guide.allowed()) == before
    assert vocab.num_rows == 2


def test_a_token_that_is_not_allowed_moves_nothing() -> None:
    guide = Guide(compile_regex("ab"), VOCAB)
    for token in (PIECES.index("b"), STOP, SPECIAL, SMALL.index(b""), -1, 10**6):
        with pytest.raises(ValueError, match=rf"token {token} .*isn't allowed"):
            guide.advance(token)
    guide.advance(PIECES.index("a"))
    with pytest.raises(ValueError, match="isn't allowed"):
        guide.advance_text(b"c")
    guide.advance_text(b"b")
    assert VOCAB.ids(guide.allowed()) == [STOP]
    guide.advance(STOP)
    assert guide.is_finished
    assert not guide.is_accepting()
    assert guide.jump() == b""
    with pytest.raises(ValueError, match="isn't allowed"):
        guide.advance(PIECES.index("a"))


@given(
    st.lists(st.sampled_from(["go", "back", "fork"]), max_size=20),
    st.randoms(use_true_random=False),
)
def test_copies_and_rollbacks_are_replays(actions: list[str], rnd: random.Random) -> None:
    automaton = compile_regex(r"(a|ba?|é)*1?")
    guides: list[tuple[Guide, list[int]]] = [(Guide(automaton, VOCAB), [])]
    for action in actions:
        guide, taken = rnd.choice(guides)
        if action == "fork":
            guides.append((guide.copy(), taken.copy()))
        elif action == "back":
            steps = rnd.randint(0, len(taken))
            guide.rollback(steps)
            del taken[len(taken) - steps :]
        else:
            allowed = VOCAB.ids(guide.allowed())
            if allowed:
                taken.append(rnd.choice(allowed))
                guide.advance(taken[-1])
    for guide, taken in guides:
        fresh = Guide(automaton, VOCAB)
        for token in taken:
            fresh.advance(token)
        assert (guide.state, guide.is_finished) == (fresh.state, fresh.is_finished)
        with pytest.raises(ValueError, match="can't take back"):
            guide.rollback(len(taken) + 1)


def test_several_stop_ids() -> None:
    """All of them wait for the end, whatever their names; and none is ever text."""
    vocab = VocabIndex([b"{", b"}", b"{}", b"</s>", b"{"], stop_ids=[3, 2])
    guide = Guide(compile_regex(r"\{\}"), vocab)
    assert vocab.ids(guide.allowed()) == [0, 4]
    guide.advance(4)
    assert vocab.ids(guide.allowed()) == [1]
    guide.advance(1)
    assert vocab.ids(guide.allowed()) == [2, 3]


def test_a_request_has_stop_ids_of_its_own() -> None:
    """Text where it is no stop id; where it is one, the end and nothing else."""
    vocab = VocabIndex([b"a", b"b", b"ab", b"</s>"], stop_ids=[3])
    automaton = compile_regex("(ab)+")
    usual, by_text, endless = (Guide(automaton, vocab, ids) for ids in (None, [1, 2], []))
    assert [vocab.ids(g.allowed()) for g in (usual, by_text, endless)] == [[0, 2], [0], [0, 2]]
    for guide in (usual, by_text, endless):
        guide.advance_text(b"ab")
    assert [vocab.ids(g.allowed()) for g in (usual, by_text, endless)] == [
        [0, 2, 3],
        [0, 1, 2],
        [0, 2],
    ]
    usual.advance(2)
    by_text.copy().advance(1)
    by_text.advance(2)
    assert (usual.is_finished, by_text.is_finished) == (False, True)
    with pytest.raises(ValueError, match=r"token 3 .*isn't allowed"):
        endless.advance(3)


def test_guides_share_masks_if_and_only_if_all_three_are_equal() -> None:
    vocab = small_vocab()
    automaton = compile_regex("a|b")
    guide = Guide(automaton, vocab)
    assert guide.masks is Guide(automaton, vocab, [STOP, STOP]).masks
    assert guide.masks is guide.copy().masks
    assert guide.masks is not Guide(automaton, vocab, []).masks
    assert guide.masks is not Guide(automaton, small_vocab()).masks
    assert guide.row == Guide(automaton, vocab, []).row  # and even then equal rows are one
    other = Guide(automaton, vocab, [A])
    assert other.copy().masks is other.masks


def test_where_an_answer_must_end() -> None:
    vocab = VocabIndex([b"yes", b"no", b"n", b"o", b"!?", b""], stop_ids=[5])
    for stop_ids in ([5], [], [3, 5]):
        guide = Guide(compile_regex(r"(yes|no)(!\?\?)?"), vocab, stop_ids)
        assert not guide.must_end
        guide.advance(1)
        assert not guide.must_end  # "!?" may follow
        guide.advance(4)
        assert not guide.must_end
        assert vocab.ids(guide.allowed()) == []  # "?" alone is no token here
    guide = Guide(compile_regex("(yes|no)(!x)?"), vocab)
    guide.advance(1)
    assert guide.must_end  # more could come, but no token begins so
    guide.advance(5)
    assert not guide.must_end
    vocab.forget()
    guide.rollback(1)
    assert guide.must_end


@pytest.mark.parametrize("stop_ids", [[-1], [3], [0, 7]])
def test_stop_ids_outside_the_vocabulary(stop_ids: list[int]) -> None:
    with pytest.raises(ValueError, match=r"stop ids .* are 0 to 2"):
        VocabIndex([b"a", b"b", b""], stop_ids=stop_ids)
    with pytest.raises(ValueError, match=r"stop ids .* are 0 to 2"):
        Guide(compile_regex("a"), VocabIndex([b"a", b"b", b""]), stop_ids=stop_ids)


def test_a_special_token_is_never_text() -> None:
    vocab = VocabIndex([b"<s>", b"<", b"s", b">", b""], stop_ids=[4], special_ids=[0])
    assert 0 not in vocab.ids(Guide(compile_regex(".*"), vocab).allowed())
    assert vocab.ids(Guide(compile_regex("<s>"), vocab).allowed()) == [1]


def test_an_empty_vocabulary_allows_nothing_but_the_end() -> None:
    vocab = VocabIndex([b"", b"</s>"], stop_ids=[1])
    assert vocab.ids(Guide(compile_regex("a*"), vocab).allowed()) == [1]


@pytest.mark.parametrize("few", [0, 1000])
def test_one_after_the_other_and_all_at_once_find_the_same(
    few: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each walk goes over to arrays where there is much to do; here always, or never."""
    for module in (mask_bits, token_tree, wide_walk):
        monkeypatch.setattr(module, "FEW", few)
    rnd = random.Random(few)
    for pattern in (
        ".*",
        r"[a-z ]{0,9}1",
        r"[^1]{2,7}1é?",
        r"\w{1,4}\n",
        " {0,20}(世|a)",
        "é*ab|b+",
    ):
        for _ in range(5):
            # Made anew, so that nothing is known of it.
            guide = Guide(ByteAutomaton(Automaton(parse(pattern))), small_vocab())
            for _ in range(8):
                allowed = guide.masks.vocab.ids(guide.allowed())
                assert allowed == brute_force(guide), pattern
                if not set(allowed) - {STOP}:
                    break
                guide.advance(rnd.choice([i for i in allowed if i != STOP]))


# ---------------------------------------------------------------------- the real vocabulary


@pytest.fixture(scope="module")
def real_vocab(default_model_dir: Path) -> VocabIndex:
    from minisgl.tokenizer import Tokenizer

    tokenizer = Tokenizer(default_model_dir)
    pieces = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
    return VocabIndex(pieces, tokenizer.eos_token_ids, tokenizer.special_ids)


CONSTRAINTS = {
    "number": r"[0-9]{1,3}\.[0-9]",
    "ip": r"((25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)\.){3}(25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)",
    "date": r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])",
    "email": r"[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,10}",
    "name": r"""\{\n    "name": "[\w\d\s]{1,16}",\n    "house": "(Gryffindor|Slytherin)"\n\}""",
    "choice": r"(yes|no|maybe)",
    "dots": r".{0,500}",
    "cjk": r"[一-龥]{1,20}",
    "letters": r"[\p{L}]+",
    "counted": r"(a|b){50,200}",
    "string": r'"([^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"',
    "password": r"(?=.*\d)(?=.*[a-z]).{8,20}",
    "word": r"(?i)\b(?!no)[a-z]+\b.*",
}


@pytest.mark.slow
@pytest.mark.parametrize("name", CONSTRAINTS)
def test_masks_over_the_real_vocabulary(name: str, real_vocab: VocabIndex) -> None:
    rnd = random.Random(name)
    guide = Guide(compile_regex(CONSTRAINTS[name]), real_vocab)
    for step in range(30):
        allowed = real_vocab.ids(guide.allowed())
        if step % 6 == 0:
            assert allowed == brute_force(guide)
        going_on = [i for i in allowed if i not in real_vocab.stop_ids]
        if not going_on:
            break
        guide.advance(rnd.choice(going_on))

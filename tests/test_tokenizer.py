"""The tokenizer equals transformers' on every text, and says what is wrong with a directory."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from tokenizers import Tokenizer as HubTokenizer
from tokenizers import decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from minisgl.tokenizer import Tokenizer
from tests import toy_tokenizers as toys

KINDS = {"byte_level": toys.byte_level, "sentencepiece": toys.sentencepiece,
         "metaspace": toys.metaspace}  # fmt: skip


@pytest.fixture(scope="module", params=KINDS)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return KINDS[request.param](tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return Tokenizer(directory)


@pytest.fixture(scope="module")
def theirs(directory: Path) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast.from_pretrained(directory)


# SentencePiece's ▁ stands for a space, so no text of ours has one.
texts = st.text(st.characters(exclude_characters="▁", exclude_categories=["Cs"])) | st.lists(
    st.sampled_from(["Hi", " there", " 🌶", "é", "<s>", "</s>", "<|im_end|>", "<think>", " ", "."])
).map("".join)


@given(text=texts)
@example(text="<s>Hi")  # whether a space stands after a special token is the file's own choice
@example(text="</s>there")
@example(text="Hi</s> there")
def test_encode_and_decode_equal_transformers(
    text: str, tokenizer: Tokenizer, theirs: PreTrainedTokenizerFast
) -> None:
    for add in (True, False):
        ids = tokenizer.encode(text, add_special_tokens=add)
        assert ids == theirs.encode(text, add_special_tokens=add)
        for skip in (True, False):
            assert tokenizer.decode(ids, skip_special_tokens=skip) == theirs.decode(
                ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False
            )


@given(text=texts)
def test_text_comes_back(text: str, tokenizer: Tokenizer) -> None:
    if not any(special in text for special in tokenizer.special_tokens):
        back = tokenizer.decode(tokenizer.encode(text))
        if tokenizer.spelling.cut_first_token:  # Metaspace: " Hi" and "Hi" are the same ids
            text, back = text.lstrip(" "), back.lstrip(" ")
        assert back == text


def test_token_bytes_spell_the_text(tokenizer: Tokenizer) -> None:
    text = "Hi café 世界 🌶\n"
    ids = tokenizer.encode(text, add_special_tokens=False)
    data = b"".join(tokenizer.token_bytes(i) for i in ids)
    assert data.decode().removeprefix(" ") == text


def test_every_byte_has_a_token(tokenizer: Tokenizer) -> None:
    spelled = {tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)}
    possible = {bytes([b]) for b in range(256)}
    assert possible <= spelled


def test_ids_outside_the_vocabulary(tokenizer: Tokenizer) -> None:
    beyond = tokenizer.vocab_size + 5  # a model's vocabulary is often padded
    remembered = len(tokenizer._bytes)
    for number in (beyond, 2**40, 2**70):  # whatever a client calls a token
        assert tokenizer.token_bytes(number) == b""
    assert len(tokenizer._bytes) == remembered
    hi = tokenizer.encode("Hi")
    assert tokenizer.decode([*hi, beyond]) == tokenizer.decode(hi)
    with pytest.raises(ValueError, match="-1"):
        tokenizer.decode([-1])


def test_padding_has_no_tokens(tokenizer: Tokenizer) -> None:
    size = tokenizer.size_within(tokenizer.vocab_size + 100)
    assert size == tokenizer.vocab_size
    assert tokenizer.size_within(size) == size
    assert tokenizer.size_within(300) == 300  # the model has fewer than the tokenizer
    assert tokenizer.size_within(0) == 0


def test_half_a_surrogate_pair_is_refused(tokenizer: Tokenizer) -> None:
    with pytest.raises(ValueError, match=r"'\\ud800' in the text"):
        tokenizer.encode("a\ud800b")
    with pytest.raises(TypeError):
        tokenizer.encode(3)  # type: ignore[arg-type]


def test_no_clean_up_of_spaces(tokenizer: Tokenizer) -> None:
    for text in ("Hi there !", "it 's", "a , b", "do n't"):
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_added_token_gets_no_spaces(tmp_path: Path) -> None:
    tokenizer = Tokenizer(toys.byte_level(tmp_path))
    think = tokenizer.encode("<think>")
    assert len(think) == 1 and think[0] not in tokenizer.special_ids
    assert tokenizer.decode([*think, *tokenizer.encode("1")]) == "<think>1"


def test_added_token_with_letters_beyond_ascii(tmp_path: Path) -> None:
    path = toys.byte_level(tmp_path)
    hub = HubTokenizer.from_file(str(path / "tokenizer.json"))
    hub.add_tokens(["<é>", "<a b>"])
    hub.save(str(path / "tokenizer.json"))
    tokenizer = Tokenizer(path)
    assert tokenizer.decode(tokenizer.encode("x<é>y<a b>z")) == "x<é>y<a b>z"


def test_special_tokens_are_skipped_or_shown(tokenizer: Tokenizer) -> None:
    eos = min(tokenizer.eos_token_ids)
    ids = [*tokenizer.encode("Hi"), eos]
    assert tokenizer.decode(ids) == "Hi"
    shown = tokenizer.decode(ids, skip_special_tokens=False)
    assert shown.endswith(tokenizer.token_bytes(eos).decode())


def test_special_tokens_quoted_as_text(tokenizer: Tokenizer) -> None:
    for special, token_id in tokenizer.special_tokens.items():
        text = f"Hi {special}é{special}"
        first = text.index(special)
        ids = tokenizer.encode(text, as_text=[(first, first + len(special))])
        assert ids.count(token_id) == tokenizer.encode(text).count(token_id) - 1
        expected = tokenizer.decode(tokenizer.encode(text), skip_special_tokens=False)
        assert tokenizer.decode(ids, skip_special_tokens=False) == expected
        assert tokenizer.encode(text, as_text=[(0, 1)]) == tokenizer.encode(text)


def test_threads_share_one(tokenizer: Tokenizer) -> None:
    words = [f"Hi {n} there </s> <|im_end|> 🌶" for n in range(200)]
    alone = [tokenizer.encode(w, as_text=[(0, len(w))]) for w in words]
    fresh = tokenizer.__class__.__new__(tokenizer.__class__)
    fresh.__dict__ = tokenizer.__dict__ | {"_plain": None, "_bytes": {}}
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(lambda w: fresh.encode(w, as_text=[(0, len(w))]), words)) == alone
        assert list(pool.map(fresh.decode, alone)) == [tokenizer.decode(ids) for ids in alone]


def test_eos_is_the_union_of_all_files(tmp_path: Path) -> None:
    path = toys.byte_level(tmp_path)
    (path / "config.json").write_text('{"eos_token_id": 0}')
    (path / "generation_config.json").write_text('{"eos_token_id": [1, 3]}')
    assert Tokenizer(path).eos_token_ids == {0, 1, 2, 3}


def test_eos_named_as_an_object_or_in_the_older_file(tmp_path: Path) -> None:
    path = toys.byte_level(tmp_path / "a", eos_token={"content": "<|im_end|>", "lstrip": False})
    assert Tokenizer(path).eos_token_ids == {2}
    path = toys.byte_level(tmp_path / "b", eos_token=None)
    assert Tokenizer(path).eos_token_ids == frozenset()
    (path / "tokenizer_config.json").unlink()
    (path / "special_tokens_map.json").write_text('{"eos_token": "<end>"}')
    assert Tokenizer(path).eos_token_ids == {3}


def test_named_token_is_special_even_if_the_file_keeps_it_as_a_word(tmp_path: Path) -> None:
    tokenizer = Tokenizer(toys.byte_level(tmp_path, pad_token="!"))
    assert tokenizer.encode("!")[0] in tokenizer.special_ids
    assert tokenizer.decode(tokenizer.encode("Hi!")) == "Hi"


def test_tokenizer_json_says_whether_bos_is_added(tmp_path: Path) -> None:
    for add in (True, False):
        path = toys.sentencepiece(tmp_path / str(add), add_bos=add, add_bos_token=not add)
        tokenizer = Tokenizer(path)
        assert tokenizer.adds_bos is add
        assert (tokenizer.encode("Hi")[0] == 1) is add
        assert tokenizer.encode("Hi") == PreTrainedTokenizerFast.from_pretrained(path).encode("Hi")


def test_saved_truncation_and_padding_are_off(tmp_path: Path) -> None:
    path = toys.byte_level(tmp_path)
    hub = HubTokenizer.from_file(str(path / "tokenizer.json"))
    hub.enable_truncation(2)
    hub.enable_padding(length=64)
    hub.save(str(path / "tokenizer.json"))
    ids = Tokenizer(path).encode("Hi there, how are you?")
    assert 2 < len(ids) < 64


# ---------------------------------------------------------------------- broken directories


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no such directory"):
        Tokenizer(tmp_path / "nowhere")


def test_no_tokenizer_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no tokenizer\.json.*fetch"):
        Tokenizer(tmp_path)


def test_only_a_sentencepiece_model_says_how_to_convert(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.model").write_bytes(b"\n\x0e")
    with pytest.raises(ValueError, match=r"convert it") as error:
        Tokenizer(tmp_path)
    assert "save_pretrained" in str(error.value) and "pip install" in str(error.value)


def test_broken_files_are_named(tmp_path: Path) -> None:
    path = toys.byte_level(tmp_path)
    (path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer_config\.json is not JSON"):
        Tokenizer(path)
    (path / "tokenizer_config.json").write_text("[]")
    with pytest.raises(ValueError, match="holds a list"):
        Tokenizer(path)
    (path / "tokenizer_config.json").unlink()
    (path / "tokenizer.json").write_text("version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ValueError, match=r"tokenizer\.json can't be read.*fetch it anew"):
        Tokenizer(path)


def test_token_named_but_not_there(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"eos_token='<gone>'"):
        Tokenizer(toys.byte_level(tmp_path, eos_token="<gone>"))


@pytest.mark.parametrize(
    "decoder",
    [decoders.WordPiece(), decoders.Strip(" ", 0, 1), decoders.BPEDecoder(), None],
    ids=["WordPiece", "strip at the end", "BPEDecoder", "none"],
)
def test_decoder_of_another_kind_is_refused(tmp_path: Path, decoder: object) -> None:
    hub = HubTokenizer(models.BPE({"a": 0}, []))
    hub.pre_tokenizer = pre_tokenizers.Whitespace()
    if decoder is not None:
        hub.decoder = decoder
    with pytest.raises(ValueError, match="decodes with"):
        Tokenizer(toys.write(tmp_path, hub))


def test_default_model(default_model_dir: Path) -> None:
    tokenizer = Tokenizer(default_model_dir)
    theirs = PreTrainedTokenizerFast.from_pretrained(default_model_dir)
    text = "The café is 世界 🌶! def f(x):\n    return x  # 12345"
    ids = tokenizer.encode(text)
    assert ids == theirs.encode(text)
    assert tokenizer.decode(ids) == text == theirs.decode(ids)
    names = json.loads((default_model_dir / "tokenizer_config.json").read_text())
    assert tokenizer.special_tokens[names["eos_token"]] in tokenizer.eos_token_ids

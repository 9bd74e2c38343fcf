"""Text to token ids, and token ids back to text by way of bytes.

    text --encode--> ids --token_bytes--> bytes --UTF-8--> text

The text of some ids is *defined* here as the UTF-8 reading of their tokens' bytes, put end to end.
One token's bytes never depend on its neighbours, so text can be read as the tokens come (see
`detokenizer.py`), a character that is split over several tokens is exact, and no space is lost or
invented.  For every text this is what `tokenizers` and `transformers` decode to; for ids that are
no text (half a character) each unreadable stretch becomes one U+FFFD, and its neighbours stay.

Two ways of writing bytes as vocabulary entries are known, and any other is refused at load:

    byte-level BPE (GPT-2, Llama 3)    "ĠcafÃ©": one printable character for each byte
    SentencePiece (Llama 2, Mistral)   "▁caf", "<0xC3>", "<0xA9>": ▁ is a space, <0x..> is a byte

SentencePiece puts a space before a text when encoding, so decoding cuts one off at the start.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokenizers
from tokenizers import AddedToken

# Tokens that tokenizer_config.json may name; each is special, whatever tokenizer.json says.
_NAMED = ("bos_token", "eos_token", "unk_token", "pad_token")


class Tokenizer:
    """The tokenizer of a Hugging Face directory.  Threads may share it: loaded, it never changes.

    Special tokens written in a text are read as such, as `tokenizers` does: "<s>Hi" begins with the
    id of <s>, and whether SentencePiece puts a space between the two is the file's own choice.

    Args:
        path: a directory with tokenizer.json, and as a rule tokenizer_config.json.

    Attributes:
        vocab_size: 1 + the largest id that has a token; the model's own may be larger (padding).
        bos_token_id: the id that begins a text, or None.
        adds_bos: whether `encode` puts it there: as tokenizer.json says, which is where
            `transformers` looks, not tokenizer_config.json's add_bos_token.
        eos_token_ids: ids that end an answer: those the tokenizer's and the model's settings name.
        special_tokens: text -> id of each special token.
        special_ids: their ids.

    Raises:
        ValueError: a file is missing or broken; says which, and how to mend it.
    """

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        named = _read_json(path / "special_tokens_map.json")
        named |= _read_json(path / "tokenizer_config.json")
        self._tokenizer = _load(path)
        self._use_named_tokens(named)
        self.bos_token_id = self._id_of(named, "bos_token")
        added = self._tokenizer.get_added_tokens_decoder()
        # subtle: added tokens may leave a gap above the others
        self.vocab_size = max(self._tokenizer.get_vocab_size(), 1 + max(added, default=-1))
        self._added = {i: token.content for i, token in added.items()}
        self.special_tokens: Mapping[str, int] = {
            token.content: i for i, token in added.items() if token.special
        }
        self.special_ids = frozenset(self.special_tokens.values())
        self.eos_token_ids = _eos_of_model(path)
        eos = self._id_of(named, "eos_token")
        if eos is not None:
            self.eos_token_ids |= {eos}
        first = self._tokenizer.encode("", add_special_tokens=True).ids[:1]
        self.adds_bos = self.bos_token_id is not None and first == [self.bos_token_id]
        self.spelling = Spelling.of(self._tokenizer.decoder)
        self._bytes: dict[int, bytes] = {}  # filled as tokens come up
        self._lock = threading.Lock()
        self._plain: tokenizers.Tokenizer | None = None

    def size_within(self, vocab_size: int) -> int:
        """1 + the largest id with a token, of the ids that a model of `vocab_size` has: it may have
        more than the tokenizer, as padding, or fewer, if tokens were added to the tokenizer only.
        """
        size = vocab_size
        while size and self._tokenizer.id_to_token(size - 1) is None:
            size -= 1
        return size

    # ------------------------------------------------------------------ text -> ids

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        as_text: Sequence[tuple[int, int]] = (),
    ) -> list[int]:
        """The ids of `text`.

        Args:
            text: any text; special tokens in it become their ids.
            add_special_tokens: add what the model wants around a text, which is BOS if anything.
            as_text: half-open spans of characters in which a special token is ordinary text after
                all, for what a user wrote (`ChatTemplate.encode`).

        Raises:
            ValueError: half a surrogate pair, which is no text; or a special token in `as_text` has
                no other spelling in this vocabulary.
        """
        try:
            encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        except TypeError as error:
            bad = next((c for c in text if "\ud800" <= c <= "\udfff"), None)
            if bad is None:
                raise
            raise ValueError(f"{bad!r} in the text is half a surrogate pair: no UTF-8") from error
        if not as_text:
            return list(encoding.ids)
        quoted = {at for start, stop in as_text for at in range(start, stop)}
        ids: list[int] = []
        for i, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True):
            if i in self.special_ids and not quoted.isdisjoint(range(start, stop)):
                ids += self._spell_out(text[start:stop], i)
            else:
                ids.append(i)
        return ids

    def _spell_out(self, text: str, special: int) -> list[int]:
        """The ids of a special token's text, without the special token."""
        ids = self.encode_continuation(text)
        if special in ids:
            raise ValueError(f"this vocabulary can't write {text!r} as ordinary text")
        return ids

    def encode_continuation(self, text: str) -> list[int]:
        """The ids of a text that goes on from another: no BOS, none of SentencePiece's spaces, and
        special tokens in it are ordinary text."""
        with self._lock:
            if self._plain is None:
                # A copy: the switch is a state, and threads share this tokenizer.
                self._plain = tokenizers.Tokenizer.from_str(self._tokenizer.to_str())
                self._plain.encode_special_tokens = True
        # After a newline, so that SentencePiece puts no space before it; then that is cut off.
        after = self._plain.encode("\n" + text, add_special_tokens=False)
        if any(start < 1 < stop for start, stop in after.offsets):
            return list(self._plain.encode(text, add_special_tokens=False).ids)
        return [i for i, (_, stop) in zip(after.ids, after.offsets, strict=True) if stop > 1]

    # ------------------------------------------------------------------ ids -> text

    def decode(self, ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """The text of `ids`; those outside the vocabulary have none.  No space is "cleaned up"."""
        growing = GrowingBytes(self, skipped=self.special_ids if skip_special_tokens else ())
        return growing.push(ids).decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds to a text, in UTF-8; perhaps part of a character.

        Special tokens are their names, ids without a token are empty.
        """
        known = self._bytes.get(token_id)
        if known is None:
            known = self._bytes_of(token_id)
            if known:  # whoever asks may name any number: those without a token are not remembered
                self._bytes[token_id] = known
        return known

    def _bytes_of(self, token_id: int) -> bytes:
        if token_id < 0:
            raise ValueError(f"token id {token_id}: ids begin at 0")
        if token_id in self._added:
            return self._added[token_id].encode()
        try:
            token = self._tokenizer.id_to_token(token_id)
        except OverflowError:  # no vocabulary is that large
            token = None
        return b"" if token is None else self.spelling.bytes_of(token)

    # ------------------------------------------------------------------ loading

    def _use_named_tokens(self, named: Mapping[str, Any]) -> None:
        """bos_token and the like are special tokens even if tokenizer.json keeps them as words."""
        added = {token.content for token in self._tokenizer.get_added_tokens_decoder().values()}
        for text in (_content(named.get(name)) for name in _NAMED):
            if text and text not in added and self._tokenizer.token_to_id(text) is not None:
                self._tokenizer.add_special_tokens([AddedToken(text, normalized=False)])

    def _id_of(self, named: Mapping[str, Any], name: str) -> int | None:
        text = _content(named.get(name))
        if not text:
            return None
        token_id = self._tokenizer.token_to_id(text)
        if token_id is None:
            raise ValueError(
                f"tokenizer_config.json says {name}={text!r}, which tokenizer.json doesn't have: "
                "the two files belong to different models; fetch the model anew"
            )
        return int(token_id)


class GrowingBytes:
    """The bytes of a text whose ids come a few at a time: what is cut at its start is cut once.

    Args:
        skipped: ids that add nothing.
        is_start: False if the text goes on from another, so that nothing is cut.
    """

    def __init__(
        self, tokenizer: Tokenizer, *, skipped: Collection[int], is_start: bool = True
    ) -> None:
        self._tokenizer = tokenizer
        self._skipped = skipped
        self._is_first = is_start
        self._spaces_to_cut = tokenizer.spelling.cut_spaces if is_start else 0

    def push(self, ids: Iterable[int]) -> bytes:
        """What `ids` add."""
        return b"".join(self._add(i) for i in ids if i not in self._skipped)

    def _add(self, token_id: int) -> bytes:
        data = self._tokenizer.token_bytes(token_id)
        if self._is_first and self._tokenizer.spelling.cut_first_token:
            data = data.replace(b" ", b"")
        self._is_first = False
        while self._spaces_to_cut and data:
            if data[:1] != b" ":
                self._spaces_to_cut = 0
                break
            data = data[1:]
            self._spaces_to_cut -= 1
        return data


@dataclass(frozen=True)
class Spelling:
    """How a vocabulary writes bytes, read from tokenizer.json's "decoder"."""

    byte_level: bool = False
    byte_fallback: bool = False
    replace: tuple[tuple[str, str], ...] = ()  # in a token's text, e.g. ▁ by a space
    cut_spaces: int = 0  # as many spaces are cut at the start of a text
    cut_first_token: bool = False  # all spaces are cut in the first token of a text

    def bytes_of(self, token: str) -> bytes:
        """
        >>> Spelling(byte_level=True).bytes_of("ĠcafÃ©").decode()
        ' café'
        >>> llama2 = Spelling(byte_fallback=True, replace=(("▁", " "),))
        >>> llama2.bytes_of("▁caf"), llama2.bytes_of("<0xC3>")
        (b' caf', b'\\xc3')
        """
        for old, new in self.replace:
            token = token.replace(old, new)
        if self.byte_fallback and re.fullmatch("<0x[0-9A-F]{2}>", token):
            return bytes([int(token[3:5], 16)])
        if self.byte_level and all(c in _BYTE_OF for c in token):
            return bytes(_BYTE_OF[c] for c in token)
        return token.encode()

    @staticmethod
    def of(decoder: Any) -> Spelling:
        """The spelling of a `tokenizers` decoder; ValueError if it is of another kind."""
        state = json.loads(decoder.__getstate__()) if decoder is not None else {"type": None}
        found: dict[str, Any] = {"replace": ()}
        for step in state.get("decoders", [state]):
            match step:
                case {"type": "ByteLevel"}:
                    found["byte_level"] = True
                case {"type": "ByteFallback"}:
                    found["byte_fallback"] = True
                case {"type": "Replace", "pattern": {"String": old}, "content": new}:
                    found["replace"] += ((old, new),)
                case {"type": "Metaspace", "replacement": mark, "prepend_scheme": scheme}:
                    found["replace"] += ((mark, " "),)
                    found["cut_first_token"] = scheme != "never"
                case {"type": "Strip", "content": " ", "start": start, "stop": 0}:
                    found["cut_spaces"] = start
                case {"type": "Fuse"}:
                    pass
                case _:
                    raise ValueError(
                        f"tokenizer.json decodes with {json.dumps(step)}; known are ByteLevel "
                        "(byte-level BPE) and Replace, Metaspace, ByteFallback, Fuse, Strip "
                        "(SentencePiece)"
                    )
        return Spelling(**found)


def _byte_of() -> dict[str, int]:
    """GPT-2's printable character for each byte, the other way round: "Ġ" -> 0x20."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {chr(b): b for b in printable} | {chr(256 + n): b for n, b in enumerate(others)}


_BYTE_OF = _byte_of()

# ---------------------------------------------------------------------- files


def _load(path: Path) -> tokenizers.Tokenizer:
    file = path / "tokenizer.json"
    if not path.is_dir():
        raise ValueError(f"{path}: there is no such directory; give one that holds tokenizer.json")
    if not file.is_file():
        if (path / "tokenizer.model").is_file():
            raise ValueError(
                f"{path} has a SentencePiece tokenizer.model, but no tokenizer.json; convert it:\n"
                "    pip install transformers sentencepiece\n"
                '    python -c "from transformers import AutoTokenizer as A; '
                f"A.from_pretrained('{path}').save_pretrained('{path}')\""
            )
        raise ValueError(f"{path} has no tokenizer.json: fetch the model's tokenizer files too")
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # `tokenizers` raises bare Exception
        raise ValueError(f"{file} can't be read ({error}): fetch it anew") from error
    tokenizer.no_truncation()  # some files carry the settings of a training run
    tokenizer.no_padding()
    return tokenizer


def _read_json(file: Path) -> dict[str, Any]:
    """The object in `file`; {} if there is no such file."""
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file} is not JSON ({error}): fetch it anew") from error
    if not isinstance(value, dict):
        raise ValueError(f"{file} holds a {type(value).__name__}, not an object: fetch it anew")
    return value


def _content(token: object) -> str | None:
    """ "</s>" and {"content": "</s>", "lstrip": false, ...} are the same token."""
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def _eos_of_model(path: Path) -> frozenset[int]:
    """eos_token_id of config.json and generation_config.json: a number, a list, or not there."""
    ids: set[int] = set()
    for name in ("config.json", "generation_config.json"):
        value = _read_json(path / name).get("eos_token_id")
        ids.update([] if value is None else value if isinstance(value, list) else [value])
    return frozenset(ids)

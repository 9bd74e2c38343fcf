"""The tokenizer inside a GGUF file, as Hugging Face's tokenizer.json and tokenizer_config.json.

GGUF keeps the vocabulary, the merges or scores, and a *name* for the rules that cut text into words
before the merges run (`tokenizer.ggml.pre`).  The rules themselves are not in the file, so a name
that isn't in the table below is refused: a tokenizer that is nearly right is silently wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer
from tokenizers.decoders import ByteFallback, Fuse, Replace, Sequence, Strip
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.normalizers import Prepend
from tokenizers.normalizers import Replace as ReplaceText
from tokenizers.normalizers import Sequence as Normalizers
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Split
from tokenizers.pre_tokenizers import Sequence as PreTokenizers
from tokenizers.processors import ByteLevel as ByteLevelOffsets
from tokenizers.processors import Sequence as Processors
from tokenizers.processors import TemplateProcessing

_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6  # tokenizer.ggml.token_type
_WORD_MARK = "\u2581"  # SentencePiece's visible space

# Words as Llama 3 and Mistral's Tekken cut them: contractions, letters, digits, punctuation, space.
_LLAMA3_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_TEKKEN_WORDS = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _gpt2() -> PreTokenizer:
    return ByteLevel(add_prefix_space=False, use_regex=True)


def _smollm() -> PreTokenizer:
    return PreTokenizers([Digits(individual_digits=True), _gpt2()])


def _by_words(words: str) -> PreTokenizer:
    bytes_only = ByteLevel(add_prefix_space=False, use_regex=False)
    return PreTokenizers([Split(Regex(words), "isolated"), bytes_only])


# name -> (how text is cut into words, whether a whole word in the vocabulary needs no merges,
#          whether BOS is added where the file doesn't say)
_PRE_TOKENIZERS = {
    "gpt-2": (_gpt2, False, False),
    "smollm": (_smollm, False, False),
    "starcoder": (_smollm, False, False),
    "llama-bpe": (lambda: _by_words(_LLAMA3_WORDS), True, True),
    "tekken": (lambda: _by_words(_TEKKEN_WORDS), True, True),
}


def build_tokenizer(meta: Mapping[str, Any]) -> tuple[Tokenizer, dict[str, Any]]:
    """The tokenizer, and the contents of tokenizer_config.json, from a GGUF file's metadata.

    Raises:
        ValueError: an unknown tokenizer model or pre-tokenizer, or a vocabulary with parts missing.
    """
    kind = meta.get("tokenizer.ggml.model")
    tokens: list[str] = meta.get("tokenizer.ggml.tokens") or []
    if not tokens:
        raise ValueError("the file holds no vocabulary (tokenizer.ggml.tokens)")
    if len(set(tokens)) != len(tokens):
        raise ValueError("the vocabulary (tokenizer.ggml.tokens) holds the same token twice")
    if kind == "gpt2":
        tokenizer, bos_by_default = _byte_level(tokens, meta)
    elif kind == "llama":
        tokenizer, bos_by_default = _sentencepiece(tokens, meta), True
    else:
        raise ValueError(f"tokenizer.ggml.model {kind!r} is not supported; 'gpt2' and 'llama' are")
    _add_special_tokens(tokenizer, tokens, _token_types(tokens, meta))

    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "model_max_length": int(meta["llama.context_length"]),
    }
    for role, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        token = meta.get(f"tokenizer.ggml.{key}_token_id")
        if token is not None and 0 <= token < len(tokens):
            config[f"{role}_token"] = tokens[token]
    if template := meta.get("tokenizer.chat_template"):
        config["chat_template"] = template

    before = [config["bos_token"]] if _adds("bos", meta, config, default=bos_by_default) else []
    after = [config["eos_token"]] if _adds("eos", meta, config, default=False) else []
    if before or after:
        pair = [f"{token}:1" for token in before] + ["$B:1"] + [f"{token}:1" for token in after]
        template_processor = TemplateProcessing(
            single=[*before, "$A", *after],
            pair=[*before, "$A", *after, *pair],
            special_tokens=[(token, tokens.index(token)) for token in {*before, *after}],
        )
        offsets = [ByteLevelOffsets(trim_offsets=False)] if kind == "gpt2" else []
        tokenizer.post_processor = Processors([*offsets, template_processor])
    return tokenizer, config


def _adds(role: str, meta: Mapping[str, Any], config: Mapping[str, Any], *, default: bool) -> bool:
    """Whether every encoded text gets a BOS (EOS): what the file says, else the kind's custom."""
    return bool(meta.get(f"tokenizer.ggml.add_{role}_token", default)) and f"{role}_token" in config


def _token_types(tokens: list[str], meta: Mapping[str, Any]) -> list[int]:
    types: list[int] = meta.get("tokenizer.ggml.token_type") or []
    if len(types) != len(tokens):
        raise ValueError(
            f"the file has {len(tokens)} tokens and {len(types)} token types; "
            "without types, special tokens can't be told from text"
        )
    return types


def _byte_level(tokens: list[str], meta: Mapping[str, Any]) -> tuple[Tokenizer, bool]:
    """GPT-2's byte-level BPE: text to UTF-8 bytes, each byte written as one printable character."""
    pre = meta.get("tokenizer.ggml.pre")
    if pre not in _PRE_TOKENIZERS:
        raise ValueError(
            f"tokenizer.ggml.pre {pre!r} is not supported; "
            f"these are: {', '.join(sorted(_PRE_TOKENIZERS))}"
        )
    merges = meta.get("tokenizer.ggml.merges")
    if not merges:
        raise ValueError("the file holds no merges (tokenizer.ggml.merges)")
    cut, ignore_merges, bos_by_default = _PRE_TOKENIZERS[pre]
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(BPE(vocab, pairs, ignore_merges=ignore_merges))
    tokenizer.pre_tokenizer = cut()
    tokenizer.decoder = ByteLevelDecoder()
    return tokenizer, bos_by_default


def _sentencepiece(tokens: list[str], meta: Mapping[str, Any]) -> Tokenizer:
    """SentencePiece BPE as Llama 2 has it: spaces visible, unknown characters spelled in bytes."""
    scores = meta.get("tokenizer.ggml.scores") or []
    if len(scores) != len(tokens):
        raise ValueError(f"the file has {len(tokens)} tokens and {len(scores)} scores")
    types = _token_types(tokens, meta)
    vocab = {token: i for i, token in enumerate(tokens)}
    pieces = {
        token: score
        for token, score, kind in zip(tokens, scores, types, strict=True)
        if kind not in (_UNKNOWN, _CONTROL, _UNUSED, _BYTE)
    }
    unknown = next((t for t, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    tokenizer = Tokenizer(
        BPE(
            vocab,
            _merges_from_scores(pieces, vocab),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=_BYTE in types,
        )
    )
    prefix = bool(meta.get("tokenizer.ggml.add_space_prefix", True))
    visible = ReplaceText(" ", _WORD_MARK)
    tokenizer.normalizer = Normalizers([Prepend(_WORD_MARK), visible] if prefix else [visible])
    steps = [Replace(_WORD_MARK, " "), ByteFallback(), Fuse()]
    tokenizer.decoder = Sequence([*steps, Strip(" ", 1, 0)] if prefix else steps)
    return tokenizer


def _merges_from_scores(pieces: Mapping[str, float], vocab: Mapping[str, int]) -> list[Any]:
    """SentencePiece joins the neighbours that make the best-scored piece; as ranked joins.

    >>> scores = {"a": 0, "b": 0, "ab": -2, "aba": -1}
    >>> _merges_from_scores(scores, {"a": 0, "b": 1, "ab": 2, "aba": 3})
    [('ab', 'a'), ('a', 'b')]
    """
    joins = [
        (-score, -cut, vocab[piece[:cut]], piece[:cut], piece[cut:])
        for piece, score in pieces.items()
        for cut in range(1, len(piece))
        if piece[:cut] in pieces and piece[cut:] in pieces
    ]
    joins.sort(key=lambda join: join[:3])
    return [(left, right) for *_, left, right in joins]


def _add_special_tokens(tokenizer: Tokenizer, tokens: list[str], types: list[int]) -> None:
    """Control tokens are never cut, and left out of decoded text; user-defined are never cut."""
    for kinds, special in (((_UNKNOWN, _CONTROL), True), ((_USER_DEFINED,), False)):
        added = [
            AddedToken(token, special=special, normalized=False)
            for token, kind in zip(tokens, types, strict=True)
            if kind in kinds
        ]
        if special:
            tokenizer.add_special_tokens(added)
        else:
            tokenizer.add_tokens(added)

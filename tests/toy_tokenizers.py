"""Small tokenizers of the kinds that Llama and Mistral models have, as Hugging Face directories."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CHATML = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Llama 2's and Mistral's, in short: prints BOS, knows no system role, wants the roles to alternate.
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}"
    "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% elif message['role'] == 'assistant' %}{{ message['content'] + eos_token }}"
    "{% else %}{{ raise_exception('Only user and assistant roles are supported!') }}{% endif %}"
    "{% endfor %}"
)

TEXT = ["Hi there, how are you? The café is 世界 🌶! Say when it stops.", "A 世 A 世界 🌶🌶 STOP now."]


def write(path: Path, tokenizer: Tokenizer, **config: Any) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return path


def byte_level(path: Path, **config: Any) -> Path:
    """As SmolLM2: byte-level BPE, ChatML tokens; <think> is added, but not special."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=340,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    tokenizer.add_tokens([AddedToken("<think>", normalized=False, special=False)])
    defaults = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "chat_template": CHATML}
    return write(path, tokenizer, **(defaults | config))


def sentencepiece(path: Path, *, add_bos: bool = True, **config: Any) -> Path:
    """As Llama 2: pieces with ▁ for a space, and a byte token for what no piece spells."""
    tokenizer = Tokenizer(_pieces())
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
         decoders.Strip(" ", 1, 0)]
    )  # fmt: skip
    return _finish(path, tokenizer, add_bos, config)


def metaspace(path: Path, *, add_bos: bool = True, **config: Any) -> Path:
    """As newer Mistral files: the same pieces, with the space put by the pre-tokenizer."""
    tokenizer = Tokenizer(_pieces())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence(
        [decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")]
    )
    return _finish(path, tokenizer, add_bos, config)


def _pieces() -> models.BPE:
    words = ["▁Hi", "▁there", "▁the", "▁when", "▁it", "▁he", "say", "STOP", "é"]
    merges: list[tuple[str, str]] = []
    pieces = ["▁", *(chr(c) for c in range(0x21, 0x7F)), "é"]
    for word in words:
        for n in range(2, len(word) + 1):
            if word[:n] not in pieces:
                merges.append((word[: n - 1], word[n - 1]))
                pieces.append(word[:n])
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{b:02X}>": 3 + b for b in range(256)}
    for piece in pieces:
        vocab.setdefault(piece, len(vocab))
    return models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)


def _finish(path: Path, tokenizer: Tokenizer, add_bos: bool, config: dict[str, Any]) -> Path:
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    if add_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", 1)]
        )
    defaults = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return write(path, tokenizer, **(defaults | {"chat_template": MISTRAL} | config))

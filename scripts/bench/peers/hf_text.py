"""What the systems that read a Hugging Face directory share: text to ids, and the dtype."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


class Text:
    """What peers that work with token ids share.

    eos_ids: that end an answer, by the tokenizer's and the model's settings.
    """

    def __init__(self, tokenizer: Any, model: str) -> None:
        self._tokenizer = tokenizer
        bos = tokenizer.bos_token_id
        begins = tokenizer("").input_ids[:1]
        self._bos = bos if bos is not None and begins == [bos] else None
        self.eos_ids = {tokenizer.eos_token_id} - {None}
        for name in ("config.json", "generation_config.json"):
            if (file := Path(model) / name).exists():
                ids = json.loads(file.read_text("utf-8")).get("eos_token_id")
                self.eos_ids |= set(ids if isinstance(ids, list) else [ids]) - {None}

    def encode(self, text: str) -> list[int]:
        """The ids; BOS comes first where the model wants it, unless the text has it already."""
        ids: list[int] = self._tokenizer(text, add_special_tokens=False).input_ids
        if self._bos is not None and ids[:1] != [self._bos]:
            ids = [self._bos, *ids]
        return ids

    def join(self, prompt: str, choices: list[str]) -> tuple[list[list[int]], int]:
        """The ids of the prompt with each choice, and where all choices begin: at the first token
        that one of them has changed."""
        bare = self.encode(prompt)
        each = [self.encode(prompt + choice) for choice in choices]
        return each, min(_common(bare, ids) for ids in each)


def best_dtype(dtype: str, device: str) -> str:
    """For "auto" bfloat16 where it is multiplied in hardware, else float32."""
    import torch

    if dtype != "auto":
        return dtype
    has_bfloat16 = device == "cuda" or torch.cpu._is_avx512_bf16_supported()
    return "bfloat16" if has_bfloat16 else "float32"


def _common(a: list[int], b: list[int]) -> int:
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )

"""The models of the paper that nobody has at hand, by shape: a config and a tokenizer, no weights.

    path = write(SHAPES["mixtral-8x7b"].scaled(8), directory)
    Engine(str(path), load_format="dummy")

A shape scaled by n has an n-th of the width, of the depth and of the heads, so the parts of a layer
keep their shares of the work.  What can't shrink so far stops earlier: a head has at least 32
dimensions, and of the KV heads one is left, beside as many query heads as share one.  The
vocabulary shrinks least, since with a small one a text has more tokens.

The tokenizer is another model's, cut off after the tokens that it learnt first.
"""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from minisgl.models.hub import resolve_model

LEAST_VOCAB = 8000
IMAGE, VIDEO = "<image>", "<video>"


@dataclass(frozen=True)
class Tower:
    """A CLIP vision tower: the sizes of CLIP-L/14."""

    hidden: int = 1024
    inner: int = 4096
    layers: int = 24
    heads: int = 16
    image: int = 336
    patch: int = 14

    def scaled(self, n: int) -> Tower:
        """An n-th of the width, depth and heads; images stay as they are."""
        heads = max(1, self.heads // n)
        layers = max(2, self.layers // n)
        return replace(
            self, hidden=self.hidden // n, inner=self.inner // n, layers=layers, heads=heads
        )


@dataclass(frozen=True)
class Shape:
    """The sizes of a model.

    inner: of one expert, where there are experts.
    vocab: "<image>" and "<video>" included, where there is a tower.
    """

    name: str
    architecture: str
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    vocab: int = 32000
    context: int = 4096
    theta: float = 1e4
    experts: int = 1
    experts_per_token: int = 1
    tower: Tower | None = None

    def scaled(self, n: int) -> Shape:
        """An n-th in all directions; see the module.  ValueError: it can't be divided by n."""
        if n == 1:
            return self
        kv_heads = max(1, self.kv_heads // n)
        heads = kv_heads * (self.heads // self.kv_heads)
        if self.hidden % n or self.inner % n or self.hidden // n % (2 * heads):
            raise ValueError(f"{self.name} can't be scaled by {n}")
        return replace(
            self,
            name=f"{self.name} / {n}",
            hidden=self.hidden // n,
            inner=self.inner // n,
            layers=max(2, self.layers // n),
            heads=heads,
            kv_heads=kv_heads,
            vocab=max(self.vocab // n, LEAST_VOCAB),
            context=2 * self.context,  # texts have more tokens
            tower=self.tower and self.tower.scaled(n),
        )

    @property
    def weights(self) -> int:
        """How many numbers the language model has; the small vectors are left out."""
        head_dim = self.hidden // self.heads
        attention = self.hidden * head_dim * (2 * self.heads + 2 * self.kv_heads)
        mlp = self.experts * 3 * self.hidden * self.inner
        return self.layers * (attention + mlp) + 2 * self.vocab * self.hidden

    def config(self) -> dict[str, Any]:
        """As config.json."""
        model = self.architecture if self.tower is None else "LlamaForCausalLM"
        text: dict[str, Any] = {
            "architectures": [model],
            "model_type": model.removesuffix("ForCausalLM").lower(),
            "vocab_size": self.vocab,
            "hidden_size": self.hidden,
            "intermediate_size": self.inner,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "max_position_embeddings": self.context,
            "rms_norm_eps": 1e-5,
            "rope_theta": self.theta,
            "hidden_act": "silu",
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
            "initializer_range": self.hidden**-0.5,  # for those who draw weights by it
        }
        if self.experts > 1:
            text |= {
                "num_local_experts": self.experts,
                "num_experts_per_tok": self.experts_per_token,
                "sliding_window": None,
            }
        if self.tower is None:
            return text
        kind = self.architecture.removesuffix("ForConditionalGeneration")
        whole: dict[str, Any] = {
            "architectures": [self.architecture],
            "model_type": {"Llava": "llava", "LlavaNextVideo": "llava_next_video"}[kind],
            "text_config": text,
            "vision_config": {
                "model_type": "clip_vision_model",
                "hidden_size": self.tower.hidden,
                "intermediate_size": self.tower.inner,
                "num_hidden_layers": self.tower.layers,
                "num_attention_heads": self.tower.heads,
                "image_size": self.tower.image,
                "patch_size": self.tower.patch,
                "initializer_range": self.tower.hidden**-0.5,
            },
            "image_token_index": self.vocab - 2,
            "video_token_index": self.vocab - 1,
            "vision_feature_layer": -2,
            "vision_feature_select_strategy": "default",
            "tie_word_embeddings": False,
            "torch_dtype": "bfloat16",
        }
        return whole


SHAPES = {
    shape.name: shape
    for shape in (
        Shape(
            "mixtral-8x7b",
            "MixtralForCausalLM",
            hidden=4096,
            inner=14336,
            layers=32,
            heads=32,
            kv_heads=8,
            context=32768,
            theta=1e6,
            experts=8,
            experts_per_token=2,
        ),
        # Made for 4,096 tokens, and a chat with long answers comes to some more.
        Shape("llama-70b", "LlamaForCausalLM", 8192, 28672, 80, 64, 8, context=8192),
        Shape(
            "llava-1.5-7b",
            "LlavaForConditionalGeneration",
            hidden=4096,
            inner=11008,
            layers=32,
            heads=32,
            kv_heads=32,
            vocab=32064,
            tower=Tower(),
        ),
        Shape(
            "llava-next-video-34b",
            "LlavaNextVideoForConditionalGeneration",
            hidden=7168,
            inner=20480,
            layers=60,
            heads=56,
            kv_heads=8,
            vocab=64064,
            theta=5e6,
            tower=Tower(),
        ),
    )
}


def write(path: Path, shape: Shape, tokenizer: Path | None = None) -> Path:
    """Config, tokenizer and image processor of a model of `shape` into the directory `path`.

    Args:
        tokenizer: a model's directory; None: the default model's.
    """
    path.mkdir(parents=True, exist_ok=True)
    tokenizer = tokenizer or resolve_model(None)
    _write(path / "config.json", shape.config())
    special = [] if shape.tower is None else [IMAGE, VIDEO]
    file = json.loads((tokenizer / "tokenizer.json").read_text(encoding="utf-8"))
    _write(path / "tokenizer.json", resized(file, shape.vocab, special))
    for name in ("tokenizer_config.json", "generation_config.json", "chat_template.jinja"):
        if (tokenizer / name).is_file():
            shutil.copy(tokenizer / name, path)
    if shape.tower is not None:
        side = shape.tower.image
        cut = {"size": {"shortest_edge": side}, "crop_size": {"height": side, "width": side}}
        _write(path / "preprocessor_config.json", cut)
    return path


def resized(tokenizer: dict[str, Any], size: int, special: list[str]) -> dict[str, Any]:
    """A byte-level BPE's tokenizer.json with `size` tokens, the last of them the `special` ones.

    Of a larger one the first tokens stay, which it learnt first; a smaller one is filled up.
    """
    vocab: dict[str, int] = tokenizer["model"]["vocab"]
    room = size - len(special)
    kept = {token: i for token, i in vocab.items() if i < room}
    joined = [merge if isinstance(merge, list) else merge.split(" ") for merge in
              tokenizer["model"]["merges"]]  # fmt: skip
    merges = [[a, b] for a, b in joined if a + b in kept]
    kept |= {f"<unused {i}>": i for i in range(len(kept), room)}
    kept |= {token: room + i for i, token in enumerate(special)}
    added = [token for token in tokenizer["added_tokens"] if token["id"] < room]
    added += [{**added[0], "id": room + i, "content": t} for i, t in enumerate(special)]
    model = {**tokenizer["model"], "vocab": kept, "merges": merges}
    return {**tokenizer, "model": model, "added_tokens": added}


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")

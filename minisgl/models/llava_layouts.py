"""From a checkpoint's config.json to a `LlavaConfig`: llava-hf's layout, and the authors'.

    llava-hf     LlavaForConditionalGeneration            LLaVA-1.5: an image is one tile
                 LlavaNextForConditionalGeneration        LLaVA-NeXT (1.6): tiles, "anyres"
                 LlavaNextVideoForConditionalGeneration   the same; and videos, their frames pooled
                 text_config and vision_config describe the two parts
    the authors  LlavaLlamaForCausalLM, LlavaMistralForCausalLM      1.5 and 1.6
                 the language model's own config, and keys that begin with mm_; the tower is named

Everything that changes a number is read or refused, as in config.py.  The only defaults are those
of the classes which wrote the files, for keys which their files leave out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from minisgl.models.anyres import Size
from minisgl.models.config import ModelConfig, read_json
from minisgl.models.llava_config import LlavaConfig, VisionConfig, one_of
from minisgl.models.loader import tensor_names

LLAVA, NEXT, NEXT_VIDEO = HF_ARCHITECTURES = (
    "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
    "LlavaNextVideoForConditionalGeneration",
)
AUTHORS_ARCHITECTURES = {  # and the language model's
    "LlavaLlamaForCausalLM": "LlamaForCausalLM",
    "LlavaMistralForCausalLM": "MistralForCausalLM",
}
LLAVA_ARCHITECTURES = (*HF_ARCHITECTURES, *AUTHORS_ARCHITECTURES)
SUPPORTED = (
    f"supported are llava-hf's {', '.join(HF_ARCHITECTURES)} and the authors' "
    f"{', '.join(AUTHORS_ARCHITECTURES)}: a CLIP tower, a linear or mlpNx_gelu projector, and a "
    "language model of Llama's (Vicuna, Yi) or Mistral's architecture"
)
AUTHORS_IMAGE_TOKEN = -200  # their <image>: an id that no vocabulary has

_MODEL_TYPES = {
    "llava_next": NEXT,
    "llava_next_video": NEXT_VIDEO,
    "llava_llama": "LlavaLlamaForCausalLM",
    "llava_mistral": "LlavaMistralForCausalLM",
}
_TEXT_DEFAULTS: dict[str, dict[str, int]] = {
    model_type: {
        "vocab_size": 32000,
        "hidden_size": 4096,
        "intermediate_size": intermediate_size,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
    }
    for model_type, intermediate_size in (("llama", 11008), ("mistral", 14336))
}
_PINPOINTS = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
# The sizes of the towers that the authors name: nothing is fetched to know them.
_CLIP_L = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "patch_size": 14,
}
_CLIP_L_336 = "openai/clip-vit-large-patch14-336"
KNOWN_TOWERS: dict[str, dict[str, Any]] = {
    _CLIP_L_336: {**_CLIP_L, "image_size": 336},
    "openai/clip-vit-large-patch14": {**_CLIP_L, "image_size": 224},
}


def is_llava(config: Mapping[str, Any]) -> bool:
    """Whether a config.json is of some LLaVA, supported or not."""
    names = config.get("architectures") or []
    kind = str(config.get("model_type", ""))
    return kind.startswith("llava") or any(str(name).startswith("Llava") for name in names)


def llava_config(path: Path) -> LlavaConfig:
    """The config of the checkpoint in directory `path`.

    Raises:
        ValueError: an architecture, vision tower, projector or language model that isn't supported
            (the message lists what is), or values that contradict each other.
    """
    config = read_json(path / "config.json")
    file = path / "generation_config.json"
    generation = read_json(file) if file.is_file() else {}
    try:
        architecture = _architecture(config)
        if architecture in AUTHORS_ARCHITECTURES:
            return _from_authors(architecture, config, generation, path)
        return _from_hf(architecture, config, generation)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _architecture(config: Mapping[str, Any]) -> str:
    names = [str(name) for name in config.get("architectures") or []]
    if not names:
        kind = str(config.get("model_type"))
        names = [_MODEL_TYPES.get(kind, kind)]
        if kind == "llava":  # both layouts call themselves so
            names = [LLAVA if "text_config" in config else "LlavaLlamaForCausalLM"]
    for name in names:
        if name in LLAVA_ARCHITECTURES:
            return name
    raise ValueError(f"architecture {', '.join(names)} is not supported; {SUPPORTED}")


def _from_hf(
    architecture: str, config: Mapping[str, Any], generation: Mapping[str, Any]
) -> LlavaConfig:
    vision = VisionConfig.from_dict(config.get("vision_config") or KNOWN_TOWERS[_CLIP_L_336])
    anyres, video = architecture != LLAVA, architecture == NEXT_VIDEO
    pinpoints = config.get("image_grid_pinpoints") or _PINPOINTS
    return LlavaConfig(
        architecture=architecture,
        text=_text(config, generation),
        vision=vision,
        image_token_id=_token_id(config, "image", 32001 if video else 32000),
        video_token_id=_token_id(config, "video", 32000) if video else None,
        feature_layers=_layers(config.get("vision_feature_layer", -2), vision),
        feature_select=config.get("vision_feature_select_strategy", "default"),
        projector_act=config.get("projector_hidden_act", "gelu"),
        projector_bias=bool(config.get("multimodal_projector_bias", True)),
        merge="spatial_unpad" if anyres else "plain",
        grid_pinpoints=_sizes(pinpoints) if anyres else (),
        image_aspect_ratio="anyres" if anyres else "square",
        spatial_pool_mode=config.get("spatial_pool_mode", "average") if video else "average",
        spatial_pool_stride=config.get("spatial_pool_stride", 2) if video else 1,
    )


def _text(config: Mapping[str, Any], generation: Mapping[str, Any]) -> ModelConfig:
    """The language model.  Its own config may be short: what it leaves out are class defaults."""
    text = config.get("text_config") or {}
    kind = text.get("model_type", "llama")
    if kind not in _TEXT_DEFAULTS:
        raise ValueError(f"a language model of type {kind!r} is not supported; {SUPPORTED}")
    outer = {key: config[key] for key in ("dtype", "torch_dtype", "quantization_config")
             if config.get(key)}  # fmt: skip
    tie = config.get("tie_word_embeddings") or text.get("tie_word_embeddings")
    whole = {**_TEXT_DEFAULTS[kind], "model_type": kind, **text, **outer}
    return ModelConfig.from_dict({**whole, "tie_word_embeddings": bool(tie)}, generation)


def _from_authors(
    architecture: str, config: Mapping[str, Any], generation: Mapping[str, Any], path: Path
) -> LlavaConfig:
    for key in ("mm_use_im_start_end", "mm_resampler_type", "s2"):
        if config.get(key):
            raise ValueError(f"{key} {config[key]!r} is not supported; {SUPPORTED}")
    aspect: Any = config.get("image_aspect_ratio") or "square"
    one_of("image_aspect_ratio", aspect, ("square", "pad", "anyres"))
    select = config.get("mm_vision_select_feature", "patch")
    one_of("mm_vision_select_feature", select, ("patch", "cls_patch"))
    merge: Any = "plain"
    if aspect == "anyres":
        merge = config.get("mm_patch_merge_type", "flat")
        one_of("mm_patch_merge_type", merge, ("flat", "spatial_unpad"))
    vision, tower = _tower(config, path)
    text = {**config, "architectures": [AUTHORS_ARCHITECTURES[architecture]]}
    # Subtle: the authors write a pinpoint as (width, height).
    pinpoints = tuple((h, w) for w, h in _sizes(config.get("image_grid_pinpoints") or []))
    return LlavaConfig(
        architecture=architecture,
        text=ModelConfig.from_dict(text, generation),
        vision=vision,
        image_token_id=AUTHORS_IMAGE_TOKEN,
        feature_layers=_layers(config.get("mm_vision_select_layer", -2), vision),
        feature_select="default" if select == "patch" else "full",
        projector_layers=_projector_layers(config.get("mm_projector_type", "linear")),
        merge=merge,
        grid_pinpoints=pinpoints if aspect == "anyres" else (),
        image_aspect_ratio=aspect,
        tower=tower,
    )


def _tower(config: Mapping[str, Any], path: Path) -> tuple[VisionConfig, str]:
    """The named tower's sizes, and where its weights are; "" if the checkpoint holds them.

    A name is a directory, absolute or beside the checkpoint's files, or one of KNOWN_TOWERS.
    """
    name = config.get("mm_vision_tower", config.get("vision_tower"))
    if not name:
        raise ValueError(f"the config names no mm_vision_tower; {SUPPORTED}")
    directory = path / name  # an absolute name stays what it is
    if (directory / "config.json").is_file():
        vision, home = VisionConfig.from_dict(read_json(directory / "config.json")), str(directory)
    elif name in KNOWN_TOWERS:
        vision, home = VisionConfig.from_dict(KNOWN_TOWERS[name]), name
    else:
        raise ValueError(
            f"mm_vision_tower {name!r} is neither a directory with a config.json nor one of "
            f"{', '.join(KNOWN_TOWERS)}"
        )
    inside = any(".vision_tower." in tensor for tensor in tensor_names(path))
    return vision, "" if inside else home


def _projector_layers(kind: str) -> int:
    """How many linear layers a projector of the authors has.

    >>> _projector_layers("linear"), _projector_layers("mlp2x_gelu")
    (1, 2)
    """
    if kind == "linear":
        return 1
    match = re.fullmatch(r"mlp([1-9])x_gelu", kind)
    if match is None:
        raise ValueError(f"mm_projector_type {kind!r} is not supported; {SUPPORTED}")
    return int(match[1])


def _layers(given: int | list[int], vision: VisionConfig) -> tuple[int, ...]:
    """Places in the list of hidden states: a negative one counts from the end, where -1 is the
    last layer's output."""
    layers = given if isinstance(given, list) else [given]
    return tuple(n + vision.num_layers + 1 if n < 0 else n for n in layers)


def _sizes(pinpoints: Any) -> tuple[Size, ...]:
    """A list of pairs of whole numbers, as it stands."""
    for pair in pinpoints:
        if len(pair) != 2 or not all(type(side) is int and side > 0 for side in pair):
            raise ValueError(
                f"image_grid_pinpoints has {pair!r}; each must be two whole numbers of pixels"
            )
    return tuple((first, second) for first, second in pinpoints)


def _token_id(config: Mapping[str, Any], kind: str, default: int) -> int:
    """`image_token_index`, as transformers writes it, or `image_token_id`, as it calls it."""
    return int(config.get(f"{kind}_token_index", config.get(f"{kind}_token_id", default)))

"""Make a tiny LLaVA with random weights, as a directory of any layout that people have.

The language model and its tokenizer are those of `make_tiny_model`; a CLIP tower of three layers, a
projector and, for LLaVA-NeXT, the newline embedding are added here, and "<image>" and "<video>" to
the tokenizer.  transformers loads the first three layouts as they are, so it is the judge of ours.

    layout     names in the safetensors                          config
    "hf"       language_model.model. vision_tower.vision_model.  vision_config, text_config
    "hf-saved" language_model.model. vision_tower.               the same; transformers 5 writes it
    "hf-new"   model.language_model. model.vision_tower.         the same; its names in memory
    "authors"  model. model.vision_tower.vision_tower...         the language model's, and mm_ keys
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer

from scripts.make_tiny_model import make_tiny_model

IMAGE, VIDEO = "<image>", "<video>"
MEAN, STD = [0.48145466, 0.4578275, 0.40821073], [0.26862954, 0.26130258, 0.27577711]
LAYOUTS = ("hf", "hf-saved", "hf-new", "authors")
MODEL_TYPES = {
    "LlavaForConditionalGeneration": "llava",
    "LlavaNextForConditionalGeneration": "llava_next",
    "LlavaNextVideoForConditionalGeneration": "llava_next_video",
}
TOWER = "clip-tower"  # the directory beside an authors' checkpoint

# Where the parts' names begin, by layout: language model, its head, vision tower.
_PREFIXES = {
    "hf": ("language_model.model", "language_model.lm_head", "vision_tower.vision_model"),
    "hf-saved": ("language_model.model", "language_model.lm_head", "vision_tower"),
    "hf-new": ("model.language_model", "lm_head", "model.vision_tower"),
    "authors": ("model", "lm_head", "model.vision_tower.vision_tower.vision_model"),
}


def make_tiny_llava(
    path: str | Path,
    *,
    architecture: str = "LlavaForConditionalGeneration",
    layout: str = "hf",
    text: str = "LlamaForCausalLM",
    image_size: int = 28,
    patch_size: int = 7,
    pinpoints: list[list[int]] | None = None,
    vision_layers: int = 3,
    vision_act: str = "quick_gelu",
    feature_layer: int | list[int] = -2,
    feature_select: str = "default",
    projector_type: str = "mlp2x_gelu",
    pool_mode: str = "average",
    pool_stride: int = 2,
    aspect_ratio: str = "pad",
    merge_type: str = "spatial_unpad",
    tower_inside: bool = True,
    tie: bool = False,
    max_position: int = 1024,
    seed: int = 0,
    **text_options: Any,
) -> Path:
    """Write a LLaVA of `architecture` into `path`, in `layout`, and return `path`.

    `pinpoints` are (height, width) in pixels, for LLaVA-NeXT; None: five, as the real models have.
    In the authors' layout `architecture` only says whether images are cut into tiles,
    `aspect_ratio` what becomes of them otherwise, and with `tower_inside` false the tower's weights
    lie in a directory of their own.  `text_options` go to `make_tiny_model`.
    """
    path = make_tiny_model(
        path, architecture=text, tie=tie, max_position=max_position, seed=seed, **text_options
    )
    config = json.loads((path / "config.json").read_text())
    weights = load_file(path / "model.safetensors")
    authors = layout == "authors"
    if not authors:  # there "<image>" is no token of the vocabulary
        _add_tokens(path, config, weights)
    vision = {
        "model_type": "clip_vision_model",
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": vision_layers,
        "num_attention_heads": 2,
        "image_size": image_size,
        "patch_size": patch_size,
        "hidden_act": vision_act,
    }
    tile = image_size
    grids = [(1, 2), (2, 1), (2, 2), (3, 1), (1, 3)]
    pinpoints = pinpoints or [[rows * tile, columns * tile] for rows, columns in grids]
    anyres = architecture != "LlavaForConditionalGeneration"
    features = len(feature_layer) if isinstance(feature_layer, list) else 1

    g = torch.Generator().manual_seed(seed + 1)
    tower = _tower(g, vision)
    projector = _projector(g, projector_type, features * 32, config["hidden_size"])
    extra: dict[str, torch.Tensor] = {}
    if anyres:
        extra["image_newline"] = torch.randn(config["hidden_size"], generator=g)
    if pool_mode == "conv":
        pool = torch.randn(32, 32, pool_stride, pool_stride, generator=g)
        extra["vision_resampler.pool.weight"] = pool / (32 * pool_stride**2) ** 0.5
        extra["vision_resampler.pool.bias"] = 0.1 * torch.randn(32, generator=g)

    if authors:
        config |= {
            "architectures": [f"Llava{text}"],
            "model_type": "llava_llama" if text == "LlamaForCausalLM" else "llava_mistral",
            "mm_vision_tower": TOWER,
            "mm_hidden_size": 32,
            "mm_projector_type": projector_type,
            "mm_vision_select_layer": feature_layer,
            "mm_vision_select_feature": "patch" if feature_select == "default" else "cls_patch",
            "mm_use_im_start_end": False,
            "mm_use_im_patch_token": False,
            "image_aspect_ratio": aspect_ratio,
        }
        if anyres:
            # The authors write (width, height).
            config["image_grid_pinpoints"] = [[width, height] for height, width in pinpoints]
            config |= {"image_aspect_ratio": "anyres", "mm_patch_merge_type": merge_type}
    else:
        config = {
            "architectures": [architecture],
            "model_type": MODEL_TYPES[architecture],
            "text_config": config,
            "vision_config": vision,
            "image_token_index": config["vocab_size"] - 2,
            "projector_hidden_act": "gelu",
            "vision_feature_layer": feature_layer,
            "vision_feature_select_strategy": feature_select,
            "tie_word_embeddings": tie,
        }
        if anyres:
            config["image_grid_pinpoints"] = pinpoints
        if architecture == "LlavaNextVideoForConditionalGeneration":
            config["video_token_index"] = config["image_token_index"] + 1
            config |= {"spatial_pool_mode": pool_mode, "spatial_pool_stride": pool_stride}
    _write(path / "config.json", config)
    _write_processors(path / TOWER if authors else path, architecture, config, vision, pinpoints)

    language, head, vision_prefix = _PREFIXES[layout]
    named = {}
    for name, w in weights.items():
        name = name.replace("model.", f"{language}.", 1).replace("lm_head.", f"{head}.", 1)
        named[name] = w
    if authors and not tower_inside:
        outer = {f"vision_model.{name}": w for name, w in tower.items()}
        save_file(outer, path / TOWER / "model.safetensors", metadata={"format": "pt"})
    else:
        named |= {f"{vision_prefix}.{name}": w for name, w in tower.items()}
    above = "model." if layout in ("hf-new", "authors") else ""
    for name, w in projector.items():
        if authors:  # nn.Sequential's numbers, or a single nn.Linear
            named[f"model.mm_projector.{name}"] = w
        else:
            layer, kind = name.split(".")
            layer = {"0": "linear_1", "2": "linear_2"}[layer]
            named[f"{above}multi_modal_projector.{layer}.{kind}"] = w
    named |= {f"{above}{name}": w for name, w in extra.items()}
    save_file(named, path / "model.safetensors", metadata={"format": "pt"})
    return path


def _add_tokens(path: Path, config: dict[str, Any], weights: dict[str, torch.Tensor]) -> None:
    """Two more special tokens, at the end of the vocabulary; their embeddings are never read."""
    tokenizer = Tokenizer.from_file(str(path / "tokenizer.json"))
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in (IMAGE, VIDEO)])
    tokenizer.save(str(path / "tokenizer.json"))
    assert tokenizer.token_to_id(IMAGE) == config["vocab_size"]
    config["vocab_size"] += 2
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        if name in weights:
            weights[name] = torch.cat([weights[name], torch.zeros(2, config["hidden_size"])])


def _tower(g: torch.Generator, vision: dict[str, Any]) -> dict[str, torch.Tensor]:
    """A CLIP tower under the names that `CLIPVisionModel` has in transformers 5."""
    hidden, inner = vision["hidden_size"], vision["intermediate_size"]
    patch, side = vision["patch_size"], vision["image_size"] // vision["patch_size"]
    weights: dict[str, torch.Tensor] = {}

    def linear(name: str, rows: int, columns: int) -> None:
        weights[f"{name}.weight"] = torch.randn(rows, columns, generator=g) / columns**0.5
        weights[f"{name}.bias"] = 0.1 * torch.randn(rows, generator=g)

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = 1.0 + 0.1 * torch.randn(hidden, generator=g)
        weights[f"{name}.bias"] = 0.1 * torch.randn(hidden, generator=g)

    weights["embeddings.class_embedding"] = torch.randn(hidden, generator=g)
    conv = torch.randn(hidden, 3, patch, patch, generator=g) / (3 * patch * patch) ** 0.5
    weights["embeddings.patch_embedding.weight"] = conv
    weights["embeddings.position_embedding.weight"] = torch.randn(side**2 + 1, hidden, generator=g)
    norm("pre_layrnorm")
    for i in range(vision["num_hidden_layers"]):
        layer = f"encoder.layers.{i}"
        norm(f"{layer}.layer_norm1")
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            linear(f"{layer}.self_attn.{part}", hidden, hidden)
        norm(f"{layer}.layer_norm2")
        linear(f"{layer}.mlp.fc1", inner, hidden)
        linear(f"{layer}.mlp.fc2", hidden, inner)
    norm("post_layernorm")
    return weights


def _projector(g: torch.Generator, kind: str, columns: int, hidden: int) -> dict[str, torch.Tensor]:
    """ "linear", or "mlpNx_gelu" with the numbers that nn.Sequential gives: 0, 2, ..."""
    names = [""] if kind == "linear" else [f"{2 * i}." for i in range(int(kind[3]))]
    weights = {}
    for name in names:
        weights[f"{name}weight"] = torch.randn(hidden, columns, generator=g) / columns**0.5
        weights[f"{name}bias"] = 0.1 * torch.randn(hidden, generator=g)
        columns = hidden
    return weights


def _write_processors(
    path: Path,
    architecture: str,
    config: dict[str, Any],
    vision: dict[str, Any],
    pinpoints: list[list[int]],
) -> None:
    """The processor's files; in the authors' layout those of the tower, and its config.json."""
    path.mkdir(exist_ok=True)
    size = vision["image_size"]
    image: dict[str, Any] = {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"shortest_edge": size},
        "resample": 3,
        "do_center_crop": True,
        "crop_size": {"height": size, "width": size},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": MEAN,
        "image_std": STD,
    }
    if "vision_config" not in config:
        _write(path / "config.json", vision)
        _write(path / "preprocessor_config.json", image)
        return
    kind = architecture.removesuffix("ForConditionalGeneration")
    processor = {
        "processor_class": f"{kind}Processor",
        "image_token": IMAGE,
        "patch_size": vision["patch_size"],
        "vision_feature_select_strategy": config["vision_feature_select_strategy"],
        "num_additional_image_tokens": 1,
    }
    if kind != "Llava":
        image |= {"image_processor_type": "LlavaNextImageProcessor", "do_pad": True}
        image["image_grid_pinpoints"] = pinpoints
    if kind == "LlavaNextVideo":
        video = {**image, "video_processor_type": "LlavaNextVideoVideoProcessor"}
        del video["image_processor_type"], video["image_grid_pinpoints"], video["do_pad"]
        _write(path / "video_preprocessor_config.json", video)
        processor |= {"video_token": VIDEO}
    _write(path / "preprocessor_config.json", image)
    _write(path / "processor_config.json", processor)


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")

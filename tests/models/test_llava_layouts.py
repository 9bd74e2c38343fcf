"""What a LLaVA's config.json is read as, and which are refused, with what is supported."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig

from minisgl.models.config import ModelConfig
from minisgl.models.llava_config import LlavaConfig, VisionConfig
from minisgl.models.llava_layouts import AUTHORS_IMAGE_TOKEN, SUPPORTED
from minisgl.models.registry import MODELS, load_config
from tests.models.tiny_llava import LAYOUTS, make_tiny_llava

CLIP_L_336 = VisionConfig(1024, 4096, 24, 16, 336, 14)
CLIP_L = {
    "hidden_size": 1024,
    "image_size": 336,
    "intermediate_size": 4096,
    "model_type": "clip_vision_model",
    "num_attention_heads": 16,
    "num_hidden_layers": 24,
    "patch_size": 14,
    "projection_dim": 768,
    "vocab_size": 32000,
}
# As published: the language models' configs leave out what is a default of their classes.
LLAVA_15_7B = {
    "architectures": ["LlavaForConditionalGeneration"],
    "model_type": "llava",
    "ignore_index": -100,
    "image_token_index": 32000,
    "pad_token_id": 32001,
    "projector_hidden_act": "gelu",
    "text_config": {
        "_name_or_path": "lmsys/vicuna-7b-v1.5",
        "architectures": ["LlamaForCausalLM"],
        "max_position_embeddings": 4096,
        "model_type": "llama",
        "rms_norm_eps": 1e-05,
        "torch_dtype": "float16",
        "vocab_size": 32064,
    },
    "tie_word_embeddings": False,
    "torch_dtype": "float16",
    "vision_config": CLIP_L,
    "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default",
    "vocab_size": 32064,
}
NEXT_MISTRAL_7B = {
    "architectures": ["LlavaNextForConditionalGeneration"],
    "model_type": "llava_next",
    "image_grid_pinpoints": [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]],
    "image_token_index": 32000,
    "projector_hidden_act": "gelu",
    "text_config": {
        "_name_or_path": "mistralai/Mistral-7B-Instruct-v0.2",
        "architectures": ["MistralForCausalLM"],
        "intermediate_size": 14336,
        "max_position_embeddings": 32768,
        "model_type": "mistral",
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-05,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "torch_dtype": "bfloat16",
        "vocab_size": 32064,
    },
    "torch_dtype": "float16",
    "use_image_newline_parameter": True,
    "vision_config": CLIP_L,
    "vision_feature_layer": -2,
    "vision_feature_select_strategy": "default",
}
AUTHORS_16_VICUNA_7B = {
    "architectures": ["LlavaLlamaForCausalLM"],
    "model_type": "llava",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "freeze_mm_mlp_adapter": False,
    "hidden_act": "silu",
    "hidden_size": 4096,
    "image_aspect_ratio": "anyres",
    "image_crop_resolution": 224,
    "image_grid_pinpoints": [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]],
    "image_split_resolution": 224,
    "intermediate_size": 11008,
    "max_position_embeddings": 4096,
    "mm_hidden_size": 1024,
    "mm_patch_merge_type": "spatial_unpad",
    "mm_projector_type": "mlp2x_gelu",
    "mm_resampler_type": None,
    "mm_use_im_patch_token": False,
    "mm_use_im_start_end": False,
    "mm_vision_select_feature": "patch",
    "mm_vision_select_layer": -2,
    "mm_vision_tower": "openai/clip-vit-large-patch14-336",
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 32,
    "rms_norm_eps": 1e-05,
    "rope_scaling": None,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "unfreeze_mm_vision_tower": True,
    "use_mm_proj": True,
    "vocab_size": 32000,
}


def read(path: Path, config: dict[str, Any], **changes: Any) -> LlavaConfig:
    (path / "config.json").write_text(json.dumps({**config, **changes}))
    read = load_config(path)
    assert isinstance(read, LlavaConfig)
    return read


def without_weights(path: Path, names: tuple[str, ...] = ("lm_head.weight",)) -> None:
    """A checkpoint whose only contents are small tensors of these names."""
    from safetensors.torch import save_file

    save_file({name: torch.zeros(1) for name in names}, path / "model.safetensors")


def test_llava_15(tmp_path: Path) -> None:
    config = read(tmp_path, LLAVA_15_7B)
    assert config.vision == CLIP_L_336
    assert config.feature_layers == (23,)
    assert (config.image_token_id, config.video_token_id) == (32000, None)
    assert config.text == ModelConfig.from_dict(
        {
            "architectures": ["LlamaForCausalLM"],
            "vocab_size": 32064,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
            "dtype": "float16",
        }
    )
    assert config.num_image_tokens((480, 640)) == 576


def test_llava_next_over_mistral(tmp_path: Path) -> None:
    config = read(tmp_path, NEXT_MISTRAL_7B)
    assert config.text.num_kv_heads == 8
    assert config.text.rope.theta == 1e6
    assert config.text.dtype == torch.float16  # the whole model's, not its language model's own
    assert config.merge == "spatial_unpad"
    assert config.grid_pinpoints[3] == (1008, 336)
    assert [config.num_image_tokens(size) for size in ((480, 640), (640, 480))] == [2340, 2352]


def test_the_authors_16(tmp_path: Path) -> None:
    without_weights(tmp_path, ("model.vision_tower.vision_tower.vision_model.pre_layrnorm.bias",))
    config = read(tmp_path, AUTHORS_16_VICUNA_7B)
    assert config.vision == CLIP_L_336
    assert config.tower == ""  # the checkpoint holds it
    assert config.image_token_id == AUTHORS_IMAGE_TOKEN
    assert config.projector_layers == 2
    assert config.text.dtype == torch.bfloat16
    assert config.text.eos_token_ids == {2}
    assert [config.num_image_tokens(size) for size in ((480, 640), (640, 480))] == [2340, 2352]
    assert config.grid_pinpoints[0] == (672, 336)  # they write width, height


def test_the_authors_15_has_its_tower_elsewhere(tmp_path: Path) -> None:
    without_weights(tmp_path)
    config = read(
        tmp_path, AUTHORS_16_VICUNA_7B, image_aspect_ratio="pad", mm_patch_merge_type="flat"
    )
    assert config.tower == "openai/clip-vit-large-patch14-336"
    assert (config.merge, config.grid_pinpoints) == ("plain", ())
    assert config.image_aspect_ratio == "pad"
    assert config.num_image_tokens((480, 640)) == 576


@pytest.mark.parametrize(
    ("kind", "architecture", "text"),
    [
        ("llava", "LlavaLlamaForCausalLM", "LlamaForCausalLM"),
        ("llava_llama", "LlavaLlamaForCausalLM", "LlamaForCausalLM"),
        ("llava_mistral", "LlavaMistralForCausalLM", "MistralForCausalLM"),
    ],
)
def test_the_authors_layout_by_its_model_type_alone(
    kind: str, architecture: str, text: str, tmp_path: Path
) -> None:
    without_weights(tmp_path)
    config = read(tmp_path, AUTHORS_16_VICUNA_7B, architectures=None, model_type=kind)
    assert (config.architecture, config.text.architecture) == (architecture, text)


@pytest.mark.parametrize(
    "config", [LLAVA_15_7B, NEXT_MISTRAL_7B], ids=lambda c: c["architectures"][0]
)
def test_defaults_are_those_of_transformers(config: dict[str, Any], tmp_path: Path) -> None:
    """The same file, and what its class in transformers adds to it: one config."""
    ours = read(tmp_path, config)
    text = {**config["text_config"], "rms_norm_eps": 1e-5}
    short = {**config, "text_config": {k: v for k, v in text.items() if v is not None}}
    theirs = AutoConfig.for_model(**short)
    theirs.architectures = config["architectures"]
    for directory in ("short", "whole"):
        (tmp_path / directory).mkdir()
    theirs.save_pretrained(tmp_path / "whole")
    whole = load_config(tmp_path / "whole")
    assert isinstance(whole, LlavaConfig)
    assert whole.vision == ours.vision
    for name in ("hidden_size", "intermediate_size", "num_layers", "num_heads", "num_kv_heads",
                 "head_dim", "vocab_size", "max_position", "rms_norm_eps", "dtype"):  # fmt: skip
        assert getattr(whole.text, name) == getattr(ours.text, name), name
    assert whole.text.rope.theta == ours.text.rope.theta
    assert whole.feature_layers == ours.feature_layers
    assert whole.grid_pinpoints == ours.grid_pinpoints


def test_a_file_of_defaults_alone(tmp_path: Path) -> None:
    config = read(tmp_path, {"model_type": "llava_next_video"})
    assert config.architecture == "LlavaNextVideoForConditionalGeneration"
    assert config.vision == CLIP_L_336
    assert (config.image_token_id, config.video_token_id) == (32001, 32000)
    assert (config.spatial_pool_mode, config.spatial_pool_stride) == ("average", 2)
    assert config.num_video_tokens(8) == 1152


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_of_one_model_is_one_config(layout: str, tmp_path: Path) -> None:
    given: dict[str, Any] = {
        "architecture": "LlavaNextForConditionalGeneration",
        "pinpoints": [[28, 84], [56, 28]],
    }
    one = load_config(make_tiny_llava(tmp_path / "one", **given))
    other = load_config(make_tiny_llava(tmp_path / "other", layout=layout, **given))
    for name in ("vision", "feature_layers", "merge", "grid_pinpoints", "projector_layers"):
        assert getattr(one, name) == getattr(other, name), name


@pytest.mark.parametrize(
    ("names", "change"),
    [
        (["LlavaQwenForCausalLM"], {"model_type": "llava_qwen"}),
        (["LlavaMptForCausalLM"], {"model_type": "llava_mpt"}),
        (["LlavaOnevisionForConditionalGeneration"], {"model_type": "llava_onevision"}),
        ([], {"model_type": "llava_mixtral"}),
        (None, {"text_config": {"model_type": "qwen2"}}),
        (None, {"text_config": {"model_type": "mixtral"}}),
    ],
)
def test_other_llavas_are_refused_with_the_list(
    names: list[str] | None, change: dict[str, Any], tmp_path: Path
) -> None:
    """G7."""
    if names is not None:
        change["architectures"] = names
    with pytest.raises(ValueError, match=re.escape(SUPPORTED)):
        read(tmp_path, LLAVA_15_7B, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"mm_projector_type": "identity"}, "mm_projector_type 'identity'"),
        ({"mm_projector_type": "mlp2x_relu"}, "mm_projector_type 'mlp2x_relu'"),
        ({"mm_resampler_type": "spatial_pool"}, "mm_resampler_type 'spatial_pool'"),
        ({"mm_use_im_start_end": True}, "mm_use_im_start_end True"),
        ({"s2": True}, "s2 True"),
        ({"mm_vision_tower": None}, "names no mm_vision_tower"),
        ({"mm_vision_tower": "google/siglip"}, "'google/siglip' is neither a directory"),
        ({"image_aspect_ratio": "anyres_max_9"}, "these are: square, pad, anyres"),
        ({"mm_patch_merge_type": "spatial"}, "these are: flat, spatial_unpad"),
        ({"mm_vision_select_feature": "cls"}, "these are: patch, cls_patch"),
        ({"image_grid_pinpoints": None}, "image_grid_pinpoints are"),
        ({"image_grid_pinpoints": [[336, 500]]}, "has 500 x 336, no whole number"),
        ({"image_grid_pinpoints": "(1x1),(6x6)"}, "must be two whole numbers"),
        ({"mm_vision_select_layer": -26}, "has the hidden states 0 to 24"),
        ({"mm_vision_select_feature": "cls_patch"}, "no place in a grid of tiles"),
    ],
)
def test_an_authors_config_that_would_compute_something_else_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    without_weights(tmp_path)
    with pytest.raises(ValueError, match=re.escape(message)):
        read(tmp_path, AUTHORS_16_VICUNA_7B, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"projector_hidden_act": "relu"}, "these are: gelu, quick_gelu"),
        ({"vision_feature_select_strategy": "cls"}, "these are: default, full"),
        ({"vision_feature_layer": []}, "the vision feature layers are []"),
        ({"vision_feature_layer": [3, 25]}, "the vision feature layers are [3, 25]"),
        ({"image_grid_pinpoints": [[336]]}, "has [336]; each must be two whole numbers"),
        ({"spatial_pool_stride": 25}, "spatial_pool_stride is 25; it must be 1 to 24"),
        ({"spatial_pool_mode": "mean"}, "these are: average, max, conv"),
        ({"vision_config": {"model_type": "siglip_vision_model"}}, "CLIP's is"),
        ({"quantization_config": {"quant_method": "awq"}}, "'awq'"),
    ],
)
def test_a_config_of_transformers_that_would_compute_something_else_is_refused(
    change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    names = ["LlavaNextVideoForConditionalGeneration"]
    with pytest.raises(ValueError, match=re.escape(message)) as error:
        read(tmp_path, NEXT_MISTRAL_7B, architectures=names, **change)
    assert str(tmp_path) in str(error.value)


def test_a_video_for_a_model_of_images_is_refused(tmp_path: Path) -> None:
    config = read(tmp_path, LLAVA_15_7B)
    with pytest.raises(ValueError, match="takes images, and no videos"):
        config.num_video_tokens(8)


def test_a_language_model_alone_is_read_as_before(tiny_model_dir: Path) -> None:
    assert load_config(tiny_model_dir) == ModelConfig.from_dir(tiny_model_dir)


@pytest.mark.parametrize("write", [None, lambda file: file.write_text("{")])
def test_a_directory_that_holds_no_config(
    write: Callable[[Path], object] | None, tmp_path: Path
) -> None:
    if write:
        write(tmp_path / "config.json")
    with pytest.raises(ValueError, match=re.escape(str(tmp_path))):
        load_config(tmp_path)


def test_the_registry_has_every_layout() -> None:
    assert {name for name in MODELS if name.startswith("Llava")} == {
        "LlavaForConditionalGeneration",
        "LlavaNextForConditionalGeneration",
        "LlavaNextVideoForConditionalGeneration",
        "LlavaLlamaForCausalLM",
        "LlavaMistralForCausalLM",
    }

"""Which class runs which architecture, and how a directory becomes a config and a loaded model."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from minisgl.models.config import ModelConfig, read_json
from minisgl.models.dummy import draw_weights
from minisgl.models.hub import resolve_model
from minisgl.models.linear import Linear
from minisgl.models.llama import LlamaForCausalLM
from minisgl.models.llava import LlavaForConditionalGeneration
from minisgl.models.llava_config import LlavaConfig
from minisgl.models.llava_layouts import LLAVA_ARCHITECTURES, is_llava, llava_config
from minisgl.models.loader import load_weights
from minisgl.models.mixtral import MixtralForCausalLM, SparseMoE
from minisgl.parallel import Parallel

MODELS: dict[str, type[nn.Module]] = {
    "LlamaForCausalLM": LlamaForCausalLM,
    "MistralForCausalLM": LlamaForCausalLM,
    "MixtralForCausalLM": MixtralForCausalLM,
    **dict.fromkeys(LLAVA_ARCHITECTURES, LlavaForConditionalGeneration),
}


def load_config(path: Path) -> ModelConfig | LlavaConfig:
    """What the files in directory `path` say of the model.

    Raises:
        ValueError: no config.json, no JSON in it, or a model that isn't supported.
    """
    file = path / "config.json"
    if file.is_file():
        try:
            config = read_json(file)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        if is_llava(config):
            return llava_config(path)
    return ModelConfig.from_dir(path)


def weight_bytes(model: nn.Module) -> int:
    """What the loaded weights take, in all the layouts that they are kept in."""
    packed = (m.packed_bytes for m in model.modules() if isinstance(m, Linear | SparseMoE))
    return sum(p.nbytes for p in model.parameters()) + sum(packed)


def load_model(
    path: Path,
    config: ModelConfig | LlavaConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    max_len: int,
    half_weights: bool = False,
    parallel: Parallel | None = None,
    progress: bool = True,
    dummy: bool = False,
) -> nn.Module:
    """The model in `path`, weights loaded, on `device` in `dtype`, ready for `ForwardBatch`es.

    `half_weights` (CPU, float32 only): linear layers keep theirs in float16.
    `dummy`: its weights are drawn, and none are read.

    Raises:
        ValueError: unknown architecture, or weights that don't fit the config.
    """
    if config.architecture not in MODELS:
        raise ValueError(
            f"architecture {config.architecture!r} is not supported; these are: {', '.join(MODELS)}"
        )
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)  # parameters are born in their final dtype, on their device
    try:
        with torch.device(device):
            model = MODELS[config.architecture](config, max_len, parallel)
    finally:
        torch.set_default_dtype(before)
    if dummy:
        with torch.device("meta"):
            whole = MODELS[config.architecture](config, max_len)
        draw_weights(model, whole, progress=progress)
    else:
        load_weights(model, path, progress=progress)
    decoder = model
    if isinstance(model, LlavaForConditionalGeneration):
        # A tower's products have hundreds of rows, and packed weights pay where there are few.
        decoder = model.language_model
        if model.config.tower and dummy:
            draw_weights(model.vision_tower, model.vision_tower, progress=progress)
        elif model.config.tower:
            load_weights(model.vision_tower, resolve_model(model.config.tower), progress=progress)
    for module in decoder.modules():
        if isinstance(module, Linear | SparseMoE):
            module.pack(half_weights=half_weights)
    return model.eval()

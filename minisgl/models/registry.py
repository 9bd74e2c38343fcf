"""Which class runs which architecture, and the one function that makes a loaded model."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from minisgl.models.config import ModelConfig
from minisgl.models.linear import Linear
from minisgl.models.llama import LlamaForCausalLM
from minisgl.models.loader import load_weights
from minisgl.parallel import Parallel

MODELS: dict[str, type[LlamaForCausalLM]] = {
    "LlamaForCausalLM": LlamaForCausalLM,
    "MistralForCausalLM": LlamaForCausalLM,
}


def load_model(
    path: Path,
    config: ModelConfig,
    *,
    dtype: torch.dtype,
    device: torch.device,
    max_len: int,
    half_rows: bool = False,
    parallel: Parallel | None = None,
    progress: bool = True,
) -> nn.Module:
    """The model in `path`, weights loaded, on `device` in `dtype`, ready for `ForwardBatch`es.

    `half_rows` (CPU, float32 only): multiply single rows by a bfloat16 copy of each weight.

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
    load_weights(model, path, progress=progress)
    for module in model.modules():
        if isinstance(module, Linear):
            module.pack(half_rows=half_rows)
    return model.eval()

"""LLaVA's way from pixels to features, compiled for GPUs that are not here.

As test_compile_step.py does for a step: the model's own views and dtypes, at CLIP-L's sizes.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace

import pytest
import torch

pytest.importorskip("triton")
if sys.platform != "linux" or os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("compiles in the plain test run, on Linux", allow_module_level=True)

from minisgl.models.config import ModelConfig, RopeConfig
from minisgl.models.llava import LlavaForConditionalGeneration
from minisgl.models.llava_config import LlavaConfig, VisionConfig
from minisgl.models.pixels import Pixels
from scripts.compile_driver import compile_only, resources
from scripts.kernel_report import broken_limits

META = torch.device("meta")
TEXT = ModelConfig(
    "LlamaForCausalLM", 320, 4096, 64, 1, 32, 32, 128, 1e-5, 64, False, RopeConfig(theta=1e4)
)
LLAVA = LlavaConfig(
    "LlavaNextVideoForConditionalGeneration",
    TEXT,
    VisionConfig(1024, 4096, 1, 16, 336, 14),
    image_token_id=1,
    video_token_id=2,
    feature_layers=(1,),
    merge="spatial_unpad",
    grid_pinpoints=((336, 672),),
    image_aspect_ratio="anyres",
    spatial_pool_stride=2,
)


@pytest.mark.slow
@pytest.mark.parametrize("arch", [80, 86, 90])
def test_every_launch_of_a_tower_compiles_and_fits(arch: int) -> None:
    pixels = torch.zeros(3, 3, 336, 336, device=META)
    image = Pixels(pixels, LLAVA.num_image_tokens((336, 672)), (1, 2), (336, 672))
    video = Pixels(pixels, LLAVA.num_video_tokens(3), None, (336, 336), is_video=True)
    with compile_only(arch) as launches, torch.inference_mode():
        for mode in ("average", "conv"):
            with META:
                model = LlavaForConditionalGeneration(replace(LLAVA, spatial_pool_mode=mode))
            model.to(torch.bfloat16).encode_images([image, video])
        found = {launch.kernel for launch in launches}
        broken = {
            launch.kernel: faults
            for launch in launches
            if (faults := broken_limits(arch, launch.kernel, resources(launch)))
        }
    assert found >= {
        "_extend_attention_kernel", "_layer_norm_kernel", "_gelu_kernel", "_linear_kernel",
        "_pool_grid_kernel",
    }  # fmt: skip
    assert broken == {}

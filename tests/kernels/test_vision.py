"""A whole LLaVA on interpreted Triton kernels: tower, projector, tiles and frames."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForImageTextToText

from minisgl.kernels.dispatch import INTERPRETED
from minisgl.models.pixels import Pixels
from minisgl.models.registry import load_config, load_model
from tests.models.tiny_llava import make_tiny_llava

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")


@pytest.mark.parametrize("mode", ["average", "max", "conv"])
@torch.inference_mode()
def test_features_equal_transformers(mode: str, tmp_path: Path) -> None:
    """Quick GELU with tiles and, pooled by the two kernels, exact GELU; a convolution is linear."""
    path = make_tiny_llava(
        tmp_path,
        architecture="LlavaNextVideoForConditionalGeneration",
        image_size=10,
        patch_size=5,
        vision_layers=2,
        vision_act="quick_gelu" if mode == "average" else "gelu",
        feature_layer=[0, -1] if mode == "average" else -1,
        pool_mode=mode,
        num_layers=1,
        hidden_size=32,
    )
    ours = load_model(
        path,
        load_config(path),
        dtype=torch.float32,
        device=torch.device("cpu"),
        max_len=64,
        progress=False,
    )
    theirs = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32).eval().model
    pixels = torch.randn(3, 3, 10, 10)
    image = Pixels(pixels, ours.config.num_image_tokens((10, 20)), (1, 2), (10, 20))
    video = Pixels(pixels, 3, None, (10, 10), is_video=True)
    size = torch.tensor([image.size])
    expected = [
        theirs.get_image_features(pixels[None], size).pooler_output[0],
        theirs.get_video_features(pixels[None]).pooler_output[0],
    ]
    for features, other in zip(ours.encode_images([image, video]), expected, strict=True):
        torch.testing.assert_close(features, other, atol=1e-4, rtol=1e-4)

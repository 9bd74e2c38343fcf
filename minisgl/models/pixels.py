"""`Pixels`: one image or video as the model's vision tower takes it.

The image processor makes them, `encode_images` of a LLaVA reads them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Pixels:
    """Normalised pixel values, and what is needed to know their features' number and places.

    `values` are the tiles that go through the tower: the image itself (LLaVA-1.5), the whole image
    and then its tiles row by row (anyres), or the frames of a video.  `num_tokens` is how many
    features they become, and so how many tokens of the prompt.
    """

    values: torch.Tensor  # [tiles, 3, H, W] float32
    num_tokens: int
    grid: tuple[int, int] | None  # anyres: rows and columns of tiles, without the base; None: plain
    size: tuple[int, int]  # height, width of the original in pixels
    is_video: bool = False

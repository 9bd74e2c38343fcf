"""What the tests of images share: pictures, and transformers as the judge of answers about them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch
from transformers import AutoModelForImageTextToText

from minisgl import Engine, Prompt
from minisgl.media import Video
from minisgl.models.pixels import Pixels

LLAVA = "LlavaForConditionalGeneration"
NEXT = "LlavaNextForConditionalGeneration"
NEXT_VIDEO = "LlavaNextVideoForConditionalGeneration"


def picture(seed: int, width: int = 40, height: int = 30) -> PIL.Image.Image:
    """Noise; another seed or size is another picture."""
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3))
    return PIL.Image.fromarray(pixels.astype(np.uint8))


def video(seed: int, frames: int = 3) -> Video:
    """Frames of noise."""
    return Video([picture(1000 * seed + i) for i in range(frames)])


class Judge:
    """The same model in transformers, which answers one prompt after the other.

    The pixels are the engine's own: whether they are right is tests/models' to say.
    """

    def __init__(self, path: Path, engine: Engine) -> None:
        self.model = AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32).eval()
        self.door = engine.door

    def answer(
        self, prompt: Prompt | str | Sequence[int], new: int, repetition_penalty: float = 1.0
    ) -> list[int]:
        """The first `new` tokens of the greedy answer."""
        reading = self.door.read(prompt)
        ids: list[int] = []
        for i in reading.ids:
            span = next((s for s in reading.images if s.start == len(ids)), None)
            ids += [i] * (len(span) if span else 1)
        given = self._pixels([span.pixels for span in reading.images])
        x = torch.tensor([ids])
        with torch.inference_mode():
            out = self.model.generate(
                input_ids=x,
                attention_mask=torch.ones_like(x),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
                pad_token_id=0,
                repetition_penalty=repetition_penalty,
                **given,
            )
        answer: list[int] = out[0, len(ids) :].tolist()
        return answer

    def _pixels(self, all_pixels: Sequence[Pixels]) -> dict[str, Any]:
        """As transformers' processors hand them over: the tiles of fewer are padded with zeros."""
        given: dict[str, Any] = {}
        images = [p for p in all_pixels if not p.is_video]
        videos = [p for p in all_pixels if p.is_video]
        if images and images[0].grid is None:
            given["pixel_values"] = torch.cat([p.values for p in images])
        elif images:
            tiles = [p.values for p in images]
            given["pixel_values"] = torch.nn.utils.rnn.pad_sequence(tiles, batch_first=True)
            given["image_sizes"] = torch.tensor([p.size for p in images])
        if videos:
            given["pixel_values_videos"] = torch.stack([p.values for p in videos])
        return given

"""`ImageProcessor`: from RGB pixels to what the vision tower takes, as the model's makers do it.

    CLIP         shorter edge -> 336, bicubic;  the middle 336 x 336;  times 1/255;  - mean, / std
    pad          first on a square in the mean's colour, so that nothing is cut off   (LLaVA-1.5)
    anyres       the whole image squeezed to one tile, and the image laid on a grid of tiles, black
                 where it leaves some free; see anyres.py                             (LLaVA-NeXT)
    video        each frame by CLIP's steps                                     (LLaVA-NeXT-Video)

All numbers are those of the model's own files: preprocessor_config.json, or a part of
processor_config.json where transformers 5 has saved the model.  What they ask for and is not here
is refused when the model loads.  The pixels are those of transformers' processors with Pillow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from PIL.Image import Resampling

from minisgl.models.anyres import Size, plan
from minisgl.models.config import read_json
from minisgl.models.llava_config import LlavaConfig
from minisgl.models.llava_layouts import HF_ARCHITECTURES
from minisgl.models.pixels import Pixels

MOST_PIXELS = 2**28  # of a picture on its way: a long, thin one grows when its short edge does

# What CLIPImageProcessor does where its file says nothing.
_DEFAULTS = {
    "do_resize": True,
    "size": {"shortest_edge": 224},
    "resample": Resampling.BICUBIC,
    "do_center_crop": True,
    "crop_size": {"height": 224, "width": 224},
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": (0.48145466, 0.4578275, 0.40821073),
    "image_std": (0.26862954, 0.26130258, 0.27577711),
}
IMAGE_FILE, VIDEO_FILE = "preprocessor_config.json", "video_preprocessor_config.json"
_PLAIN_TYPES = ("CLIPImageProcessor", "LlavaImageProcessor")
_TILED_TYPES = ("LlavaNextImageProcessor",)
_VIDEO_TYPES = ("LlavaNextVideoVideoProcessor", "LlavaNextVideoImageProcessor")
_OLD_NAMES = {"CLIPFeatureExtractor": "CLIPImageProcessor"}


@dataclass(frozen=True)
class Steps:
    """CLIP's steps, for one model.

    Attributes:
        side: of the square that comes out, in pixels.
        shortest_edge: what an image's is resized to before the square is cut out of its middle;
            None: the image is resized to the square itself.
        background: the colour in which an image is first made a square; None: it is not.
    """

    side: int
    shortest_edge: int | None
    resample: int
    scale: float
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    background: tuple[int, int, int] | None = None

    @classmethod
    def from_dict(cls, config: Mapping[str, Any], side: int) -> Steps:
        """Read the contents of preprocessor_config.json, for a tower of `side` x `side` pixels.

        Raises:
            ValueError: steps that are not here, or that end with another size.
        """
        c = {**_DEFAULTS, **config}
        if not c["do_resize"]:
            raise ValueError("do_resize is false, but the tower takes images of one size only")
        size, crop = c["size"], c["crop_size"] if c["do_center_crop"] else None
        if isinstance(size, int):  # as the first generation wrote it
            size = {"shortest_edge": size}
        if isinstance(crop, int):
            crop = {"height": crop, "width": crop}
        square = {"height": side, "width": side}
        edge: int | None = None
        match size:
            case {"shortest_edge": int(shorter), **others} if shorter >= side and not others:
                edge, fits = shorter, crop == square
            case _:
                fits = size == square and crop in (None, square)
        if not fits:
            raise ValueError(
                f"size {size} and crop_size {crop} don't make the {side} x {side} pixels that the "
                "vision tower takes"
            )
        try:
            resample = Resampling(c["resample"])
        except ValueError:
            raise ValueError(
                f"resample is {c['resample']!r}; it must be one of Pillow's filters, 0 to 5"
            ) from None
        return cls(
            side=side,
            shortest_edge=edge,
            resample=resample,
            scale=float(c["rescale_factor"]) if c["do_rescale"] else 1.0,
            mean=_three(c, "image_mean") if c["do_normalize"] else (0.0, 0.0, 0.0),
            std=_three(c, "image_std") if c["do_normalize"] else (1.0, 1.0, 1.0),
        )

    def square(self, picture: Image.Image) -> Image.Image:
        """`picture` as a square of `side` x `side` pixels.

        Raises:
            ValueError: it is so long and thin that it would grow beyond all bounds.
        """
        if self.background is not None:
            picture = self._padded(picture, self.background)
        if self.shortest_edge is None:
            return picture.resize((self.side, self.side), self.resample)
        shorter, longer = sorted(picture.size)
        width = height = self.shortest_edge
        if picture.width > picture.height:
            width = int(width * longer / shorter)
        else:
            height = int(height * longer / shorter)
        self._check(picture, width, height)
        left, top = (width - self.side) // 2, (height - self.side) // 2
        resized = picture.resize((width, height), self.resample)
        return resized.crop((left, top, left + self.side, top + self.side))

    def _padded(self, picture: Image.Image, colour: tuple[int, int, int]) -> Image.Image:
        width, height = picture.size
        longer = max(width, height)
        self._check(picture, longer, longer)
        square = Image.new("RGB", (longer, longer), colour)
        square.paste(picture, ((longer - width) // 2, (longer - height) // 2))
        return square

    @staticmethod
    def _check(picture: Image.Image, width: int, height: int) -> None:
        if width * height > MOST_PIXELS:
            raise ValueError(
                f"an image of {picture.width} x {picture.height} pixels would grow to {width} x "
                f"{height} before the model's size is cut out of it; {MOST_PIXELS} pixels at most"
            )

    def values(self, squares: Sequence[Image.Image]) -> torch.Tensor:
        """The squares as the tower's input, [tiles, 3, side, side]."""
        # subtle: by numpy, in a caller's thread (engine/own_thread.py says why)
        pixels = np.stack([np.asarray(square) for square in squares])  # [tiles, side, side, 3]
        mean, std = np.array([self.mean, self.std], dtype=np.float32)
        x = (pixels.astype(np.float32) * np.float32(self.scale) - mean) / std
        return torch.from_numpy(np.ascontiguousarray(x.transpose(0, 3, 1, 2)))


class ImageProcessor:
    """What a LLaVA's own processor makes of images and videos.

    Args:
        config: the model's.
        image: the steps for images, and for the tiles of one.
        video: the steps for frames; None: the model takes no videos.
    """

    def __init__(self, config: LlavaConfig, image: Steps, video: Steps | None = None) -> None:
        self._config = config
        self._image = image
        self._video = video

    @classmethod
    def from_dir(cls, path: str | Path, config: LlavaConfig) -> ImageProcessor:
        """The processor of a model directory.

        Raises:
            ValueError: no processor's file, another processor, or steps that are not here.
        """
        path = Path(path)
        try:
            video = _video_steps(path, config) if config.takes_video else None
            return cls(config, _image_steps(path, config), video)
        except ValueError as error:
            raise ValueError(f"{path}: image processor: {error}") from error

    def __call__(self, frames: Sequence[Image.Image], is_video: bool = False) -> Pixels:  # noqa: FBT001, FBT002
        """The RGB frames of one image (a single one) or video, as the tower takes them.

        Raises:
            ValueError: a video for a model without, or a picture that is too long and thin.
        """
        first = frames[0]
        size = (first.height, first.width)
        if is_video:
            num_tokens = self._config.num_video_tokens(len(frames))  # or the model takes none
            assert self._video is not None
            values = self._video.values([self._video.square(frame) for frame in frames])
            return Pixels(values, num_tokens, None, size, is_video=True)
        assert len(frames) == 1
        grid = None
        if self._config.merge == "plain":
            squares = [self._image.square(first)]
        else:
            grid, squares = self._tiles(first, size)
        num_tokens = self._config.num_image_tokens(size)
        return Pixels(self._image.values(squares), num_tokens, grid, size)

    def _tiles(self, picture: Image.Image, size: Size) -> tuple[Size, list[Image.Image]]:
        """The grid, and the base image and then the tiles, row by row."""
        side, resample = self._image.side, self._image.resample
        layout = plan(size, self._config.grid_pinpoints, side)
        canvas = Image.new("RGB", layout.canvas[::-1])
        left, top, _, _ = layout.padding
        canvas.paste(picture.resize(layout.resized[::-1], resample), (left, top))
        rows, columns = layout.grid
        tiles = [
            canvas.crop((x * side, y * side, (x + 1) * side, (y + 1) * side))
            for y in range(rows)
            for x in range(columns)
        ]
        return layout.grid, [picture.resize((side, side), resample), *tiles]


# ---------------------------------------------------------------------- the model's files


def _image_steps(path: Path, config: LlavaConfig) -> Steps:
    is_hf = config.architecture in HF_ARCHITECTURES
    found = _part(path, "image_processor", IMAGE_FILE)
    if found is None:
        if is_hf:
            raise ValueError(f"there is no {IMAGE_FILE}")
        found = _of_the_tower(path, config)
    is_tiled = config.merge != "plain"
    allowed = _TILED_TYPES if is_hf and is_tiled else _PLAIN_TYPES
    kind = _check_type(found, ("image_processor_type", "feature_extractor_type"), allowed)
    steps = Steps.from_dict(found, config.vision.image_size)
    if is_tiled:
        if steps.shortest_edge not in (None, steps.side):
            raise ValueError(
                f"size {found['size']} is not the tile's, {steps.side} x {steps.side} pixels"
            )
        pinpoints = found.get("image_grid_pinpoints")
        if pinpoints is not None and tuple(map(tuple, pinpoints)) != config.grid_pinpoints:
            raise ValueError(
                f"image_grid_pinpoints are {pinpoints}, but in config.json they are "
                f"{[list(size) for size in config.grid_pinpoints]}"
            )
    pads = kind == "LlavaImageProcessor" and found.get("do_pad")
    if not pads and config.image_aspect_ratio != "pad":
        return steps
    red, green, blue = _three({**_DEFAULTS, **found}, "image_mean")
    return replace(steps, background=(int(255 * red), int(255 * green), int(255 * blue)))


def _of_the_tower(path: Path, config: LlavaConfig) -> dict[str, Any]:
    """The authors' checkpoints have no processor of their own and use the tower's, which they name:
    a directory, or one of OpenAI's, whose numbers are the defaults but for its size."""
    name = read_json(path / "config.json").get("mm_vision_tower", "")
    side = config.vision.image_size
    return _part(path / name, "", IMAGE_FILE) or {"size": side, "crop_size": side}


def _video_steps(path: Path, config: LlavaConfig) -> Steps:
    found = _part(path, "video_processor", VIDEO_FILE) or _part(path, "", IMAGE_FILE) or {}
    kinds = ("video_processor_type", "image_processor_type")
    _check_type(found, kinds, (*_VIDEO_TYPES, *_TILED_TYPES))
    return Steps.from_dict(found, config.vision.image_size)


def _part(path: Path, name: str, file: str) -> dict[str, Any] | None:
    """The part `name` of processor_config.json, or else what stands in `file`."""
    processor = path / "processor_config.json"
    part = read_json(processor).get(name) if processor.is_file() else None
    if isinstance(part, dict):
        return part
    return read_json(path / file) if (path / file).is_file() else None


def _check_type(config: Mapping[str, Any], keys: Sequence[str], allowed: Sequence[str]) -> str:
    """The processor's type, whatever generation wrote it."""
    found = next((str(config[key]) for key in keys if config.get(key)), allowed[0])
    kind = _OLD_NAMES.get(found, found).removesuffix("Fast")
    if kind not in allowed:
        raise ValueError(
            f"{found} is not supported for this model; supported: {', '.join(allowed)}"
        )
    return kind


def _three(config: Mapping[str, Any], key: str) -> tuple[float, float, float]:
    """A number for each of R, G and B."""
    value = config[key]
    if isinstance(value, (int, float)):
        value = [value] * 3
    if not isinstance(value, (list, tuple)) or len(value) != 3:
        raise ValueError(f"{key} is {value!r}; it must be three numbers")
    return float(value[0]), float(value[1]), float(value[2])

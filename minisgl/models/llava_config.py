"""`LlavaConfig`: what changes a number of a LLaVA, in this project's names, whatever its layout.

llava_layouts.py reads it from a checkpoint; the model and the image processor go by it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

from minisgl.models.anyres import Size, num_image_tokens, num_video_tokens, plan
from minisgl.models.config import ModelConfig

Activation = Literal["gelu", "quick_gelu"]
Merge = Literal["plain", "flat", "spatial_unpad"]
Pool = Literal["average", "max", "conv"]

# transformers' CLIPVisionConfig, for keys which a file leaves out
_CLIP_DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
}


@dataclass(frozen=True)
class VisionConfig:
    """A CLIP vision tower: square images of `image_size` pixels in patches of `patch_size`."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    image_size: int
    patch_size: int
    hidden_act: Activation = "quick_gelu"
    layer_norm_eps: float = 1e-5

    @property
    def side(self) -> int:
        """Features along one side of an image."""
        return self.image_size // self.patch_size

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads:
            raise ValueError(
                f"the vision tower's hidden_size {self.hidden_size} is not a multiple of its "
                f"num_attention_heads {self.num_heads}"
            )
        if self.patch_size > self.image_size:
            raise ValueError(
                f"the vision tower's patch_size {self.patch_size} is greater than its image_size "
                f"{self.image_size}"
            )
        one_of("the vision tower's hidden_act", self.hidden_act, get_args(Activation))

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> VisionConfig:
        """Read a `vision_config`, or the config.json of a CLIP checkpoint, which holds one.

        Raises:
            ValueError: another kind of tower, sizes that are no whole numbers or don't go together.
        """
        kind = config.get("model_type", "clip_vision_model")
        if kind == "clip":
            config = config["vision_config"]
        elif kind != "clip_vision_model":
            raise ValueError(f"a vision tower of type {kind!r} is not supported; CLIP's is")
        c = {**_CLIP_DEFAULTS, **config}
        for key in _CLIP_DEFAULTS:
            if type(c[key]) is not int or c[key] < 1:
                raise ValueError(
                    f"the vision tower's {key} is {c[key]!r}; it must be a whole number of at "
                    "least 1"
                )
        if c["num_channels"] != 3:
            raise ValueError(f"the vision tower has {c['num_channels']} channels; images have 3")
        return cls(
            hidden_size=c["hidden_size"],
            intermediate_size=c["intermediate_size"],
            num_layers=c["num_hidden_layers"],
            num_heads=c["num_attention_heads"],
            image_size=c["image_size"],
            patch_size=c["patch_size"],
            hidden_act=c.get("hidden_act", "quick_gelu"),
            layer_norm_eps=float(c.get("layer_norm_eps", 1e-5)),
        )


@dataclass(frozen=True)
class LlavaConfig:
    """A LLaVA: a vision tower, a projector, and a language model.

    image_token_id: what stands for an image in a prompt of ids; negative: no token of the
        vocabulary.  video_token_id: None where the model was not trained on videos.
    feature_layers: places in the tower's list of hidden states: n means "after n layers".
    feature_select: "full" keeps the class token's feature, "default" drops it.
    projector_layers: 1 is the linear projector, 2 is mlp2x, with `projector_act` in between.
    merge: how an image becomes tokens: "plain", one tile; "flat", its tiles one after the other;
        "spatial_unpad", the tiles as one grid, without its padding, a newline after each row.
    grid_pinpoints: the canvases that an image may be cut from, (height, width) in pixels.
    image_aspect_ratio: what the image processor does to an image that isn't square.
    tower: where the vision tower's weights are, if not in the checkpoint: a directory or a hub id.
    """

    architecture: str
    text: ModelConfig
    vision: VisionConfig
    image_token_id: int
    video_token_id: int | None = None
    feature_layers: tuple[int, ...] = ()
    feature_select: Literal["default", "full"] = "default"
    projector_layers: int = 2
    projector_act: Activation = "gelu"
    projector_bias: bool = True
    merge: Merge = "plain"
    grid_pinpoints: tuple[Size, ...] = ()
    image_aspect_ratio: Literal["square", "pad", "anyres"] = "square"
    spatial_pool_mode: Pool = "average"
    spatial_pool_stride: int = 1
    tower: str = ""

    def __post_init__(self) -> None:
        one_of("projector_hidden_act", self.projector_act, get_args(Activation))
        one_of("vision_feature_select_strategy", self.feature_select, ("default", "full"))
        one_of("spatial_pool_mode", self.spatial_pool_mode, get_args(Pool))
        layers = self.vision.num_layers
        if not self.feature_layers or not all(0 <= n <= layers for n in self.feature_layers):
            raise ValueError(
                f"the vision feature layers are {list(self.feature_layers)}; a tower of {layers} "
                f"layers has the hidden states 0 to {layers}"
            )
        if self.feature_select == "full" and self.merge != "plain":
            raise ValueError(
                "vision_feature_select_strategy 'full' keeps the class token, which has no place "
                "in a grid of tiles; 'default' is supported there"
            )
        if (self.merge == "plain") != (not self.grid_pinpoints):
            raise ValueError(
                f"image_grid_pinpoints are {list(self.grid_pinpoints)}; a model that cuts images "
                "into tiles has some, and no other"
            )
        tile = self.vision.image_size
        for size in self.grid_pinpoints:
            if any(side < tile or side % tile for side in size):
                raise ValueError(
                    f"image_grid_pinpoints has {size[0]} x {size[1]}, no whole number of the "
                    f"vision tower's {tile} x {tile} tiles"
                )
        if not 1 <= self.spatial_pool_stride <= self.vision.side:
            raise ValueError(
                f"spatial_pool_stride is {self.spatial_pool_stride}; it must be 1 to "
                f"{self.vision.side}, the features along one side of a frame"
            )

    @property
    def takes_video(self) -> bool:
        return self.video_token_id is not None

    def num_image_tokens(self, size: Size) -> int:
        """How many tokens an image of `size` (height, width) in pixels becomes."""
        side = self.vision.side
        if self.merge == "plain":
            return side * side + (self.feature_select == "full")
        rows, columns = plan(size, self.grid_pinpoints, self.vision.image_size).grid
        if self.merge == "flat":
            return (1 + rows * columns) * side * side
        return num_image_tokens(size, (rows, columns), side)

    def num_video_tokens(self, num_frames: int) -> int:
        """How many tokens a video of so many frames becomes.

        Raises:
            ValueError: the model takes no videos.
        """
        if not self.takes_video:
            raise ValueError(f"{self.architecture} takes images, and no videos")
        return num_video_tokens(num_frames, self.vision.side, self.spatial_pool_stride)


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Raise ValueError unless `value` is one of `allowed`."""
    if value not in allowed:
        raise ValueError(f"{name} {value!r} is not supported; these are: {', '.join(allowed)}")

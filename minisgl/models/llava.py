"""LLaVA (arXiv 2304.08485, 2310.03744): what a vision tower sees, as tokens of a language model.

    pixels -> CLIP tower -> projector -> features, in place of the embeddings of the image's tokens

                      LLaVA-1.5        LLaVA-NeXT                            LLaVA-NeXT-Video
    tower's input     the image        the image, shrunk, and its tiles      the frames
    its features      as they are      the tiles as one grid, unpadded,      pooled before the
                                       a newline after each row              projector

The engine runs `encode_images` once per image, and hands the features in with the tokens that they
stand for; the language model is Llama unchanged.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import nn

from minisgl.kernels.gelu import gelu
from minisgl.kernels.pool_grid import pool_grid
from minisgl.models.anyres import Size, unpadded
from minisgl.models.clip import CLIPVisionModel
from minisgl.models.forward_batch import ForwardBatch
from minisgl.models.linear import ReplicatedLinear
from minisgl.models.llama import LlamaForCausalLM
from minisgl.models.llava_config import LlavaConfig
from minisgl.models.loader import WeightPart, WeightSlot
from minisgl.models.pixels import Pixels
from minisgl.parallel import Parallel

MAX_TILES = 16  # of one pass through the tower, so that a long video needs no more memory

# Where each part's names begin in the layouts that people have, the longest first; and with us.
_PREFIXES = (
    ("model.vision_tower.vision_tower.vision_model.", "vision_tower."),  # the authors
    ("model.vision_tower.vision_model.", "vision_tower."),
    ("vision_tower.vision_model.", "vision_tower."),  # llava-hf, until transformers 4
    ("model.vision_tower.", "vision_tower."),
    ("vision_tower.", "vision_tower."),  # llava-hf, as transformers 5 writes it
    ("model.mm_projector.weight", "projector.0.weight"),  # "linear": no nn.Sequential
    ("model.mm_projector.bias", "projector.0.bias"),
    ("model.mm_projector.", "projector."),
    ("model.multi_modal_projector.linear_1.", "projector.0."),
    ("model.multi_modal_projector.linear_2.", "projector.2."),
    ("multi_modal_projector.linear_1.", "projector.0."),
    ("multi_modal_projector.linear_2.", "projector.2."),
    ("model.vision_resampler.", "vision_resampler."),
    ("model.image_newline", "image_newline"),
    ("language_model.lm_head.", "lm_head."),
    ("language_model.model.", "model."),
    ("model.language_model.", "model."),
)


class Projector(nn.Module):
    """One linear layer, or several with a GELU between each two.  x [M, D] -> [M, hidden]."""

    def __init__(self, config: LlavaConfig) -> None:
        super().__init__()
        c = config
        widths = [len(c.feature_layers) * c.vision.hidden_size]
        widths += [c.text.hidden_size] * c.projector_layers
        self.layers = nn.ModuleList(
            ReplicatedLinear(width, after, bias=c.projector_bias)
            for width, after in pairwise(widths)
        )
        self.quick = c.projector_act == "quick_gelu"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.layers[0](x)
        for layer in self.layers[1:]:
            x = layer(gelu(x, quick=self.quick))
        return x

    def weight_slots(self, prefix: str) -> dict[str, WeightSlot]:
        """Numbered as in the authors' nn.Sequential, where the GELUs are the odd ones."""
        slots: dict[str, WeightSlot] = {}
        for i, layer in enumerate(self.layers):
            slots.update(layer.weight_slots(f"{prefix}.{2 * i}"))  # type: ignore[operator]
        return slots


class FramePool(nn.Module):
    """Of each frame's features, `stride` x `stride` become one.  x [F, side², D] -> [F, n, D]."""

    def __init__(self, config: LlavaConfig) -> None:
        super().__init__()
        self.side, self.stride = config.vision.side, config.spatial_pool_stride
        self.mode = config.spatial_pool_mode
        D = config.vision.hidden_size * len(config.feature_layers)
        self.convolution = None
        if self.mode == "conv":
            self.convolution = ReplicatedLinear(D * self.stride**2, D, bias=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.mode != "conv":
            return pool_grid(x, self.side, self.stride, self.mode)
        assert self.convolution is not None
        # A convolution whose windows don't overlap: a window's features are a row (as in clip.py).
        F, S, out = x.shape[0], self.stride, self.side // self.stride
        grid = x.unflatten(1, (self.side, self.side))[:, : out * S, : out * S]
        windows = grid.unflatten(1, (out, S)).unflatten(3, (out, S))  # [F, out, S, out, S, D]
        rows = windows.permute(0, 1, 3, 5, 2, 4).reshape(F * out * out, -1)
        y: torch.Tensor = self.convolution(rows)
        return y.view(F, out * out, -1)

    def weight_slots(self, prefix: str) -> dict[str, WeightSlot]:
        if self.convolution is None:
            return {}
        slots = self.convolution.weight_slots(prefix)
        weight = self.convolution.weight.data
        kernel = weight.view(len(weight), -1, self.stride, self.stride)
        return {**slots, f"{prefix}.weight": WeightSlot(kernel, None, 0, 1)}


class LlavaForConditionalGeneration(nn.Module):
    """ids [T], and features of some of them, -> logits [L, V], as `LlamaForCausalLM`."""

    def __init__(
        self, config: LlavaConfig, max_len: int | None = None, parallel: Parallel | None = None
    ) -> None:
        super().__init__()
        c = config
        self.config = config
        self.vision_tower = CLIPVisionModel(c.vision, c.feature_layers)
        self.projector = Projector(c)
        self.frame_pool = FramePool(c) if c.takes_video else None
        self.newline: nn.Parameter | None = None
        if c.merge == "spatial_unpad":
            self.newline = nn.Parameter(torch.empty(c.text.hidden_size), requires_grad=False)
        self.language_model = LlamaForCausalLM(c.text, max_len, parallel)

    def forward(self, batch: ForwardBatch) -> torch.Tensor:
        logits: torch.Tensor = self.language_model(batch)
        return logits

    def encode_images(self, pixels: Sequence[Pixels]) -> list[torch.Tensor]:
        """The features of each image or video, [num_tokens, hidden] in the model's dtype."""
        weight = self.vision_tower.pre_norm.weight
        values = [p.values.to(weight.device, weight.dtype) for p in pixels]
        seen = self._see(torch.cat(values)).split([len(v) for v in values])
        encoded = []
        for p, features in zip(pixels, seen, strict=True):  # features [tiles, n, D]
            if p.is_video:
                assert self.frame_pool is not None, "a video for a model that takes none"
                tokens = self._project(self.frame_pool(features)).flatten(0, 1)
            elif p.grid is not None and self.newline is not None:
                tokens = self._join(self._project(features), p.grid, p.size)
            else:
                tokens = self._project(features).flatten(0, 1)
            assert len(tokens) == p.num_tokens, f"{len(tokens)} features for {p.num_tokens} tokens"
            encoded.append(tokens)
        return encoded

    def _see(self, tiles: torch.Tensor) -> torch.Tensor:
        """tiles [N, 3, H, W] -> features [N, n, D], those of several layers side by side."""
        first = 1 if self.config.feature_select == "default" else 0  # the class token is the 0th
        parts = []
        for some in tiles.split(MAX_TILES):
            states = self.vision_tower(some)
            parts.append(torch.cat([state[:, first:] for state in states], dim=-1))
        return torch.cat(parts)

    def _project(self, features: torch.Tensor) -> torch.Tensor:
        """[N, n, D] -> [N, n, hidden]."""
        N, n = features.shape[:2]
        y: torch.Tensor = self.projector(features.flatten(0, 1)).view(N, n, -1)
        return y

    def _join(self, tiles: torch.Tensor, grid: Size, size: Size) -> torch.Tensor:
        """The base tile, then the others as one grid of what isn't padding, each row ended.

        tiles [1 + rows · columns, side², hidden] -> [tokens, hidden]; see anyres.py.
        """
        assert self.newline is not None
        (rows, columns), side = grid, self.config.vision.side
        split = tiles[1:].view(rows, columns, side, side, -1)
        features = split.transpose(1, 2).reshape(rows * side, columns * side, -1)
        kept = features[unpadded(size, (rows * side, columns * side))]  # [height, width, hidden]
        newlines = self.newline.expand(len(kept), 1, -1)
        lines = torch.cat([kept, newlines], dim=1)
        return torch.cat([tiles[0], lines.flatten(0, 1)])

    def weight_slots(self) -> dict[str, WeightSlot]:
        """Where each tensor of a checkpoint goes, under the names that `weight_parts` gives."""
        slots = self.language_model.weight_slots()
        slots.update(self.projector.weight_slots("projector"))
        if not self.config.tower:  # else it is loaded from there
            slots.update(self.vision_tower.weight_slots("vision_tower."))
        if self.frame_pool is not None:
            slots.update(self.frame_pool.weight_slots("vision_resampler.pool"))
        if self.newline is not None:
            slots["image_newline"] = WeightSlot(self.newline.data, None, 0, 1)
        return slots

    def weight_parts(self, name: str, shape: list[int]) -> list[WeightPart]:
        """The one name that all layouts' names for a tensor become; none for what isn't needed."""
        for theirs, ours in _PREFIXES:
            if name.startswith(theirs):
                name = ours + name.removeprefix(theirs)
                break
        prefix, _, rest = name.partition(".")
        if prefix == "vision_tower" and not self.vision_tower.needs(rest):
            return []
        if prefix == "image_newline" and self.newline is None:  # of a model that makes no rows
            return []
        return [WeightPart(name)]

"""CLIP's vision tower (arXiv 2103.00020): an image becomes a grid of features, one for each patch.

    pixels -> patches -> embedding, a class token in front, + positions -> norm -> blocks

    x = x + Attention(norm(x));   x = x + MLP(norm(x))

Llama's block, with LayerNorm, a GELU and biases, and attention in both directions: every patch sees
every other.  Each tensor-parallel rank holds the whole tower, small beside the language model.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch
from torch import nn

from minisgl.kernels.extend_attention import extend_attention
from minisgl.kernels.gelu import gelu
from minisgl.kernels.layer_norm import add_layer_norm, layer_norm
from minisgl.models.linear import QKVParallelLinear, ReplicatedLinear
from minisgl.models.llava_config import VisionConfig
from minisgl.models.loader import WeightPart, WeightSlot
from minisgl.parallel import Parallel

WHOLE = Parallel()  # one rank: nothing is split


class LayerNorm(nn.Module):
    """y = (x - mean) / deviation * w + b over the last axis.  x [T, D] -> [T, D]."""

    def __init__(self, hidden: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(hidden), requires_grad=False)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return layer_norm(x, self.weight, self.bias, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The stream takes `x` up, then is normalised: (norm(x + residual), x + residual)."""
        return add_layer_norm(x, residual, self.weight, self.bias, self.eps)

    def weight_slots(self, prefix: str) -> dict[str, WeightSlot]:
        return {
            f"{prefix}.weight": WeightSlot(self.weight.data, None, 0, 1),
            f"{prefix}.bias": WeightSlot(self.bias.data, None, 0, 1),
        }


class Embeddings(nn.Module):
    """pixels [N, 3, H, W] -> class token and patches, and their positions, each [N (1 + P), D].

    The convolution whose windows don't overlap is a matrix product: a patch's pixels are a row, and
    zeros behind them, until the next row begins where a GPU reads best (16 numbers; 588 -> 592).
    The two results are not yet added: the norm that follows does that.
    """

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        c = config
        self.side, self.patch_size = c.side, c.patch_size
        width = -(-self.num_values // 16) * 16
        self.patch = ReplicatedLinear(width, c.hidden_size, bias=False)
        self.patch.weight.zero_()  # the columns behind the pixels' stay so
        self.class_token = nn.Parameter(torch.empty(c.hidden_size), requires_grad=False)
        rows = 1 + c.side**2
        self.positions = nn.Parameter(torch.empty(rows, c.hidden_size), requires_grad=False)

    @property
    def num_values(self) -> int:
        """Numbers in one patch."""
        return 3 * self.patch_size**2

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        N, side, S = pixels.shape[0], self.side, self.patch_size
        edge = side * S  # pixels past the last whole patch are left out
        windows = pixels[:, :, :edge, :edge].reshape(N, 3, side, S, side, S)
        patches = pixels.new_zeros(N, side, side, self.patch.weight.shape[1])
        patches[..., : self.num_values] = windows.permute(0, 2, 4, 1, 3, 5).flatten(3)
        x = self.patch(patches.flatten(0, 2)).view(N, side * side, -1)
        x = torch.cat([self.class_token.expand(N, 1, -1), x], dim=1)  # [N, 1 + P, D]
        return x.flatten(0, 1), self.positions.repeat(N, 1)

    def weight_slots(self, prefix: str) -> dict[str, WeightSlot]:
        S = self.patch_size
        convolution = self.patch.weight.data[:, : self.num_values].unflatten(1, (3, S, S))
        return {
            f"{prefix}.class_embedding": WeightSlot(self.class_token.data, None, 0, 1),
            f"{prefix}.patch_embedding.weight": WeightSlot(convolution, None, 0, 1),
            f"{prefix}.position_embedding.weight": WeightSlot(self.positions.data, None, 0, 1),
        }


class Attention(nn.Module):
    """Every token of an image attends to all of them.  x [N L, D], N images of L tokens."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        H, D = config.num_heads, config.hidden_size
        self.num_heads, self.head_dim = H, D // H
        self.qkv = QKVParallelLinear(D, H, H, self.head_dim, bias=True, parallel=WHOLE)
        self.out = ReplicatedLinear(D, D, bias=True)

    def forward(self, x: torch.Tensor, cu_seqlens: torch.Tensor) -> torch.Tensor:
        """`cu_seqlens` [N + 1] int32: where each image's tokens begin; last, T."""
        T, H = x.shape[0], self.num_heads
        qkv = self.qkv(x).view(T, 3, H, self.head_dim)
        q, kv = qkv[:, 0], qkv[:, 1:]  # [T, H, D], [T, 2, H, D]
        # An image is a request that has no cached prefix: of the pool, none of whose slots is read,
        # only the dtype counts.
        N = len(cu_seqlens) - 1
        none = torch.zeros((N, 1), dtype=torch.int32, device=x.device)
        mixed = extend_attention(
            q, kv, kv[:0], none, none[:, 0], none[:, 0], cu_seqlens, T // max(N, 1),
            self.head_dim**-0.5, causal=False,
        )  # fmt: skip
        y: torch.Tensor = self.out(mixed.flatten(1))
        return y

    def weight_slots(self, prefix: str) -> dict[str, WeightSlot]:
        return {
            **self.qkv.weight_slots(f"{prefix}.q_proj", f"{prefix}.k_proj", f"{prefix}.v_proj"),
            **self.out.weight_slots(f"{prefix}.out_proj"),
        }


class MLP(nn.Module):
    """down(gelu(up(x))).  x [T, D] -> [T, D]."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        c = config
        self.up = ReplicatedLinear(c.hidden_size, c.intermediate_size, bias=True)
        self.down = ReplicatedLinear(c.intermediate_size, c.hidden_size, bias=True)
        self.quick = c.hidden_act == "quick_gelu"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(gelu(self.up(x), quick=self.quick))
        return y

    def weight_slots(self, prefix: str) -> dict[str, WeightSlot]:
        return {
            **self.up.weight_slots(f"{prefix}.fc1"),
            **self.down.weight_slots(f"{prefix}.fc2"),
        }


class EncoderLayer(nn.Module):
    """One block; `residual` is the stream, `x` what the previous block adds to it."""

    def __init__(self, config: VisionConfig) -> None:
        super().__init__()
        c = config
        self.attention_norm = LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.attention = Attention(c)
        self.mlp_norm = LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.mlp = MLP(c)

    def forward(
        self, x: torch.Tensor | None, residual: torch.Tensor, cu_seqlens: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if x is None:
            x = self.attention_norm(residual)
        else:
            x, residual = self.attention_norm.add(x, residual)
        x = self.attention(x, cu_seqlens)
        x, residual = self.mlp_norm.add(x, residual)
        return self.mlp(x), residual

    def weight_slots(self, prefix: str) -> dict[str, WeightSlot]:
        return {
            **self.attention_norm.weight_slots(f"{prefix}.layer_norm1"),
            **self.attention.weight_slots(f"{prefix}.self_attn"),
            **self.mlp_norm.weight_slots(f"{prefix}.layer_norm2"),
            **self.mlp.weight_slots(f"{prefix}.mlp"),
        }


class CLIPVisionModel(nn.Module):
    """pixels [N, 3, H, W] -> hidden states after the wanted layers, each [N, 1 + P, D].

    P patches of each of N square images, row by row, behind the class token.  The wanted states are
    those of `feature_layers`, where n means "after n layers"; only so many layers are made and run.
    """

    def __init__(self, config: VisionConfig, feature_layers: Sequence[int]) -> None:
        super().__init__()
        c = config
        self.config = config
        self.feature_layers = tuple(feature_layers)
        self.embeddings = Embeddings(c)
        self.pre_norm = LayerNorm(c.hidden_size, c.layer_norm_eps)
        self.layers = nn.ModuleList(EncoderLayer(c) for _ in range(max(feature_layers)))

    def forward(self, pixels: torch.Tensor) -> list[torch.Tensor]:
        N, size = pixels.shape[0], self.config.image_size
        if pixels.shape[1:] != (3, size, size):
            raise ValueError(
                f"the vision tower takes pixels [N, 3, {size}, {size}]; got {list(pixels.shape)}"
            )
        tokens, positions = self.embeddings(pixels)
        cu_seqlens = torch.arange(N + 1, dtype=torch.int32, device=pixels.device)
        cu_seqlens *= 1 + self.config.side**2
        x, residual = None, self.pre_norm.add(tokens, positions)[0]  # [N (1 + P), D]
        states = {0: residual}
        for i, layer in enumerate(self.layers):
            x, residual = layer(x, residual, cu_seqlens)
            if i + 1 in self.feature_layers:
                states[i + 1] = x + residual
        return [states[n].unflatten(0, (N, -1)) for n in self.feature_layers]

    def weight_slots(self, prefix: str = "") -> dict[str, WeightSlot]:
        """Where each tensor of a `CLIPVisionModel` of transformers goes."""
        slots = {
            **self.embeddings.weight_slots(f"{prefix}embeddings"),
            **self.pre_norm.weight_slots(f"{prefix}pre_layrnorm"),  # so spelt in all checkpoints
        }
        for i, layer in enumerate(self.layers):
            slots.update(layer.weight_slots(f"{prefix}encoder.layers.{i}"))  # type: ignore[operator]
        return slots

    def weight_parts(self, name: str, shape: list[int]) -> list[WeightPart]:
        """What a tensor of a CLIP checkpoint is to us: of a whole CLIP, the text half is nothing.

        >>> tower = CLIPVisionModel(VisionConfig(8, 8, 3, 1, 4, 2), feature_layers=[2])
        >>> [tower.weight_parts(name, []) for name in ("logit_scale", "text_model.final_norm")]
        [[], []]
        >>> tower.weight_parts("vision_model.pre_layrnorm.bias", [])[0].name
        'pre_layrnorm.bias'
        """
        if name.startswith(
            ("text_model.", "logit_scale", "text_projection.", "visual_projection.")
        ):
            return []
        name = name.removeprefix("vision_model.")
        return [WeightPart(name)] if self.needs(name) else []

    def needs(self, name: str) -> bool:
        """Whether a tensor of the tower is read: not one of a layer that is never run, nor of the
        norm behind the last layer, nor the numbers 0, 1, 2... that old files hold.

        >>> tower = CLIPVisionModel(VisionConfig(8, 8, 3, 1, 4, 2), feature_layers=[2])
        >>> [tower.needs(f"encoder.layers.{i}.layer_norm1.bias") for i in range(3)]
        [True, True, False]
        """
        layer = re.match(r"encoder\.layers\.(\d+)\.", name)
        if layer is not None and len(self.layers) <= int(layer[1]) < self.config.num_layers:
            return False
        return not name.startswith(("post_layernorm.", "embeddings.position_ids"))

"""The two small layers that every block is made of: RMSNorm and the gated MLP."""

from __future__ import annotations

import torch
from torch import nn

from minisgl.kernels.activation import silu_and_mul
from minisgl.kernels.rms_norm import add_rms_norm, rms_norm
from minisgl.models.linear import GateUpParallelLinear, RowParallelLinear
from minisgl.models.loader import WeightSlot
from minisgl.parallel import Parallel


class RMSNorm(nn.Module):
    """y = x / rms(x) * w over the last axis.  x [T, D] -> [T, D]."""

    def __init__(self, hidden: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden), requires_grad=False)
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return rms_norm(x, self.weight, self.eps)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The stream takes `x` up, then is normalised: (norm(x + residual), x + residual)."""
        return add_rms_norm(x, residual, self.weight, self.eps)

    def weight_slots(self, name: str) -> dict[str, WeightSlot]:
        return {name: WeightSlot(self.weight.data, None, 0, 1)}


class GatedMLP(nn.Module):
    """SwiGLU: down(silu(gate(x)) * up(x)).  x [T, D] -> [T, D]."""

    def __init__(self, hidden: int, inner: int, *, bias: bool, parallel: Parallel) -> None:
        super().__init__()
        self.gate_up = GateUpParallelLinear(hidden, inner, bias=bias, parallel=parallel)
        self.down = RowParallelLinear(inner, hidden, bias=bias, parallel=parallel)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.down(silu_and_mul(self.gate_up(x)))
        return y

    def weight_slots(self, prefix: str) -> dict[str, WeightSlot]:
        return {
            **self.gate_up.weight_slots(f"{prefix}.gate_proj", f"{prefix}.up_proj"),
            **self.down.weight_slots(f"{prefix}.down_proj"),
        }

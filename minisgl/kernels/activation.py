"""SwiGLU's pointwise half."""

import torch
import torch.nn.functional as F


def silu_and_mul_ref(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up.  x [T, 2I] = (gate | up) -> [T, I]."""
    return silu_and_mul_ref(x)

"""Linear: y = x wᵀ + bias."""

import torch
import torch.nn.functional as F


def linear_ref(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return F.linear(x, w, bias)


def linear(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x [T, K], w [N, K], bias [N] or None -> [T, N]."""
    return linear_ref(x, w, bias)

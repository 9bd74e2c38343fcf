"""RMSNorm: scale each token's hidden vector to unit root-mean-square, then by a learned weight.

    y[t, d] = x[t, d] / sqrt(mean_d(x[t, :]²) + eps) · w[d]

Shapes: x [T, D], w [D] -> y [T, D].  T tokens, D hidden size.
"""

import torch

from minisgl.kernels.dispatch import use_triton


def rms_norm_ref(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    x32 = x.float()
    norm = torch.linalg.vector_norm(x32, dim=-1, keepdim=True)  # one pass, no x² in memory
    scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return torch.mul(x32, scale).mul_(w).to(x.dtype)


def add_rms_norm_ref(
    x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    residual = x + residual
    return rms_norm_ref(residual, w, eps), residual


def rms_norm(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    """y = x / rms(x) · w.  x [T, D] with unit last stride, w [D] -> y [T, D] in x's dtype."""
    return rms_norm_ref(x, w, eps)


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(x + residual), x + residual), the sum rounded to the dtype before it is normed."""
    return add_rms_norm_ref(x, residual, w, eps)

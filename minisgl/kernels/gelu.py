"""GELU, exact or quick: the activation of the vision tower's MLPs and of the projector.

    gelu(z) = z · Φ(z) = z · (1 + erf(z / √2)) / 2          exact: the normal distribution's Φ
    gelu(z) ≈ z · sigmoid(1.702 · z)                         quick: what CLIP was trained with

Shapes: x [T, I] -> y [T, I].  T tokens, I intermediate size.
One program computes a tile of ROWS tokens by BLOCK_D columns.
Source: Hendrycks and Gimpel 2016, "Gaussian Error Linear Units", arXiv 1606.08415.
"""

import torch
import torch.nn.functional as F

from minisgl.kernels.block_sizes import tile_blocks
from minisgl.kernels.dispatch import tl, triton, use_triton


def gelu_ref(x: torch.Tensor, quick: bool) -> torch.Tensor:
    return torch.sigmoid(1.702 * x).mul_(x) if quick else F.gelu(x)


@triton.jit(do_not_specialize=["T"])
def _gelu_kernel(
    x_ptr,  # [T, I]
    y_ptr,  # [T, I] contiguous
    stride_xt,
    T,
    I,
    QUICK: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    t = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    i = (tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D))[None, :]
    mask = (t < T) & (i < I)
    x = tl.load(x_ptr + t * stride_xt + i, mask=mask, other=0.0).to(tl.float32)
    if QUICK:
        y = x * tl.sigmoid(1.702 * x)
    else:
        y = x * 0.5 * (1.0 + tl.erf(x * 0.7071067811865476))  # 1 / √2
    tl.store(y_ptr + t * I + i, y.to(y_ptr.dtype.element_ty), mask=mask)


def gelu(x: torch.Tensor, *, quick: bool) -> torch.Tensor:
    """Exact or quick GELU.  x [T, I] with unit last stride -> a new [T, I] in x's dtype."""
    if not use_triton(x):
        return gelu_ref(x, quick)
    if x.dim() != 2 or x.stride(1) != 1:
        raise ValueError(
            f"gelu needs x [T, I] with unit last stride; got {tuple(x.shape)} strides {x.stride()}"
        )
    T, I = x.shape
    y = torch.empty((T, I), dtype=x.dtype, device=x.device)
    if T == 0:
        return y
    blocks = tile_blocks(I)
    grid = (triton.cdiv(T, blocks["ROWS"]), triton.cdiv(I, blocks["BLOCK_D"]))
    _gelu_kernel[grid](x, y, x.stride(0), T, I, QUICK=quick, **blocks)
    return y

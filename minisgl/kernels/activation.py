"""SwiGLU's pointwise half: gate the up-projection by the SiLU of the gate-projection.

    y[t, i] = silu(gate[t, i]) · up[t, i],   silu(z) = z · sigmoid(z) = z / (1 + e^-z)

Shapes: x [T, 2I] = (gate | up) -> y [T, I].  T tokens, I intermediate size.
One program computes a tile of ROWS tokens by BLOCK_D columns.
Source: Shazeer 2020, "GLU Variants Improve Transformer", arXiv 2002.05202.
"""

import torch
import torch.nn.functional as F

from minisgl.kernels.block_sizes import tile_blocks
from minisgl.kernels.dispatch import tl, triton, use_triton


def silu_and_mul_ref(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate).mul_(up)


@triton.jit(do_not_specialize=["T"])
def _silu_and_mul_kernel(
    x_ptr,  # [T, 2I]
    y_ptr,  # [T, I] contiguous
    stride_xt,
    T,
    I,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    t = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    i = (tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D))[None, :]
    mask = (t < T) & (i < I)
    gate = tl.load(x_ptr + t * stride_xt + i, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(x_ptr + t * stride_xt + I + i, mask=mask, other=0.0).to(tl.float32)
    y = gate * tl.sigmoid(gate) * up
    tl.store(y_ptr + t * I + i, y.to(y_ptr.dtype.element_ty), mask=mask)


def silu_and_mul(x: torch.Tensor) -> torch.Tensor:
    """silu(gate) · up.  x [T, 2I] = (gate | up) with unit last stride -> [T, I] in x's dtype."""
    if not use_triton(x):
        return silu_and_mul_ref(x)
    if x.dim() != 2 or x.shape[1] % 2 or x.stride(1) != 1:
        raise ValueError(
            f"silu_and_mul needs x [T, 2I] with unit last stride; "
            f"got {tuple(x.shape)} strides {x.stride()}"
        )
    T, I = x.shape[0], x.shape[1] // 2
    y = torch.empty((T, I), dtype=x.dtype, device=x.device)
    if T == 0:
        return y
    blocks = tile_blocks(I)
    grid = (triton.cdiv(T, blocks["ROWS"]), triton.cdiv(I, blocks["BLOCK_D"]))
    _silu_and_mul_kernel[grid](x, y, x.stride(0), T, I, **blocks)
    return y

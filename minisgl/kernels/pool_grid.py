"""Pool a grid of features: LLaVA-NeXT-Video makes one of each S x S neighbours of a frame.

    average   y[f, i, j, :] = Σ_{a, b < S} x[f, S i + a, S j + b, :] / S²
    max       y[f, i, j, :] = max_{a, b < S} x[f, S i + a, S j + b, :]

Shapes: x [F, side², D] -> y [F, (side // S)², D].  F frames, side² features row by row, D their
size.  Rows and columns that don't fill a window at the end are left out.
One program computes ROWS features of y by BLOCK_D columns.
"""

from typing import Literal

import torch
import torch.nn.functional as F

from minisgl.kernels.block_sizes import tile_blocks
from minisgl.kernels.dispatch import tl, triton, use_triton

Mode = Literal["average", "max"]


def pool_grid_ref(x: torch.Tensor, side: int, stride: int, mode: Mode) -> torch.Tensor:
    grid = x.unflatten(1, (side, side)).permute(0, 3, 1, 2)  # [F, D, side, side]
    pooled = F.avg_pool2d(grid, stride) if mode == "average" else F.max_pool2d(grid, stride)
    return pooled.flatten(2).transpose(1, 2).contiguous()


@triton.jit(do_not_specialize=["N"])
def _pool_grid_kernel(
    x_ptr,  # [F, side * side, D]
    y_ptr,  # [N, D] contiguous, N = F * out * out
    stride_xf,
    stride_xn,
    N,
    D,
    side,
    out,  # side // STRIDE
    STRIDE: tl.constexpr,
    MAX: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    n = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    d = (tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D))[None, :]
    mask = (n < N) & (d < D)
    frame = n // (out * out)
    row = n // out % out * STRIDE
    column = n % out * STRIDE
    first = x_ptr + frame * stride_xf + (row * side + column) * stride_xn + d
    if MAX:
        y = tl.full([ROWS, BLOCK_D], float("-inf"), tl.float32)
    else:
        y = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for a in tl.static_range(STRIDE):
        for b in tl.static_range(STRIDE):
            x = tl.load(first + (a * side + b) * stride_xn, mask=mask, other=0.0).to(tl.float32)
            if MAX:
                y = tl.maximum(y, x)
            else:
                y += x
    if not MAX:
        y /= STRIDE * STRIDE
    tl.store(y_ptr + n * D + d, y.to(y_ptr.dtype.element_ty), mask=mask)


def pool_grid(x: torch.Tensor, side: int, stride: int, mode: Mode) -> torch.Tensor:
    """x [F, side², D] with unit last stride -> a new [F, (side // stride)², D] in x's dtype."""
    if x.dim() != 3 or x.shape[1] != side * side or x.stride(2) != 1 or not 1 <= stride <= side:
        raise ValueError(
            f"pool_grid needs x [F, side², D] with unit last stride and 1 <= stride <= side; got "
            f"{tuple(x.shape)} strides {x.stride()}, side {side} and stride {stride}"
        )
    if not use_triton(x):
        return pool_grid_ref(x, side, stride, mode)
    out = side // stride
    frames, D = x.shape[0], x.shape[2]
    N = frames * out * out
    y = torch.empty((frames, out * out, D), dtype=x.dtype, device=x.device)
    if N == 0:
        return y
    blocks = tile_blocks(D)
    grid = (triton.cdiv(N, blocks["ROWS"]), triton.cdiv(D, blocks["BLOCK_D"]))
    _pool_grid_kernel[grid](
        x, y, x.stride(0), x.stride(1), N, D, side, out, STRIDE=stride, MAX=mode == "max", **blocks
    )
    return y

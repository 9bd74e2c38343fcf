"""LayerNorm: give each token's vector mean 0 and variance 1, then a learned scale and shift.

    y[t, d] = (x[t, d] - μ_t) / sqrt(σ²_t + eps) · w[d] + b[d]
    μ_t = mean_d(x[t, :]),   σ²_t = mean_d((x[t, :] - μ_t)²)

Shapes: x [T, D], w and b [D] -> y [T, D].  T tokens, D hidden size.
One program normalises ROWS tokens: it reads each x[t] once and writes each y[t] once.  The variant
`add_layer_norm` first adds the residual stream, and stores the sum that it normalised.
Source: Ba, Kiros and Hinton 2016, "Layer Normalization", arXiv 1607.06450.
"""

import torch
import torch.nn.functional as F

from minisgl.kernels.block_sizes import row_blocks
from minisgl.kernels.dispatch import tl, triton, use_triton


def layer_norm_ref(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, eps: float) -> torch.Tensor:
    return F.layer_norm(x, w.shape, w, b, eps)


def add_layer_norm_ref(
    x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor, b: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    residual = x + residual
    return layer_norm_ref(residual, w, b, eps), residual


@triton.jit(do_not_specialize=["T"])
def _layer_norm_kernel(
    x_ptr,  # [T, D]
    residual_ptr,  # [T, D], read only if ADD
    w_ptr,  # [D]
    b_ptr,  # [D]
    y_ptr,  # [T, D] contiguous
    sum_ptr,  # [T, D] contiguous, written only if ADD
    stride_xt,
    stride_rt,
    T,
    D,
    eps,
    ADD: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,  # power of two >= D: a row is never split
):
    t = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    d = tl.arange(0, BLOCK_D)[None, :]
    mask = (t < T) & (d < D)
    x = tl.load(x_ptr + t * stride_xt + d, mask=mask, other=0.0).to(tl.float32)
    if ADD:
        residual = tl.load(residual_ptr + t * stride_rt + d, mask=mask, other=0.0)
        # Normalise the rounded sum: it is what the next layer will read back.
        rounded = (x + residual.to(tl.float32)).to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + t * D + d, rounded, mask=mask)
        x = rounded.to(tl.float32)
    mean = tl.sum(x, axis=1) / D
    # Subtle: lanes past D hold 0, which is not the mean; they must not count as deviations.
    centred = tl.where(d < D, x - mean[:, None], 0.0)
    scale = tl.rsqrt(tl.sum(centred * centred, axis=1) / D + eps)
    w = tl.load(w_ptr + d, mask=d < D, other=0.0).to(tl.float32)
    b = tl.load(b_ptr + d, mask=d < D, other=0.0).to(tl.float32)
    y = centred * scale[:, None] * w + b
    tl.store(y_ptr + t * D + d, y.to(y_ptr.dtype.element_ty), mask=mask)


def _check(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> None:
    if x.dim() != 2 or x.stride(1) != 1 or w.shape != x.shape[1:] or b.shape != w.shape:
        raise ValueError(
            f"layer_norm needs x [T, D] with unit last stride, w [D] and b [D]; got "
            f"x {tuple(x.shape)} strides {x.stride()}, w {tuple(w.shape)} and b {tuple(b.shape)}"
        )


def layer_norm(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, eps: float) -> torch.Tensor:
    """y = (x - mean) / sqrt(variance + eps) · w + b, in fp32 whatever the dtype.

    x [T, D] with unit last stride, w and b [D] -> y [T, D] in x's dtype.
    """
    if not use_triton(x):
        return layer_norm_ref(x, w, b, eps)
    _check(x, w, b)
    T, D = x.shape
    y = torch.empty((T, D), dtype=x.dtype, device=x.device)
    if T == 0:
        return y
    blocks = row_blocks(D)
    _layer_norm_kernel[(triton.cdiv(T, blocks["ROWS"]),)](
        x, x, w, b, y, y, x.stride(0), x.stride(0), T, D, eps, ADD=False, **blocks
    )
    return y


def add_layer_norm(
    x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor, b: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(layer_norm(x + residual), x + residual), the sum rounded to the dtype before it is normed.

    x, residual [T, D] with unit last stride, w and b [D] -> two new tensors [T, D] in x's dtype.
    """
    if not use_triton(x):
        return add_layer_norm_ref(x, residual, w, b, eps)
    _check(x, w, b)
    _check(residual, w, b)
    T, D = x.shape
    y = torch.empty((T, D), dtype=x.dtype, device=x.device)
    total = torch.empty_like(y)
    if T == 0:
        return y, total
    blocks = row_blocks(D)
    _layer_norm_kernel[(triton.cdiv(T, blocks["ROWS"]),)](
        x, residual, w, b, y, total, x.stride(0), residual.stride(0), T, D, eps, ADD=True, **blocks
    )
    return y, total

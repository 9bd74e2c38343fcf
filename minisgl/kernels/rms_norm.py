"""RMSNorm: scale each token's hidden vector to unit root-mean-square, then by a learned weight.

    y[t, d] = x[t, d] / sqrt(mean_d(x[t, :]²) + eps) · w[d]

Shapes: x [T, D], w [D] -> y [T, D].  T tokens, D hidden size.
One program normalises ROWS tokens: it reads each x[t] once and writes each y[t] once.  The variant
`add_rms_norm` first adds the residual stream, and stores the sum that it normalised.
Source: Zhang and Sennrich 2019, "Root Mean Square Layer Normalization", arXiv 1910.07467.
"""

from functools import cache

import torch

from minisgl.kernels.block_sizes import row_blocks
from minisgl.kernels.dispatch import tl, triton, use_triton


@cache
def _constant(value: float) -> torch.Tensor:
    """As a tensor: a Python number would be made into one in each call."""
    return torch.tensor(value, dtype=torch.float32)


def rms_norm_ref(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    # By the norm, since a tensor of squares costs; and in few calls, since a step has dozens of
    # these: sqrt(mean(x²) + eps) is the hypotenuse over |x| / sqrt(D) and sqrt(eps).  Times its
    # inverse, not divided by it: that rounds as in the code that the models were trained with.
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
    inverse, root = _constant(x.shape[-1] ** -0.5), _constant(eps**0.5)
    scale = norm.mul_(inverse).hypot_(root).reciprocal_()
    return (x * scale).mul_(w).to(x.dtype)


def add_rms_norm_ref(
    x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    residual = x + residual
    return rms_norm_ref(residual, w, eps), residual


@triton.jit(do_not_specialize=["T"])
def _rms_norm_kernel(
    x_ptr,  # [T, D]
    residual_ptr,  # [T, D], read only if ADD
    w_ptr,  # [D]
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
    x = tl.load(x_ptr + t * stride_xt + d, mask=mask, other=0.0)
    x = x.to(tl.float32)
    if ADD:
        residual = tl.load(residual_ptr + t * stride_rt + d, mask=mask, other=0.0)
        # Normalise the rounded sum: it is what the next layer will read back.
        rounded = (x + residual.to(tl.float32)).to(sum_ptr.dtype.element_ty)
        tl.store(sum_ptr + t * D + d, rounded, mask=mask)
        x = rounded.to(tl.float32)
    w = tl.load(w_ptr + d, mask=d < D, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(x * x, axis=1) / D + eps)
    y = x * scale[:, None] * w
    tl.store(y_ptr + t * D + d, y.to(y_ptr.dtype.element_ty), mask=mask)


def _check(x: torch.Tensor, w: torch.Tensor) -> None:
    if x.dim() != 2 or x.stride(1) != 1 or w.shape != x.shape[1:]:
        raise ValueError(
            f"rms_norm needs x [T, D] with unit last stride and w [D]; "
            f"got x {tuple(x.shape)} strides {x.stride()} and w {tuple(w.shape)}"
        )


def rms_norm(x: torch.Tensor, w: torch.Tensor, eps: float) -> torch.Tensor:
    """y = x / rms(x) · w.  x [T, D] with unit last stride, w [D] -> y [T, D] in x's dtype."""
    if not use_triton(x):
        return rms_norm_ref(x, w, eps)
    _check(x, w)
    T, D = x.shape
    y = torch.empty((T, D), dtype=x.dtype, device=x.device)
    if T == 0:
        return y
    blocks = row_blocks(D)
    grid = (triton.cdiv(T, blocks["ROWS"]),)
    _rms_norm_kernel[grid](x, x, w, y, y, x.stride(0), x.stride(0), T, D, eps, ADD=False, **blocks)
    return y


def add_rms_norm(
    x: torch.Tensor, residual: torch.Tensor, w: torch.Tensor, eps: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """(rms_norm(x + residual), x + residual), the sum rounded to the dtype before it is normed.

    x, residual [T, D] with unit last stride, w [D] -> two new tensors [T, D] in x's dtype.
    """
    if not use_triton(x):
        return add_rms_norm_ref(x, residual, w, eps)
    _check(x, w)
    _check(residual, w)
    T, D = x.shape
    y = torch.empty((T, D), dtype=x.dtype, device=x.device)
    total = torch.empty_like(y)
    if T == 0:
        return y, total
    blocks = row_blocks(D)
    grid = (triton.cdiv(T, blocks["ROWS"]),)
    _rms_norm_kernel[grid](
        x, residual, w, y, total, x.stride(0), residual.stride(0), T, D, eps, ADD=True, **blocks
    )
    return y, total

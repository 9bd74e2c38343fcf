"""Rotary position embedding: turn each pair of a head's dimensions by the token's position.

    x[t, h, :] = x[t, h, :] · cos[t, :] + swap(x[t, h, :]) · sin[t, :]
    swap (a | b) = (b | a),   cos = (c | c),   sin = (-s | s)

Shapes: x [T, H, D] in place, cos and sin [T, D] fp32, already gathered by position.  H counts the
query heads and the key heads together: they lie side by side in the fused projection.
One program turns all heads of ROWS tokens.  It owns both halves of every pair and loads both
before it stores either; a store first would feed the turned half into its partner.
Source: Su et al. 2021, "RoFormer", arXiv 2104.09864; halves rather than neighbours are paired, as
in the Hugging Face checkpoints.
"""

import torch

from minisgl.kernels.block_sizes import row_blocks
from minisgl.kernels.dispatch import tl, triton, use_triton


def rotary_ref(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    x32 = x.float()  # x itself if it is float32
    swapped = x32.roll(x.shape[-1] // 2, -1)
    x32.mul_(cos.unsqueeze(1)).addcmul_(swapped, sin.unsqueeze(1))
    if x32 is not x:
        x.copy_(x32)


@triton.jit(do_not_specialize=["T"])
def _rotary_kernel(
    x_ptr,  # [T, H, D]
    cos_ptr,  # [T, D]
    sin_ptr,  # [T, D]
    stride_xt,
    stride_xh,
    stride_ct,
    stride_st,
    T,
    H,
    HALF: tl.constexpr,  # D / 2
    ROWS: tl.constexpr,
    BLOCK_H: tl.constexpr,  # power of two >= H
    BLOCK_HALF: tl.constexpr,  # power of two >= D / 2
):
    t = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None, None]
    h = tl.arange(0, BLOCK_H)[None, :, None]
    d = tl.arange(0, BLOCK_HALF)[None, None, :]
    turn = (t < T) & (d < HALF)  # [ROWS, 1, BLOCK_HALF]: once per token, for all its heads
    cos_a = tl.load(cos_ptr + t * stride_ct + d, mask=turn, other=0.0)
    cos_b = tl.load(cos_ptr + t * stride_ct + HALF + d, mask=turn, other=0.0)
    sin_a = tl.load(sin_ptr + t * stride_st + d, mask=turn, other=0.0)
    sin_b = tl.load(sin_ptr + t * stride_st + HALF + d, mask=turn, other=0.0)

    mask = turn & (h < H)  # [ROWS, BLOCK_H, BLOCK_HALF]
    a_ptr = x_ptr + t * stride_xt + h * stride_xh + d
    a = tl.load(a_ptr, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(a_ptr + HALF, mask=mask, other=0.0).to(tl.float32)
    tl.store(a_ptr, (a * cos_a + b * sin_a).to(x_ptr.dtype.element_ty), mask=mask)
    tl.store(a_ptr + HALF, (b * cos_b + a * sin_b).to(x_ptr.dtype.element_ty), mask=mask)


def rotary_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate x [T, H, D] in place by cos, sin [T, D] fp32 (cos = (c | c), sin = (-s | s)).

    x may have any token and head strides; its last stride is 1 and D is even.
    """
    if not use_triton(x):
        return rotary_ref(x, cos, sin)
    T, H, D = x.shape
    if D % 2 or x.stride(2) != 1 or cos.shape != (T, D) or sin.shape != (T, D):
        raise ValueError(
            f"rotary_ needs x [T, H, D] with D even and unit last stride, and cos, sin [T, D]; got "
            f"x {tuple(x.shape)} strides {x.stride()}, cos {tuple(cos.shape)}, "
            f"sin {tuple(sin.shape)}"
        )
    if T == 0:
        return None
    BLOCK_H, BLOCK_HALF = triton.next_power_of_2(H), triton.next_power_of_2(D // 2)
    blocks = row_blocks(BLOCK_H * BLOCK_HALF)
    del blocks["BLOCK_D"]
    _rotary_kernel[(triton.cdiv(T, blocks["ROWS"]),)](
        x,
        cos,
        sin,
        x.stride(0),
        x.stride(1),
        cos.stride(0),
        sin.stride(0),
        T,
        H,
        HALF=D // 2,
        BLOCK_H=BLOCK_H,
        BLOCK_HALF=BLOCK_HALF,
        **blocks,
    )
    return None

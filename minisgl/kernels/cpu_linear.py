"""A linear layer's weight laid out for a CPU: packed once, multiplied many times.

    y[t, n] = sum_k x[t, k] w[n, k]

Shapes: x [T, K], w [N, K] -> y [T, N].

A decode step reads every weight once, so its speed is the speed at which weights come out of
memory.  Each layout here spares the repacking that `F.linear` does inside of each call:

    half     FBGEMM's: the weight in float16, which its kernel widens in registers, while rows and
             sums stay float32.  Half the bytes, and no slower at any number of rows; x86 with AVX2.
    packed   oneDNN's blocked order, in the weight's own dtype.

float16 holds each bfloat16 number from 2^-14 to 65504 exactly, and a smaller one to within 2^-25:
a bfloat16 checkpoint loses nothing to speak of.  Where FBGEMM is missing (ARM), `packed` has a
bfloat16 copy beside it for single rows, for which PyTorch has a matrix-vector loop everywhere.

`python -m scripts.bench.cpu_linear` measures them beside `F.linear`.
"""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F

LARGEST_HALF = torch.finfo(torch.float16).max

_half_product = torch.ops.quantized.linear_dynamic_fp16.default  # (x, packed) -> y


@cache
def _can_halve() -> bool:
    """Whether this PyTorch build has FBGEMM's float16 product, on this processor."""
    try:
        _half_product(
            torch.zeros(1, 16), torch.ops.quantized.linear_prepack_fp16(torch.zeros(16, 16))
        )
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return True


@cache
def _can_pack(dtype: torch.dtype) -> bool:
    """Whether this PyTorch build packs weights of `dtype` on this processor."""
    try:
        w = torch.ops.mkldnn._reorder_linear_weight(torch.zeros(16, 16, dtype=dtype))
        torch.ops.mkldnn._linear_pointwise(torch.zeros(1, 16, dtype=dtype), w, None, "none", [], "")
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return True


class CPULinear:
    """x [T, K] -> x w^T [T, N] for one weight w [N, K], whose owner may forget it afterwards.

    `half_weights`: a float32 weight may be rounded to half precision (one that float16 can't hold
    stays as it is).
    """

    weight: torch.Tensor  # as it is or packed; none beside `half`
    is_packed: bool
    nbytes: int  # of all layouts together

    def __init__(self, w: torch.Tensor, *, half_weights: bool = False) -> None:
        self.half = self.single = None
        size = w.numel()
        # subtle: not "no number is larger", which NaN would pass
        can_round = (
            half_weights and w.dtype == torch.float32 and bool(w.abs().max() <= LARGEST_HALF)
        )
        if can_round and _can_halve():
            self.half = torch.ops.quantized.linear_prepack_fp16(w)
            self.nbytes = 2 * size
            return
        self.is_packed = _can_pack(w.dtype)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(w) if self.is_packed else w
        self.nbytes = size * w.element_size()
        if can_round:
            self.single = w.bfloat16().t()  # [K, N]
            self.nbytes += 2 * size

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, K] -> [T, N]."""
        y: torch.Tensor
        if self.half is not None:
            y = _half_product(x, self.half)
        elif self.single is not None and len(x) == 1:
            y = torch.mm(x.bfloat16(), self.single).float()
        elif self.is_packed:
            y = torch.ops.mkldnn._linear_pointwise(x, self.weight, None, "none", [], "")
        else:
            y = F.linear(x, self.weight)
        return y

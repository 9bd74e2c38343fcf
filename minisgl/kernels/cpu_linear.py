"""A linear layer's weight laid out for a CPU: packed once, multiplied many times.

    y[t, n] = sum_k x[t, k] w[n, k]

Shapes: x [T, K], w [N, K] -> y [T, N].

A decode step reads every weight once, so its speed is the speed at which weights come out of
memory.  Two layouts help, and a weight may have both:

    packed   oneDNN's blocked order: no repacking inside each call, which pays most at 2 to 32 rows.
    half     the same numbers in bfloat16 for single rows: half the bytes, and PyTorch has a
             matrix-vector loop for them on every processor.  More rows fall off a cliff where the
             processor has no bfloat16 matrix unit, hence "single".

`python -m scripts.bench.cpu_linear` measures both beside `F.linear`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F


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

    `half_rows`: multiply single rows in bfloat16 (only where w is float32).
    """

    def __init__(self, w: torch.Tensor, *, half_rows: bool = False) -> None:
        self.half = None  # [K, N], a transposed view
        if half_rows and w.dtype == torch.float32:
            self.half = w.to(torch.bfloat16).t()
        self.is_packed = _can_pack(w.dtype)
        self.weight = torch.ops.mkldnn._reorder_linear_weight(w) if self.is_packed else w

    @property
    def nbytes(self) -> int:
        """Of all layouts together."""
        half = 0 if self.half is None else self.half.nbytes
        return half + self.weight.numel() * self.weight.element_size()

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x [T, K] -> [T, N], by the layout that suits T."""
        if self.half is not None and x.shape[0] == 1:
            return torch.mm(x.bfloat16(), self.half).float()
        if self.is_packed:
            y: torch.Tensor = torch.ops.mkldnn._linear_pointwise(
                x, self.weight, None, "none", [], ""
            )
            return y
        return F.linear(x, self.weight)

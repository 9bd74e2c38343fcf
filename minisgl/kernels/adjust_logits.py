"""Adjust logits: penalties and biases on a few tokens of a few rows, in place.

    x = logits[rows[n], ids[n]]
    x = x / divisor[n] if x > 0 else x · divisor[n]         repetition penalty; 1: none
    logits[rows[n], ids[n]] = x - penalty[n] + bias[n]      a bias of -inf forbids the token

Shapes: logits [B, V], rows and ids [N], changes [3, N] fp32: divisor, penalty, bias.  B rows, V
vocabulary, N entries; no (row, id) occurs twice.

One program changes BLOCK_N entries; what is not named is neither read nor written.
Sources: Keskar et al. 2019, "CTRL", arXiv 1909.05858 (repetition); OpenAI's API reference
(frequency and presence penalty, logit_bias).
"""

import torch

from minisgl.kernels.block_sizes import entry_blocks
from minisgl.kernels.dispatch import tl, triton, use_triton


def adjust_logits_ref(
    logits: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor, changes: torch.Tensor
) -> None:
    divisor, penalty, bias = changes
    x = logits[rows, ids].float()
    x = torch.where(x > 0, x / divisor, x * divisor) - penalty + bias
    logits[rows, ids] = x.to(logits.dtype)


@triton.jit(do_not_specialize=["stride_changes", "N"])
def _adjust_logits_kernel(
    logits_ptr,  # [B, V]
    rows_ptr,  # [N] int64
    ids_ptr,  # [N] int64
    changes_ptr,  # [3, N] fp32
    stride_lb,
    stride_changes,
    N,
    BLOCK_N: tl.constexpr,
):
    n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    inside = n < N
    row = tl.load(rows_ptr + n, mask=inside, other=0)
    token = tl.load(ids_ptr + n, mask=inside, other=0)
    divisor = tl.load(changes_ptr + n, mask=inside, other=1.0)
    penalty = tl.load(changes_ptr + stride_changes + n, mask=inside, other=0.0)
    bias = tl.load(changes_ptr + 2 * stride_changes + n, mask=inside, other=0.0)
    place = logits_ptr + row * stride_lb + token
    x = tl.load(place, mask=inside, other=0.0).to(tl.float32)
    x = tl.where(x > 0, tl.div_rn(x, divisor), x * divisor) - penalty + bias
    tl.store(place, x.to(logits_ptr.dtype.element_ty), mask=inside)


def adjust_logits(
    logits: torch.Tensor, rows: torch.Tensor, ids: torch.Tensor, changes: torch.Tensor
) -> None:
    """Change `logits` at (rows, ids), in place.

    logits [B, V] of any float dtype with unit last stride, computed in fp32; rows in [0, B) and ids
    in [0, V) [N] int64, contiguous; changes [3, N] fp32 with unit last stride.
    """
    if not use_triton(logits):
        adjust_logits_ref(logits, rows, ids, changes)
        return
    N = rows.numel()
    if (
        logits.stride(1) != 1
        or rows.shape != (N,)
        or ids.shape != (N,)
        or changes.shape != (3, N)
        or not (rows.is_contiguous() and ids.is_contiguous())
        or (N > 1 and changes.stride(1) != 1)
    ):
        raise ValueError(
            f"adjust_logits needs logits [B, V] with unit last stride, rows and ids [N], changes "
            f"[3, N]; got {tuple(logits.shape)} strides {logits.stride()}, {tuple(rows.shape)}, "
            f"{tuple(ids.shape)}, {tuple(changes.shape)} strides {changes.stride()}"
        )
    if N == 0:
        return
    blocks = entry_blocks()
    grid = (triton.cdiv(N, blocks["BLOCK_N"]),)
    _adjust_logits_kernel[grid](
        logits, rows, ids, changes, logits.stride(0), changes.stride(0), N, **blocks
    )

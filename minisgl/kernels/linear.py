"""Linear: multiply every token's vector by a weight matrix.

    y[t, n] = Σ_k x[t, k] · w[n, k] + bias[n]

Shapes: x [T, K], w [N, K] (as checkpoints store it), bias [N] or None -> y [T, N].

Many rows: one program computes a BLOCK_M x BLOCK_N tile of y.  Tiles are numbered in groups of
GROUP rows, column by column, so that the programs that run together share their x and w in L2.

Few rows (decode): the work is to read w once, and N / BLOCK_N programs are too few to do it at the
memory's speed.  So K is split too: one program sums a slice of K for a tile into a fp32 workspace
[SPLIT, T, N], and a second kernel adds the slices in order, so the answer is deterministic.  SPLIT
depends on N and K only, never on the rows: a row's answer does not depend on its company.
Source: the tiled matmul of the Triton tutorials; split-K as in CUTLASS.
"""

from typing import Literal

import torch
import torch.nn.functional as F

from minisgl.kernels.block_sizes import linear_blocks, linear_small_blocks, tile_blocks
from minisgl.kernels.dispatch import tl, triton, use_triton

# On a GPU: our kernel, or cuBLAS (torch's F.linear), which it is measured against.
BACKEND: Literal["triton", "cublas"] = "triton"

SMALL_T = 64  # at most this many rows are a decode step, bound by reading w
GROUP = 8  # row tiles that share a column tile of w
PROGRAMS = 512  # enough to keep every memory channel of a large GPU busy


def linear_ref(x: torch.Tensor, w: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    return F.linear(x, w, bias)


@triton.jit
def _multiply(
    x_ptr,  # [T, K]
    w_ptr,  # [N, K]
    stride_xt,
    stride_wn,
    t,  # [BLOCK_M] int64
    n,  # [BLOCK_N] int64
    T,
    N,
    begin,
    end,  # the products of k in [begin, end) are summed
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(begin, end, BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        x_mask = (t < T)[:, None] & (k < end)[None, :]
        w_mask = (n < N)[None, :] & (k < end)[:, None]
        x = tl.load(x_ptr + t[:, None] * stride_xt + k[None, :], mask=x_mask, other=0.0)
        w = tl.load(w_ptr + n[None, :] * stride_wn + k[:, None], mask=w_mask, other=0.0)
        acc = tl.dot(x, w, acc, input_precision="ieee")
    return acc


@triton.jit(do_not_specialize=["T"])
def _linear_kernel(
    x_ptr,  # [T, K]
    w_ptr,  # [N, K]
    bias_ptr,  # [N] or None
    y_ptr,  # [T, N] contiguous
    stride_xt,
    stride_wn,
    T,
    N,
    K,
    GROUP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    program = tl.program_id(0)
    tiles_m = tl.cdiv(T, BLOCK_M)
    tiles_n = tl.cdiv(N, BLOCK_N)
    first_m = program // (GROUP * tiles_n) * GROUP
    group = tl.minimum(tiles_m - first_m, GROUP)  # the last group may be smaller
    tile_m = first_m + program % (GROUP * tiles_n) % group
    tile_n = program % (GROUP * tiles_n) // group
    t = tile_m.to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tile_n.to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    y = _multiply(x_ptr, w_ptr, stride_xt, stride_wn, t, n, T, N, 0, K, BLOCK_M, BLOCK_N, BLOCK_K)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)[None, :]
    mask = (t < T)[:, None] & (n < N)[None, :]
    tl.store(y_ptr + t[:, None] * N + n[None, :], y.to(y_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["T"])
def _linear_split_kernel(
    x_ptr,  # [T, K]
    w_ptr,  # [N, K]
    partial_ptr,  # [SPLIT, T, N] fp32
    stride_xt,
    stride_wn,
    T,
    N,
    K,
    SLICE: tl.constexpr,  # products that one program sums: a multiple of BLOCK_K
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    split = tl.program_id(2)
    t = tl.program_id(1).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    begin = split * SLICE
    end = tl.minimum(begin + SLICE, K)
    part = _multiply(
        x_ptr, w_ptr, stride_xt, stride_wn, t, n, T, N, begin, end, BLOCK_M, BLOCK_N, BLOCK_K
    )
    mask = (t < T)[:, None] & (n < N)[None, :]
    row = split.to(tl.int64) * T + t
    tl.store(partial_ptr + row[:, None] * N + n[None, :], part, mask=mask)


@triton.jit(do_not_specialize=["T"])
def _linear_reduce_kernel(
    partial_ptr,  # [SPLIT, T, N] fp32
    bias_ptr,  # [N] or None
    y_ptr,  # [T, N] contiguous
    T,
    N,
    SPLIT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    t = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    n = (tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D))[None, :]
    mask = (t < T) & (n < N)
    y = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for split in range(SPLIT):
        row = split * T + t
        y += tl.load(partial_ptr + row * N + n, mask=mask, other=0.0)
    if bias_ptr is not None:
        y += tl.load(bias_ptr + n, mask=n < N, other=0.0).to(tl.float32)
    tl.store(y_ptr + t * N + n, y.to(y_ptr.dtype.element_ty), mask=mask)


def split_of(N: int, K: int, block_n: int, block_k: int) -> int:
    """Into how many slices K is cut: enough programs to fill the GPU, by powers of two.

    A slice keeps at least 4 blocks of K, below which the workspace costs more than it wins.

    >>> split_of(4096, 4096, 32, 128), split_of(128256, 4096, 32, 128)
    (4, 1)
    """
    split = 1
    while split * triton.cdiv(N, block_n) < PROGRAMS and split * 2 * 4 * block_k <= K:
        split *= 2
    return split


def linear(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None = None,
    blocks: dict[str, int] | None = None,
) -> torch.Tensor:
    """y = x wᵀ + bias.  x [T, K], w [N, K] with unit last strides, bias [N] or None -> [T, N].

    All in one dtype; sums are fp32.  `BACKEND` of this module chooses cuBLAS instead.
    """
    if not use_triton(x) or BACKEND == "cublas":
        return linear_ref(x, w, bias)
    if x.dim() != 2 or w.dim() != 2 or x.shape[1] != w.shape[1] or x.dtype != w.dtype:
        raise ValueError(
            f"linear needs x [T, K] and w [N, K] of one dtype; got x {tuple(x.shape)} {x.dtype}, "
            f"w {tuple(w.shape)} {w.dtype}"
        )
    if x.stride(1) != 1 or w.stride(1) != 1:
        raise ValueError(f"linear needs unit last strides; got x {x.stride()}, w {w.stride()}")
    (T, K), N = x.shape, w.shape[0]
    y = torch.empty((T, N), dtype=x.dtype, device=x.device)
    if T == 0:
        return y
    if T <= SMALL_T:
        return _linear_few_rows(x, w, bias, y, blocks or linear_small_blocks(x.dtype))
    blocks = blocks or linear_blocks(x.dtype)
    grid = (triton.cdiv(T, blocks["BLOCK_M"]) * triton.cdiv(N, blocks["BLOCK_N"]),)
    _linear_kernel[grid](x, w, bias, y, x.stride(0), w.stride(0), T, N, K, GROUP=GROUP, **blocks)
    return y


def _linear_few_rows(
    x: torch.Tensor,
    w: torch.Tensor,
    bias: torch.Tensor | None,
    y: torch.Tensor,
    blocks: dict[str, int],
) -> torch.Tensor:
    (T, K), N = x.shape, w.shape[0]
    block_m = 16 if T <= 16 else 64
    split = split_of(N, K, blocks["BLOCK_N"], blocks["BLOCK_K"])
    size = triton.cdiv(triton.cdiv(K, split), blocks["BLOCK_K"]) * blocks["BLOCK_K"]
    grid = (triton.cdiv(N, blocks["BLOCK_N"]), triton.cdiv(T, block_m))
    if split == 1:  # one group of rows: the grid of the tiled kernel is then column by column
        _linear_kernel[(grid[0] * grid[1],)](
            x, w, bias, y, x.stride(0), w.stride(0), T, N, K, GROUP=GROUP, BLOCK_M=block_m, **blocks
        )
        return y
    partial = torch.empty((split, T, N), dtype=torch.float32, device=x.device)
    _linear_split_kernel[(*grid, split)](
        x, w, partial, x.stride(0), w.stride(0), T, N, K, SLICE=size, BLOCK_M=block_m, **blocks
    )
    tile = tile_blocks(N)
    _linear_reduce_kernel[(triton.cdiv(T, tile["ROWS"]), triton.cdiv(N, tile["BLOCK_D"]))](
        partial, bias, y, T, N, SPLIT=split, **tile
    )
    return y

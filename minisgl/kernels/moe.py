"""Mixture of experts: every token goes through a few of E gated MLPs, weighted by its router.

    y[t] = Σ_k weights[t, k] · down[e] · (silu(gate[e] · x[t]) * (up[e] · x[t])),  e = experts[t, k]

Shapes: x [T, D], weights [T, K] fp32, experts [T, K] int32, gate_up [E, 2I, D] = (gate | up),
down [E, D, I] -> y [T, D].  T tokens, K experts of each, I intermediate size of one expert.

A (token, expert) pair is a row of two matrix products.  Sorted by expert (moe_sort.py), pairs fill
tiles of BLOCK_M rows of one expert each, and the products are tiled as in linear.py, but that each
tile of rows has its own weight.  Three launches:

    up     h[p] = silu(gate[e] · x[t]) * (up[e] · x[t])    rows gathered from x
    down   z[p] = down[e] · h[p]
    sum    y[t] = Σ_k weights[t, k] · z[t, k]              in the order of k

One program computes a BLOCK_M x BLOCK_N tile.  Programs are numbered down the rows first, so those
that run together read the same columns of the weights.  Each pair owns its row of h and z, so no
two programs add to one number: there is no atomic, and the answer is the same every time.
Source: Gale et al. 2022, "MegaBlocks", arXiv 2211.15841, whose padded sort this is.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from minisgl.kernels.activation import silu_and_mul_ref
from minisgl.kernels.block_sizes import moe_blocks, tile_blocks
from minisgl.kernels.cpu_linear import CPULinear
from minisgl.kernels.dispatch import tl, triton, use_triton
from minisgl.kernels.moe_sort import sort_by_expert

Weights = torch.Tensor | Sequence[CPULinear]  # one matrix per expert: stacked, or packed for a CPU


def moe_ref(
    x: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    gate_up: Weights,
    down: Weights,
) -> torch.Tensor:
    (T, D), K = x.shape, experts.shape[1]
    flat = experts.flatten()
    by_expert = flat.argsort(stable=True)  # pairs
    z = x.new_empty(T * K, D)
    for e, pairs in enumerate(by_expert.split(flat.bincount().tolist())):
        if len(pairs):  # only the weights that are needed are read
            h = silu_and_mul_ref(_multiply(x[pairs // K], gate_up[e]))
            z[pairs] = _multiply(h, down[e])
    return (z.view(T, K, D) * weights.unsqueeze(-1)).sum(dim=1).to(x.dtype)


def _multiply(x: torch.Tensor, w: torch.Tensor | CPULinear) -> torch.Tensor:
    return w(x) if isinstance(w, CPULinear) else F.linear(x, w)


@triton.jit(do_not_specialize=["N", "tiles"])
def _moe_up_kernel(
    x_ptr,  # [T, D]
    w_ptr,  # [E, 2I, D] contiguous
    pairs_ptr,  # [tiles * BLOCK_M]
    tiles_ptr,  # [tiles]
    h_ptr,  # [N, I] contiguous
    stride_xt,
    N,
    tiles,
    D,
    I,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tile = tl.program_id(0) % tiles
    expert = tl.load(tiles_ptr + tile).to(tl.int64)
    if expert < 0:
        return
    p = tl.load(pairs_ptr + tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    i = (tl.program_id(0) // tiles).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    x_row = x_ptr + (p // K)[:, None] * stride_xt
    gate_row = w_ptr + (expert * 2 * I + i)[None, :] * D
    up_row = w_ptr + (expert * 2 * I + I + i)[None, :] * D
    gate = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    up = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, D, BLOCK_K):
        d = start + tl.arange(0, BLOCK_K)
        x_mask = (p < N)[:, None] & (d < D)[None, :]
        w_mask = (i < I)[None, :] & (d < D)[:, None]
        x = tl.load(x_row + d[None, :], mask=x_mask, other=0.0)
        w_gate = tl.load(gate_row + d[:, None], mask=w_mask, other=0.0)
        w_up = tl.load(up_row + d[:, None], mask=w_mask, other=0.0)
        gate = tl.dot(x, w_gate, gate, input_precision="ieee")
        up = tl.dot(x, w_up, up, input_precision="ieee")
    h = gate * tl.sigmoid(gate) * up
    mask = (p < N)[:, None] & (i < I)[None, :]
    tl.store(h_ptr + p[:, None] * I + i[None, :], h.to(h_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["N", "tiles"])
def _moe_down_kernel(
    h_ptr,  # [N, I] contiguous
    w_ptr,  # [E, D, I] contiguous
    pairs_ptr,  # [tiles * BLOCK_M]
    tiles_ptr,  # [tiles]
    z_ptr,  # [N, D] contiguous
    N,
    tiles,
    D,
    I,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
):
    tile = tl.program_id(0) % tiles
    expert = tl.load(tiles_ptr + tile).to(tl.int64)
    if expert < 0:
        return
    p = tl.load(pairs_ptr + tile * BLOCK_M + tl.arange(0, BLOCK_M)).to(tl.int64)
    d = (tl.program_id(0) // tiles).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    h_row = h_ptr + p[:, None] * I
    w_row = w_ptr + (expert * D + d)[None, :] * I
    z = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for start in range(0, I, BLOCK_K):
        i = start + tl.arange(0, BLOCK_K)
        h_mask = (p < N)[:, None] & (i < I)[None, :]
        w_mask = (d < D)[None, :] & (i < I)[:, None]
        h = tl.load(h_row + i[None, :], mask=h_mask, other=0.0)
        w = tl.load(w_row + i[:, None], mask=w_mask, other=0.0)
        z = tl.dot(h, w, z, input_precision="ieee")
    mask = (p < N)[:, None] & (d < D)[None, :]
    tl.store(z_ptr + p[:, None] * D + d[None, :], z.to(z_ptr.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["T"])
def _moe_sum_kernel(
    z_ptr,  # [T, K, D] contiguous
    weights_ptr,  # [T, K] contiguous, fp32
    y_ptr,  # [T, D] contiguous
    T,
    D,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    t = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    d = (tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D))[None, :]
    mask = (t < T) & (d < D)
    y = tl.zeros([ROWS, BLOCK_D], tl.float32)
    for k in tl.static_range(K):
        p = t * K + k
        weight = tl.load(weights_ptr + p, mask=t < T, other=0.0)
        y += weight * tl.load(z_ptr + p * D + d, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_ptr + t * D + d, y.to(y_ptr.dtype.element_ty), mask=mask)


def moe(
    x: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    gate_up: Weights,
    down: Weights,
    blocks: dict[str, int] | None = None,
) -> torch.Tensor:
    """The weighted sum of each token's experts -> [T, D] in x's dtype; sums are fp32.

    x [T, D] with unit last stride; weights [T, K] fp32 and experts [T, K] int32 from `route`;
    gate_up [E, 2I, D] and down [E, D, I] contiguous and of x's dtype, or on a CPU a `CPULinear` for
    each expert.
    """
    if not use_triton(x):
        return moe_ref(x, weights, experts, gate_up, down)
    assert isinstance(gate_up, torch.Tensor) and isinstance(down, torch.Tensor)
    _check(x, weights, experts, gate_up, down)
    (T, D), (E, _, I), K = x.shape, down.shape, experts.shape[1]
    N = T * K
    y = torch.empty((T, D), dtype=x.dtype, device=x.device)
    if T == 0:
        return y
    blocks = blocks or moe_blocks(x.dtype, N, E)
    pairs, tiles = sort_by_expert(experts, E, blocks["BLOCK_M"])
    most = tiles.numel()
    h = torch.empty((N, I), dtype=x.dtype, device=x.device)
    _moe_up_kernel[(most * triton.cdiv(I, blocks["BLOCK_N"]),)](
        x, gate_up, pairs, tiles, h, x.stride(0), N, most, D, I, K=K, **blocks
    )
    z = torch.empty((N, D), dtype=x.dtype, device=x.device)
    wide = {**blocks, "BLOCK_N": 2 * blocks["BLOCK_N"]}  # the columns that up has of two matrices
    _moe_down_kernel[(most * triton.cdiv(D, wide["BLOCK_N"]),)](
        h, down, pairs, tiles, z, N, most, D, I, **wide
    )
    tile = tile_blocks(D)
    _moe_sum_kernel[(triton.cdiv(T, tile["ROWS"]), triton.cdiv(D, tile["BLOCK_D"]))](
        z, weights, y, T, D, K=K, **tile
    )
    return y


def _check(
    x: torch.Tensor,
    weights: torch.Tensor,
    experts: torch.Tensor,
    gate_up: torch.Tensor,
    down: torch.Tensor,
) -> None:
    """Raise for what the kernels would read wrongly."""
    given = (x, weights, experts, gate_up, down)
    fits = [t.dim() for t in given] == [2, 2, 2, 3, 3] and (
        weights.shape == experts.shape == (x.shape[0], experts.shape[1])
        and gate_up.shape == (down.shape[0], 2 * down.shape[2], x.shape[1])
        and down.shape[1] == x.shape[1]
        and x.dtype == gate_up.dtype == down.dtype
    )
    if not fits:
        shapes = ", ".join(f"{tuple(t.shape)} {t.dtype}" for t in given)
        raise ValueError(
            "moe needs x [T, D], weights and experts [T, K], gate_up [E, 2I, D] and down [E, D, I] "
            f"of x's dtype; got {shapes}"
        )
    if x.stride(1) != 1 or not all(t.is_contiguous() for t in given[1:]):
        strides = ", ".join(str(t.stride()) for t in given)
        raise ValueError(f"moe needs contiguous tensors, of x the rows only; got strides {strides}")

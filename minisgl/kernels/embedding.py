"""Embedding: look up each token's row of the table.

    y[t, :] = w[ids[t] - first, :]   if first <= ids[t] < first + V,   else 0

Shapes: ids [T], w [V, D] -> y [T, D].  T tokens, V rows of the table here, D hidden size.
`first` serves the vocabulary split of tensor parallelism: each rank looks up the ids that it owns
and leaves zeros for the others, and the sum over the ranks is the whole answer.
One program copies a tile of ROWS tokens by BLOCK_D columns.
Source: Shoeybi et al. 2019, "Megatron-LM", arXiv 1909.08053, section 3 (the parallel embedding).
"""

import torch

from minisgl.kernels.block_sizes import tile_blocks
from minisgl.kernels.dispatch import tl, triton, use_triton


def embedding_ref(ids: torch.Tensor, w: torch.Tensor, first: int = 0) -> torch.Tensor:
    local = ids.long() - first if first else ids.long()
    outside = (local < 0) | (local >= w.shape[0])
    rows = w.index_select(0, local.masked_fill(outside, 0))
    return rows.masked_fill_(outside.unsqueeze(1), 0)


@triton.jit(do_not_specialize=["T", "first"])
def _embedding_kernel(
    ids_ptr,  # [T]
    w_ptr,  # [V, D]
    y_ptr,  # [T, D] contiguous
    stride_ids,
    stride_wv,
    T,
    V,
    D,
    first,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    d = (tl.program_id(1) * BLOCK_D + tl.arange(0, BLOCK_D))[None, :]
    row = tl.load(ids_ptr + t * stride_ids, mask=t < T, other=0).to(tl.int64) - first
    inside = (row >= 0) & (row < V) & (t < T)
    mask = (t < T)[:, None] & (d < D)
    w = tl.load(w_ptr + row[:, None] * stride_wv + d, mask=mask & inside[:, None], other=0.0)
    tl.store(y_ptr + t[:, None] * D + d, w, mask=mask)


def embedding(ids: torch.Tensor, w: torch.Tensor, first: int = 0) -> torch.Tensor:
    """w[ids - first]; zero rows where the id is not in [first, first + V).

    ids [T] int32 or int64, w [V, D] with unit last stride -> [T, D] in w's dtype.
    """
    if not use_triton(w):
        return embedding_ref(ids, w, first)
    if ids.dim() != 1 or w.dim() != 2 or w.stride(1) != 1:
        raise ValueError(
            f"embedding needs ids [T] and w [V, D] with unit last stride; got ids "
            f"{tuple(ids.shape)}, w {tuple(w.shape)} strides {w.stride()}"
        )
    T, (V, D) = ids.shape[0], w.shape
    y = torch.empty((T, D), dtype=w.dtype, device=w.device)
    if T == 0:
        return y
    blocks = tile_blocks(D)
    grid = (triton.cdiv(T, blocks["ROWS"]), triton.cdiv(D, blocks["BLOCK_D"]))
    _embedding_kernel[grid](ids, w, y, ids.stride(0), w.stride(0), T, V, D, first, **blocks)
    return y

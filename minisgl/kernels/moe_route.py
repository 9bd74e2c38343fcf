"""Route: which experts each token goes to, and how much each of them counts.

    p[t, e] = softmax_e(x[t] · router[e])
    experts[t] = the top_k largest p[t], the largest first; of equals, the lower expert first
    weights[t, k] = p[t, experts[t, k]] / Σ_k p[t, experts[t, k]]

Shapes: x [T, D], router [E, D] -> weights [T, K] fp32, experts [T, K] int32.  E experts, K = top_k.

All in fp32, whatever x is: a rounded logit may choose another expert, which changes everything
after it.  One program routes ROWS tokens.  It needs no sort: an expert's place is the number of
experts that are better, and those whose place is below K are kept.  A token's answer does not
depend on which tokens are beside it.  A token with a NaN goes to the first K experts, its weights
are NaN.
Source: Shazeer et al. 2017, arXiv 1701.06538; Jiang et al. 2024, "Mixtral of Experts", 2401.04088.
"""

import torch
import torch.nn.functional as F

from minisgl.kernels.block_sizes import route_blocks
from minisgl.kernels.dispatch import tl, triton, use_triton


def route_ref(
    x: torch.Tensor, router: torch.Tensor, top_k: int
) -> tuple[torch.Tensor, torch.Tensor]:
    p = F.linear(x.float(), router.float()).softmax(dim=-1)
    p, experts = p.sort(dim=-1, descending=True, stable=True)  # topk promises no order of equals
    weights = p[:, :top_k]
    return weights / weights.sum(dim=-1, keepdim=True), experts[:, :top_k].int()


@triton.jit(do_not_specialize=["T"])
def _route_kernel(
    x_ptr,  # [T, D]
    router_ptr,  # [E, D]
    weights_ptr,  # [T, K] contiguous, fp32
    experts_ptr,  # [T, K] contiguous, int32
    stride_xt,
    stride_re,
    T,
    D,
    E,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_E: tl.constexpr,
    BLOCK_D: tl.constexpr,
):
    t = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    e = tl.arange(0, BLOCK_E)
    products = tl.zeros([ROWS, BLOCK_E, BLOCK_D], tl.float32)
    for start in range(0, D, BLOCK_D):
        d = start + tl.arange(0, BLOCK_D)
        x_mask = (t < T)[:, None] & (d < D)[None, :]
        r_mask = (e < E)[:, None] & (d < D)[None, :]
        x = tl.load(x_ptr + t[:, None] * stride_xt + d[None, :], mask=x_mask, other=0.0)
        r = tl.load(router_ptr + e[:, None] * stride_re + d[None, :], mask=r_mask, other=0.0)
        products += x.to(tl.float32)[:, None, :] * r.to(tl.float32)[None, :, :]
    logits = tl.sum(products, axis=2)  # [ROWS, BLOCK_E]
    logits = tl.where((e < E)[None, :], logits, -float("inf"))
    p = tl.exp(logits - tl.max(logits, axis=1)[:, None])
    p = p / tl.sum(p, axis=1)[:, None]

    key = tl.where(p == p, p, 0.0)  # subtle: NaN is not less than anything, so it would be first
    mine, other = key[:, :, None], key[:, None, :]
    earlier = (e[None, :] < e[:, None])[None, :, :]
    better = (other > mine) | ((other == mine) & earlier)  # [ROWS, BLOCK_E, BLOCK_E]
    place = tl.sum(better.to(tl.int32), axis=2)  # [ROWS, BLOCK_E]
    total = tl.sum(tl.where(place < K, p, 0.0), axis=1)[:, None]
    out = t[:, None] * K + place
    kept = (place < K) & (t < T)[:, None]
    tl.store(weights_ptr + out, p / total, mask=kept)
    tl.store(experts_ptr + out, tl.broadcast_to(e[None, :], (ROWS, BLOCK_E)), mask=kept)


def route(x: torch.Tensor, router: torch.Tensor, top_k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each token.  x [T, D], router [E, D] with unit last strides; 1 <= top_k <= E.

    Returns weights [T, top_k] fp32, whose rows sum to 1, and experts [T, top_k] int32.
    """
    if x.dim() != 2 or router.dim() != 2 or x.shape[1] != router.shape[1]:
        raise ValueError(
            f"route needs x [T, D] and router [E, D]; got {tuple(x.shape)}, {tuple(router.shape)}"
        )
    (T, D), E = x.shape, router.shape[0]
    if not 1 <= top_k <= E:
        raise ValueError(f"top_k is {top_k}; it must be 1 to {E}, the number of experts")
    if not use_triton(x):
        return route_ref(x, router, top_k)
    if x.stride(1) != 1 or router.stride(1) != 1:
        raise ValueError(f"route needs unit last strides; got {x.stride()}, {router.stride()}")
    weights = torch.empty((T, top_k), dtype=torch.float32, device=x.device)
    experts = torch.empty((T, top_k), dtype=torch.int32, device=x.device)
    if T == 0:
        return weights, experts
    blocks = route_blocks(E)
    _route_kernel[(triton.cdiv(T, blocks["ROWS"]),)](
        x, router, weights, experts, x.stride(0), router.stride(0), T, D, E, K=top_k, **blocks
    )
    return weights, experts

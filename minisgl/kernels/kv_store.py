"""Write the new tokens' keys and values to their slots in the pool.

    pool[slots[t]] = kv[t]

Shapes: kv [T, 2, KV, D] (keys, then values), pool [S, 2, KV, D], slots [T].  T tokens, KV heads,
S slots.  A slot is one token's place in the pool: the page size is 1, so any set of slots will do.
One program moves ROWS head vectors; a token has 2·KV of them, and K and V go in one launch.
Source: Zheng et al. 2023, "SGLang", arXiv 2312.07104, section 3 (the token-level pool).
"""

import torch

from minisgl.kernels.block_sizes import row_blocks
from minisgl.kernels.dispatch import tl, triton, use_triton


def kv_store_ref(kv: torch.Tensor, pool: torch.Tensor, slots: torch.Tensor) -> None:
    pool.index_copy_(0, slots.long(), kv.to(pool.dtype))


@triton.jit(do_not_specialize=["T"])
def _kv_store_kernel(
    kv_ptr,  # [T, 2, KV, D]
    pool_ptr,  # [S, 2, KV, D]
    slots_ptr,  # [T]
    stride_kt,
    stride_kp,  # from a token's keys to its values (p: the pair)
    stride_kh,
    stride_ps,
    stride_pp,
    stride_ph,
    stride_slots,
    T,
    KV: tl.constexpr,
    D: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK_D: tl.constexpr,  # power of two >= D
):
    row = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)  # counts [T, 2, KV]
    h = row % KV
    p = row // KV % 2
    t = row // (2 * KV)
    slot = tl.load(slots_ptr + t * stride_slots, mask=t < T, other=0).to(tl.int64)
    source = t * stride_kt + p * stride_kp + h * stride_kh
    target = slot * stride_ps + p * stride_pp + h * stride_ph
    d = tl.arange(0, BLOCK_D)[None, :]
    mask = (t < T)[:, None] & (d < D)
    kv = tl.load(kv_ptr + source[:, None] + d, mask=mask, other=0.0)
    tl.store(pool_ptr + target[:, None] + d, kv.to(pool_ptr.dtype.element_ty), mask=mask)


def kv_store(kv: torch.Tensor, pool: torch.Tensor, slots: torch.Tensor) -> None:
    """pool[slots] = kv.  kv [T, 2, KV, D], pool [S, 2, KV, D], slots [T] int32 or int64.

    kv and pool may have any strides but a unit last one, and each its own dtype: what is stored is
    kv rounded to the pool's (float16 ends at 65,504).  Slots lie in [0, S); they are not
    checked on a GPU.  Where a slot is given twice (the padding slot of a captured graph), one of
    its writers wins.
    """
    if not use_triton(kv):
        return kv_store_ref(kv, pool, slots)
    T, _, KV, D = kv.shape
    if kv.shape[1:] != pool.shape[1:] or slots.shape != (T,):
        raise ValueError(
            f"kv_store needs kv [T, 2, KV, D], pool [S, 2, KV, D] and slots [T]; got "
            f"{tuple(kv.shape)}, {tuple(pool.shape)}, {tuple(slots.shape)}"
        )
    if kv.stride(3) != 1 or pool.stride(3) != 1:
        raise ValueError(f"kv_store needs unit last strides; got {kv.stride()}, {pool.stride()}")
    if T == 0:
        return None
    blocks = row_blocks(D)
    _kv_store_kernel[(triton.cdiv(T * 2 * KV, blocks["ROWS"]),)](
        kv, pool, slots, *kv.stride()[:3], *pool.stride()[:3], slots.stride(0), T, KV, D, **blocks
    )
    return None

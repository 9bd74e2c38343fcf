"""Write the new tokens' keys and values to their slots in the pool."""

import torch


def kv_store_ref(kv: torch.Tensor, pool: torch.Tensor, slots: torch.Tensor) -> None:
    pool.index_copy_(0, slots.long(), kv)


def kv_store(kv: torch.Tensor, pool: torch.Tensor, slots: torch.Tensor) -> None:
    """pool[slots] = kv.  kv [T, 2, KV, D], pool [S, 2, KV, D], slots [T] int32 or int64."""
    kv_store_ref(kv, pool, slots)

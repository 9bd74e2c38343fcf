from __future__ import annotations

import pytest
import torch

from minisgl.kernels.kv_store import kv_store
from tests.kernels.common import DEVICE, DTYPES, randn, tensor


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("slots_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize(("KV", "D"), [(1, 16), (3, 64), (2, 80)])
def test_slots_hold_the_new_tokens_and_the_others_keep_theirs(
    KV: int, D: int, slots_dtype: torch.dtype, dtype: torch.dtype
) -> None:
    T, H, S = 5, 2, 12
    qkv = randn(T, H + 2 * KV, D, dtype=dtype)
    kv = qkv[:, H:].view(T, 2, KV, D)  # a view: a token's row is wider than its keys and values
    pool = randn(S, 2, KV, D, dtype=dtype, seed=1)
    before = pool.clone()
    slots = tensor([11, 0, 7, 3, 4], slots_dtype)
    kv_store(kv, pool, slots)
    assert torch.equal(pool[slots.long()], kv)
    others = [s for s in range(S) if s not in slots.tolist()]
    assert torch.equal(pool[others], before[others])


@pytest.mark.parametrize("kv_dtype", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_pool_of_another_dtype_holds_the_rounded_values(
    dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    kv = randn(2, 2, 1, 16, dtype=dtype)
    pool = randn(4, 2, 1, 16, dtype=kv_dtype, seed=1)
    kv_store(kv, pool, tensor([3, 1]))
    assert torch.equal(pool[[3, 1]], kv.to(kv_dtype))


def test_pool_of_one_layer_among_others() -> None:
    """One layer of a pool [S, layers, 2, KV, D]: slots are not adjacent in memory."""
    pools = randn(6, 3, 2, 2, 16)
    before = pools.clone()
    kv = randn(2, 2, 2, 16, seed=3)
    kv_store(kv, pools[:, 1], tensor([5, 2]))
    assert torch.equal(pools[[5, 2], 1], kv)
    assert torch.equal(pools[:, [0, 2]], before[:, [0, 2]])


def test_no_tokens() -> None:
    pool = randn(3, 2, 1, 16)
    before = pool.clone()
    kv_store(randn(0, 2, 1, 16), pool, tensor([], torch.int64))
    assert torch.equal(pool, before)


@pytest.mark.parametrize("slot", [2**20, 2**20 + 1])
def test_a_slot_past_2_31_elements(slot: int) -> None:
    """Slot 2^20 times 2·8·128 elements is 2^31: int32 would wrap.  Memory is mapped, not filled."""
    shape = (2**20 + 2, 2, 8, 128)
    pool = torch.empty(shape, dtype=torch.float16, device=DEVICE)
    kv = randn(1, 2, 8, 128, dtype=torch.float16)
    kv_store(kv, pool, tensor([slot]))
    assert torch.equal(pool[slot], kv[0])

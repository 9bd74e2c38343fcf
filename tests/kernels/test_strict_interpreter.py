"""Each check of the strict interpreter catches a tiny bad kernel, and lets its good twin pass."""

import os

import pytest
import torch

pytest.importorskip("triton")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1", allow_module_level=True)

import triton
import triton.language as tl

from tests.kernels.strict_interpreter import Race, relaxed


@triton.jit
def copy_kernel(X, Y, n_load, n_store, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(Y + i, tl.load(X + i, mask=i < n_load, other=0), mask=i < n_store)


def test_bounds_name_the_byte_the_argument_and_the_program():
    x = torch.arange(64.0)
    copy_kernel[(1,)](x[:10], torch.empty(10), 10, 10, BLOCK=16)
    with pytest.raises(
        IndexError, match=r"load by program \(0, 0, 0\): 2 lanes, first byte 40 of X"
    ):
        copy_kernel[(1,)](x[:10], torch.empty(16), 12, 16, BLOCK=16)
    with pytest.raises(
        IndexError, match=r"store by program \(0, 0, 0\): 1 lanes, first byte 40 of Y"
    ):
        copy_kernel[(1,)](x, torch.empty(64)[:10], 11, 11, BLOCK=16)


def test_bounds_know_the_gaps_of_a_strided_view():
    fused = torch.zeros(4, 6)
    copy_kernel[(1,)](fused.view(-1)[:16], torch.empty(16), 16, 16, BLOCK=16)
    with pytest.raises(IndexError, match="between the rows of X, first byte 8"):
        copy_kernel[(1,)](fused[:, :2], torch.empty(16), 4, 4, BLOCK=16)


@triton.jit
def gather_kernel(POOL, INDEX, Y, stride, WIDE: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    row = tl.load(INDEX)
    if WIDE:
        row = row.to(tl.int64)
    tl.store(Y + i, tl.load(POOL + row * stride + i))


def test_offsets_past_two_billion():
    pool = torch.empty(2**31 + 4096, dtype=torch.int8)  # pages that nothing touches cost no memory
    row = 2**31 // 1024 + 1
    pool[row * 1024 : row * 1024 + 16] = 7
    index, y = torch.tensor([row], dtype=torch.int32), torch.zeros(16, dtype=torch.int8)
    gather_kernel[(1,)](pool, index, y, 1024, WIDE=True, BLOCK=16)
    assert y.tolist() == [7] * 16
    with pytest.raises(AssertionError, match="int32 overflow detected for operation mul"):
        gather_kernel[(1,)](pool, index, y, 1024, WIDE=False, BLOCK=16)


@triton.jit
def sum_kernel(X, Y, n, HAS_OTHER: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    if HAS_OTHER:
        x = tl.load(X + i, mask=i < n, other=0)
    else:
        x = tl.load(X + i, mask=i < n)
    tl.store(Y, tl.sum(x.to(tl.float32), 0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32])
def test_masked_lanes_without_other_are_poison(dtype):
    y = torch.zeros(1)
    sum_kernel[(1,)](torch.ones(10, dtype=dtype), y, 10, HAS_OTHER=True, BLOCK=16)
    assert y.item() == 10
    sum_kernel[(1,)](torch.ones(10, dtype=dtype), y, 10, HAS_OTHER=False, BLOCK=16)
    assert y.isnan().item() or y.item() > 1e9


@triton.jit
def scale_kernel(X, Y, UPCAST: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    x = tl.load(X + i)
    if UPCAST:
        x = x.to(tl.float32)
    tl.store(Y + i, (x * 1.01).to(Y.dtype.element_ty))


def test_bf16_arithmetic_is_refused_and_casts_round_to_nearest_even():
    x, y = torch.randn(4096).bfloat16(), torch.empty(4096).bfloat16()
    x[:3] = torch.tensor([float("inf"), float("nan"), 3.39e38])
    scale_kernel[(1,)](x, y, UPCAST=True, BLOCK=4096)
    torch.testing.assert_close(y, (x.float() * 1.01).bfloat16(), rtol=0, atol=0, equal_nan=True)
    with pytest.raises(TypeError, match="arithmetic on bfloat16"):
        scale_kernel[(1,)](x, y, UPCAST=False, BLOCK=4096)


@triton.jit
def reduce_kernel(X, Y, BLOCK: tl.constexpr):
    tl.store(Y, tl.sum(tl.load(X + tl.arange(0, BLOCK)), 0))


def test_bf16_reduction_is_refused():
    with pytest.raises(TypeError, match="bfloat16"):
        reduce_kernel[(1,)](torch.ones(16).bfloat16(), torch.ones(1).bfloat16(), BLOCK=16)


@triton.jit
def matmul_kernel(
    A, B, C, PRECISION: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr
):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    a = tl.load(A + m[:, None] * K + k[None, :])
    b = tl.load(B + k[:, None] * N + n[None, :])
    tl.store(C + m[:, None] * N + n[None, :], tl.dot(a, b, input_precision=PRECISION))


def matmul_error(dtype, precision, k=64):
    a, b, c = torch.randn(16, k).to(dtype), torch.randn(k, 32).to(dtype), torch.empty(16, 32)
    matmul_kernel[(1,)](a, b, c, PRECISION=precision, M=16, N=32, K=k)
    expected = a.double() @ b.double()
    return ((c - expected).norm() / expected.norm()).item()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_dot_of_short_floats_is_exact_up_to_fp32(dtype):
    assert matmul_error(dtype, None) < 1e-6


def test_dot_of_fp32_loses_bits_unless_ieee_is_asked_for():
    assert matmul_error(torch.float32, "ieee") < 1e-6
    assert 1e-5 < matmul_error(torch.float32, None) < 2e-3


def test_dot_needs_sixteen_columns():
    with pytest.raises(ValueError, match="K = 8"):
        matmul_error(torch.float16, None, k=8)


@triton.jit
def one_address_kernel(Y, n_programs, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(Y + (tl.program_id(0) % n_programs) * BLOCK + i, tl.program_id(0))


def test_two_programs_that_write_one_address():
    y = torch.zeros(64, dtype=torch.int32)
    one_address_kernel[(4,)](y, 4, BLOCK=16)
    assert y[::16].tolist() == [0, 1, 2, 3]
    with pytest.raises(Race, match="also writes"):
        one_address_kernel[(4,)](y, 3, BLOCK=16)
    with relaxed(races=False):
        one_address_kernel[(4,)](y, 3, BLOCK=16)


@triton.jit
def shift_kernel(X, by, BLOCK: tl.constexpr):
    start = tl.program_id(0) * BLOCK
    i = tl.arange(0, BLOCK)
    x = tl.load(X + start + by + i)
    tl.store(X + start + i, x)


def test_a_program_that_reads_what_another_writes():
    shift_kernel[(3,)](torch.zeros(48), 0, BLOCK=16)
    with pytest.raises(Race, match=r"(reads|writes) what program"):
        shift_kernel[(3,)](torch.zeros(64), 1, BLOCK=16)


@triton.jit
def read_back_kernel(X, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(X + i, tl.load(X + i) + 1)
    tl.store(X + i, tl.load(X + (BLOCK - 1 - i)))


def test_a_program_that_reads_back_its_own_store():
    with pytest.raises(Race, match="reads what the same program wrote"):
        read_back_kernel[(1,)](torch.zeros(16), BLOCK=16)


@triton.jit
def scatter_kernel(INDEX, Y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(Y + tl.load(INDEX + i), i)


def test_one_store_that_names_an_address_twice():
    index, y = torch.randperm(16, dtype=torch.int32), torch.empty(16, dtype=torch.int32)
    scatter_kernel[(1,)](index, y, BLOCK=16)
    assert torch.equal(y[index.long()], torch.arange(16, dtype=torch.int32))
    index[3] = index[4]
    with pytest.raises(Race, match="twice in one store"):
        scatter_kernel[(1,)](index, y, BLOCK=16)


@triton.jit
def count_kernel(X, AND_READ: tl.constexpr):
    tl.atomic_add(X, 1)
    if AND_READ:
        tl.store(X + 1 + tl.program_id(0), tl.load(X))


def test_atomics_meet_atomics_only():
    x = torch.zeros(8, dtype=torch.int32)
    count_kernel[(4,)](x, AND_READ=False)
    assert x[0].item() == 4
    with pytest.raises(Race, match="reads what an atomic wrote"):
        count_kernel[(4,)](x, AND_READ=True)


@triton.jit
def order_kernel(Y, COUNT, n):
    tl.store(Y + tl.program_id(0), tl.load(COUNT))
    tl.store(COUNT, tl.load(COUNT) + 1)


@pytest.mark.parametrize("n", [1, 2, 7, 12])
def test_programs_run_each_once_in_a_shuffled_order(n):
    y, count = torch.full((n,), -1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with relaxed(races=False):
        order_kernel[(n,)](y, count, n)
    assert sorted(y.tolist()) == list(range(n))
    assert n < 7 or y.tolist() != list(range(n))
    count.zero_()
    with relaxed(races=False, shuffle=False):
        order_kernel[(n,)](y, count, n)
    assert y.tolist() == list(range(n))


@triton.jit
def nothing_kernel(X):
    tl.device_assert(tl.load(X) == 0, "X must hold 0")


def test_grid_limits_of_cuda():
    nothing_kernel[(1, 2, 3)](torch.zeros(1))
    with pytest.raises(ValueError, match="65536 programs on axis y"):
        nothing_kernel[(1, 65536)](torch.zeros(1))


def test_device_assert_is_on():
    with pytest.raises(AssertionError, match="X must hold 0"):
        nothing_kernel[(1,)](torch.ones(1))

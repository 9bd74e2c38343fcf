"""Linear layers that know their shard (Megatron-LM): column, row, and the two fused ones.

    Column   W split by output rows    -> each rank holds a slice of y        no communication
    Row      W split by input columns  -> each rank holds a term of y         one all-reduce

Attention and MLP are Column then Row, so a block costs two all-reduces.  Fused layers (q, k, v side
by side; gate and up side by side) read their input once instead of three or two times.
"""

from __future__ import annotations

import torch
from torch import nn

from minisgl.kernels.cpu_linear import CPULinear
from minisgl.kernels.dispatch import use_triton
from minisgl.kernels.linear import linear
from minisgl.models.loader import WeightSlot
from minisgl.parallel import Parallel


class Linear(nn.Module):
    """y = x W^T + b with W [N, K], this rank's part of it.  x [T, K] -> y [T, N]."""

    weight: nn.Parameter  # until it is packed
    bias: nn.Parameter | None

    def __init__(self, in_features: int, out_features: int, *, bias: bool) -> None:
        super().__init__()
        self.in_features = in_features
        self.weight = nn.Parameter(torch.empty(out_features, in_features), requires_grad=False)
        self.bias = nn.Parameter(torch.empty(out_features), requires_grad=False) if bias else None
        self.packed: CPULinear | None = None

    def pack(self, *, half_weights: bool) -> None:
        """Lay the loaded weight out for the CPU (see kernels/cpu_linear.py), and forget it as it
        was; no-op under Triton."""
        if not use_triton(self.weight):
            self.packed = CPULinear(self.weight.data, half_weights=half_weights)
            del self.weight  # an embedding that it is tied to keeps it

    @property
    def packed_bytes(self) -> int:
        """What it takes beside its parameters."""
        return self.packed.nbytes if self.packed else 0

    def multiply(self, x: torch.Tensor) -> torch.Tensor:
        if self.packed is None:
            return linear(x, self.weight, self.bias)
        y = self.packed(x)
        return y if self.bias is None else y.add_(self.bias)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.multiply(x)

    def _slots(
        self, hub_name: str, start: int, length: int, rank: int, size: int
    ) -> dict[str, WeightSlot]:
        """Rows [start, start + length) of this layer come from `hub_name`, split by rows."""
        slots = {
            f"{hub_name}.weight": WeightSlot(self.weight[start : start + length], 0, rank, size)
        }
        if self.bias is not None:
            slots[f"{hub_name}.bias"] = WeightSlot(self.bias[start : start + length], 0, rank, size)
        return slots


class ReplicatedLinear(Linear):
    """The whole of W on every rank.  x [T, K] -> y [T, N]."""

    def weight_slots(self, hub_name: str) -> dict[str, WeightSlot]:
        return self._slots(hub_name, 0, self.weight.shape[0], 0, 1)


class GateUpParallelLinear(Linear):
    """gate | up, each split by columns.  x [T, K] -> [T, 2 I]."""

    def __init__(self, hidden: int, inner: int, *, bias: bool, parallel: Parallel) -> None:
        self.inner = parallel.split(inner, "MLP columns")
        super().__init__(hidden, 2 * self.inner, bias=bias)
        self.parallel = parallel

    def weight_slots(self, gate: str, up: str) -> dict[str, WeightSlot]:
        p = self.parallel
        return {
            **self._slots(gate, 0, self.inner, p.rank, p.size),
            **self._slots(up, self.inner, self.inner, p.rank, p.size),
        }


def kv_heads_of(num_kv_heads: int, parallel: Parallel) -> int:
    """A rank's KV heads: its share or, where there are fewer heads than ranks, one that several
    ranks hold.

    >>> [kv_heads_of(4, Parallel(0, size)) for size in (1, 2, 4, 8)]
    [4, 2, 1, 1]

    Raises:
        ValueError: neither goes up.
    """
    size = min(parallel.size, num_kv_heads)
    if parallel.size % size or num_kv_heads % size:
        raise ValueError(
            f"{num_kv_heads} KV heads can be neither split over nor replicated on "
            f"{parallel.size} tensor-parallel ranks"
        )
    return num_kv_heads // size


class QKVParallelLinear(Linear):
    """q | k | v heads, split by heads.  x [T, K] -> [T, (H + 2 KV) D].

    With fewer KV heads than ranks, each KV head is held by several ranks.
    """

    def __init__(
        self,
        hidden: int,
        num_heads: int,
        num_kv_heads: int,
        head_dim: int,
        *,
        bias: bool,
        parallel: Parallel,
    ) -> None:
        self.num_heads = parallel.split(num_heads, "attention heads")
        self.num_kv_heads = kv_heads_of(num_kv_heads, parallel)
        self.kv_size = num_kv_heads // self.num_kv_heads  # ranks whose KV heads differ
        self.head_dim = head_dim
        rows = (self.num_heads + 2 * self.num_kv_heads) * head_dim
        super().__init__(hidden, rows, bias=bias)
        self.parallel = parallel

    def weight_slots(self, q: str, k: str, v: str) -> dict[str, WeightSlot]:
        p = self.parallel
        q_rows, kv_rows = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        kv_rank = p.rank // (p.size // self.kv_size)
        return {
            **self._slots(q, 0, q_rows, p.rank, p.size),
            **self._slots(k, q_rows, kv_rows, kv_rank, self.kv_size),
            **self._slots(v, q_rows + kv_rows, kv_rows, kv_rank, self.kv_size),
        }


class RowParallelLinear(Linear):
    """W split by input columns; the ranks' terms are summed.  x [T, K / size] -> y [T, N]."""

    def __init__(
        self, in_features: int, out_features: int, *, bias: bool, parallel: Parallel
    ) -> None:
        super().__init__(parallel.split(in_features, "input columns"), out_features, bias=bias)
        self.parallel = parallel

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.parallel.size == 1 or self.bias is None:
            return self.parallel.all_reduce(self.multiply(x))
        # subtle: the bias is added once, after the sum, not once per rank
        product = linear(x, self.weight, None) if self.packed is None else self.packed(x)
        return self.parallel.all_reduce(product).add_(self.bias)

    def weight_slots(self, hub_name: str) -> dict[str, WeightSlot]:
        p = self.parallel
        slots = {f"{hub_name}.weight": WeightSlot(self.weight.data, 1, p.rank, p.size)}
        if self.bias is not None:
            slots[f"{hub_name}.bias"] = WeightSlot(self.bias.data, None, 0, 1)
        return slots

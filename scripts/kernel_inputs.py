"""What a kernel is called with and measured by: a model's sizes, a maker of inputs, and a `Case`.

Inputs are real values on a device, or uninitialised memory where only compiling is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

Tensors = tuple[torch.Tensor, ...]
Blocks = dict[str, int]


@dataclass(frozen=True)
class Model:
    """The sizes of a model that kernels see."""

    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int  # 0: a vision tower
    experts: int = 0  # 0: one MLP, as wide as each of the experts
    experts_per_token: int = 0

    @property
    def qkv(self) -> int:
        """Width of the fused query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


MODELS = {
    model.name: model
    for model in (
        Model("smollm2-135m", 576, 1536, 9, 3, 64, 49152),
        Model("llama-2-7b", 4096, 11008, 32, 32, 128, 32000),
        Model("llama-3-8b", 4096, 14336, 32, 8, 128, 128256),
        Model("mixtral-8x7b", 4096, 14336, 32, 8, 128, 32000, experts=8, experts_per_token=2),
    )
}
TOWERS = {
    tower.name: tower
    for tower in (Model("clip-l-336", 1024, 4096, 16, 16, 64, vocab=0),)  # LLaVA's eye
}
TINY = Model("tiny", 64, 96, 4, 2, 16, 320)
TINY_MIXTRAL = Model("tiny-mixtral", 64, 96, 4, 2, 16, 320, experts=5, experts_per_token=2)
TINY_TOWER = Model("tiny-tower", 32, 48, 2, 2, 16, vocab=0)


@dataclass
class Maker:
    """Makes inputs. ``values=False``: shapes only, for a launcher that will launch nothing."""

    dtype: torch.dtype
    device: str = "cpu"
    values: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        self.generator = torch.Generator(self.device).manual_seed(self.seed)

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Standard normal values in the case's dtype."""
        x = torch.empty(shape, dtype=dtype or self.dtype, device=self.device)
        return x.normal_(generator=self.generator) if self.values else x

    def uniform(self, *shape: int) -> torch.Tensor:
        """float32 in [0, 1)."""
        x = torch.empty(shape, device=self.device)
        return x.uniform_(generator=self.generator) if self.values else x

    def integers(self, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """Integers in [0, high)."""
        x = torch.empty(shape, dtype=dtype, device=self.device)
        return x.random_(0, high, generator=self.generator) if self.values else x

    def slots(self, pool: int, count: int) -> torch.Tensor:
        """`count` different slots of a pool in random order, int32."""
        if not self.values:
            return torch.empty(count, dtype=torch.int32, device=self.device)
        order = torch.randperm(pool, generator=self.generator, device=self.device)
        return order[:count].int()

    def constant(self, values: list[int] | list[float], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of given numbers."""
        return torch.tensor(values, dtype=dtype, device=self.device)


@dataclass
class Case:
    """One call of one launcher.

    Args:
        kernel: the launcher's name.
        name: kernel and shape, unique within one model and dtype.
        run: the call itself; in-place kernels change their input again at each call.
        result: the outputs of one call on fresh copies of whatever it changes.
        reference: the same outputs from the reference in float32 (ids for `sample`).
        bytes: what must cross the memory bus at least once.
        flops: multiply-adds of the matmuls, times two.
        baseline: a vendor's kernel for the same work, where there is one.
        exact: outputs are indices or copies, so they must be equal.
        with_blocks: the call with other block sizes, where the launcher takes them.
    """

    kernel: str
    name: str
    run: Callable[[], object]
    result: Callable[[], Tensors]
    reference: Callable[[], Tensors]
    bytes: int
    flops: int = 0
    baseline: Callable[[], object] | None = None
    exact: bool = False
    with_blocks: Callable[[Blocks], Callable[[], object]] | None = None

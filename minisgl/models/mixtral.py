"""Mixtral (arXiv 2401.04088): Llama with a mixture of experts in place of each MLP.

    x = x + Attention(norm(x));   x = x + MoE(norm(x))

An expert is an MLP like Llama's.  A small router picks `experts_per_token` of them for each token,
so the model has the weights of all of them and computes with a few.
"""

from __future__ import annotations

import re

import torch
from torch import nn

from minisgl.kernels.cpu_linear import CPULinear
from minisgl.kernels.dispatch import use_triton
from minisgl.kernels.moe import moe
from minisgl.kernels.moe_route import route
from minisgl.models.config import ModelConfig
from minisgl.models.llama import DecoderLayer, LlamaForCausalLM
from minisgl.models.loader import WeightPart, WeightSlot
from minisgl.parallel import Parallel


class SparseMoE(nn.Module):
    """y = Σ weight · expert(x) over the experts that the router picks.  x [T, D] -> [T, D].

    Under tensor parallelism each rank holds a slice of every expert's columns, as of an MLP's: all
    ranks pick the same experts, and their terms are summed once.  (Why not whole experts:
    docs/decisions.md.)
    """

    def __init__(self, config: ModelConfig, parallel: Parallel) -> None:
        super().__init__()
        E, D = config.num_experts, config.hidden_size
        inner = parallel.split(config.intermediate_size, "MLP columns")
        self.router = nn.Parameter(torch.empty(E, D), requires_grad=False)
        self.gate_up = nn.Parameter(torch.empty(E, 2 * inner, D), requires_grad=False)
        self.down = nn.Parameter(torch.empty(E, D, inner), requires_grad=False)
        self.packed: tuple[list[CPULinear], list[CPULinear]] | None = None  # gate_up, down
        self.experts_per_token = config.experts_per_token
        self.parallel = parallel

    def pack(self, *, half_weights: bool) -> None:
        """Lay the loaded weights out for the CPU, and forget them as they were, as `Linear.pack`
        does; no-op under Triton."""
        if not use_triton(self.router):
            gate_up = [CPULinear(w, half_weights=half_weights) for w in self.gate_up.data]
            down = [CPULinear(w, half_weights=half_weights) for w in self.down.data]
            self.packed = gate_up, down
            del self.gate_up, self.down

    @property
    def packed_bytes(self) -> int:
        """What they take beside its parameters."""
        return sum(w.nbytes for stack in self.packed or () for w in stack)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, experts = route(x, self.router, self.experts_per_token)  # [T, K] each
        gate_up, down = self.packed or (self.gate_up, self.down)
        return self.parallel.all_reduce(moe(x, weights, experts, gate_up, down))

    def weight_slots(self, prefix: str) -> dict[str, WeightSlot]:
        p = self.parallel
        slots = {f"{prefix}.gate.weight": WeightSlot(self.router.data, None, 0, 1)}
        for e, (gate_up, down) in enumerate(zip(self.gate_up.data, self.down.data, strict=True)):
            gate, up = gate_up.chunk(2)
            expert = f"{prefix}.experts.{e}"
            slots[f"{expert}.w1.weight"] = WeightSlot(gate, 0, p.rank, p.size)
            slots[f"{expert}.w3.weight"] = WeightSlot(up, 0, p.rank, p.size)
            slots[f"{expert}.w2.weight"] = WeightSlot(down, 1, p.rank, p.size)
        return slots


class MixtralDecoderLayer(DecoderLayer):
    """Llama's block with experts in place of the MLP."""

    mlp_name = "block_sparse_moe"

    def make_mlp(self, config: ModelConfig, parallel: Parallel) -> nn.Module:
        return SparseMoE(config, parallel)


class MixtralForCausalLM(LlamaForCausalLM):
    """ids [T] -> logits [L, V], as Llama's."""

    block = MixtralDecoderLayer

    def weight_parts(self, name: str, shape: list[int]) -> list[WeightPart]:
        """Newer transformers stack the experts of a layer; this says where each of ours lies.

        mlp.gate.weight           [E, D]        block_sparse_moe.gate.weight
        mlp.experts.gate_up_proj  [E, 2I, D]    block_sparse_moe.experts.<e>.w1 | .w3
        mlp.experts.down_proj     [E, D, I]     block_sparse_moe.experts.<e>.w2
        """
        name = re.sub(r"\.mlp\.(gate|experts)\.", r".block_sparse_moe.\1.", name)
        experts, _, kind = name.rpartition(".")
        if len(shape) != 3 or kind not in ("gate_up_proj", "down_proj"):
            return [WeightPart(name)]
        if kind == "down_proj":
            return [WeightPart(f"{experts}.{e}.w2.weight", e) for e in range(shape[0])]
        half = shape[1] // 2
        rows = {"w1": slice(0, half), "w3": slice(half, shape[1])}
        return [
            WeightPart(f"{experts}.{e}.{w}.weight", e, part)
            for e in range(shape[0])
            for w, part in rows.items()
        ]

"""Calls of `route` and `moe` at the sizes of a model, as kernel_cases.py has them of the others."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from minisgl.kernels import moe, moe_route
from scripts.kernel_inputs import Case, Maker, Model, Tensors


def route_case(make: Maker, model: Model, tokens: int) -> Case:
    """x [T, D], router [E, D] -> weights and experts, compared as one row of E weights a token."""
    x, k = make.normal(tokens, model.hidden), model.experts_per_token
    router = make.normal(model.experts, model.hidden) * model.hidden**-0.5

    def spread(weights: torch.Tensor, experts: torch.Tensor) -> Tensors:
        rows = torch.zeros(tokens, model.experts, device=make.device)
        return (rows.scatter(1, experts.long(), weights),)

    return Case(
        "route",
        f"route T={tokens}",
        run=lambda: moe_route.route(x, router, k),
        result=lambda: spread(*moe_route.route(x, router, k)),
        reference=lambda: spread(*moe_route.route_ref(x, router, k)),
        bytes=(x.numel() + router.numel()) * x.element_size() + 8 * tokens * k,
    )


def moe_case(make: Maker, model: Model, tokens: int, *, one_expert: bool = False) -> Case:
    """x [T, D] -> [T, D] through random experts, or with all of the weight on expert 0.

    `one_expert`: every token's first choice is expert 0 and its others are expert 1.
    """
    E, K, D, inner = model.experts, model.experts_per_token, model.hidden, model.intermediate
    x = make.normal(tokens, D)
    gate_up, down = make.normal(E, 2 * inner, D), make.normal(E, D, inner)
    if make.values:
        gate_up *= D**-0.5
        down *= inner**-0.5
    weights, experts = make.uniform(tokens, E).topk(K)
    experts = experts.int()
    if one_expert:
        experts = make.constant([0] + [1] * (K - 1), torch.int32).repeat(tokens, 1)
    arguments = (x, weights, experts, gate_up, down)

    def dense() -> torch.Tensor:
        """As many rows through one MLP."""
        h = F.linear(x.repeat(K, 1), gate_up[0])[:, :inner]
        return F.linear(h, down[0])

    touched = E * (1 - (1 - K / E) ** tokens)  # experts, on average
    name = "one expert " if one_expert else ""
    return Case(
        "moe",
        f"moe {name}T={tokens}",
        run=lambda: moe.moe(*arguments),
        result=lambda: (moe.moe(*arguments),),
        reference=lambda: (
            moe.moe_ref(x.float(), weights, experts, gate_up.float(), down.float()),
        ),
        bytes=round(touched * 3 * D * inner + 2 * x.numel()) * x.element_size(),
        flops=6 * tokens * K * D * inner,
        baseline=dense if tokens * K >= 64 * E else None,
        with_blocks=lambda blocks: lambda: moe.moe(*arguments, blocks=blocks),
    )

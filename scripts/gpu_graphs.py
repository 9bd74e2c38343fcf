"""Does a replayed decode step equal an eager one, and how near is it to the memory's speed?

A model of real sizes with random weights decodes over random keys, with and without CUDA graphs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from minisgl.cache.kv_pool import KVPool
from minisgl.engine.cuda_graph import Capture, CudaGraphRunner
from minisgl.models.config import ModelConfig, RopeConfig
from minisgl.models.llama import LlamaForCausalLM
from minisgl.models.mixtral import MixtralForCausalLM, SparseMoE
from scripts.gpu_measure import Log
from scripts.kernel_inputs import Model

LAYERS = {"tiny": 2, "tiny-mixtral": 2, "smollm2-135m": 30, "llama-2-7b": 32, "llama-3-8b": 32}
LAYERS["mixtral-8x7b"] = 8  # a quarter of it, so that it fits where the others do


@dataclass
class Decoder:
    """`most` requests, each with `context` random keys, in rows 0 to most - 1 of the table."""

    graphs: CudaGraphRunner
    context: int

    def step(self, rows: list[int], positions: list[int]) -> tuple[Any, torch.Tensor]:
        """Arguments of `graphs.decode`, and of `graphs.forward`: the same step."""
        ids = [7 + 31 * row for row in rows]
        columns = [ids, positions, rows, [p + 1 for p in positions]]
        return (ids, positions, rows), torch.tensor(columns, device=self.graphs.device)


def decoder(
    model: Model,
    dtype: torch.dtype,
    device: str,
    *,
    most: int,
    context: int,
    capture: Capture | None = None,
) -> Decoder:
    """Build the model, its keys and its graphs."""
    config = ModelConfig(
        architecture="MixtralForCausalLM" if model.experts else "LlamaForCausalLM",
        vocab_size=model.vocab,
        hidden_size=model.hidden,
        intermediate_size=model.intermediate,
        num_layers=LAYERS[model.name],
        num_heads=model.heads,
        num_kv_heads=model.kv_heads,
        head_dim=model.head_dim,
        rms_norm_eps=1e-5,
        max_position=context,
        tie_word_embeddings=False,
        rope=RopeConfig(theta=10_000.0),
        num_experts=model.experts,
        experts_per_token=model.experts_per_token,
    )
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            net = (MixtralForCausalLM if model.experts else LlamaForCausalLM)(config)
    finally:
        torch.set_default_dtype(before)
    for parameter in net.parameters():
        if parameter.dim() == 1:
            parameter.fill_(1.0)
        else:
            parameter.normal_(std=parameter.shape[-1] ** -0.5)
    slots = most * context
    pool = KVPool(slots, config.num_layers, model.kv_heads, model.head_dim, dtype, device)
    for layer in pool.layers:
        layer.normal_()
    order = torch.randperm(slots, device=device)
    table = order.view(most, context).to(torch.int32)
    return Decoder(CudaGraphRunner(net, pool, table, most, capture), context)


@torch.inference_mode()
def equality(made: Decoder) -> dict[str, Any]:
    """Bitwise: every batch size with its padding, and lengths from 1 to the whole context."""
    graphs, context = made.graphs, made.context
    most = graphs.sizes[-1]
    wrong: list[str] = []
    for n in range(1, most + 1):
        for shift in (0, context // 3, context - 1):
            rows = [(i + n) % most for i in range(n)]
            positions = [(shift + 97 * i) % context for i in range(n)]
            call, inputs = made.step(rows, positions)
            for layer in graphs.pool.layers:
                layer[graphs.pool.padding_slot] = float("nan")  # whoever reads it will show it
            eager = graphs.forward(inputs)
            replayed = graphs.decode(*call)
            if not torch.isfinite(eager).all():
                wrong.append(f"{n} from length {shift + 1}: not finite")
            elif not torch.equal(eager, replayed):
                wrong.append(f"{n} from length {shift + 1}: {_distance(eager, replayed)}")
    return {"ok": not wrong, "batches": 3 * most, "wrong": wrong[:5]}


@torch.inference_mode()
def invariance(made: Decoder) -> dict[str, Any]:
    """Whether one request's logits are the same bits in every batch.

    Up to 16 rows, and from 17 on, they go through the same tiles; between the two only near.
    """
    graphs, context = made.graphs, made.context
    most = graphs.sizes[-1]
    bits: dict[int, torch.Tensor] = {}
    for n in range(1, most + 1):
        rows = [0, *(1 + (3 * n + i) % (most - 1) for i in range(n - 1))]
        positions = [context - 2, *((11 * n + i) % context for i in range(n - 1))]
        bits[n] = graphs.decode(*made.step(rows, positions)[0])[0].clone()
    few = all(torch.equal(bits[1], bits[n]) for n in bits if n <= 16)
    many = all(torch.equal(bits[most], bits[n]) for n in bits if n > 16)
    return {"ok": few and many, "few": few, "many": many, "apart": _distance(bits[1], bits[most])}


@torch.inference_mode()
def step_time(made: Decoder, batch: int, bandwidth: float) -> dict[str, Any]:
    """One step of `batch` requests with full contexts: eager, replayed, and what memory allows."""
    graphs = made.graphs
    call, inputs = made.step([*range(batch)], [made.context - 1] * batch)
    eager = _seconds(lambda: graphs.forward(inputs), graphs.device)
    replayed = _seconds(lambda: graphs.decode(*call), graphs.device)
    embedding = graphs.model.model.embed.weight  # only a few of its rows are read
    weights = sum(p.nbytes for p in graphs.model.parameters()) - embedding.nbytes
    weights -= sum(_idle_experts(m, batch) for m in graphs.model.modules())
    keys = sum(layer[0].nbytes for layer in graphs.pool.layers) * made.context * batch
    row = {
        "eager_us": round(eager * 1e6, 1),
        "graph_us": round(replayed * 1e6, 1),
        "speedup": round(eager / replayed, 2),
        "tokens_per_s": round(batch / replayed),
    }
    if bandwidth:
        floor = (weights + keys) / bandwidth
        row |= {"floor_us": round(floor * 1e6, 1), "of_bandwidth": round(floor / replayed, 3)}
    return row


def _seconds(call: Callable[[], object], device: torch.device, repeat: int = 30) -> float:
    def run(times: int) -> float:
        start = time.perf_counter()
        for _ in range(times):
            call()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - start) / times

    run(3)
    return run(repeat)


def _idle_experts(module: torch.nn.Module, tokens: int) -> float:
    """Bytes of the experts that none of `tokens` tokens goes to, on average."""
    if not isinstance(module, SparseMoE):
        return 0.0
    share = 1 - module.experts_per_token / module.router.shape[0]
    return share**tokens * (module.gate_up.nbytes + module.down.nbytes)


def _distance(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.float() - b.float()).norm() / a.float().norm())


def graphs(
    log: Log,
    device: str,
    models: list[Model],
    bandwidth: float,
    *,
    most: int = 40,
    context: int = 1024,
    capture: Capture | None = None,
) -> None:
    """Right at the smallest model's sizes, then fast at all of them."""
    for model in models:
        made: list[Decoder] = []

        def build(model: Model = model, made: list[Decoder] = made) -> dict[str, Any]:
            sizes = {"most": most, "context": context, "capture": capture}
            made.append(decoder(model, torch.bfloat16, device, **sizes))
            return {"recorded": str(made[0].graphs)}

        log.attempt("graphs", f"{model.name} capture", build)
        if not made:
            continue
        if model is models[0]:
            log.attempt("graphs", f"{model.name} replay == eager", lambda m=made: equality(m[0]))
            log.attempt("graphs", f"{model.name} invariance", lambda m=made: invariance(m[0]))
        for batch in (1, most // 5, most):
            log.attempt(
                "graphs",
                f"{model.name} step B={batch} L={context}",
                lambda m=made, b=batch: step_time(m[0], b, bandwidth),
            )

"""Our Llama against transformers', on tiny random checkpoints of every kind we claim."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from minisgl.kernels.cpu_linear import _can_halve
from minisgl.models.config import ModelConfig
from minisgl.models.forward_batch import ForwardBatch
from minisgl.models.registry import load_model, weight_bytes
from scripts.make_tiny_model import make_tiny_model

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}

VARIANTS: dict[str, dict[str, Any]] = {
    "llama": {},
    "untied": {"tie": False},
    "mha": {"num_kv_heads": 4},
    "mqa": {"num_kv_heads": 1},
    "three-queries-per-kv-head": {"num_heads": 9, "num_kv_heads": 3, "hidden_size": 72},
    "explicit-head-dim": {"head_dim": 32},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "theta": {"rope_theta": 500000.0},
    "rope-parameters": {"rope_parameters": {"rope_type": "default"}, "rope_theta": 1e6},
    "linear": {"rope_scaling": {"type": "linear", "factor": 2.0}},
    "dynamic": {"rope_scaling": {"rope_type": "dynamic", "factor": 2.0}},
    "llama3": {"rope_scaling": LLAMA3},
    "yarn": {"rope_scaling": YARN},
    "mistral": {"architecture": "MistralForCausalLM"},
    "mistral-window": {"architecture": "MistralForCausalLM", "sliding_window": 8},
    "sharded": {"shards": 3},
}


def load(path: Path, *, half_weights: bool = False) -> torch.nn.Module:
    config = ModelConfig.from_dir(path)
    return load_model(
        path,
        config,
        dtype=torch.float32,
        device=torch.device("cpu"),
        max_len=config.max_position,
        half_weights=half_weights,
        progress=False,
    )


def make_batch(
    model: torch.nn.Module, ids: list[int], start: int, pool: list[torch.Tensor], slots: list[int]
) -> ForwardBatch:
    """One request in row 0 whose positions [start, len(ids)) are computed in this step."""
    n = len(ids)
    table = torch.zeros(1, 64, dtype=torch.int32)
    table[0, :n] = torch.tensor(slots[:n])
    return ForwardBatch(
        input_ids=torch.tensor(ids[start:]),
        positions=torch.arange(start, n),
        out_slots=torch.tensor(slots[start:n]),
        logit_rows=None,
        pool=pool,
        req_to_token=table,
        extend_rows=torch.zeros(1, dtype=torch.int32),
        prefix_lens=torch.tensor([start], dtype=torch.int32),
        cu_seqlens=torch.tensor([0, n - start], dtype=torch.int32),
        max_extend_len=n - start,
    )


def empty_pool(model: torch.nn.Module) -> list[torch.Tensor]:
    c = model.config
    return [torch.zeros(64, 2, c.num_kv_heads, c.head_dim) for _ in range(c.num_layers)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_equal_transformers(variant: str, tmp_path: Path) -> None:
    path = make_tiny_model(tmp_path / "model", **VARIANTS[variant])
    model = load(path)
    ids = torch.randint(0, 384, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    slots = torch.randperm(64, generator=torch.Generator().manual_seed(2)).tolist()
    theirs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0]
        pool = empty_pool(model)
        whole = model(make_batch(model, ids, 0, pool, slots))
        torch.testing.assert_close(whole, expected, atol=1e-4, rtol=1e-4)

        # The same prompt in three chunks, each on top of the slots of those before.
        pool = empty_pool(model)
        parts, start = [], 0
        for stop in (7, 8, 40):
            parts.append(model(make_batch(model, ids[:stop], start, pool, slots)))
            start = stop
        torch.testing.assert_close(torch.cat(parts), whole, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("sizes", [{}, {"tie": False}, {"architecture": "MixtralForCausalLM"}])
def test_a_weight_is_kept_once_and_counted(sizes: dict[str, Any], tmp_path: Path) -> None:
    """Packed in place of what was loaded, beside an embedding that rows are looked up in."""
    path = make_tiny_model(tmp_path / "model", dtype=torch.float32, **sizes)
    stored = sum(p.numel() for p in AutoModelForCausalLM.from_pretrained(path).parameters())
    model = load(path)
    embedding = 0 if "tie" in sizes else model.model.embed.weight.numel()  # tied: looked up as well
    assert weight_bytes(model) == 4 * (stored + embedding)
    kept = {name.rpartition(".")[2] for name, p in model.named_parameters() if p.dim() > 1}
    assert kept <= {"weight", "router"}  # the embedding, and what chooses experts
    half = load(path, half_weights=True)
    products = stored + embedding - sum(p.numel() for p in model.parameters())
    change = -2 if _can_halve() else 2  # instead of float32, or beside it for single rows
    assert weight_bytes(half) == weight_bytes(model) + change * products


@pytest.mark.parametrize("wanted", [[3, 1], [2], []], ids=str)
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "MixtralForCausalLM"])
def test_only_the_wanted_rows_go_on_after_the_last_attention(
    wanted: list[int], architecture: str, tmp_path: Path
) -> None:
    model = load(make_tiny_model(tmp_path / "model", architecture=architecture))
    ids, slots = [5, 6, 7, 8], [3, 1, 2, 0]
    rows: list[int] = []  # what each MLP gets
    for layer in model.model.layers:
        layer.mlp.register_forward_pre_hook(lambda _, args: rows.append(len(args[0])))
    with torch.inference_mode():
        every, pool = model(make_batch(model, ids, 0, empty_pool(model), slots)), empty_pool(model)
        rows.clear()
        batch = make_batch(model, ids, 0, pool, slots)
        batch.logit_rows = torch.tensor(wanted, dtype=torch.int64)
        torch.testing.assert_close(model(batch), every[wanted], atol=1e-5, rtol=1e-5)
    assert rows == [len(ids)] * (len(rows) - 1) + [len(wanted)]
    for layer in pool:  # every token's keys and values are there
        assert layer[slots].abs().amin(dim=(1, 2, 3)).gt(0).all()

"""Our Mixtral against transformers', on tiny random checkpoints in every layout that it saves."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, MixtralConfig

from minisgl import Engine, SamplingParams
from minisgl.models.config import ModelConfig
from minisgl.models.mixtral import SparseMoE
from minisgl.parallel import Parallel
from scripts.make_tiny_model import make_tiny_model
from tests.models.test_llama import empty_pool, load, make_batch

Tensors = dict[str, torch.Tensor]
SMALL = {"hidden_size": 48, "intermediate_size": 40}


def make_tiny_mixtral(path: Path, **sizes: Any) -> Path:
    return make_tiny_model(path, architecture="MixtralForCausalLM", **{**SMALL, **sizes})


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_experts": 2, "experts_per_token": 1},
        {"num_experts": 2, "experts_per_token": 2},
        {"num_experts": 3},
        {"num_experts": 4, "tie": False},
        {"num_experts": 5, "experts_per_token": 3},
        {"num_experts": 6, "sliding_window": 8},
        {"num_experts": 7, "intermediate_size": 36, "head_dim": 16},
        {"num_experts": 8, "rope_theta": 1e6, "num_kv_heads": 4},
    ],
    ids=lambda sizes: "-".join(f"{k}={v}" for k, v in sizes.items()),
)
def test_logits_equal_transformers(sizes: dict[str, Any], tmp_path: Path) -> None:
    path = make_tiny_mixtral(tmp_path / "model", **sizes)
    model = load(path)
    ids = torch.randint(0, 384, (40,), generator=torch.Generator().manual_seed(1)).tolist()
    slots = torch.randperm(64, generator=torch.Generator().manual_seed(2)).tolist()
    theirs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with torch.inference_mode():
        expected = theirs(torch.tensor([ids])).logits[0]
        pool = empty_pool(model)
        parts, start = [], 0
        for stop in (33, 34, 40):  # each chunk on top of the slots of those before
            parts.append(model(make_batch(model, ids[:stop], start, pool, slots)))
            start = stop
    torch.testing.assert_close(torch.cat(parts), expected, atol=1e-4, rtol=1e-4)


def test_greedy_tokens_equal_transformers(tmp_path: Path) -> None:
    """Through the engine: a batch, in chunks, then again out of the cache."""
    path = make_tiny_mixtral(tmp_path / "model", num_experts=5)
    prompts = [[5, 90, 7, 200, 31], [5, 90, 7, 200, 44, 61, 9], [17]]
    theirs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    expected = []
    for prompt in prompts:
        x = torch.tensor([prompt])
        out = theirs.generate(
            x, max_new_tokens=12, min_new_tokens=12, do_sample=False, pad_token_id=0
        )
        expected.append(out[0, len(prompt) :].tolist())
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    with Engine(str(path), dtype="float32", kv_tokens=256, prefill_budget=4) as engine:
        for _ in range(2):
            answers = engine.generate(prompts, params)
            assert [a.token_ids for a in answers] == expected
        assert answers[1].cached_tokens == len(prompts[1]) - 1
        engine.check()


@pytest.mark.parametrize("stacked", [False, True])
def test_both_layouts_of_transformers_are_the_same_model(stacked: bool, tmp_path: Path) -> None:
    """G8: w1 is the gate, w3 the up and w2 the down projection."""
    path = make_tiny_mixtral(tmp_path / "model", num_experts=3)
    theirs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    theirs.save_pretrained(tmp_path / "saved", save_original_format=not stacked)
    names = load_file(tmp_path / "saved" / "model.safetensors").keys()
    assert stacked == any("mlp.experts.gate_up_proj" in name for name in names)
    assert stacked != any("block_sparse_moe.experts.2.w3" in name for name in names)
    ours, again = load(path), load(tmp_path / "saved")
    x = torch.randn(16, 48, generator=torch.Generator().manual_seed(0))
    for one, other in zip(ours.model.layers, again.model.layers, strict=True):
        assert torch.equal(one.mlp.router, other.mlp.router)
        assert torch.equal(one.mlp(x), other.mlp(x))


def drop(name: str) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        del tensors[name]

    return change


def add(name: str, *shape: int) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[name] = torch.zeros(shape)

    return change


MOE = "model.layers.1.block_sparse_moe"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop(f"{MOE}.experts.2.w3.weight"), rf"missing: {MOE}.experts.2.w3.weight"),
        (drop(f"{MOE}.gate.weight"), rf"missing: {MOE}.gate.weight"),
        (add(f"{MOE}.experts.3.w1.weight", 40, 48), rf"unexpected: {MOE}.experts.3.w1.weight"),
        (add(f"{MOE}.experts.0.w2.weight", 40, 48), r"w2.weight is \[40, 48\].* needs \[48, 40\]"),
        (add("model.layers.1.mlp.up_proj.weight", 40, 48), "unexpected: model.layers.1.mlp.up"),
        (
            add("model.layers.1.mlp.experts.down_proj", 3, 48, 40),
            rf"{MOE}.experts.0.w2.weight twice: .*(mlp.experts.down_proj|0.w2.weight)",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_named(
    change: Callable[[Tensors], None], message: str, tmp_path: Path
) -> None:
    path = make_tiny_mixtral(tmp_path / "model", num_experts=3)
    file = path / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file)
    with pytest.raises(ValueError, match=message):
        load(path)


@pytest.mark.parametrize("shape", [(4, 80, 48), (3, 82, 48), (3, 80, 47), (3, 79, 48)])
def test_a_stack_of_another_shape_is_named(shape: tuple[int, ...], tmp_path: Path) -> None:
    path = make_tiny_mixtral(tmp_path / "model", num_experts=3)
    theirs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    theirs.save_pretrained(path, save_original_format=False)
    tensors = load_file(path / "model.safetensors")
    tensors["model.layers.0.mlp.experts.gate_up_proj"] = torch.zeros(shape)
    save_file(tensors, path / "model.safetensors")
    with pytest.raises(ValueError, match=r"block_sparse_moe\.experts\.\d\.w[13]"):
        load(path)


class Alone(Parallel):
    """A rank whose sum is its own term, so that a test can add them up."""

    def all_reduce(self, x: torch.Tensor) -> torch.Tensor:
        return x


@pytest.mark.parametrize("stacked", [False, True])
def test_the_terms_of_the_ranks_add_up(stacked: bool, tmp_path: Path) -> None:
    from minisgl.models.loader import load_weights
    from minisgl.models.mixtral import MixtralForCausalLM

    path = make_tiny_mixtral(tmp_path / "model", num_experts=3)
    if stacked:
        theirs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        theirs.save_pretrained(path, save_original_format=False)
    config = ModelConfig.from_dir(path)

    def experts(parallel: Parallel) -> SparseMoE:
        model = MixtralForCausalLM(config, 64, parallel)
        load_weights(model, path, progress=False)
        layer = model.model.layers[1]
        assert isinstance(layer.mlp, SparseMoE)
        return layer.mlp

    x = torch.randn(9, 48, generator=torch.Generator().manual_seed(0))
    whole = experts(Parallel())(x)
    terms = [experts(Alone(rank, 2))(x) for rank in range(2)]
    torch.testing.assert_close(terms[0] + terms[1], whole, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="40 MLP columns can't be split over 3"):
        SparseMoE(config, Parallel(0, 3))


def test_the_config_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    MixtralConfig(architectures=["MixtralForCausalLM"]).save_pretrained(tmp_path)
    saved = ModelConfig.from_dir(tmp_path)
    sizes = {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 14336}
    short = {**sizes, "num_hidden_layers": 32, "num_attention_heads": 32, "model_type": "mixtral"}
    default = ModelConfig.from_dict({**short, "dtype": "float32", "eos_token_id": 2})
    theirs = MixtralConfig()
    for config in (saved, default):
        assert (config.num_experts, config.experts_per_token) == (8, 2)
        assert config.rope.theta == theirs.rope_parameters["rope_theta"] == 1e6
        assert config.max_position == theirs.max_position_embeddings
        assert (config.rms_norm_eps, config.num_kv_heads) == (1e-5, 8)
        assert (config.sliding_window, config.head_dim) == (0, 128)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_local_experts": 0}, "num_local_experts is 0; it must be a whole number"),
        ({"num_local_experts": None}, "num_local_experts is None"),
        ({"num_local_experts": 2.0}, "num_local_experts is 2.0"),
        ({"num_experts_per_tok": 4}, "num_experts_per_tok is 4; .* from 1 to 3, the number of"),
        ({"num_experts_per_tok": 0}, "num_experts_per_tok is 0; .* from 1 to 3"),
        ({"num_experts_per_tok": True}, "num_experts_per_tok is True"),
        ({"hidden_act": "gelu"}, "'gelu'"),
    ],
)
def test_a_config_that_cannot_be_is_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    path = make_tiny_mixtral(tmp_path / "model", num_experts=3, num_layers=1)
    file = path / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))
    with pytest.raises(ValueError, match=message):
        ModelConfig.from_dir(path)


def test_experts_are_kept_in_half_precision_where_asked(tmp_path: Path) -> None:
    path = make_tiny_mixtral(tmp_path / "model", num_experts=3)
    x = torch.randn(3, 48, generator=torch.Generator().manual_seed(0))
    exact = load(path).model.layers[0].mlp(x)
    moe = load(path, half_weights=True).model.layers[0].mlp
    for rows in (x[:1], x):
        torch.testing.assert_close(moe(rows), exact[: len(rows)], atol=2e-2, rtol=2e-2)
    assert not torch.equal(moe(x[:1]), exact[:1])

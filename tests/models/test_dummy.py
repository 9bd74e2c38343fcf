"""Random weights: the same model on any number of ranks, sane numbers, and no file that is read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from minisgl import Engine, Prompt, SamplingParams
from minisgl.models import dummy
from minisgl.models.dummy import draw_weights
from minisgl.models.loader import WeightSlot
from minisgl.models.registry import MODELS, load_config
from minisgl.parallel import Parallel
from scripts.make_tiny_model import make_tiny_model
from tests.engine.pictures import picture
from tests.models.tiny_llava import make_tiny_llava

GREEDY = SamplingParams(max_tokens=6, temperature=0, ignore_eos=True)
SAYS = pytest.mark.filterwarnings("ignore:load_format='dummy'")
TEXTS = {
    "llama": {},
    "biases, odd": {"attention_bias": True, "mlp_bias": True, "vocab_size": 301, "tie": False},
    "mixtral": {"architecture": "MixtralForCausalLM"},
}


def without_weights(path: Path) -> Path:
    for file in path.rglob("*.safetensors"):
        file.unlink()
    return path


def drawn(path: Path, rank: int = 0, size: int = 1) -> dict[str, WeightSlot]:
    """The slots of one rank's model with random weights."""
    config = load_config(path)
    model = MODELS[config.architecture](config, 64, Parallel(rank, size))
    with torch.device("meta"):
        whole = MODELS[config.architecture](config, 64)
    draw_weights(model, whole)
    slots: dict[str, WeightSlot] = model.weight_slots()  # type: ignore[operator]
    return slots


@pytest.mark.parametrize("chunk", [dummy.CHUNK, 100])  # all rows at once, or one or two
@pytest.mark.parametrize("options", TEXTS.values(), ids=TEXTS.keys())
def test_ranks_hold_the_shards_of_one_model(
    options: dict[str, Any], chunk: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dummy, "CHUNK", chunk)
    path = without_weights(make_tiny_model(tmp_path / "model", **options))
    whole = drawn(path)
    for size in (2, 4):
        for rank in range(size):
            for name, slot in drawn(path, rank, size).items():
                full = whole[name].dest
                assert torch.equal(slot.dest, full[slot.bounds(list(full.shape))]), name


def test_numbers_have_the_spread_that_is_promised(tmp_path: Path) -> None:
    slots = drawn(make_tiny_model(tmp_path / "model", attention_bias=True, hidden_size=256))
    seen = set()
    for name, slot in slots.items():
        values, kind = slot.dest, name.rpartition(".")[2]
        seen.add((kind, values.dim()))
        mean, std = (0.0, values[0].numel() ** -0.5) if values.dim() > 1 else (1.0, 0.1)
        mean = 0.0 if kind == "bias" else mean
        assert float(values.mean()) == pytest.approx(mean, abs=0.03), name
        assert float(values.std()) == pytest.approx(std, rel=0.2), name
    assert seen == {("weight", 2), ("weight", 1), ("bias", 1)}
    tensors = [slot.dest.flatten()[:64] for slot in slots.values()]
    assert not any(torch.equal(a, b) for i, a in enumerate(tensors) for b in tensors[:i])


@SAYS
def test_the_model_needs_no_weights_and_computes_like_any_other(tmp_path: Path) -> None:
    path = without_weights(make_tiny_model(tmp_path / "model"))
    with pytest.raises(ValueError, match=r"holds no \.safetensors file"):
        Engine(str(path))
    with Engine(str(path), load_format="dummy", dtype="float32", kv_tokens=400) as engine:
        prompts = ["the same beginning, and one end", "the same beginning, and another"]
        first, second = engine.generate(prompts, GREEDY)
        assert first.token_ids != second.token_ids
        again = engine.generate(prompts, GREEDY)
        assert [c.token_ids for c in again] == [first.token_ids, second.token_ids]
        assert all(c.cached_tokens > 0 for c in again)


def test_the_engine_says_that_answers_are_noise(tmp_path: Path) -> None:
    path = without_weights(make_tiny_model(tmp_path / "model"))
    with (
        pytest.warns(UserWarning, match="load_format='dummy': the weights are random"),
        Engine(str(path), load_format="dummy", kv_tokens=100),
    ):
        pass


@SAYS
@pytest.mark.parametrize("layout", ["hf", "authors"])
def test_a_llava_sees_with_random_weights(layout: str, tmp_path: Path) -> None:
    path = make_tiny_llava(tmp_path / "model", layout=layout, tower_inside=False)
    if layout == "hf":  # the authors' config does not say all: names of tensors are asked
        without_weights(path)
    with Engine(str(path), load_format="dummy", dtype="float32", kv_tokens=400) as engine:
        questions = [Prompt("<image> what", [picture(seed)]) for seed in (1, 2, 1)]
        one, two, again = engine.generate(questions, GREEDY)
        assert one.token_ids == again.token_ids != two.token_ids

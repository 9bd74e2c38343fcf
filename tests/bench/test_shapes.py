"""Shapes: sizes as published, proportions that scaling keeps, and a tokenizer that fits."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer

from minisgl.models.llava_config import LlavaConfig
from minisgl.models.registry import MODELS, load_config
from scripts.bench.figures import Options
from scripts.bench.random_models import prepare, ranks_for
from scripts.bench.shapes import SHAPES, Tower, resized, write

SCALES = {"mixtral-8x7b": 8, "llama-70b": 16, "llava-1.5-7b": 8, "llava-next-video-34b": 16}


@pytest.mark.parametrize("scale", [1, "scaled"])
@pytest.mark.parametrize("name", SHAPES)
def test_a_config_makes_a_model_of_that_many_weights(
    name: str, scale: int | str, tiny_model_dir: Path, tmp_path: Path
) -> None:
    shape = SHAPES[name].scaled(scale if isinstance(scale, int) else SCALES[name])
    config = load_config(write(tmp_path, shape, tiny_model_dir))
    text = config.text if isinstance(config, LlavaConfig) else config
    with torch.device("meta"):
        model = MODELS[text.architecture](text, 8)
    matrices = [slot.dest for slot in model.weight_slots().values() if slot.dest.dim() > 1]
    router = shape.layers * shape.experts * shape.hidden if shape.experts > 1 else 0
    assert sum(math.prod(m.shape) for m in matrices) == shape.weights + router
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab_size() == shape.vocab


def test_the_real_shapes_are_those_that_are_published() -> None:
    billions = {name: round(shape.weights / 1e9, 1) for name, shape in SHAPES.items()}
    assert billions == {
        "mixtral-8x7b": 46.7,
        "llama-70b": 69.0,
        "llava-1.5-7b": 6.7,
        "llava-next-video-34b": 34.4,
    }


@pytest.mark.parametrize(("name", "n"), [*SCALES.items(), ("llama-70b", 8)])
def test_a_scaled_shape_keeps_its_proportions(name: str, n: int) -> None:
    real, small = SHAPES[name], SHAPES[name].scaled(n)
    assert small.inner / small.hidden == real.inner / real.hidden
    assert small.heads // small.kv_heads == real.heads // real.kv_heads
    assert (small.experts, small.experts_per_token) == (real.experts, real.experts_per_token)
    assert small.hidden * n == real.hidden
    assert abs(small.layers * n - real.layers) < n
    if real.tower is not None and small.tower is not None:
        assert small.tower.image == real.tower.image
        assert small.tower.hidden * n == Tower().hidden


def test_what_cannot_be_divided_is_refused() -> None:
    with pytest.raises(ValueError, match="llava-next-video-34b can't be scaled by 3"):
        SHAPES["llava-next-video-34b"].scaled(3)


@pytest.mark.parametrize("size", [300, 390])
def test_a_tokenizer_is_cut_or_filled_up(size: int, tiny_model_dir: Path) -> None:
    file = json.loads((tiny_model_dir / "tokenizer.json").read_text(encoding="utf-8"))
    tokenizer = Tokenizer.from_str(json.dumps(resized(file, size, ["<image>", "<video>"])))
    assert tokenizer.get_vocab_size() == size
    assert tokenizer.token_to_id("<video>") == size - 1
    text = "The capital of <image> is naïve."
    ids = tokenizer.encode(text).ids
    assert ids.count(size - 2) == 1 and max(ids) < size
    assert tokenizer.decode(ids, skip_special_tokens=False) == text
    whole = Tokenizer.from_file(str(tiny_model_dir / "tokenizer.json"))
    if size > whole.get_vocab_size():
        assert tokenizer.encode("The capital").ids == whole.encode("The capital").ids
    else:
        assert len(tokenizer.encode("The capital").ids) >= len(whole.encode("The capital").ids)


def test_a_shape_too_large_for_the_machine_is_refused_with_the_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scripts.bench.random_models.free_memory", lambda device: 100 << 30)
    cpu = torch.device("cpu")
    assert ranks_for(SHAPES["llava-next-video-34b"], cpu) == 1
    with pytest.raises(ValueError, match="llama-70b has 128 GiB of weights; here is 1 x 100 GiB"):
        prepare(Options(device="cpu", real_shapes=True), "llama-70b", 8, tmp_path)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert ranks_for(SHAPES["llama-70b"], torch.device("cuda")) == 2
    monkeypatch.setattr("scripts.bench.random_models.free_memory", lambda device: 20 << 30)
    assert ranks_for(SHAPES["llama-70b"], torch.device("cuda")) == 8

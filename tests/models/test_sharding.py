"""Megatron's sharding over real Gloo ranks: the logits of one rank, and the bytes of the formula.

Four processes run all models, two of them and then all four, since they take longer to start than
to compute.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from minisgl.models.embedding import VocabParallelEmbedding
from minisgl.models.llava_config import LlavaConfig
from minisgl.models.registry import load_config, load_model
from minisgl.parallel import Parallel
from scripts.make_tiny_model import make_tiny_model
from tests.models.shard_rank import TOKENS, WANTED, logits_of
from tests.models.tiny_llava import make_tiny_llava

ROOT = Path(__file__).parents[2]
ODD = {"vocab_size": 301, "hidden_size": 48}


def stacked_mixtral(path: Path) -> Path:
    """As newer transformers save it: all experts of a layer in one tensor."""
    made = make_tiny_model(path, architecture="MixtralForCausalLM", num_experts=3, **ODD)
    saved = path.parent / "saved"
    AutoModelForCausalLM.from_pretrained(made, dtype=torch.float32).save_pretrained(saved)
    return saved


MODELS: dict[str, Callable[[Path], Path]] = {
    # Columns of the MLP: 132 / 4 = 33.  KV heads: two copies of each at 4 ranks.
    "llama": lambda path: make_tiny_model(path, intermediate_size=132, **ODD),
    "untied, biases, one KV head": lambda path: make_tiny_model(
        path, tie=False, attention_bias=True, mlp_bias=True, num_kv_heads=1, **ODD
    ),
    "eight heads": lambda path: make_tiny_model(path, num_heads=8, num_kv_heads=8, **ODD),
    # As many experts as ranks divide, or not: each rank has columns of all of them.
    "mixtral": lambda path: make_tiny_model(
        path,
        architecture="MixtralForCausalLM",
        num_experts=7,
        experts_per_token=3,
        intermediate_size=36,
        **ODD,
    ),
    "mixtral, stacked": stacked_mixtral,
    "llava": lambda path: make_tiny_llava(path, **ODD),
}


def formula() -> Callable[..., int]:
    """The function that docs/scaling.md shows."""
    text = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    found = re.search(r"^def communicated\(.*?\n(?=\n)", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    names: dict[str, Any] = {}
    exec(found[0], names)
    function: Callable[..., int] = names["communicated"]
    return function


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Path], Path]:
    """Where each model is, and what the ranks wrote."""
    base = tmp_path_factory.mktemp("sharding")
    paths = {name: make(base / f"{i}" / "m") for i, (name, make) in enumerate(MODELS.items())}
    out = base / "out"
    out.mkdir()
    command = [sys.executable, "-m", "tests.models.shard_rank"]
    given = [str(base / "store"), str(out), *map(str, paths.values())]
    ranks = [
        subprocess.Popen([*command, str(rank), *given], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for rank in range(4)
    ]
    said = [rank.communicate()[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * 4, "\n".join(said)
    return paths, out


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_ranks_compute_what_one_computes(
    name: str, size: int, run: tuple[dict[str, Path], Path]
) -> None:
    paths, out = run
    number = list(MODELS).index(name)
    with torch.inference_mode():
        alone = logits_of(paths[name], Parallel())
    assert len(alone) == len(WANTED)
    whole = load_config(paths[name])
    c = whole.text if isinstance(whole, LlavaConfig) else whole
    assert alone.shape[1] == c.vocab_size and c.vocab_size % 2, "a shard reaches past the end"
    bytes_told = formula()(
        TOKENS, len(WANTED), c.num_layers, c.hidden_size, c.vocab_size, size, width=4
    )
    for rank in range(size):
        logits = torch.load(out / f"{number}-{size}-{rank}.pt", weights_only=True)
        torch.testing.assert_close(logits, alone, atol=1e-4, rtol=1e-4)
        assert sum(json.loads((out / f"{number}-{size}-{rank}.json").read_text())) == bytes_told


@pytest.mark.parametrize(
    ("sizes", "ranks", "message"),
    [
        ({"num_heads": 6, "num_kv_heads": 2, "hidden_size": 48}, 4, "6 attention heads can't be"),
        ({"num_heads": 12, "num_kv_heads": 3, "hidden_size": 48}, 4, "3 KV heads can be neither"),
        ({"intermediate_size": 130}, 4, "130 MLP columns can't be split over 4"),
        ({"intermediate_size": 129}, 2, "129 MLP columns can't be split over 2"),
    ],
)
@pytest.mark.parametrize("architecture", ["LlamaForCausalLM", "MixtralForCausalLM"])
def test_what_can_not_be_split_is_refused(
    architecture: str, sizes: dict[str, int], ranks: int, message: str, tmp_path: Path
) -> None:
    path = make_tiny_model(tmp_path / "model", architecture=architecture, num_layers=1, **sizes)
    with pytest.raises(ValueError, match=message):
        load_model(
            path,
            load_config(path),
            dtype=torch.float32,
            device=torch.device("cpu"),
            max_len=64,
            parallel=Parallel(0, ranks),
            progress=False,
        )


def test_a_rank_may_have_no_row_of_a_small_vocabulary() -> None:
    shards = [VocabParallelEmbedding(9, 2, Parallel(rank, 4)) for rank in range(4)]
    assert [shard.valid for shard in shards] == [3, 3, 3, 0]
    assert {len(shard.weight) for shard in shards} == {3}, "so that what is gathered has one shape"

"""The loader puts every tensor in its place, cut and cast, or names what is wrong."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from minisgl.models.loader import WeightSlot, load_weights

V, D = 10, 4


class Toy(nn.Module):
    """An embedding (tied or not), a fused linear of two hub tensors, and a column-split one."""

    def __init__(
        self,
        *,
        tied: bool = False,
        rank: int = 0,
        size: int = 1,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        super().__init__()
        self.tied, self.rank, self.size = tied, rank, size
        rows = -(-V // size)
        self.valid = max(0, min(rows, V - rank * rows))
        self.embed = torch.zeros(rows, D, dtype=dtype)
        self.head = torch.zeros(rows, D, dtype=dtype)
        self.fused = torch.zeros(2 * 6 // size, D, dtype=dtype)
        self.out = torch.zeros(D, 6 // size, dtype=dtype)
        self.norm = torch.zeros(D, dtype=dtype)

    def weight_slots(self) -> dict[str, WeightSlot]:
        half, shard = 6 // self.size, (self.rank, self.size)
        slots = {
            "model.embed_tokens.weight": WeightSlot(self.embed[: self.valid], 0, *shard),
            "a.weight": WeightSlot(self.fused[:half], 0, *shard),
            "b.weight": WeightSlot(self.fused[half:], 0, *shard),
            "out.weight": WeightSlot(self.out, 1, *shard),
            "norm.weight": WeightSlot(self.norm, None, 0, 1),
        }
        if not self.tied:
            slots["lm_head.weight"] = WeightSlot(self.head[: self.valid], 0, *shard)
        return slots


def weights(dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(0)
    shapes = {
        "model.embed_tokens.weight": (V, D),
        "lm_head.weight": (V, D),
        "a.weight": (6, D),
        "b.weight": (6, D),
        "out.weight": (D, 6),
        "norm.weight": (D,),
    }
    return {name: torch.randn(shape, generator=g).to(dtype) for name, shape in shapes.items()}


def write(path: Path, tensors: dict[str, torch.Tensor], shards: int = 1) -> Path:
    if shards == 1:
        save_file(tensors, path / "model.safetensors")
        return path
    names = list(tensors)
    weight_map = {name: f"part-{i % shards}.safetensors" for i, name in enumerate(names)}
    for file in set(weight_map.values()):
        save_file({n: tensors[n] for n in names if weight_map[n] == file}, path / file)
    index = {"metadata": {}, "weight_map": weight_map}
    (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("wanted", [torch.float32, torch.float16, torch.bfloat16])
def test_every_dtype_and_any_number_of_files(
    tmp_path: Path, stored: torch.dtype, wanted: torch.dtype, shards: int
) -> None:
    tensors = weights(stored)
    model = Toy(dtype=wanted)
    load_weights(model, write(tmp_path, tensors, shards))
    assert torch.equal(model.embed, tensors["model.embed_tokens.weight"].to(wanted))
    fused = torch.cat((tensors["a.weight"], tensors["b.weight"]))
    assert torch.equal(model.fused, fused.to(wanted))
    assert torch.equal(model.norm, tensors["norm.weight"].to(wanted))


@pytest.mark.parametrize("size", [2, 3])
def test_the_shards_of_all_ranks_make_up_the_whole(tmp_path: Path, size: int) -> None:
    tensors = weights()
    write(tmp_path, tensors)
    ranks = [Toy(rank=rank, size=size) for rank in range(size)]
    for model in ranks:
        load_weights(model, tmp_path)
    embed = torch.cat([model.embed[: model.valid] for model in ranks])
    assert torch.equal(embed, tensors["model.embed_tokens.weight"])
    half = 6 // size
    assert torch.equal(torch.cat([model.fused[half:] for model in ranks]), tensors["b.weight"])
    assert torch.equal(torch.cat([model.out for model in ranks], dim=1), tensors["out.weight"])


def test_a_tied_model_loads_with_and_without_a_stored_head(tmp_path: Path) -> None:
    for present in (["model.embed_tokens.weight"], ["lm_head.weight"], None):
        tensors = weights()
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        expected = tensors["lm_head.weight"]
        for name in ("model.embed_tokens.weight", "lm_head.weight"):
            if present is not None and name not in present:
                del tensors[name]
        model = Toy(tied=True)
        load_weights(model, write(tmp_path, tensors))
        assert torch.equal(model.embed, expected)


def test_a_tied_model_whose_slots_name_the_shared_head(tmp_path: Path) -> None:
    class Shared(Toy):
        def weight_slots(self) -> dict[str, WeightSlot]:
            slots = super().weight_slots()
            return {**slots, "lm_head.weight": slots["model.embed_tokens.weight"]}

    tensors = weights()
    del tensors["lm_head.weight"]
    model = Shared(tied=True)
    load_weights(model, write(tmp_path, tensors))
    assert torch.equal(model.embed, tensors["model.embed_tokens.weight"])


def test_a_tied_model_with_another_head_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tie_word_embeddings, but lm_head\.weight differs"):
        load_weights(Toy(tied=True), write(tmp_path, weights()))


def test_an_untied_model_needs_its_head(tmp_path: Path) -> None:
    tensors = weights()
    del tensors["lm_head.weight"]
    with pytest.raises(ValueError, match=r"missing: lm_head\.weight"):
        load_weights(Toy(), write(tmp_path, tensors))


def test_all_faults_are_in_one_message_and_nothing_is_copied(tmp_path: Path) -> None:
    tensors = weights()
    del tensors["a.weight"]
    tensors["layers.0.strange"] = torch.zeros(1)
    tensors["out.weight"] = torch.zeros(D, 5)
    model = Toy()
    with pytest.raises(ValueError, match="don't fit") as caught:
        load_weights(model, write(tmp_path, tensors))
    message = str(caught.value)
    assert "missing: a.weight" in message
    assert "unexpected: layers.0.strange" in message
    assert "out.weight is [4, 5], the model needs [4, 6]" in message
    assert not model.embed.any()


def test_old_rotary_buffers_are_passed_over(tmp_path: Path) -> None:
    tensors = {**weights(), "model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2)}
    model = Toy()
    load_weights(model, write(tmp_path, tensors))
    assert torch.equal(model.norm, tensors["norm.weight"])


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_weights_that_are_no_numbers_are_refused_by_name(
    tmp_path: Path, value: float, dtype: torch.dtype
) -> None:
    tensors = weights(dtype)
    tensors["b.weight"][3, 1] = value
    with pytest.raises(ValueError, match=r"b\.weight in .*model\.safetensors holds NaN or inf"):
        load_weights(Toy(), write(tmp_path, tensors))


def test_values_beyond_float16_are_refused_not_made_infinite(tmp_path: Path) -> None:
    tensors = weights()
    tensors["norm.weight"][0] = -70000.0
    write(tmp_path, tensors)
    with pytest.raises(ValueError, match=r"norm\.weight .* 7e\+04.*use bfloat16"):
        load_weights(Toy(dtype=torch.float16), tmp_path)
    load_weights(Toy(dtype=torch.bfloat16), tmp_path)


def test_integer_weights_are_refused(tmp_path: Path) -> None:
    tensors = {**weights(), "a.weight": torch.zeros(6, D, dtype=torch.int8)}
    with pytest.raises(ValueError, match=r"a\.weight is I8; supported are F32, F16, BF16"):
        load_weights(Toy(), write(tmp_path, tensors))


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    write(tmp_path, weights(), shards=2)
    broken = tmp_path / "part-1.safetensors"
    broken.write_bytes(broken.read_bytes()[:-10])
    with pytest.raises(ValueError, match=r"part-1\.safetensors is not a complete safetensors"):
        load_weights(Toy(), tmp_path)


def test_a_file_of_something_else_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"version https://git-lfs.github.com/spec/v1\n")
    with pytest.raises(ValueError, match=r"model\.safetensors is not a complete safetensors"):
        load_weights(Toy(), tmp_path)


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    write(tmp_path, weights(), shards=2)
    (tmp_path / "part-0.safetensors").unlink()
    with pytest.raises(ValueError, match=r"lacks part-0\.safetensors"):
        load_weights(Toy(), tmp_path)


def test_a_directory_without_safetensors_says_what_it_has(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no \.safetensors file$"):
        load_weights(Toy(), tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ValueError, match=r"only pytorch_model\.bin; convert"):
        load_weights(Toy(), tmp_path)


def test_several_files_need_an_index(tmp_path: Path) -> None:
    write(tmp_path, weights(), shards=2)
    (tmp_path / "model.safetensors.index.json").unlink()
    with pytest.raises(ValueError, match=r"2 safetensors files and no model\.safetensors\.index"):
        load_weights(Toy(), tmp_path)


def test_the_bar_is_drawn_when_asked_for_and_never_into_a_pipe_unasked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, weights())
    load_weights(Toy(), tmp_path)
    load_weights(Toy(), tmp_path, progress=False)
    assert capsys.readouterr() == ("", "")
    load_weights(Toy(), tmp_path, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "loading weights [" in err and "100%" in err

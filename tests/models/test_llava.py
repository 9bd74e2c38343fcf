"""Our LLaVAs against transformers', in every layout: features, and the logits of whole prompts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from transformers import AutoModelForImageTextToText

from minisgl.models.anyres import plan
from minisgl.models.forward_batch import ForwardBatch
from minisgl.models.llava import MAX_TILES, LlavaForConditionalGeneration
from minisgl.models.llava_config import LlavaConfig
from minisgl.models.pixels import Pixels
from minisgl.models.registry import load_config, load_model
from tests.models.tiny_llava import LAYOUTS, make_tiny_llava

LLAVA, NEXT, VIDEO = (
    "LlavaForConditionalGeneration",
    "LlavaNextForConditionalGeneration",
    "LlavaNextVideoForConditionalGeneration",
)
TEXT = 384  # ids of text in every layout; llava-hf's vocabulary has two more
SLOTS = 700
TEN_SHAPES = [
    (56, 56),  # square
    (90, 30),  # portrait
    (20, 200),  # panorama
    (480, 640),
    (640, 480),
    (1256, 950),  # an odd rest of padding
    (19, 500),  # far thinner than a tile
    (1, 1),
    (500, 19),
    (333, 777),
]


def load(path: Path) -> LlavaForConditionalGeneration:
    model = load_model(
        path,
        load_config(path),
        dtype=torch.float32,
        device=torch.device("cpu"),
        max_len=1024,
        progress=False,
    )
    assert isinstance(model, LlavaForConditionalGeneration)
    return model


def load_theirs(path: Path) -> Any:
    return AutoModelForImageTextToText.from_pretrained(path, dtype=torch.float32).eval()


def image(config: LlavaConfig, size: tuple[int, int] = (40, 60), seed: int = 0) -> Pixels:
    """Random pixels, as many tiles as an image of `size` has."""
    g = torch.Generator().manual_seed(seed)
    grid, tiles, side = None, 1, config.vision.image_size
    if config.grid_pinpoints:
        grid = plan(size, config.grid_pinpoints, side).grid
        tiles += grid[0] * grid[1]
    values = torch.randn(tiles, 3, side, side, generator=g)
    return Pixels(values, config.num_image_tokens(size), grid, size)


def video(config: LlavaConfig, frames: int) -> Pixels:
    side = config.vision.image_size
    values = torch.randn(frames, 3, side, side, generator=torch.Generator().manual_seed(frames))
    return Pixels(values, config.num_video_tokens(frames), None, (side, side), is_video=True)


def text(n: int, seed: int = 0) -> list[int]:
    return torch.randint(0, TEXT, (n,), generator=torch.Generator().manual_seed(seed)).tolist()


def our_logits(
    model: LlavaForConditionalGeneration, prompt: list[int | Pixels], chunks: int = 1
) -> torch.Tensor:
    """[T, V]: the prompt's ids and images, computed in `chunks` steps of equal length."""
    images = [part for part in prompt if isinstance(part, Pixels)]
    features = model.encode_images(images) if images else []
    every = torch.cat([*features, torch.empty(0, model.config.text.hidden_size)])
    ids: list[int] = []
    places: list[int] = []
    for part in prompt:
        if isinstance(part, Pixels):
            places += range(len(ids), len(ids) + part.num_tokens)
            ids += [0] * part.num_tokens  # whatever stands there is not looked at
        else:
            ids.append(part)
    at = torch.tensor(places)
    c, T = model.config.text, len(ids)
    pool = [torch.zeros(SLOTS, 2, c.num_kv_heads, c.head_dim) for _ in range(c.num_layers)]
    slots = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(2))[:T]
    logits = []
    for start in range(0, T, -(-T // chunks)):
        stop = min(T, start + -(-T // chunks))
        here = (at >= start) & (at < stop)
        batch = ForwardBatch(
            input_ids=torch.tensor(ids[start:stop]),
            positions=torch.arange(start, stop),
            out_slots=slots[start:stop],
            logit_rows=None,
            pool=pool,
            req_to_token=slots[None].int(),
            extend_rows=torch.zeros(1, dtype=torch.int32),
            prefix_lens=torch.tensor([start], dtype=torch.int32),
            cu_seqlens=torch.tensor([0, stop - start], dtype=torch.int32),
            max_extend_len=stop - start,
            image_rows=at[here] - start if here.any() else None,
            image_features=every[here] if here.any() else None,
        )
        logits.append(model(batch))
    return torch.cat(logits)


def their_logits(theirs: Any, prompt: list[int | Pixels]) -> torch.Tensor:
    ids: list[int] = []
    for part in prompt:
        if isinstance(part, int):
            ids.append(part)
        else:
            config = theirs.config
            token = config.video_token_id if part.is_video else config.image_token_id
            ids += [token] * part.num_tokens
    inputs: dict[str, torch.Tensor] = {}
    if images := [part for part in prompt if isinstance(part, Pixels) and not part.is_video]:
        if images[0].grid is None:
            inputs["pixel_values"] = torch.cat([p.values for p in images])
        else:
            most = max(len(p.values) for p in images)
            inputs["pixel_values"] = torch.stack(
                [nn.functional.pad(p.values, [0] * 7 + [most - len(p.values)]) for p in images]
            )
            inputs["image_sizes"] = torch.tensor([p.size for p in images])
    if videos := [part for part in prompt if isinstance(part, Pixels) and part.is_video]:
        inputs["pixel_values_videos"] = torch.stack([p.values for p in videos])
    return theirs(torch.tensor([ids]), **inputs).logits[0]


def assert_equal(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours[:, :TEXT], theirs[:, :TEXT], atol=1e-4, rtol=1e-4)


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Their three models and ours, of the same weights, with pinpoints that are not the default."""
    made: dict[str, Any] = {}
    pinpoints = [[28, 84], [56, 28], [56, 56], [84, 84]]
    for architecture in (LLAVA, NEXT, VIDEO):
        path = tmp_path_factory.mktemp("llava")
        make_tiny_llava(path, architecture=architecture, pinpoints=pinpoints)
        made[architecture] = load(path), load_theirs(path)
    return made


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("language_model", ["LlamaForCausalLM", "MistralForCausalLM"])
@pytest.mark.parametrize("architecture", [LLAVA, NEXT])
@torch.inference_mode()
def test_every_layout_gives_their_logits(
    layout: str, language_model: str, architecture: str, tmp_path: Path
) -> None:
    """transformers reads llava-hf's; the authors' has the same weights under other names."""
    given: dict[str, Any] = {"architecture": architecture, "text": language_model}
    ours = load(make_tiny_llava(tmp_path / "ours", layout=layout, **given))
    theirs = load_theirs(make_tiny_llava(tmp_path / "theirs", **given))
    prompt = [*text(3), image(ours.config), *text(4, seed=1)]
    assert_equal(our_logits(ours, prompt), their_logits(theirs, prompt))


@pytest.mark.parametrize("architecture", [LLAVA, NEXT, VIDEO])
@torch.inference_mode()
def test_what_transformers_saves_is_what_we_load(
    architecture: str, hf: dict[str, Any], tmp_path: Path
) -> None:
    _, theirs = hf[architecture]
    theirs.save_pretrained(tmp_path)
    ours = load(tmp_path)
    prompt = [*text(3), image(ours.config), *text(4, seed=1)]
    assert_equal(our_logits(ours, prompt), their_logits(theirs, prompt))


@pytest.mark.parametrize("size", TEN_SHAPES, ids=lambda s: f"{s[0]}x{s[1]}")
@torch.inference_mode()
def test_next_takes_images_of_every_shape(size: tuple[int, int], hf: dict[str, Any]) -> None:
    ours, theirs = hf[NEXT]
    prompt = [*text(3), image(ours.config, size), *text(4, seed=1)]
    assert_equal(our_logits(ours, prompt), their_logits(theirs, prompt))


@pytest.mark.parametrize("size", [(480, 640), (1256, 950), (336, 336)])
@torch.inference_mode()
def test_next_at_the_real_geometry(size: tuple[int, int], tmp_path: Path) -> None:
    """Tiles of 336 pixels in patches of 14, 24 features along a side: the features alone."""
    pinpoints = [[336, 672], [672, 336], [672, 672], [1008, 336], [336, 1008]]
    path = make_tiny_llava(
        tmp_path, architecture=NEXT, image_size=336, patch_size=14, vision_layers=2,
        pinpoints=pinpoints,
    )  # fmt: skip
    ours, theirs = load(path), load_theirs(path)
    p = image(ours.config, size)
    (features,) = ours.encode_images([p])
    expected = theirs.model.get_image_features(p.values[None], torch.tensor([size])).pooler_output
    assert len(features) == {(480, 640): 2340, (1256, 950): 2352, (336, 336): 1176}[size]
    torch.testing.assert_close(features, expected[0], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("architecture", [LLAVA, NEXT])
@torch.inference_mode()
def test_two_images_of_different_shapes_in_one_prompt(
    architecture: str, hf: dict[str, Any]
) -> None:
    ours, theirs = hf[architecture]
    a, b = image(ours.config, (90, 30)), image(ours.config, (50, 50), seed=5)
    prompt = [*text(2), a, *text(3, seed=1), b, *text(4, seed=2)]
    expected = their_logits(theirs, prompt)
    assert_equal(our_logits(ours, prompt), expected)
    assert_equal(our_logits(ours, prompt, chunks=5), expected)
    swapped = [*text(2), b, *text(3, seed=1), a, *text(4, seed=2)]
    assert (our_logits(ours, swapped)[-1] - expected[-1]).abs().max() > 0.1


@torch.inference_mode()
def test_a_prompt_without_an_image(hf: dict[str, Any]) -> None:
    ours, theirs = hf[LLAVA]
    assert_equal(our_logits(ours, text(9)), their_logits(theirs, text(9)))


@pytest.mark.parametrize("frames", [1, 3, MAX_TILES + 1])
@torch.inference_mode()
def test_video_of_several_lengths(frames: int, hf: dict[str, Any]) -> None:
    """The last is more than one pass through the tower."""
    ours, theirs = hf[VIDEO]
    prompt = [*text(3), video(ours.config, frames), *text(4, seed=1)]
    assert_equal(our_logits(ours, prompt), their_logits(theirs, prompt))


@torch.inference_mode()
def test_an_image_and_a_video_in_one_prompt(hf: dict[str, Any]) -> None:
    ours, theirs = hf[VIDEO]
    prompt = [*text(3), image(ours.config), *text(2, seed=1), video(ours.config, 2), *text(1)]
    assert_equal(our_logits(ours, prompt), their_logits(theirs, prompt))


@pytest.mark.parametrize("mode", ["average", "max", "conv"])
@torch.inference_mode()
def test_frames_are_pooled_as_the_config_says(mode: str, tmp_path: Path) -> None:
    """Five features along a side and windows of two: the last row and column are left out."""
    path = make_tiny_llava(tmp_path, architecture=VIDEO, image_size=35, pool_mode=mode)
    ours, theirs = load(path), load_theirs(path)
    p = video(ours.config, 3)
    (features,) = ours.encode_images([p])
    expected = theirs.model.get_video_features(p.values[None]).pooler_output[0]
    assert len(features) == 3 * 4
    torch.testing.assert_close(features, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    "settings",
    [
        {"feature_layer": [-1, 1, -3]},
        {"feature_layer": [0, 2]},
        {"feature_layer": -1, "vision_act": "gelu"},
        {"feature_select": "full"},
        {"feature_select": "full", "feature_layer": [2, 3]},
    ],
    ids=str,
)
@torch.inference_mode()
def test_the_features_are_those_the_config_selects(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    path = make_tiny_llava(tmp_path, **settings)
    ours, theirs = load(path), load_theirs(path)
    p = image(ours.config)
    (features,) = ours.encode_images([p])
    (expected,) = theirs.model.get_image_features(p.values).pooler_output
    torch.testing.assert_close(features, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("kind", ["linear", "mlp1x_gelu", "mlp2x_gelu", "mlp3x_gelu"])
@torch.inference_mode()
def test_the_authors_projectors(kind: str, tmp_path: Path) -> None:
    """Their nn.Sequential, of the tensors in the file, on the features of transformers' tower."""
    path = make_tiny_llava(tmp_path / "ours", layout="authors", projector_type=kind)
    ours, theirs = load(path), load_theirs(make_tiny_llava(tmp_path / "theirs"))
    stored = load_file(path / "model.safetensors")
    p = image(ours.config)
    y = theirs.model.vision_tower(p.values, output_hidden_states=True).hidden_states[-2][0, 1:]
    names = [""] if kind == "linear" else [f"{2 * i}." for i in range(int(kind[3]))]
    for i, name in enumerate(names):
        y = nn.functional.gelu(y) if i else y
        weight, bias = (stored[f"model.mm_projector.{name}{part}"] for part in ("weight", "bias"))
        y = y @ weight.T + bias
    (features,) = ours.encode_images([p])
    torch.testing.assert_close(features, y, atol=1e-4, rtol=1e-4)


@torch.inference_mode()
def test_a_tower_beside_the_checkpoint(tmp_path: Path) -> None:
    inside = load(make_tiny_llava(tmp_path / "inside", layout="authors"))
    beside = load(make_tiny_llava(tmp_path / "beside", layout="authors", tower_inside=False))
    p = image(inside.config)
    assert torch.equal(beside.encode_images([p])[0], inside.encode_images([p])[0])


@torch.inference_mode()
def test_tiles_merged_flat(tmp_path: Path) -> None:
    """The authors' anyres without "spatial_unpad": tile after tile, with their padding."""
    authors = {"architecture": NEXT, "layout": "authors"}
    flat = load(make_tiny_llava(tmp_path / "flat", merge_type="flat", **authors))
    unpadded = load(make_tiny_llava(tmp_path / "unpadded", **authors))
    p = image(flat.config, (40, 60))
    (features,) = flat.encode_images([p])
    assert len(features) == 5 * 16
    other = unpadded.encode_images([image(unpadded.config, (40, 60))])[0]
    torch.testing.assert_close(features[:16], other[:16], atol=1e-5, rtol=1e-5)  # the base
    tile = Pixels(p.values[3:4], 16, None, (28, 28))
    torch.testing.assert_close(features[48:64], flat.encode_images([tile])[0], atol=1e-5, rtol=1e-5)


@torch.inference_mode()
def test_tokens_and_features_must_be_as_many(hf: dict[str, Any]) -> None:
    ours, _ = hf[NEXT]
    p = image(ours.config)
    wrong = Pixels(p.values, p.num_tokens - 1, p.grid, p.size)
    with pytest.raises(AssertionError, match=f"{p.num_tokens} features for {p.num_tokens - 1}"):
        ours.encode_images([wrong])


@torch.inference_mode()
def test_a_tied_head(tmp_path: Path) -> None:
    path = make_tiny_llava(tmp_path, tie=True)
    prompt = [*text(3), image(load(path).config), *text(2)]
    assert_equal(our_logits(load(path), prompt), their_logits(load_theirs(path), prompt))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_missing_and_misshapen_weights_are_named(layout: str, tmp_path: Path) -> None:
    path = make_tiny_llava(tmp_path, layout=layout)
    config = json.loads((path / "config.json").read_text())
    if layout == "authors":
        tower = json.loads((path / "clip-tower" / "config.json").read_text())
        (path / "clip-tower" / "config.json").write_text(json.dumps({**tower, "patch_size": 14}))
    else:
        config["vision_config"]["patch_size"] = 14
        (path / "config.json").write_text(json.dumps(config))
    shape = (
        r"embeddings.patch_embedding.weight is \[32, 3, 7, 7\], the model needs \[32, 3, 14, 14\]"
    )
    with pytest.raises(ValueError, match=shape):
        load(path)

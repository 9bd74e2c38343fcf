"""Our CLIP tower against transformers', layer by layer."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import CLIPConfig, CLIPModel, CLIPVisionConfig
from transformers import CLIPVisionModel as TheirTower

from minisgl.models.clip import CLIPVisionModel
from minisgl.models.llava_config import VisionConfig
from minisgl.models.loader import load_weights

SIZES = {
    "hidden_size": 48,
    "intermediate_size": 40,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "image_size": 28,
    "patch_size": 7,
}


@pytest.fixture
def theirs(request: pytest.FixtureRequest) -> TheirTower:
    """A random tower of SIZES, changed by the test's parameter."""
    torch.manual_seed(0)
    tower = TheirTower(CLIPVisionConfig(**{**SIZES, **request.param})).eval()
    for parameter in tower.parameters():  # as made, the biases are 0 and the norms 1
        parameter.data += 0.1 * torch.randn_like(parameter)
    return tower


def load(path: Path, config: VisionConfig, layers: list[int]) -> CLIPVisionModel:
    tower = CLIPVisionModel(config, layers)
    load_weights(tower, path, progress=False)
    return tower


@pytest.mark.parametrize(
    "theirs",
    [
        {},
        {"hidden_act": "gelu"},
        {"layer_norm_eps": 0.1},
        {"image_size": 30},  # two pixels at the right and below belong to no patch
        {"num_attention_heads": 1, "patch_size": 28},  # one patch
    ],
    ids=["quick-gelu", "gelu", "eps", "odd-size", "one-patch"],
    indirect=True,
)
def test_every_hidden_state_equals_theirs(theirs: TheirTower, tmp_path: Path) -> None:
    theirs.save_pretrained(tmp_path)
    config = VisionConfig.from_dict(theirs.config.to_dict())
    pixels = torch.randn(3, 3, config.image_size, config.image_size)
    with torch.inference_mode():
        expected = theirs(pixels, output_hidden_states=True).hidden_states
        states = load(tmp_path, config, [0, 1, 2, 3, 4])(pixels)
    assert len(expected) == 5
    for state, other in zip(states, expected, strict=True):
        torch.testing.assert_close(state, other, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("theirs", [{}], indirect=True)
def test_states_come_in_the_order_asked_and_layers_past_the_last_are_not_there(
    theirs: TheirTower, tmp_path: Path
) -> None:
    theirs.save_pretrained(tmp_path)
    config = VisionConfig.from_dict(theirs.config.to_dict())
    pixels = torch.randn(1, 3, 28, 28)
    tower = load(tmp_path, config, [2, 0, 2])
    assert len(tower.layers) == 2
    with torch.inference_mode():
        expected = theirs(pixels, output_hidden_states=True).hidden_states
        for state, layer in zip(tower(pixels), (2, 0, 2), strict=True):
            torch.testing.assert_close(state, expected[layer], atol=1e-4, rtol=1e-4)


def test_the_vision_half_of_a_whole_clip(tmp_path: Path) -> None:
    torch.manual_seed(0)
    text = {**SIZES, "vocab_size": 50, "max_position_embeddings": 8}
    clip = CLIPModel(CLIPConfig(text_config=text, vision_config=SIZES)).eval()
    clip.save_pretrained(tmp_path)
    config = VisionConfig.from_dict(clip.config.to_dict())
    pixels = torch.randn(2, 3, 28, 28)
    with torch.inference_mode():
        expected = clip.vision_model(pixels, output_hidden_states=True).hidden_states[3]
        (state,) = load(tmp_path, config, [3])(pixels)
    torch.testing.assert_close(state, expected, atol=1e-4, rtol=1e-4)


def test_an_image_does_not_depend_on_its_company() -> None:
    torch.manual_seed(0)
    tower = CLIPVisionModel(VisionConfig(48, 40, 4, 3, 28, 7), [2])
    for parameter in tower.parameters():
        parameter.copy_(0.2 * torch.randn_like(parameter))
    pixels = torch.randn(3, 3, 28, 28)
    (together,), (alone,) = tower(pixels), tower(pixels[1:2])
    torch.testing.assert_close(together[1], alone[0], atol=1e-5, rtol=1e-5)
    (without,) = tower(pixels[[0, 2]])
    torch.testing.assert_close(together[[0, 2]], without, atol=1e-5, rtol=1e-5)


def test_pixels_of_another_size_are_refused() -> None:
    tower = CLIPVisionModel(VisionConfig(48, 40, 4, 3, 28, 7), [1])
    with pytest.raises(ValueError, match=r"takes pixels \[N, 3, 28, 28\]; got \[1, 3, 28, 14\]"):
        tower(torch.zeros(1, 3, 28, 14))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "siglip_vision_model"}, "'siglip_vision_model' is not supported; CLIP's"),
        ({"hidden_act": "relu"}, "hidden_act 'relu' is not supported; these are: gelu, quick_gelu"),
        ({"num_channels": 1}, "has 1 channels; images have 3"),
        ({"num_attention_heads": 5}, "hidden_size 48 is not a multiple"),
        ({"patch_size": 29}, "patch_size 29 is greater than its image_size 28"),
        ({"image_size": [28, 28]}, r"image_size is \[28, 28\]; it must be a whole number"),
        ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    ],
)
def test_a_tower_that_is_not_supported_is_refused(change: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        VisionConfig.from_dict({**SIZES, **change})

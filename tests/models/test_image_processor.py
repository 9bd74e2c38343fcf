"""The image processor against transformers', pixel by pixel; and what it refuses when it loads."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from transformers import AutoImageProcessor

from minisgl.models.image_processor import ImageProcessor, Steps
from minisgl.models.llava_layouts import llava_config
from tests.models.tiny_llava import MEAN, STD, TOWER, make_tiny_llava

SIDE = 28
LLAVA, NEXT, VIDEO = (
    f"{name}ForConditionalGeneration" for name in ("Llava", "LlavaNext", "LlavaNextVideo")
)
SHAPES = [
    (28, 28), (40, 60), (60, 40), (1, 1), (1, 50), (50, 1), (19, 500), (500, 19), (31, 33),
    (83, 85), (200, 137), (57, 28), (28, 57), (125, 95),
]  # fmt: skip


def photo(height: int, width: int, seed: int = 0) -> Image.Image:
    """Like a photo: large smooth shapes, and a little noise."""
    g = np.random.default_rng(seed)
    small = Image.fromarray(g.integers(0, 256, (5, 5, 3), dtype=np.uint8))
    smooth = np.asarray(small.resize((width, height), Image.Resampling.BICUBIC), int)
    noise = g.integers(-8, 9, (height, width, 3))
    return Image.fromarray((smooth + noise).clip(0, 255).astype(np.uint8))


def edit(path: Path, **changes: Any) -> None:
    """Change a JSON file; None takes a key out."""
    config = {**json.loads(path.read_text()), **changes}
    path.write_text(json.dumps({k: v for k, v in config.items() if v is not None}))


Make = Callable[..., Path]


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """A model directory whose image processor's file has these changes."""

    def make(architecture: str = LLAVA, layout: str = "hf", **changes: Any) -> Path:
        path = make_tiny_llava(
            tmp_path / "model", architecture=architecture, layout=layout, image_size=SIDE
        )
        file = path / (TOWER if layout == "authors" else "") / "preprocessor_config.json"
        edit(file, **changes)
        return path

    return make


def processor(path: Path) -> ImageProcessor:
    return ImageProcessor.from_dir(path, llava_config(path))


def transformers_processor(path: Path) -> Any:
    """Of its two ways to resize, Pillow's, which is the models' makers'."""
    return AutoImageProcessor.from_pretrained(path, backend="pil")


def assert_same_pixels(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    """To 1/255, before the normalisation."""
    assert ours.shape == theirs.shape and ours.dtype == torch.float32 and ours.is_contiguous()
    std = torch.tensor(STD)[:, None, None]
    assert ((ours - theirs) * std).abs().max() < 0.01 / 255


CLIP = {
    "as it is": {},
    "a larger edge": {"size": {"shortest_edge": 36}},
    "the first generation's": {
        "image_processor_type": None, "feature_extractor_type": "CLIPFeatureExtractor",
        "size": SIDE, "crop_size": SIDE, "do_rescale": None, "rescale_factor": None,
        "do_convert_rgb": None,
    },
    "squeezed": {"size": {"height": SIDE, "width": SIDE}, "do_center_crop": False},
    "bilinear": {"resample": 2},
    "other numbers": {"image_mean": [0.5, 0.4, 0.3], "image_std": [0.2, 0.3, 0.4],
                      "rescale_factor": 1 / 128},
    "not normalised": {"do_normalize": False},
    "not rescaled": {"do_rescale": False},
    "padded": {"image_processor_type": "LlavaImageProcessor", "do_pad": True},
    "padded and not normalised": {
        "image_processor_type": "LlavaImageProcessor", "do_pad": True, "do_normalize": False,
    },
    "not padded": {"image_processor_type": "LlavaImageProcessor", "do_pad": False},
    "fast": {"image_processor_type": "CLIPImageProcessorFast"},
}  # fmt: skip


class TestOneTile:
    @pytest.mark.parametrize("changes", CLIP.values(), ids=CLIP)
    def test_pixels_are_those_of_transformers(self, make: Make, changes: dict[str, Any]) -> None:
        path = make(**changes)
        ours, theirs = processor(path), transformers_processor(path)
        for i, shape in enumerate(SHAPES):
            image = photo(*shape, seed=i)
            pixels = ours([image])
            assert_same_pixels(pixels.values, theirs(image, return_tensors="pt").pixel_values)
            assert (pixels.num_tokens, pixels.grid, pixels.size) == (16, None, shape)

    def test_the_numbers_may_stand_in_processor_config(self, make: Make) -> None:
        """Where transformers 5 saves them, and they come before those of a file left behind."""
        path = make()
        file = path / "preprocessor_config.json"
        image = json.loads(file.read_text())
        expected = processor(path)([photo(40, 60)]).values
        edit(path / "processor_config.json", image_processor=image)
        edit(file, image_mean=[0, 0, 0])
        assert processor(path)([photo(40, 60)]).values.equal(expected)
        file.unlink()
        assert processor(path)([photo(40, 60)]).values.equal(expected)

    def test_a_picture_too_long_and_thin(self, make: Make) -> None:
        """Its short edge grown to the tower's, a line of a million pixels would fill the memory."""
        clip = processor(make())
        with pytest.raises(ValueError, match=r"10000000 x 1 pixels would grow to 280000000 x 28"):
            clip([Image.new("RGB", (10**7, 1))])
        assert clip([photo(1, 1)]).values.shape == (1, 3, SIDE, SIDE)
        padded = processor(make(**CLIP["padded"]))
        with pytest.raises(ValueError, match="would grow to 100000 x 100000"):
            padded([Image.new("RGB", (10**5, 1))])


@pytest.fixture(scope="module")
def anyres(tmp_path_factory: pytest.TempPathFactory) -> tuple[ImageProcessor, Any]:
    path = make_tiny_llava(tmp_path_factory.mktemp("next"), architecture=NEXT, image_size=SIDE)
    return processor(path), transformers_processor(path)


class TestAnyRes:
    @pytest.mark.parametrize("architecture", [NEXT, VIDEO])
    def test_tiles_are_those_of_transformers(self, make: Make, architecture: str) -> None:
        path = make(architecture)
        config, theirs = llava_config(path), transformers_processor(path)
        ours = ImageProcessor.from_dir(path, config)
        for i, shape in enumerate(SHAPES):
            image = photo(*shape, seed=i)
            pixels, expected = ours([image]), theirs(image, return_tensors="pt")
            assert_same_pixels(pixels.values, expected.pixel_values[0])
            assert list(pixels.size) == expected.image_sizes[0].tolist()
            assert pixels.grid is not None and pixels.num_tokens == config.num_image_tokens(shape)
            assert len(pixels.values) == 1 + pixels.grid[0] * pixels.grid[1]

    @settings(max_examples=30)
    @given(height=st.integers(1, 300), width=st.integers(1, 300))
    def test_any_size_at_all(
        self, anyres: tuple[ImageProcessor, Any], height: int, width: int
    ) -> None:
        ours, theirs = anyres
        image = photo(height, width)
        expected = theirs(image, return_tensors="pt").pixel_values[0]
        assert_same_pixels(ours([image]).values, expected)

    def test_pinpoints_are_the_models_own(self, tmp_path: Path) -> None:
        pinpoints = [[28, 112], [84, 28]]  # height, width: not the usual ones, and not symmetric
        path = make_tiny_llava(tmp_path, architecture=NEXT, image_size=SIDE, pinpoints=pinpoints)
        ours = processor(path)
        assert [ours([photo(*s)]).grid for s in ((20, 90), (90, 20))] == [(1, 4), (3, 1)]
        edit(path / "preprocessor_config.json", image_grid_pinpoints=[[112, 28], [28, 84]])
        with pytest.raises(ValueError, match=r"\[\[112, 28\], \[28, 84\]\], but in config.json"):
            processor(path)


class TestVideo:
    def test_frames_are_clips_and_all_are_counted(self, make: Make) -> None:
        """Its own numbers, from whichever of the three places has them."""
        path = make(VIDEO)
        (path / "clip").mkdir()
        clip = json.loads((path / "preprocessor_config.json").read_text())
        clip |= {"image_processor_type": "CLIPImageProcessor", "image_mean": [0.1, 0.2, 0.3]}
        (path / "clip" / "preprocessor_config.json").write_text(json.dumps(clip))
        theirs = transformers_processor(path / "clip")
        frames = [photo(40, 60, seed=i) for i in range(10)]
        expected = theirs(frames, return_tensors="pt").pixel_values

        for place in ("video_preprocessor_config.json", "preprocessor_config.json"):
            edit(path / place, image_mean=[0.1, 0.2, 0.3])
            pixels = processor(path)(frames, is_video=True)
            assert_same_pixels(pixels.values, expected)
            assert (pixels.num_tokens, pixels.size, pixels.is_video) == (10 * 4, (40, 60), True)
            (path / "video_preprocessor_config.json").unlink(missing_ok=True)
        video = {"video_processor_type": "LlavaNextVideoVideoProcessor", "size": SIDE}
        edit(path / "processor_config.json", video_processor={**clip, **video})
        edit(path / "preprocessor_config.json", image_mean=MEAN)
        assert_same_pixels(processor(path)(frames, is_video=True).values, expected)

    def test_for_a_model_without(self, make: Make) -> None:
        with pytest.raises(ValueError, match="takes images, and no videos"):
            processor(make())([photo(40, 60)] * 2, is_video=True)


class TestTheAuthors:
    def test_pad_is_llavas_own_way(self, make: Make) -> None:
        """As LlavaImageProcessor does it; the numbers are the tower's."""
        path = make(layout="authors", image_mean=[0.6, 0.5, 0.4])
        ours = processor(path)
        hf = json.loads((path / TOWER / "preprocessor_config.json").read_text())
        hf |= {"image_processor_type": "LlavaImageProcessor", "do_pad": True}
        (path / "preprocessor_config.json").write_text(json.dumps(hf))
        theirs = transformers_processor(path)
        (path / "preprocessor_config.json").unlink()
        for i, shape in enumerate(SHAPES):
            image = photo(*shape, seed=i)
            expected = theirs(image, return_tensors="pt").pixel_values
            assert_same_pixels(ours([image]).values, expected)

    def test_anyres_is_the_same_as_llava_hfs(self, tmp_path: Path) -> None:
        """Whose pinpoints are the other way round, in another file."""
        options: dict[str, Any] = {"architecture": NEXT, "image_size": SIDE}
        options["pinpoints"] = [[28, 112], [84, 28]]
        authors = make_tiny_llava(tmp_path / "authors", layout="authors", **options)
        hf = make_tiny_llava(tmp_path / "hf", **options)
        for shape in SHAPES:
            one, other = (processor(path)([photo(*shape)]) for path in (authors, hf))
            assert one.values.equal(other.values)
            assert (one.grid, one.size, one.num_tokens) == (
                other.grid,
                other.size,
                other.num_tokens,
            )

    def test_without_the_towers_file_openais_numbers(self, make: Make) -> None:
        path = make(layout="authors")
        expected = processor(path)([photo(40, 60)]).values
        (path / TOWER / "preprocessor_config.json").unlink()
        assert processor(path)([photo(40, 60)]).values.equal(expected)


class TestRefused:
    @pytest.mark.parametrize(
        ("architecture", "changes", "words"),
        [
            (LLAVA, {"image_processor_type": "SiglipImageProcessor"},
             "SiglipImageProcessor is not supported for this model; supported: CLIPImageProcessor"),
            (LLAVA, {"image_processor_type": "LlavaNextImageProcessor"}, "not supported"),
            (NEXT, {"image_processor_type": "CLIPImageProcessor"}, "supported: LlavaNextImage"),
            (LLAVA, {"crop_size": 20}, "don't make the 28 x 28 pixels"),
            (LLAVA, {"size": 20}, "don't make the 28 x 28 pixels"),
            (LLAVA, {"do_center_crop": False}, "don't make the 28 x 28 pixels"),
            (LLAVA, {"size": {"height": 28, "width": 30}}, "don't make the 28 x 28"),
            (LLAVA, {"size": {"shortest_edge": 28, "longest_edge": 90}}, "don't make"),
            (LLAVA, {"size": {"height": 28, "width": 28}, "crop_size": 40}, "don't make"),
            (LLAVA, {"size": "large"}, "size large and crop_size"),
            (NEXT, {"size": 30}, "size 30 is not the tile's"),
            (LLAVA, {"do_resize": False}, "do_resize is false"),
            (LLAVA, {"resample": 9}, "resample is 9"),
            (LLAVA, {"image_mean": [0.5]}, r"image_mean is \[0.5\]; it must be three numbers"),
        ],
    )  # fmt: skip
    def test_when_the_model_loads(
        self, make: Make, architecture: str, changes: dict[str, Any], words: str
    ) -> None:
        path = make(architecture, **changes)
        with pytest.raises(ValueError, match=f"^{path}: image processor: .*{words}"):
            processor(path)

    def test_without_any_file(self, make: Make) -> None:
        path = make()
        (path / "preprocessor_config.json").unlink()
        with pytest.raises(ValueError, match=r"there is no preprocessor_config\.json"):
            processor(path)


def test_the_steps_have_clips_defaults() -> None:
    """What openai/clip-vit-large-patch14 leaves out of its file."""
    steps = Steps.from_dict({}, side=224)
    assert (steps.shortest_edge, steps.mean, steps.std) == (224, tuple(MEAN), tuple(STD))
    assert (steps.resample, steps.scale) == (Image.Resampling.BICUBIC, 1 / 255)

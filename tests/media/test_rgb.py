"""Every mode, depth and orientation becomes RGB; broken and bloated files are refused."""

from __future__ import annotations

import struct
import zlib
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image as Pillow

from minisgl.media import Limits, load
from tests.media.common import CAT, PNG, encoded, pixels
from tests.toy_videos import animation, greys

WHITE, RED = [255, 255, 255], [255, 0, 0]


class TestRGB:
    def test_grey_is_rgb(self) -> None:
        grey = np.arange(15, dtype=np.uint8).reshape(3, 5)
        expected = np.repeat(grey[..., None], 3, axis=2).tolist()
        for form in (
            grey,
            grey[..., None],
            Pillow.fromarray(grey),
            encoded(Pillow.fromarray(grey)),
        ):
            assert pixels(form) == expected

    def test_what_is_invisible_is_white(self) -> None:
        rgba = np.array([[[255, 0, 0, 0], [255, 0, 0, 255], [0, 0, 0, 128]]], np.uint8)
        expected = [[WHITE, RED, [127] * 3]]
        for form in (rgba, Pillow.fromarray(rgba), encoded(Pillow.fromarray(rgba))):
            assert pixels(form) == expected
        assert pixels(Pillow.fromarray(rgba).convert("RGBa")) == expected
        grey = np.array([[[0, 0], [0, 255], [0, 128]]], np.uint8)
        for form in (grey, Pillow.fromarray(grey), encoded(Pillow.fromarray(grey))):
            assert pixels(form) == [[WHITE, [0] * 3, [127] * 3]]

    def test_one_colour_may_be_the_transparent_one(self) -> None:  # tRNS
        rgb = Pillow.fromarray(np.array([[RED, [0, 0, 255]]], np.uint8))
        assert pixels(encoded(rgb, transparency=(255, 0, 0))) == [[WHITE, [0, 0, 255]]]
        grey = Pillow.fromarray(np.array([[7, 9]], np.uint8))
        assert pixels(encoded(grey, transparency=7)) == [[WHITE, [9] * 3]]
        palette = rgb.quantize(2)
        red = palette.getpixel((0, 0))
        for kind in ("PNG", "GIF"):
            assert pixels(encoded(palette, kind, transparency=red)) == [[WHITE, [0, 0, 255]]]
        wide = Pillow.fromarray(np.array([[300, 65535, 0]], np.uint16))
        assert pixels(encoded(wide)) == [[[1] * 3, WHITE, [0] * 3]]
        wide.info["transparency"] = 300
        assert pixels(wide) == [[WHITE, WHITE, [0] * 3]]

    def test_sixteen_bits_are_scaled_and_not_clipped(self, tmp_path: Path) -> None:
        wide = np.array([[0, 128, 129, 40000, 65535]], np.uint16)
        expected = [[[v] * 3 for v in (0, 0, 1, 156, 255)]]
        for form in (wide, Pillow.fromarray(wide), encoded(Pillow.fromarray(wide)),
                     encoded(Pillow.fromarray(wide), "TIFF")):  # fmt: skip
            assert pixels(form) == expected
        for mode in ("I", "F"):
            with pytest.raises(ValueError, match=f'mode "{mode}"'):
                load(Pillow.new(mode, (2, 2), 200))

    def test_other_modes(self) -> None:
        cmyk = Pillow.new("CMYK", (8, 8), (0, 255, 255, 0))
        assert pixels(cmyk) == [[RED] * 8] * 8
        shown = np.array(pixels(encoded(cmyk, "JPEG", quality=100)), int)
        assert abs(shown - np.array(RED)).max() <= 2
        assert pixels(Pillow.new("1", (1, 1), 1)) == [[WHITE]]
        assert pixels(np.array([[True, False]])) == [[WHITE, [0] * 3]]
        assert pixels(np.array([[0.0, 0.5, 1.0]])) == [[[0] * 3, [128] * 3, WHITE]]

    def test_of_an_animation_the_first_frame(self) -> None:
        for kind in ("GIF", "WEBP", "PNG"):
            assert pixels(animation(greys(10, 200, size=(1, 1)), kind)) == [[[10] * 3]]
        second = Pillow.open(BytesIO(animation(greys(10, 200, size=(1, 1)), "GIF")))
        second.seek(1)  # who opened it shows us this one
        assert pixels(second) == [[[200] * 3]]

    @pytest.mark.parametrize("orientation", range(1, 9))
    def test_a_camera_held_in_any_way(self, orientation: int) -> None:
        """EXIF says where row 0 and column 0 of the file belong in what is seen."""
        a = np.asarray(CAT)
        seen = {
            1: a, 2: a[:, ::-1], 3: a[::-1, ::-1], 4: a[::-1],
            5: a.swapaxes(0, 1), 6: np.rot90(a, -1), 7: a[::-1, ::-1].swapaxes(0, 1),
            8: np.rot90(a),
        }[orientation]  # fmt: skip
        exif = Pillow.Exif()
        exif[0x0112] = orientation
        file = encoded(CAT, exif=exif)
        assert pixels(file) == pixels(Pillow.open(BytesIO(file))) == seen.tolist()
        wide = load(encoded(Pillow.new("RGB", (24, 16)), "JPEG", exif=exif)).frames[0]
        assert wide.size == ((16, 24) if orientation > 4 else (24, 16))


def png_header(width: int, height: int) -> bytes:
    """A PNG that says its size, and has no pixel."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


class TestBadFiles:
    @pytest.mark.parametrize("size", [(40000, 40000), (10**9, 1), (9000, 9000)])
    def test_a_bomb_is_refused_by_its_header(
        self, size: tuple[int, int], recwarn: pytest.WarningsRecorder
    ) -> None:
        with pytest.raises(ValueError, match="pixels"):
            load(png_header(*size))

    @pytest.mark.parametrize("kind", ["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM"])
    def test_cut_short_is_an_error_in_words(self, kind: str) -> None:
        noise = np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)
        data = encoded(Pillow.fromarray(noise), kind)
        for share in (0.05, 0.5, 0.9):
            with pytest.raises(ValueError, match=r"^image \(\d+ bytes\): (broken|not a picture)"):
                load(data[: int(share * len(data))])

    @settings(max_examples=60)
    @given(data=st.data(), kind=st.sampled_from(["PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF"]))
    def test_damaged_bytes_are_a_picture_or_a_valueerror(
        self, data: st.DataObject, kind: str
    ) -> None:
        exif = Pillow.Exif()
        exif[0x0112] = 6
        options = {} if kind in ("GIF", "BMP") else {"exif": exif}
        file = bytearray(encoded(CAT, kind, **options))
        for _ in range(data.draw(st.integers(1, 4))):
            file[data.draw(st.integers(0, len(file) - 1))] = data.draw(st.integers(0, 255))
        try:
            image = load(bytes(file), Limits(max_pixels=10**6))
        except ValueError:
            return
        assert image.frames[0].mode == "RGB"

    def test_a_picture_of_which_the_file_is_closed(self, tmp_path: Path) -> None:
        path = tmp_path / "cat.png"
        path.write_bytes(PNG)
        with Pillow.open(path) as picture:
            pass
        with pytest.raises(ValueError, match=r"^image .*PngImageFile"):
            load(picture)

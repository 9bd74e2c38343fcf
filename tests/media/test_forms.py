"""One picture in every form that people have: the same pixels, the same key, errors in words."""

from __future__ import annotations

import base64
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image as Pillow

from minisgl.media import Limits, Video, load, load_image
from tests.media.common import CAT, PNG, encoded, pixels
from tests.toy_videos import avi, greys

sizes = st.tuples(st.integers(1, 6), st.integers(1, 6))


@st.composite
def pictures(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """[H, W, 3] uint8."""
    height, width = draw(sizes)
    data = draw(st.binary(min_size=height * width * 3, max_size=height * width * 3))
    return np.frombuffer(data, np.uint8).reshape(height, width, 3)


class TestForms:
    @given(picture=pictures())
    def test_one_picture_has_one_key_in_every_form(
        self, picture: np.ndarray[Any, Any], tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        path = tmp_path_factory.getbasetemp() / "one picture.png"
        pillow = Pillow.fromarray(picture)
        png = encoded(pillow)
        path.write_bytes(png)
        text = base64.b64encode(png).decode()
        forms = [
            picture, picture[:, ::-1][:, ::-1], picture / 255, picture.astype(np.float32) / 255,
            picture.astype(np.uint16) * 257, pillow, Pillow.open(BytesIO(png)),
            png, bytearray(png), memoryview(png), path, str(path),
            text, text.rstrip("="), base64.urlsafe_b64encode(png).decode(),
            "\n".join(text[i : i + 20] for i in range(0, len(text), 20)),
            f"data:image/png;base64,{text}", f"DATA:;Base64,{text}", f"data:image/png,{quote(png)}",
            encoded(pillow, "BMP"), encoded(pillow, "PPM"), encoded(pillow, "TIFF"),
            encoded(pillow, "WEBP", lossless=True), pillow.convert("RGBA"),
            load_image(picture),
        ]  # fmt: skip
        (key,) = {load(form).key for form in forms}
        assert 2**64 <= key < 2**192
        assert all(pixels(form) == picture.tolist() for form in forms)

    @given(one=pictures(), other=pictures())
    def test_other_pixels_have_another_key(self, one: Any, other: Any) -> None:
        same = one.shape == other.shape and (one == other).all()
        assert (load(one).key == load(other).key) == same
        assert (load(one) == load(other)) == same

    def test_the_key_is_of_more_than_the_bytes(self) -> None:
        row = np.arange(18, dtype=np.uint8)
        shapes = [row.reshape(shape) for shape in ((2, 3, 3), (3, 2, 3), (1, 6, 3), (6, 1, 3))]
        keys = {load(shape).key for shape in shapes}
        keys |= {load(Video(shapes[:1])).key, load(Video([shapes[0][:1], shapes[0][1:]])).key}
        assert len(keys) == 6

    def test_what_is_loaded_is_a_copy(self) -> None:
        array, picture = np.zeros((2, 2, 3), np.uint8), Pillow.new("RGB", (2, 2))
        images = [load(array), load(picture)]
        array[:] = 255
        picture.putpixel((0, 0), (9, 9, 9))
        assert [pixels(image) for image in images] == [[[[0] * 3] * 2] * 2] * 2

    def test_a_picture_that_is_loaded_already_stays_it(self) -> None:
        image = load(CAT)
        assert load(image) is image and load_image(image) is image

    @pytest.mark.parametrize(
        ("source", "words"),
        [
            ("no-such.jpg", "no such file, and neither a data: URL, an http(s) URL nor base64"),
            ("no/such", "not a picture that can be read"),  # base64 all the same
            ("", "no such file"),
            ("a\0b", "no such file"),
            ("x" * 5000 + "!", "no such file"),
            (Path("no-such.jpg"), "there is no such file"),
            (Path("/dev/zero"), "not a file"),
            (Path("."), "not a file"),
            ("data:image/png;base64", "comma"),
            ("data:image/png;base64,!", "not base64"),
            (b"", "not a picture"),
            (b"GIF", "not a picture"),
            (3, "int is no image"),
            (None, "NoneType is no image"),
            ([CAT], "a list of frames is a Video"),
            (avi(greys(0)), "this is a video: give it as Video(...)"),
            (np.zeros((2, 2, 5)), "shape (2, 2, 5)"),
            (np.zeros((3, 0, 3)), "shape (3, 0, 3)"),
            (np.zeros((2, 2), np.int64), "dtype int64"),
            (np.array([[0.0, 1.1]]), "floats from 0.0 to 1.1"),
            (np.array([[0.0, np.nan]]), "floats from nan to nan"),
        ],
    )
    def test_what_is_no_image_is_refused_in_words(self, source: Any, words: str) -> None:
        for function in (load, load_image):
            with pytest.raises(ValueError) as refusal:
                function(source)
            assert str(refusal.value).startswith("image ") and words in str(refusal.value)
            assert len(str(refusal.value)) < 300
        assert load(PNG).frames[0].size == (7, 5)

    def test_what_may_be_read_is_limited(self, tmp_path: Path) -> None:
        path = tmp_path / "cat.png"
        path.write_bytes(PNG)
        text = base64.b64encode(PNG).decode()
        forms: list[Any] = [
            PNG,
            path,
            str(path),
            text,
            f"data:,{quote(PNG)}",
            f"data:;base64,{text}",
        ]
        exact, less = Limits(max_bytes=len(PNG)), Limits(max_bytes=len(PNG) - 1)
        for form in forms:
            assert load(form, exact).frames[0].size == (7, 5)
            with pytest.raises(ValueError, match=f"longer than the {len(PNG) - 1} bytes"):
                load(form, less)
        for name in (path, str(path)):
            with pytest.raises(ValueError, match=r"not allowed here|neither a data: URL"):
                load(name, Limits(allow_files=False))
        with pytest.raises(ValueError, match="7 x 5 = 35 pixels; at most 34"):
            load(PNG, Limits(max_pixels=34))
        with pytest.raises(ValueError, match="7 x 5 = 35 pixels; at most 34"):
            load(CAT, Limits(max_pixels=34))
        assert load(PNG, Limits(max_pixels=35))

    @pytest.mark.parametrize(
        ("limits", "words"),
        [
            ({"max_pixels": 0}, "max_pixels=0"),
            ({"max_pixels": 10**12}, "Pillow's own limit"),
            ({"timeout": -1}, "timeout=-1"),
            ({"allowed_hosts": "example.org"}, "give a tuple"),
        ],
    )
    def test_limits_are_limits(self, limits: dict[str, Any], words: str) -> None:
        with pytest.raises(ValueError, match=words):
            Limits(**limits)

"""A picture, its files, and its pixels."""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np
from PIL import Image as Pillow

from minisgl.media import load_image


def encoded(picture: Pillow.Image, kind: str = "PNG", **options: Any) -> bytes:
    file = BytesIO()
    picture.save(file, kind, **options)
    return file.getvalue()


def pixels(source: Any) -> list[list[list[int]]]:
    (frame,) = load_image(source).frames
    assert frame.mode == "RGB"
    return np.asarray(frame).tolist()  # type: ignore[no-any-return]


CAT = Pillow.fromarray(np.arange(5 * 7 * 3, dtype=np.uint8).reshape(5, 7, 3))
PNG = encoded(CAT)

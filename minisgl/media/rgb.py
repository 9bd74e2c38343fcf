"""Pictures as RGB, 8 bits a channel: upright, and on white where they are transparent.

    RGBA, LA, palette or tRNS      composited on white: an invisible red pixel is white, not red
    16-bit grey                    scaled, 65535 -> 255; Pillow's own conversion would clip at 255
    CMYK, YCbCr, grey, 1 bit       converted
    EXIF orientation               turned, as every viewer shows it
    arrays                         uint8 as it is, uint16 scaled, bool and floats: 0 black, 1 white

Colour profiles are not applied; no vision tower was trained with them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from io import BytesIO
from typing import Any

import numpy as np
import PIL.Image
from PIL import ImageOps

from minisgl.media.limits import Limits

# Not all that Pillow could open: its EPS plugin, for one, starts an interpreter for the file.
FORMATS = ("PNG", "JPEG", "GIF", "WEBP", "BMP", "TIFF", "PPM")


def open_picture(data: bytes, limits: Limits) -> PIL.Image.Image:
    """The picture or animation in `data`; of its pixels nothing is decoded yet.

    Raises:
        ValueError: no picture in one of `FORMATS`, or more pixels than allowed.
    """
    with in_words():
        try:
            picture = PIL.Image.open(BytesIO(data), formats=FORMATS)
        except PIL.UnidentifiedImageError as error:
            raise ValueError(f"not a picture that can be read ({', '.join(FORMATS)})") from error
    check_size(picture, limits)
    return picture


def check_size(picture: PIL.Image.Image, limits: Limits) -> None:
    """ValueError if there are more pixels than allowed; what its header says is enough to know."""
    width, height = picture.size
    if width * height > limits.max_pixels:
        raise ValueError(
            f"it has {width} x {height} = {width * height} pixels; at most {limits.max_pixels} "
            "are allowed"
        )


def to_rgb(picture: PIL.Image.Image) -> PIL.Image.Image:
    """A new RGB picture of what `picture` shows now: of an animation, the frame it stands at.

    Raises:
        ValueError: it is broken, cut short, or of a mode whose white is unknown.
    """
    is_16_bit = picture.mode.startswith("I;16") or (picture.mode, picture.format) == ("I", "PNG")
    if picture.mode in ("I", "F") and not is_16_bit:
        raise ValueError(
            f'mode "{picture.mode}" holds 32-bit numbers, and which of them is white is unknown: '
            "convert it first, or give an array"
        )
    with in_words():
        upright = ImageOps.exif_transpose(picture)
        if is_16_bit:
            return _of_16_bits(upright)
        if upright.mode in ("La", "RGBa"):  # colours already multiplied by alpha
            upright = upright.convert({"La": "LA", "RGBa": "RGBA"}[upright.mode])
        if upright.mode in ("LA", "PA", "RGBA") or "transparency" in upright.info:
            upright = upright.convert("RGBA")
            white = PIL.Image.new("RGBA", upright.size, "white")
            upright = PIL.Image.alpha_composite(white, upright)
        return upright.convert("RGB")


def _of_16_bits(picture: PIL.Image.Image) -> PIL.Image.Image:
    grey = np.asarray(picture).astype(np.uint16)  # [H, W]
    transparent = picture.info.get("transparency")
    if isinstance(transparent, int):
        grey = np.where(grey == transparent, np.uint16(65535), grey)
    return from_array(grey)


def from_array(array: np.ndarray[Any, Any]) -> PIL.Image.Image:
    """An array [H, W] or [H, W, C], as the RGB picture that it holds.

    C: 1 grey, 2 grey and alpha, 3 RGB, 4 RGB and alpha.

    >>> from_array(np.array([[0, 40000, 65535]], dtype=np.uint16)).getpixel((1, 0))
    (156, 156, 156)
    >>> from_array(np.array([[0.0, 0.5, 1.0]])).getpixel((1, 0))
    (128, 128, 128)

    Raises:
        ValueError: another shape or dtype, or a float outside [0, 1].
    """
    if array.ndim == 2:
        array = array[..., None]
    if array.ndim != 3 or array.shape[2] not in (1, 2, 3, 4) or array.size == 0:
        raise ValueError(f"shape {array.shape}: give [H, W] or [H, W, C] with C = 1, 2, 3 or 4")
    pixels = _to_8_bits(array)
    if pixels.shape[2] == 1:
        pixels = pixels[..., 0]
    return to_rgb(PIL.Image.fromarray(np.ascontiguousarray(pixels)))


def _to_8_bits(array: np.ndarray[Any, Any]) -> np.ndarray[Any, np.dtype[np.uint8]]:
    if array.dtype == np.uint8:
        return array
    if array.dtype == np.uint16:
        return ((array.astype(np.uint32) * 255 + 32767) // 65535).astype(np.uint8)
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if np.issubdtype(array.dtype, np.floating):
        if not ((array >= 0) & (array <= 1)).all():  # NaN is neither
            raise ValueError(
                f"floats from {array.min()} to {array.max()}: give floats in [0, 1], or uint8"
            )
        return np.rint(array * 255.0).astype(np.uint8)
    raise ValueError(f"dtype {array.dtype}: give uint8, uint16, bool, or floats in [0, 1]")


@contextlib.contextmanager
def in_words() -> Iterator[None]:
    """What goes wrong inside Pillow is a ValueError."""
    try:
        yield
    except (PIL.Image.DecompressionBombError, PIL.Image.DecompressionBombWarning) as error:
        raise ValueError(f"too many pixels: {error}") from error
    except ValueError:
        raise
    except Exception as error:  # a decoder may trip over broken data in any way at all
        raise ValueError(f"broken, or cut short: {error or type(error).__name__}") from error

"""`load`: an image or a video in any form becomes an `Image`, the form that the engine takes."""

from __future__ import annotations

import reprlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image

from minisgl.media.frames import Choice
from minisgl.media.limits import Limits
from minisgl.media.rgb import check_size, from_array, open_picture, to_rgb
from minisgl.media.source import find, head, read
from minisgl.media.video import HEAD, animation_frames, file_frames, is_video_file

DEFAULT_LIMITS = Limits()
KEY_BYTES = 16


@dataclass(frozen=True)
class Image:
    """RGB frames: one of an image, one or more of a video.  Equal if all their pixels are.

    Attributes:
        key: 128 bits of a hash of the pixels, the frames' sizes and `is_video`, and 2**64.  So the
            same picture has the same key in whatever form it came, another picture has another,
            and no key is a token id, all of which are below 2**64.
    """

    frames: tuple[PIL.Image.Image, ...] = field(compare=False)
    is_video: bool = field(default=False, compare=False)
    key: int = field(init=False)

    def __post_init__(self) -> None:
        digest = blake2b(digest_size=KEY_BYTES)
        digest.update(f"{'video' if self.is_video else 'image'} {len(self.frames)}".encode())
        for frame in self.frames:
            assert frame.mode == "RGB"
            digest.update(f" {frame.width}x{frame.height} ".encode())
            digest.update(frame.tobytes())
        object.__setattr__(self, "key", 2**64 + int.from_bytes(digest.digest(), "big"))


@dataclass(frozen=True, eq=False)  # frames may be arrays, which have no plain ==
class Video:
    """A video, as a caller names it among images: `Prompt(text, images=[Video("talk.mp4")])`.

    Args:
        source: a path, bytes, base64, a data: or http(s) URL of a video file, a GIF, an animated
            WebP or PNG; a list of frames, each as for `load_image`; or an array [T, H, W, C].
        num_frames: so many frames, evenly from the first on.
        fps: so many frames for each second.
        indices: these frames, in this order.

    Without any of the three: all frames of a list or an array, and 8 of anything else, or all where
    there are fewer.
    """

    source: Any
    num_frames: int | None = None
    fps: float | None = None
    indices: Sequence[int] | None = None


def load(source: Any, limits: Limits = DEFAULT_LIMITS) -> Image:
    """An `Image` of a `Video`, or of anything that `load_image` takes."""
    if isinstance(source, Video):
        return load_video(
            source.source,
            num_frames=source.num_frames,
            fps=source.fps,
            indices=source.indices,
            limits=limits,
        )
    if isinstance(source, Image):
        return source
    return load_image(source, limits)


def load_image(source: Any, limits: Limits = DEFAULT_LIMITS) -> Image:
    """The image in a file (a path or its name), its bytes, base64, a data: or http(s) URL, a PIL
    image, an array [H, W] or [H, W, C] of uint8, uint16, bool or floats in [0, 1], or an `Image`.

    Raises:
        ValueError: it can't be used; with the reason.
    """
    if isinstance(source, Image) and not source.is_video:
        return source
    try:
        return Image((_picture(source, limits),))
    except ValueError as error:
        raise ValueError(f"image {shown(source)}: {error}") from error


def load_video(
    source: Any,
    *,
    num_frames: int | None = None,
    fps: float | None = None,
    indices: Sequence[int] | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Image:
    """The chosen frames of a video; the arguments are those of `Video`.

    Raises:
        ValueError: it can't be used, has no frames, or not those that are asked for.
    """
    try:
        choice = Choice(num_frames, fps, None if indices is None else tuple(indices))
        return Image(tuple(_frames(source, choice, limits)), is_video=True)
    except ValueError as error:
        raise ValueError(f"video {shown(source)}: {error}") from error


def shown(source: Any) -> str:
    """A source in the words of an error: short, whatever it is.

    >>> shown("cat.jpg"), shown(b"1234"), shown(np.zeros((2, 3, 3)))
    ("'cat.jpg'", '(4 bytes)', '(array of shape (2, 3, 3))')
    """
    match source:
        case bytes() | bytearray() | memoryview():
            return f"({len(source)} bytes)"
        case np.ndarray():
            return f"(array of shape {source.shape})"
        case list() | tuple():
            return f"({len(source)} frames)"
        case Path():
            return repr(str(source))
        case _:
            short = reprlib.Repr()
            short.maxstring = short.maxother = 80
            return short.repr(source)


def _picture(source: Any, limits: Limits) -> PIL.Image.Image:
    match source:
        case PIL.Image.Image():
            check_size(source, limits)
            return to_rgb(source)
        case np.ndarray():
            return from_array(source)
        case str() | Path() | bytes() | bytearray() | memoryview():
            data = read(find(_plain(source), limits), limits)
            if is_video_file(data[:HEAD]):
                raise ValueError("this is a video: give it as Video(...)")
            return to_rgb(open_picture(data, limits))
        case Image() | Video():
            raise ValueError("this is a video, and an image is needed")
        case _:
            raise ValueError(
                f"{type(source).__name__} is no image: give a path, bytes, a PIL image, an "
                "array, base64, a data: or http(s) URL; a list of frames is a Video(...)"
            )


def _frames(source: Any, choice: Choice, limits: Limits) -> list[PIL.Image.Image]:
    match source:
        case np.ndarray() if source.ndim != 4:
            raise ValueError("give an array [T, H, W, C], or a list of frames")
        case list() | tuple() | np.ndarray():
            return [load_image(source[i], limits).frames[0] for i in choice.of(len(source), None)]
        case str() | Path() | bytes() | bytearray() | memoryview():
            encoded = find(_plain(source), limits)
            if is_video_file(head(encoded, HEAD)):
                return file_frames(encoded, choice, limits)
            return animation_frames(read(encoded, limits), choice, limits)
        case _:
            raise ValueError(
                f"{type(source).__name__} is no video: give a path, bytes, base64, a data: or "
                "http(s) URL, a list of frames, or an array [T, H, W, C]"
            )


def _plain(source: str | Path | bytes | bytearray | memoryview) -> str | Path | bytes:
    return bytes(source) if isinstance(source, (bytearray, memoryview)) else source

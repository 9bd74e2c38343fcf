"""Write small video files by hand, so that tests need no encoder: JPEGs in an AVI."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from io import BytesIO

from PIL import Image


def avi(frames: Sequence[Image.Image], fps: int = 10) -> bytes:
    """A motion JPEG of the frames, which are all of one size."""
    width, height = frames[0].size
    jpegs = [_jpeg(frame) for frame in frames]
    largest = max(map(len, jpegs))
    movie, index = b"movi", b""
    for jpeg in jpegs:
        index += b"00dc" + struct.pack("<3I", 0x10, len(movie), len(jpeg))  # 0x10: a key frame
        movie += _chunk(b"00dc", jpeg)
    n = len(frames)
    main = struct.pack("<14I", 10**6 // fps, 0, 0, 0x10, n, 0, 1, largest, width, height, *[0] * 4)
    rate = (0, 0, 0, 0, 1, fps, 0, n, largest, 2**32 - 1, 0, 0, 0, width, height)
    stream = b"vidsMJPG" + struct.pack("<IHHIIIIIIII4H", *rate)
    bitmap = struct.pack("<IiiHH4sIiiII", 40, width, height, 1, 24, b"MJPG", 0, 0, 0, 0, 0)
    streams = _chunk(b"strh", stream) + _chunk(b"strf", bitmap)
    header = b"hdrl" + _chunk(b"avih", main) + _chunk(b"LIST", b"strl" + streams)
    parts = _chunk(b"LIST", header) + _chunk(b"LIST", movie) + _chunk(b"idx1", index)
    return _chunk(b"RIFF", b"AVI " + parts)


def animation(frames: Sequence[Image.Image], kind: str, **options: object) -> bytes:
    """A GIF, WEBP or PNG of the frames, without loss but for a GIF's palette."""
    file = BytesIO()
    if kind == "WEBP":
        options |= {"lossless": True}
    frames[0].save(file, kind, save_all=True, append_images=list(frames[1:]), **options)
    return file.getvalue()


def greys(*levels: int, size: tuple[int, int] = (32, 16)) -> list[Image.Image]:
    """Frames that can be told apart, whatever a codec does to colours."""
    return [Image.new("RGB", size, (level, level, level)) for level in levels]


def _jpeg(frame: Image.Image) -> bytes:
    file = BytesIO()
    frame.save(file, "JPEG", quality=95)
    return file.getvalue()


def _chunk(name: bytes, data: bytes) -> bytes:
    return name + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)

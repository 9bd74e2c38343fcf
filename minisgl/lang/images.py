"""A picture in a chat message, in OpenAI's format: a URL, or the picture itself as a data: URL."""

from __future__ import annotations

import base64
import io
from pathlib import Path
from typing import Any

from minisgl.lang.ir import Image, Video

_SIGNATURES = {
    b"\x89PNG": "image/png",
    b"\xff\xd8\xff": "image/jpeg",
    b"GIF8": "image/gif",
    b"RIFF": "image/webp",
}


def image_part(medium: Image | Video) -> dict[str, Any]:
    """The part of a message's content that shows `medium`.

    >>> image_part(Image("https://example.org/cat.png"))
    {'type': 'image_url', 'image_url': {'url': 'https://example.org/cat.png'}}

    Raises:
        ValueError: the file can't be read, or is of no known format.
    """
    if isinstance(medium, Video):
        return {"type": "video_url", "video_url": {"url": str(medium.path)}}
    return {"type": "image_url", "image_url": {"url": _url(medium.source)}}


def _url(source: Any) -> str:
    if isinstance(source, str) and source.startswith(("http://", "https://", "data:")):
        return source
    data = _bytes(source)
    for start, mime in _SIGNATURES.items():
        if data.startswith(start):
            return f"data:{mime};base64,{base64.b64encode(data).decode()}"
    raise ValueError(f"image {source!r}: not a PNG, JPEG, GIF or WebP file")


def _bytes(source: Any) -> bytes:
    match source:
        case bytes():
            return source
        case str() | Path():
            try:
                return Path(source).read_bytes()
            except OSError as error:
                raise ValueError(f"image {str(source)!r} can't be read: {error}") from error
        case _ if hasattr(source, "save"):  # PIL.Image
            file = io.BytesIO()
            source.save(file, format="PNG")
            return file.getvalue()
        case _:
            raise ValueError(f"image {source!r}: give a path, a URL, bytes or a PIL image")

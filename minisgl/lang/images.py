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
        return {"type": "video_url", "video_url": {"url": _video_url(medium)}}
    return {"type": "image_url", "image_url": {"url": _image_url(medium.source)}}


def _image_url(source: Any) -> str:
    match source:
        case str() if source.startswith(("http://", "https://", "data:")):
            return source
        case bytes():
            data = source
        case str() | Path():
            try:
                data = Path(source).read_bytes()
            except OSError as error:
                raise ValueError(f"image {str(source)!r} can't be read: {error}") from error
        case _:  # a PIL image, an array
            from minisgl.media import load_image  # not at the top: it waits for Pillow and NumPy

            file = io.BytesIO()
            load_image(source).frames[0].save(file, "PNG")
            return _data_url("image/png", file.getvalue())
    for start, mime in _SIGNATURES.items():
        if data.startswith(start):
            return _data_url(mime, data)
    raise ValueError(f"image {source!r}: not a PNG, JPEG, GIF or WebP file")


def _video_url(video: Video) -> str:
    match video.source:
        case str() | Path():  # by its name: whoever reads it chooses the frames
            return str(video.source)
        case bytes():
            return _data_url("video/mp4", video.source)
        case _:  # a list of frames, an array
            from minisgl.media import load_video

            frames = load_video(
                video.source, num_frames=video.num_frames, fps=video.fps, indices=video.indices
            ).frames
            if len({frame.size for frame in frames}) > 1:
                raise ValueError("frames of several sizes are no video for a message")
            file = io.BytesIO()
            frames[0].save(file, "WEBP", save_all=True, append_images=frames[1:], lossless=True)
            return _data_url("image/webp", file.getvalue())


def _data_url(mime: str, data: bytes) -> str:
    return f"data:{mime};base64,{base64.b64encode(data).decode()}"

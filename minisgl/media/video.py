"""The frames of a video: of an animated picture by Pillow, of a video file by decord."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path

import numpy as np
import PIL.Image

from minisgl.media.frames import DEFAULT_NUM_FRAMES, Choice, check_pixels
from minisgl.media.limits import Limits
from minisgl.media.rgb import in_words, open_picture, to_rgb
from minisgl.media.source import Encoded

DECODE_SECONDS = 300.0  # more than any video takes whose frames fit a context

# (where, bytes) that stand in the files decord is given.  A file is known by them and not just
# tried, since one of FFmpeg's formats is a list of other files and URLs to read.
_SIGNATURES = (
    ((4, b"ftyp"),),  # MP4, QuickTime, 3GP
    ((4, b"moov"),),
    ((0, b"\x1a\x45\xdf\xa3"),),  # Matroska, WebM
    ((0, b"RIFF"), (8, b"AVI ")),
    ((0, b"\x00\x00\x01\xba"),),  # MPEG program stream
    ((0, b"G"), (188, b"G")),  # MPEG transport stream
    ((0, b"FLV\x01"),),
    ((0, b"OggS"),),
    ((0, b"\x30\x26\xb2\x75\x8e\x66\xcf\x11"),),  # Windows Media
)
HEAD = 189  # so many bytes show all of them


def is_video_file(head: bytes) -> bool:
    """Whether a file that begins with `head` is one for decord.

    >>> is_video_file(b"RIFF....AVI LIST"), is_video_file(b"GIF89a"), is_video_file(b"#EXTM3U")
    (True, False, False)
    """
    return any(
        all(head[at : at + len(mark)] == mark for at, mark in marks) for marks in _SIGNATURES
    )


def file_frames(encoded: Encoded, choice: Choice, limits: Limits) -> list[PIL.Image.Image]:
    """The chosen frames of a video file, decoded by decord in a process of its own.

    Always from a file: decord's reader of bytes in memory dies of videos that are cut short.

    Raises:
        ValueError: decord is not installed, or the video is broken or has not these frames.
    """
    if importlib.util.find_spec("decord") is None:
        raise ValueError(
            "a video file needs the package decord (pip install decord), which has no wheel for "
            "every machine; a GIF or a list of frames needs none"
        )
    if isinstance(encoded, Path):
        return _decoded(encoded, choice, limits)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "video"
        file.write_bytes(encoded)
        return _decoded(file, choice, limits)


def _decoded(file: Path, choice: Choice, limits: Limits) -> list[PIL.Image.Image]:
    asked = {
        "path": os.path.abspath(file),  # so that no name is taken for a URL
        "choice": asdict(choice),
        "max_pixels": limits.max_pixels,
        "max_video_pixels": limits.max_video_pixels,
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "minisgl.media.decode_video"],
            input=json.dumps(asked).encode(),
            capture_output=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            timeout=DECODE_SECONDS,
        )
    except subprocess.TimeoutExpired as error:
        raise ValueError(f"not decoded within {DECODE_SECONDS:g} seconds") from error
    if done.returncode:
        last = done.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise ValueError(f"broken: its decoder died ({done.returncode}) {' '.join(last)}")
    end = done.stdout.index(b"\n")
    told = json.loads(done.stdout[:end])
    if "error" in told:
        raise ValueError(told["error"])
    shape = told["frames"], told["height"], told["width"], 3
    frames = np.frombuffer(done.stdout, dtype=np.uint8, offset=end + 1).reshape(shape)
    return [PIL.Image.fromarray(frame) for frame in frames]


def animation_frames(data: bytes, choice: Choice, limits: Limits) -> list[PIL.Image.Image]:
    """The chosen frames of a GIF, an animated WebP or PNG; a still picture has one.

    Raises:
        ValueError: no picture, a broken one, or one without these frames.
    """
    picture = open_picture(data, limits)
    with in_words():
        count = getattr(picture, "n_frames", 1)
        fps = _mean_fps(picture, count) if choice.fps is not None else None
    indices = choice.of(count, fps, DEFAULT_NUM_FRAMES)
    check_pixels(len(indices), picture.height, picture.width, limits.max_video_pixels)
    frames = {}
    for i in sorted(set(indices)):  # going back would decode from the first frame again
        with in_words():
            picture.seek(i)
        frames[i] = to_rgb(picture)
    return [frames[i] for i in indices]


def _mean_fps(picture: PIL.Image.Image, count: int) -> float | None:
    """Frames a second, over the whole animation; None: it says nothing of time."""
    milliseconds = 0.0
    for i in range(count):
        picture.seek(i)
        picture.load()  # subtle: of a WebP the time is known only then
        milliseconds += picture.info.get("duration", 0)
    return 1000 * count / milliseconds if milliseconds else None

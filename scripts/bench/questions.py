"""Questions about images and videos: from files, or about waves that are drawn here."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import PIL.Image

from minisgl import media
from scripts.bench.workloads.base import file_of

IMAGE_QUESTIONS = (
    "What is shown in this picture?",
    "Describe this photo in detail.",
    "What colors dominate the image?",
    "Is there a person in the image?",
    "What might happen next?",
)
VIDEO_QUESTIONS = (
    "What happens in this video?",
    "Who or what is moving?",
    "How does it end?",
    "Where was this filmed?",
    "Give the video a title.",
)
SIZES = ((512, 512), (640, 427), (300, 451), (336, 336), (800, 600), (427, 640))  # width, height
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")


@dataclass(frozen=True)
class Question:
    """About a file.

    frames: to look at, of a video; 0: it is an image.
    """

    file: Path
    text: str
    frames: int = 0

    @property
    def prompt(self) -> str:
        """As LLaVA was trained.

        >>> Question(Path("cat.png"), "Is it asleep?").prompt
        'USER: <image>\\nIs it asleep? ASSISTANT:'
        """
        return f"USER: <{'video' if self.frames else 'image'}>\n{self.text} ASSISTANT:"

    def load(self) -> media.Image:
        """What it is about, from the file's bytes."""
        if self.frames:
            return media.load_video(self.file, num_frames=self.frames)
        return media.load_image(self.file)


def read_questions(data: Path, files: int, each: int) -> list[Question]:
    """`each` questions about each of `files` pictures of a directory of data.

    Raises:
        ValueError: a file is missing; which one.
    """
    folder = file_of(data, "images")
    lines = file_of(data, "llava_bench/questions_local.jsonl").read_text(encoding="utf-8")
    texts: dict[str, list[str]] = {}
    for line in map(json.loads, lines.splitlines()):
        texts.setdefault(line["image"], []).append(line["text"])
    return [
        Question(file_of(folder, name), text)
        for name in list(texts)[:files]
        for text in texts[name][:each]
    ]


def about_images(folder: Path, files: int, each: int) -> list[Question]:
    """`each` questions about each of `files` pictures of usual sizes, which are put in `folder`."""
    paths = [folder / f"waves-{i}.png" for i in range(files)]
    for i, path in enumerate(paths):
        waves(*SIZES[i % len(SIZES)], i).save(path)
    return [Question(path, text) for path in paths for text in IMAGE_QUESTIONS[:each]]


def about_videos(folder: Path, files: int, each: int, frames: int) -> list[Question]:
    """`each` questions about each of `files` videos, which are put in `folder`; `frames` are looked
    at, of twice as many.  They are animations, so that no codec is needed."""
    paths = [folder / f"waves-{i}.webp" for i in range(files)]
    for i, path in enumerate(paths):
        first, *others = (waves(448, 336, i, shift=step / 4) for step in range(2 * frames))
        first.save(path, save_all=True, append_images=others, duration=125)
    return [Question(path, text, frames) for path in paths for text in VIDEO_QUESTIONS[:each]]


def waves(width: int, height: int, number: int, shift: float = 0.0) -> PIL.Image.Image:
    """A picture of coloured waves: another one for another number, moved on by `shift`."""
    y, x = np.mgrid[0:height, 0:width]
    layers = [
        np.sin(x / (9 + 7 * number + 5 * c) + y / (31 - 4 * number + 3 * c) + shift * (c + 1))
        for c in range(3)
    ]
    return PIL.Image.fromarray((127.5 + 127.5 * np.stack(layers, axis=-1)).astype(np.uint8))

"""What is shown in a conversation: the pictures and videos that its messages name.

{"role": "user", "content": [{"type": "image", "path": "cat.jpg"}, {"type": "text", ...}]}
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minisgl import media
    from minisgl.engine.engine import Engine

Message = dict[str, Any]
Part = dict[str, str]  # of a message, in transformers' format


class ChatMedia:
    """The pictures and videos of one conversation with an engine, each read once.

    Attributes:
        next: what goes with the next question.
    """

    def __init__(self, engine: Engine) -> None:
        self.next: list[Part] = []
        self._engine = engine
        self._read: dict[tuple[str, str], media.Image] = {}  # by kind and path

    def show(self, kind: str, path: str) -> str:
        """The next question is about this "image" or "video" too; what it is, for a notice.

        Raises:
            ValueError: the model can't see it, or the file can't be used.
        """
        part = {"type": kind, "path": path}
        shown = self._load(part)
        self.next.append(part)
        first, count = shown.frames[0], len(shown.frames)
        frames = f"{count} frames of " if shown.is_video else ""
        return f"{Path(path).name} ({frames}{first.width} x {first.height})"

    def of(self, messages: list[Message]) -> list[media.Image]:
        """All that the messages show, in order.

        Raises:
            ValueError: as `show`.
        """
        return [
            self._load(part)
            for message in messages
            if isinstance(message["content"], list)
            for part in message["content"]
            if part["type"] != "text"
        ]

    def _load(self, part: Part) -> media.Image:
        from minisgl import media  # here, so that --help does not wait for Pillow

        kind, path = part["type"], part["path"]
        reader = self._engine.door.image_reader
        if reader is None:
            raise ValueError(f"{path}: this model reads text only, and no {kind}s")
        if kind == "video" and reader.video_id is None:
            raise ValueError(f"{path}: this model reads text and images, and no videos")
        if (kind, path) not in self._read:
            load = media.load_video if kind == "video" else media.load_image
            self._read[kind, path] = load(path)
        return self._read[kind, path]

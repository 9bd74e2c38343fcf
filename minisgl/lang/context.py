"""`Context`: all that a stream has said so far, as one frozen value.

A primitive makes the next context of the last one, a fork hands its context to every branch, and a
backend is asked to go on from one.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from minisgl.chat_template import PLACEHOLDERS
from minisgl.lang.chat_format import ChatFormat
from minisgl.lang.images import image_part
from minisgl.lang.ir import Image, Video

if TYPE_CHECKING:
    from minisgl.lang.speculative import Ahead

Message = dict[str, Any]


@dataclass(frozen=True, eq=False)  # a picture may be an array, which has no plain ==
class Shown:
    """A picture or a video, and the characters [start, stop) of the text that stand for it."""

    medium: Image | Video
    start: int
    stop: int
    read: dict[str, Any] = field(default_factory=dict, repr=False)
    """Where a backend keeps what it has made of the medium, so that each is read once."""


@dataclass(frozen=True)
class Context:
    """The text of a stream, and what is known about it.

    >>> Context().say("Q: 1+1\\nA:").say(" 2").text
    'Q: 1+1\\nA: 2'
    """

    text: str = ""
    quoted: tuple[tuple[int, int], ...] = ()
    """Half-open spans of the text, in characters, that were said in a role.  A special token that
    stands there is ordinary text: nobody can end their own turn and speak as somebody else."""

    turns: tuple[Message, ...] = ()  # of the roles that have ended; pictures as they were given
    role: str | None = None  # who is speaking
    role_start: int = 0  # where they began, in the text
    chat: ChatFormat | None = None  # how they speak
    shown: tuple[Shown, ...] = ()
    namespace: str | None = None  # what its cached prefixes are shared within
    ahead: Ahead | None = None  # what the model has said already that may come after the text

    def say(self, text: str) -> Context:
        """`text` is appended."""
        if self.role is None or not text:
            return self._append(text)
        start, stop = len(self.text), len(self.text) + len(text)
        quoted = self.quoted
        if quoted and quoted[-1][1] == start:
            start, quoted = quoted[-1][0], quoted[:-1]
        return replace(self, text=self.text + text, quoted=(*quoted, (start, stop)))

    def show(self, medium: Image | Video) -> Context:
        """A picture or a video is appended."""
        kind = "video" if isinstance(medium, Video) else "image"
        said = self._append(self.chat.mark(kind) if self.chat else PLACEHOLDERS[kind])
        shown = Shown(medium, len(self.text), len(said.text))
        return replace(said, shown=(*self.shown, shown))

    def continued_by(self, other: Context, start: int) -> Context:
        """What `other` has said from `start` on is appended, quotes and all."""
        shift = len(self.text) - start
        spans = [(max(a, start) + shift, b + shift) for a, b in other.quoted if b > start]
        shown = [
            replace(each, start=each.start + shift, stop=each.stop + shift)
            for each in other.shown
            if each.start >= start
        ]
        return replace(
            self._append(other.text[start:]),
            quoted=(*self.quoted, *spans),
            shown=(*self.shown, *shown),
        )

    def begin_role(self, role: str, chat: ChatFormat) -> Context:
        """`role` begins to speak: what the model's template prints before its words."""
        said = self._append(chat.before((*self._roles, role)))
        return replace(said, role=role, role_start=len(said.text), chat=chat)

    def end_role(self, chat: ChatFormat) -> Context:
        """The role has spoken: what the template prints after its words; and a message."""
        assert self.role is not None
        said = self._append(chat.after((*self._roles, self.role)))
        turns = (*self.turns, self._turn())
        return replace(said, role=None, turns=turns, chat=None)

    def branched(self) -> Context:
        """As a branch begins: words that were drawn by chance are not two branches' at once."""
        if self.ahead is not None and self.ahead.sampling.temperature > 0:
            return replace(self, ahead=None)
        return self

    @property
    def words(self) -> str:
        """What the role that is speaking has said; "" outside of roles."""
        return self.text[self.role_start :] if self.role is not None else ""

    @property
    def before_role(self) -> Context:
        """Where the role that is speaking was about to begin its words."""
        start = self.role_start
        return replace(
            self,
            text=self.text[:start],
            quoted=tuple((a, min(b, start)) for a, b in self.quoted if a < start),
            shown=tuple(each for each in self.shown if each.start < start),
        )

    @property
    def media(self) -> tuple[Image | Video, ...]:
        """The pictures and videos, in the order of the text."""
        return tuple(each.medium for each in self.shown)

    @property
    def messages(self) -> tuple[Message, ...]:
        """Of the roles that have ended, in OpenAI's format.

        Raises:
            ValueError: a picture that can't be sent so; in words.
        """
        return tuple(map(_message, self.turns))

    @property
    def open_message(self) -> Message | None:
        """Of the role that is speaking, as far as it has spoken; None outside of roles."""
        return None if self.role is None else _message(self._turn())

    @property
    def _roles(self) -> tuple[str, ...]:
        return tuple(turn["role"] for turn in self.turns)

    def _append(self, text: str) -> Context:
        return replace(self, text=self.text + text)

    def _turn(self) -> Message:
        """What the role that is speaking has said: its words, or words and pictures in order."""
        parts: list[str | Image | Video] = []
        at = self.role_start
        for each in self.shown:
            if each.start >= self.role_start:
                parts += [self.text[at : each.start], each.medium]
                at = each.stop
        parts.append(self.text[at:])
        first, *rest = parts
        assert isinstance(first, str)
        if not rest:
            return {"role": self.role, "content": first.lstrip()}
        return {"role": self.role, "content": [part for part in (first.lstrip(), *rest) if part]}


def _message(turn: Message) -> Message:
    """The turn in OpenAI's format."""
    if isinstance(turn["content"], str):
        return turn
    parts: list[dict[str, Any]] = []
    for said in turn["content"]:
        match said:
            case str():
                parts.append({"type": "text", "text": said})
            case Image() | Video():
                parts.append(image_part(said))
            case _:  # a part already
                parts.append(said)
    return {**turn, "content": parts}

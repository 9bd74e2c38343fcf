"""`Context`: all that a stream has said so far, as one frozen value.

A primitive makes the next context of the last one, a fork hands its context to every branch, and a
backend is asked to go on from one.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from minisgl.lang.chat_format import ChatFormat
from minisgl.lang.images import image_part
from minisgl.lang.ir import Image, Video

if TYPE_CHECKING:
    from minisgl.lang.speculative import Ahead

Message = dict[str, Any]
IMAGE = "<image>"  # where a picture stands in the text


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

    messages: tuple[Message, ...] = ()  # of the roles that have ended
    role: str | None = None  # who is speaking
    role_start: int = 0  # where they began, in the text
    media: tuple[Image | Video, ...] = ()
    media_start: int = 0  # how many of them were there when the role began
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
        return replace(self._append(IMAGE), media=(*self.media, medium))

    def continued_by(self, other: Context, start: int) -> Context:
        """What `other` has said from `start` on is appended, quotes and all."""
        shift = len(self.text) - start
        spans = [(max(a, start) + shift, b + shift) for a, b in other.quoted if b > start]
        return replace(
            self._append(other.text[start:]),
            quoted=(*self.quoted, *spans),
            media=self.media + other.media[len(self.media) :],
        )

    def begin_role(self, role: str, chat: ChatFormat) -> Context:
        """`role` begins to speak: what the model's template prints before its words."""
        said = self._append(chat.before((*self._roles, role)))
        return replace(said, role=role, role_start=len(said.text), media_start=len(self.media))

    def end_role(self, chat: ChatFormat) -> Context:
        """The role has spoken: what the template prints after its words; and a message."""
        assert self.role is not None
        said = self._append(chat.after((*self._roles, self.role)))
        message = self._message(self.text[self.role_start :].lstrip())
        return replace(said, role=None, messages=(*self.messages, message))

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
            media=self.media[: self.media_start],
        )

    @property
    def open_message(self) -> Message | None:
        """Of the role that is speaking, as far as it has spoken; None outside of roles."""
        return None if self.role is None else self._message(self.words)

    @property
    def _roles(self) -> tuple[str, ...]:
        return tuple(message["role"] for message in self.messages)

    def _append(self, text: str) -> Context:
        return replace(self, text=self.text + text)

    def _message(self, words: str) -> Message:
        """In OpenAI's format."""
        shown = self.media[self.media_start :]
        if not shown:
            return {"role": self.role, "content": words}
        parts = [{"type": "text", "text": words.replace(IMAGE, "")}]
        return {"role": self.role, "content": parts + [image_part(medium) for medium in shown]}

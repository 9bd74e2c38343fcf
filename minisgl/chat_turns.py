"""A conversation with an engine: `Chat` keeps it, asks, and prints answers as they come.

Every turn sends the whole conversation again, by the model's own template; the radix cache is what
makes that cheap.  Nothing is ever dropped from a conversation in silence: one that outgrows the
context says so.
"""

from __future__ import annotations

import io
import statistics
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

from minisgl.chat_media import ChatMedia, Message
from minisgl.sampling import SamplingParams

if TYPE_CHECKING:
    from minisgl.engine.engine import Engine
    from minisgl.engine.output import Completion
    from minisgl.engine.prompt import Prompt


@dataclass(frozen=True)
class Turn:
    """What one answer took.  Tokens; seconds."""

    prompt_tokens: int
    cached_tokens: int | None  # None: stopped before the engine said
    new_tokens: int
    first_token_s: float
    decode_s: float
    removed: float | None = None  # by a pattern: the mean share of the distribution

    def __str__(self) -> str:
        cached = "" if self.cached_tokens is None else f" ({self.cached_tokens} cached)"
        line = f"{self.prompt_tokens} prompt tokens{cached}, {self.new_tokens} new"
        if self.new_tokens:
            line += f"; the first after {self.first_token_s:.2f} s"
        if self.new_tokens > 1 and self.decode_s > 0:
            line += f", then {(self.new_tokens - 1) / self.decode_s:.1f} tokens/s"
        if self.removed is not None:
            line += f"; the pattern removed {self.removed:.0%} of the distribution"
        return line


class Chat:
    """One conversation with one engine.

    Args:
        engine: a running engine, whose model has a chat template.
        params: how to sample.
        system: the system message.
        out: where answers go, and what commands show.
        notices: where everything else goes.
        verbose: after each answer, say what it took.

    Attributes:
        messages: the conversation so far, the system message among them.
        shown: its pictures and videos, and those that go with the next question.
        last: what the last answer took.
    """

    def __init__(
        self,
        engine: Engine,
        params: SamplingParams,
        *,
        system: str | None = None,
        out: TextIO | None = None,
        notices: TextIO | None = None,
        verbose: bool = False,
    ) -> None:
        self.engine = engine
        self.params = params
        self.messages: list[Message] = []
        self.shown = ChatMedia(engine)
        self.last: Turn | None = None
        self.verbose = verbose
        self._out = out or sys.stdout
        self._notices = notices or sys.stderr
        self.system = system

    @property
    def system(self) -> str | None:
        """The system message, which stands first."""
        if self.messages and self.messages[0]["role"] == "system":
            return str(self.messages[0]["content"])
        return None

    @system.setter
    def system(self, text: str | None) -> None:
        if self.system is not None:
            self.messages.pop(0)
        if text is not None:
            self.messages.insert(0, {"role": "system", "content": text})

    def start(self, messages: list[Message]) -> None:
        """Begin anew, or go on with these messages.

        Raises:
            ValueError: what they show can't be seen, or not be read; nothing has changed.
        """
        shown = ChatMedia(self.engine)
        shown.of(messages)
        self.messages, self.shown = messages, shown

    def answer(self, text: str) -> Completion | None:
        """Say `text` to the model and print what it says.  None if Ctrl-C stopped it.

        A question that gets no answer at all is taken out of the conversation again; what was
        shown with it goes with the next one.

        Raises:
            ValueError: the template or the engine refuses the conversation, or it is too long.
            EngineError: the engine failed.
        """
        shown = self.shown.next
        content = [*shown, {"type": "text", "text": text}] if shown else text
        self.messages.append({"role": "user", "content": content})
        said = io.StringIO()
        try:
            completion = self._stream(self._prompt(), said)
        finally:
            if said.getvalue():
                self.shown.next = []
                self.messages.append({"role": "assistant", "content": said.getvalue()})
                if not said.getvalue().endswith("\n"):
                    self.say("")
            else:
                self.messages.pop()
        taken_back = "" if said.getvalue() else "; the question is taken back"
        if completion is None:
            self.note("stopped" + taken_back)
        elif taken_back:
            self.note("no answer" + taken_back)
        elif completion.finish_reason == "length":
            self.note(self._why_it_ends(completion))
        if self.verbose:
            self.note(str(self.last))
        return completion

    def _prompt(self) -> list[int] | Prompt:
        """The whole conversation."""
        from minisgl.engine.prompt import Prompt  # here, so that --help does not wait for torch

        ids = self.engine.chat_template.encode(self.messages, self.engine.door.encoder)
        context = self.engine.context_length
        if len(ids) >= context:
            raise ValueError(
                f"the conversation has {len(ids)} tokens now, and the context holds {context}, "
                "the answer included: /reset starts a new one (/save FILE keeps this one)"
            )
        images = self.shown.of(self.messages)
        return Prompt(ids, images) if images else ids

    def _stream(self, prompt: list[int] | Prompt, said: io.StringIO) -> Completion | None:
        """Print an answer as it comes, keep it in `said`, and measure it."""
        completion: Completion | None = None
        new, start = 0, time.perf_counter()
        first = last = start
        pieces = None
        try:
            pieces = self.engine.stream(prompt, self.params)
            for chunk in pieces:
                last = time.perf_counter()
                first = last if new == 0 else first
                new += len(chunk.token_ids)
                completion = chunk.completion
                said.write(chunk.text)
                self._out.write(chunk.text)
                self._out.flush()
        except KeyboardInterrupt:
            completion = None
        finally:
            if pieces is not None:
                pieces.close()  # frees the request's slots at the next step
        cached = completion.cached_tokens if completion else None
        ids = prompt if isinstance(prompt, list) else prompt.text
        size = completion.prompt_tokens if completion else len(ids)
        removed = (
            statistics.fmean(completion.removed) if completion and completion.removed else None
        )
        self.last = Turn(size, cached, new, first - start, last - first, removed)
        return completion

    def _why_it_ends(self, completion: Completion) -> str:
        new = completion.completion_tokens
        if self.params.max_tokens is not None and new >= self.params.max_tokens:
            return f"cut off after max_tokens={self.params.max_tokens}"
        return (
            f"the context is full: {completion.prompt_tokens} tokens of conversation and {new} of "
            f"answer, of {self.engine.context_length}; /reset starts a new one"
        )

    def say(self, text: str) -> None:
        """Print a line where answers go."""
        print(text, file=self._out, flush=True)

    def note(self, text: str) -> None:
        """Print a line beside them."""
        print(f"[{text}]", file=self._notices, flush=True)

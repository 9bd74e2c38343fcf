"""What a caller gets back: `Completion`, and `Chunk` while it streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "abort"]


@dataclass(frozen=True)
class Completion:
    """A finished request.

    finish_reason: "stop" (EOS, a stop id or a stop string: `stop_match` says which), "length"
    (max_tokens, the context or the whole KV pool is full), "abort" (the caller left).
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop_match: str | int | None
    prompt_tokens: int
    cached_tokens: int  # of the prompt, found in the radix cache
    completion_tokens: int
    request_id: int = 0
    index: int = 0  # among the n answers to one prompt


@dataclass(frozen=True)
class Chunk:
    """A piece of a stream.  `text` only ever adds to what came before; the last piece has a
    `completion`."""

    text: str
    token_ids: list[int]
    completion: Completion | None = None

    @property
    def finish_reason(self) -> FinishReason | None:
        """None until the last piece."""
        return self.completion.finish_reason if self.completion else None

"""What a caller gets back: `Completion`, and `Chunk` while it streams; `Score` from `score`; or an
`EngineError`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

FinishReason = Literal["stop", "length", "abort"]


class EngineError(RuntimeError):
    """The engine, or one request in it, failed, or the engine is closed."""


@dataclass(frozen=True)
class TokenLogprob:
    """How likely a token was where it stands, and the likeliest tokens there.

    Natural logarithms of the model's own distribution (see `SamplingParams.logprobs`); -inf is a
    value that may occur.  Tokens are ids, not texts: two halves of a character have one text.
    """

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()  # (id, logprob), likeliest first


@dataclass(frozen=True)
class Completion:
    """A finished request.

    finish_reason: "stop" (EOS, a stop id or a stop string: `stop_match` says which, and is None
    where a pattern left nothing more to say), "length" (max_tokens, the context or the whole KV
    pool is full), "abort" (the caller left).
    """

    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    stop_match: str | int | None
    prompt_tokens: int  # those of images included
    cached_tokens: int  # of the prompt, found in the radix cache
    completion_tokens: int
    request_id: int = 0
    index: int = 0  # among the n answers to one prompt
    forward_passes: int = 0  # that gave a token; fewer than tokens where a pattern forced some
    logprobs: list[TokenLogprob] | None = None  # of token_ids, one each; None: not asked for
    prompt_logprobs: list[TokenLogprob | None] | None = None
    """Of the prompt's ids from `prompt_logprobs_from` on; the first of all has None, and so has the
    placeholder of an image, which counts as one here (and as its tokens in `prompt_tokens`)."""
    removed: list[float] | None = None
    """How much of the distribution the pattern took away, in [0, 1], at each token that the model
    chose (after penalties, before temperature); None: no pattern.  Much means that the model wanted
    to say something else (paper, appendix B.3)."""


@dataclass(frozen=True)
class Score:
    """How likely a continuation is after its prompt.

    token_ids: the scored tokens: those of prompt and continuation together, from the first that is
    not one of the prompt alone (see `Engine.score`).
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]  # natural logarithms, one for each of token_ids

    @property
    def sum(self) -> float:
        """Log-probability of the continuation as a whole."""
        return sum(self.logprobs)

    @property
    def mean(self) -> float:
        """Per token, so that a long continuation may win too."""
        return self.sum / len(self.logprobs)


@dataclass(frozen=True)
class Chunk:
    """A piece of a stream.  `text` only ever adds to what came before; the last piece has a
    `completion`."""

    text: str
    token_ids: list[int]
    completion: Completion | None = None
    logprobs: list[TokenLogprob] | None = None  # of token_ids, one each; None: not asked for

    @property
    def finish_reason(self) -> FinishReason | None:
        """None until the last piece."""
        return self.completion.finish_reason if self.completion else None

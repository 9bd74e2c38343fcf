"""`Backend`: what the language asks of a model, wherever it runs.

    generate, stream    go on from a context
    score               how likely each of some choices is after a context; `select` decides by it
    cache_prefix        compute a context that others will begin with

The methods are coroutines: a stream waits for a model without a thread.  A backend raises what goes
wrong, and the interpreter takes it to whoever reads.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from minisgl.lang.chat_format import ChatFormat
from minisgl.lang.choices import ChoicesDecision, Tokens, draw
from minisgl.lang.context import Context
from minisgl.lang.ir import Select
from minisgl.sampling import SamplingParams


@dataclass(frozen=True)
class Answer:
    """What was generated, or a piece of it.

    meta: what `get_meta_info` of the variable shows.
    """

    text: str
    meta: dict[str, Any] = field(default_factory=dict)


class Backend(ABC):
    """A model that continues texts."""

    needs_roles = False
    """Whether it understands conversations only, so that text outside roles can't be sent to it."""

    can_continue = True
    """Whether it goes on with words that the assistant has begun; if not, it only answers."""

    tells_tokens = False
    """Whether an answer comes with its tokens, if `logprobs` are asked for (speculative.py)."""

    can_see = False
    """Whether it takes images and videos."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Of the model, for messages to people."""

    @property
    @abstractmethod
    def chat(self) -> ChatFormat:
        """How the model's conversations are laid out; ValueError if it is no chat model."""

    @abstractmethod
    async def generate(self, context: Context, params: SamplingParams) -> list[Answer]:
        """`params.n` answers.  Cancelling it aborts them."""

    async def generate_all(
        self, contexts: Sequence[Context], params: Sequence[SamplingParams]
    ) -> list[list[Answer]]:
        """`generate` for each, all together."""
        return await asyncio.gather(*map(self.generate, contexts, params))

    @abstractmethod
    def stream(self, context: Context, params: SamplingParams) -> AsyncIterator[Answer]:
        """One answer, piece by piece: the texts join to it, the last meta is that of the whole."""

    async def score(
        self, context: Context, choices: Sequence[str], *, unconditional: bool
    ) -> tuple[list[Tokens], list[Tokens] | None]:
        """The tokens of each choice after `context`, and if asked for, of each choice alone."""
        raise ValueError(f"{self.name} can't score choices, which select asks for")

    async def select(self, context: Context, node: Select) -> ChoicesDecision:
        """Decide among `node.choices`; one alone needs no model.

        A method of the program's own may take its time, so it is not called on the event loop.
        """
        if len(node.choices) == 1:
            return ChoicesDecision(node.choices[0])
        inside, alone = await self.score(
            context, node.choices, unconditional=node.method.requires_unconditional_logprobs
        )
        return await asyncio.to_thread(decide, node, inside, alone)

    async def cache_prefix(self, context: Context) -> None:  # noqa: B027  # may do nothing
        """Compute `context` and keep it, since others will begin with it.  Here: nothing, for a
        model that keeps nothing."""

    def flush_cache(self) -> bool:
        """Forget every cached prefix; False where that is not possible now, or at all."""
        return False

    def info(self) -> dict[str, Any]:
        """What the backend tells about itself."""
        return {"model": self.name}


def decide(node: Select, inside: list[Tokens], alone: list[Tokens] | None) -> ChoicesDecision:
    """By the select's own method, from the log-probabilities of its choices' tokens."""
    decision = node.method(
        choices=node.choices,
        normalized_prompt_logprobs=[sum(t[0] for t in ts) / len(ts) for ts in inside],
        input_token_logprobs=inside,
        output_token_logprobs=[[] for _ in inside],
        unconditional_token_logprobs=alone,
    )
    choice = draw(decision, node.choices, node.temperature, node.seed)
    return ChoicesDecision(choice, decision.meta_info, decision.scores)

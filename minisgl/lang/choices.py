"""How `select` decides, from the log-probabilities of its choices' tokens.

    token_length_normalized              the highest mean
    greedy_token_selection               token by token, the choices that go on likeliest stay
    unconditional_likelihood_normalized  the highest mean of what the context adds: log p(choice |
                                         context) - log p(choice)

The first is fair to long choices, but a long word whose end follows from its beginning gains by it;
the second is how greedy decoding would have chosen; the third asks what the context says for a
choice, and not how common the choice is.  Of equal choices the first wins, always.

A token is [log-probability, id, text or None], as in the server's replies.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

Tokens = Sequence[Sequence[Any]]  # of one choice


@dataclass(frozen=True)
class ChoicesDecision:
    """What was decided.

    meta_info: what `get_meta_info` of the variable shows.
    scores: of each choice, the highest was taken; None: the method has no such numbers.
    """

    decision: str
    meta_info: dict[str, Any] = field(default_factory=dict)
    scores: Sequence[float] | None = None


class ChoicesSamplingMethod(ABC):
    """A way of deciding; a program may bring its own."""

    @property
    def requires_unconditional_logprobs(self) -> bool:
        """Whether it asks how likely the choices are without any context, too."""
        return False

    @abstractmethod
    def __call__(
        self,
        *,
        choices: Sequence[str],
        normalized_prompt_logprobs: Sequence[float],
        input_token_logprobs: Sequence[Tokens],
        output_token_logprobs: Sequence[Tokens],
        unconditional_token_logprobs: Sequence[Tokens] | None = None,
    ) -> ChoicesDecision:
        """Decide.

        Args:
            choices: their texts; the other arguments have an item for each.
            normalized_prompt_logprobs: the mean log-probability of its tokens.
            input_token_logprobs: its tokens.
            output_token_logprobs: tokens generated after it: none, with minisgl's engine.
            unconditional_token_logprobs: its tokens without context, if they are required; the
                first may have None for a log-probability, as nothing comes before it.
        """


class TokenLengthNormalized(ChoicesSamplingMethod):
    """The choice whose tokens are likeliest on average."""

    def __call__(
        self,
        *,
        choices: Sequence[str],
        normalized_prompt_logprobs: Sequence[float],
        input_token_logprobs: Sequence[Tokens],
        output_token_logprobs: Sequence[Tokens],
        unconditional_token_logprobs: Sequence[Tokens] | None = None,
    ) -> ChoicesDecision:
        """See `ChoicesSamplingMethod`."""
        meta = _meta(normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs)
        best = _argmax(normalized_prompt_logprobs)
        return ChoicesDecision(choices[best], meta, normalized_prompt_logprobs)


class GreedyTokenSelection(ChoicesSamplingMethod):
    """Token by token, the choices whose token is likeliest stay, until one is left.

    One that ends before the others is carried on with its own mean.
    """

    def __call__(
        self,
        *,
        choices: Sequence[str],
        normalized_prompt_logprobs: Sequence[float],
        input_token_logprobs: Sequence[Tokens],
        output_token_logprobs: Sequence[Tokens],
        unconditional_token_logprobs: Sequence[Tokens] | None = None,
    ) -> ChoicesDecision:
        """See `ChoicesSamplingMethod`."""
        logprobs = [[token[0] for token in tokens] for tokens in input_token_logprobs]
        longest = max(map(len, logprobs))
        matrix = [row + [_mean(row)] * (longest - len(row)) for row in logprobs]
        remaining = list(range(len(choices)))
        for j in range(longest):
            best = max(matrix[i][j] for i in remaining)
            remaining = [i for i in remaining if matrix[i][j] == best]
        meta = _meta(normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs)
        meta["greedy_logprob_matrix"] = matrix
        return ChoicesDecision(choices[remaining[0]], meta)


class UnconditionalLikelihoodNormalized(ChoicesSamplingMethod):
    """The choice that the context makes more likely than it is by itself, per token."""

    @property
    def requires_unconditional_logprobs(self) -> bool:
        """It does."""
        return True

    def __call__(
        self,
        *,
        choices: Sequence[str],
        normalized_prompt_logprobs: Sequence[float],
        input_token_logprobs: Sequence[Tokens],
        output_token_logprobs: Sequence[Tokens],
        unconditional_token_logprobs: Sequence[Tokens] | None = None,
    ) -> ChoicesDecision:
        """See `ChoicesSamplingMethod`."""
        if unconditional_token_logprobs is None:
            raise ValueError("unconditional_token_logprobs=None: this method needs them")
        gains = [
            _mean([inside[0] - (alone[0] or 0.0) for inside, alone in zip(a, b, strict=True)])
            for a, b in zip(input_token_logprobs, unconditional_token_logprobs, strict=True)
        ]
        meta = _meta(normalized_prompt_logprobs, input_token_logprobs, output_token_logprobs)
        meta["unconditional_token_logprobs"] = unconditional_token_logprobs
        meta["normalized_unconditional_prompt_logprobs"] = gains
        return ChoicesDecision(choices[_argmax(gains)], meta, gains)


token_length_normalized = TokenLengthNormalized()
greedy_token_selection = GreedyTokenSelection()
unconditional_likelihood_normalized = UnconditionalLikelihoodNormalized()


def draw(
    decision: ChoicesDecision, choices: Sequence[str], temperature: float, seed: int | None
) -> str:
    """The decision itself at temperature 0; above it, a choice drawn by softmax(scores / it).

    Raises:
        ValueError: the method that decided has no scores to draw by.
    """
    if temperature == 0:
        return decision.decision
    if decision.scores is None:
        raise ValueError(
            f"temperature={temperature}: this choices_method ranks its choices without scores to "
            "draw by; give 0, or another method"
        )
    best = max(decision.scores)
    weights = [math.exp((score - best) / temperature) for score in decision.scores]
    return random.Random(seed).choices(choices, weights)[0]


def _meta(
    means: Sequence[float], inputs: Sequence[Tokens], outputs: Sequence[Tokens]
) -> dict[str, Any]:
    return {
        "normalized_prompt_logprobs": means,
        "input_token_logprobs": inputs,
        "output_token_logprobs": outputs,
    }


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _argmax(values: Sequence[float]) -> int:
    return max(range(len(values)), key=values.__getitem__)  # the first of equals

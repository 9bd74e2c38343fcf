"""What a run of a program has taken: calls, tokens, and what they cost.

    state.usage().saved_calls                      calls that speculation made needless
    state.usage().cost({"gpt-4o": Price(2.5, 10)}) dollars

Counted twice: as it was, and as it would have been gen by gen, without speculation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

PER_TOKENS = 1_000_000  # prices are for so many


@dataclass(frozen=True)
class Price:
    """Of a model: dollars for a million tokens.  cached: of the prompt's; None: as the others."""

    prompt: float
    completion: float
    cached: float | None = None


@dataclass(frozen=True)
class Tally:
    """Calls of a model, and their tokens.

    >>> Tally(1, 10, 0, 3) + Tally(1, 20, 10, 4)
    Tally(calls=2, prompt_tokens=30, cached_tokens=10, completion_tokens=7)
    """

    calls: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0  # of those of the prompts, as far as the model tells
    completion_tokens: int = 0

    def __add__(self, other: Tally) -> Tally:
        return Tally(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(Tally)))

    @staticmethod
    def of_call(meta: Mapping[str, Any], *others: Mapping[str, Any]) -> Tally:
        """One call, by the meta data of its answers.

        With `n` answers the prompt counts once.  An API that tells only the sum of their tokens
        has it in each meta's "usage".
        """
        told = meta.get("usage")
        metas = [told] if told is not None else [meta, *others]
        return Tally(
            1,
            metas[0].get("prompt_tokens") or 0,
            metas[0].get("cached_tokens") or 0,
            sum(m.get("completion_tokens") or 0 for m in metas),
        )

    def cost(self, price: Price) -> float:
        """In dollars."""
        cached = price.prompt if price.cached is None else price.cached
        total = (
            (self.prompt_tokens - self.cached_tokens) * price.prompt
            + self.cached_tokens * cached
            + self.completion_tokens * price.completion
        )
        return total / PER_TOKENS


@dataclass(frozen=True)
class Usage:
    """What a run has taken, all its branches together.

    spent: what the model was asked, and what an API takes money for.  A select that compares is a
        call without tokens, except on an API, which counts them.
    without: what it would have been, had every gen made its own call.  That of gens which made none
        is exact where the API tells the tokens of its answers, and in proportion where not.
    """

    model: str = ""
    spent: Tally = Tally()
    without: Tally = Tally()

    @property
    def saved_calls(self) -> int:
        """Calls that were not needed; below 0 if speculation was in vain."""
        return self.without.calls - self.spent.calls

    @property
    def saved_prompt_tokens(self) -> int:
        """Tokens of prompts that were not sent."""
        return self.without.prompt_tokens - self.spent.prompt_tokens

    @property
    def extra_completion_tokens(self) -> int:
        """Tokens that the model wrote, and no gen was the answer."""
        return self.spent.completion_tokens - self.without.completion_tokens

    def cost(self, prices: Mapping[str, Price]) -> float:
        """In dollars, by a table of prices.

        Raises:
            ValueError: the model is not in the table.
        """
        return self.spent.cost(self._price(prices))

    def cost_without(self, prices: Mapping[str, Price]) -> float:
        """What it would have cost without speculation; errors as `cost`."""
        return self.without.cost(self._price(prices))

    def __add__(self, other: Usage) -> Usage:
        """Of both, on one model: `sum((s.usage() for s in states), Usage())`."""
        models = {self.model, other.model} - {""}
        if len(models) > 1:
            raise ValueError(f"usage of different models can't be added: {sorted(models)}")
        return Usage(
            self.model or other.model, self.spent + other.spent, self.without + other.without
        )

    def _price(self, prices: Mapping[str, Price]) -> Price:
        if self.model not in prices:
            raise ValueError(f"no price of {self.model!r}; the table has {sorted(prices)}")
        return prices[self.model]

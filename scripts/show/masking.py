"""What a mask does to the distribution, choice by choice (paper, appendix B.3).

    python -m scripts.show.masking
    python -m scripts.show.masking --regex "yes|no" "Is water wet?" "Is water wet? Say yes or no."

A mask keeps the tokens that the pattern allows and shares out the rest's probability among them.
Where it removes little, the answer is the model's own.  Where it removes nearly all, the model
wanted to say something else, and what it says now is what it would hardly have said: the form is
right, and the content is worth less.  The remedy is to ask for the form in words as well.

One table for each prompt: what was written before the model had a choice, what it chose, what it
would have liked best, and the share that was removed.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from unittest.mock import patch

import torch

from minisgl import Completion, Engine, SamplingParams
from minisgl.engine import loop
from minisgl.engine.req import Req
from minisgl.engine.sampler import sample_rows

WORD = "[A-Z][a-z]{1,12}"
CITY = rf'\{{"city": "{WORD}", "country": "{WORD}", "river": "{WORD}"\}}'
PLAIN = "Tell me about Paris."
ASKS = (
    PLAIN + ' Answer with a JSON object in one line, like {"city": "Rome", "country": "Italy", '
    '"river": "Tiber"}, and nothing else.'
)


@dataclass(frozen=True)
class Choice:
    """One token that the model chose under a mask.

    before: the answer so far.
    chosen, favourite: texts: what came, and what would have come without the mask.
    likely: how likely the favourite was.
    removed: how much of the distribution the mask took away.
    """

    before: str
    chosen: str
    favourite: str
    likely: float
    removed: float


def choices(engine: Engine, prompt: str, params: SamplingParams) -> tuple[Completion, list[Choice]]:
    """The answer to one prompt, by the chat's template, and each choice that it is made of.

    It looks over the engine's shoulder, so nobody else may be asking.

    Raises:
        ValueError: `params` have no pattern, or one that can't be used.
    """
    if params.regex is None and params.json_schema is None:
        raise ValueError("give a regex or a json_schema: without one nothing is removed")
    made: list[Choice] = []

    def text(ids: Sequence[int]) -> str:
        return engine.tokenizer.decode(ids, skip_special_tokens=False)

    def watched(logits: torch.Tensor, reqs: Sequence[Req]) -> list[int]:
        constraint = reqs[0].constraint
        assert len(reqs) == 1 and constraint is not None
        likely, favourite = torch.softmax(logits[0].float(), dim=-1).max(dim=-1)
        known = len(constraint.removed)
        ids = sample_rows(logits, reqs)
        if len(constraint.removed) > known:
            before, wanted = text(reqs[0].output_ids), text([int(favourite)])
            removed = constraint.removed[-1]
            made.append(Choice(before, text(ids), wanted, float(likely), removed))
        return ids

    turns = [{"role": "user", "content": prompt}]
    with patch.object(loop, "sample_rows", watched):
        ids = engine.chat_template.encode(turns, engine.tokenizer)
        done = engine.generate(ids, params)
    assert isinstance(done, Completion)
    return done, made


def table(made: Sequence[Choice]) -> str:
    """A line for each choice.

    >>> at_a = Choice('{"a": ', "1", "1", likely=0.6, removed=0.0625)
    >>> print(table([Choice("", "{", "Paris", likely=0.81, removed=0.97), at_a]))
    written before         chosen       instead of   (likely)  removed
    ''                     '{'          'Paris'           81%    97.0%  ##########
    '{"a": '               '1'                            60%     6.2%  #
    """
    head = f"{'written before':22} {'chosen':12} {'instead of':12} (likely)  removed"
    lines = [head]
    for c in made:
        before = c.before if len(c.before) <= 18 else "…" + c.before[-17:]
        instead = "" if c.favourite == c.chosen else repr(c.favourite)
        bar = "#" * round(10 * c.removed)
        line = f"{before!r:22} {c.chosen!r:12} {instead:12} {c.likely:8.0%} {c.removed:8.1%}  {bar}"
        lines.append(line.rstrip())
    return "\n".join(lines)


def mean(made: Sequence[Choice]) -> float:
    """What was removed, on average; 0 if there was no choice."""
    return statistics.fmean(c.removed for c in made) if made else 0.0


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("prompts", nargs="*", default=[PLAIN, ASKS], help="one table for each")
    parser.add_argument("--regex", default=CITY)
    parser.add_argument("--model", default=None)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--max-tokens", type=int, default=200)
    args = parser.parse_args(argv)
    params = SamplingParams(temperature=0.0, max_tokens=args.max_tokens, regex=args.regex)
    with Engine(args.model, dtype=args.dtype) as engine:
        for prompt in args.prompts:
            done, made = choices(engine, prompt, params)
            print(f"{prompt}\n  {done.text}\n\n{table(made)}")
            print(f"\nRemoved on average: {mean(made):.1%}\n")


if __name__ == "__main__":
    main()

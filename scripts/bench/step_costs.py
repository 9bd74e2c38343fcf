"""What a step of the engine takes here: a + b · tokens to prefill + c · requests that decode.

`measure` runs prompts of several lengths in batches of several sizes, nothing of them cached, and
`fit` finds a, b and c from the steps that this took.  For `python -m scripts.bench.simulate
--calibrate MODEL`.  What the three numbers leave out, above all that attention to a long context
takes longer, is in the error that the fit reports.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from minisgl import Engine, SamplingParams
from scripts.bench.steps import StepRecord, Steps

LENGTHS, BATCHES, NEW = (16, 64, 256), (1, 4, 16), 8


@dataclass(frozen=True)
class Fit:
    """Seconds: of any step, for each token to prefill, for each request that decodes.

    steps: it was made from.
    error, worst: the median and the 95th percentile of what it is off by, relative to the step.
    """

    step: float
    prefill_token: float
    decode_request: float
    steps: int
    error: float
    worst: float

    def __str__(self) -> str:
        return (
            f"a step takes {1e3 * self.step:.3g} ms + {1e6 * self.prefill_token:.3g} us for each "
            f"token to prefill + {1e3 * self.decode_request:.3g} ms for each request that decodes; "
            f"fitted to {self.steps} steps, half of which it meets within {self.error:.0%}, and 95 "
            f"of 100 within {self.worst:.0%}"
        )


def fit(records: Sequence[StepRecord]) -> Fit:
    """The costs, none of them negative, with the least squares of the relative errors.

    Raises:
        ValueError: the steps are too much alike to tell the three costs apart.
    """
    amounts = np.array([(1, r.prefilled, r.decoding) for r in records], dtype=float)  # [N, 3]
    seconds = np.array([r.seconds for r in records])  # [N]
    if len(records) < 3 or np.linalg.matrix_rank(amounts) < 3:
        raise ValueError(f"{len(records)} steps are too few, or too much alike, for three costs")
    relative = amounts / seconds[:, None]  # a fit of ones
    costs, used = np.zeros(3), [0, 1, 2]
    while True:
        found = np.linalg.lstsq(relative[:, used], np.ones(len(records)), rcond=None)[0]
        if min(found) >= 0:
            break
        used.pop(int(np.argmin(found)))  # what noise makes negative is too small to be seen
    costs[used] = found
    errors = np.abs(relative @ costs - 1)
    return Fit(
        *map(float, costs),
        steps=len(records),
        error=float(np.median(errors)),
        worst=float(np.quantile(errors, 0.95)),
    )


def measure(engine: Engine, rounds: int = 2) -> list[StepRecord]:
    """The steps of prompts without anything in common; those of one round more, the first, are left
    out, since the first call of anything is slower."""
    pick = random.Random(0)
    vocab = engine.model_config.vocab_size
    longest = engine.context_length - NEW
    params = SamplingParams(max_tokens=NEW, temperature=0.0, ignore_eos=True)
    steps = Steps(engine)
    for number in range(1 + rounds):
        if number == 1:
            steps.take()
        for length in LENGTHS:
            for batch in BATCHES:
                size = min(length, longest)
                prompts = [[pick.randrange(vocab) for _ in range(size)] for _ in range(batch)]
                engine.flush_cache()
                engine.generate(prompts, params)
    return steps.take()

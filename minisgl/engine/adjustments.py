"""What a request's settings change in its logits: penalties, biases, and ids that are forbidden.

    token id    divisor                penalty                          bias
    917         repetition_penalty     presence + frequency · count     logit_bias, or -inf

Each request keeps such an entry for every token id that it changes.  The prompt is read once and
each sampled token once, when it comes; a step then only copies the entries.  Requests without such
settings have no `Adjustments`.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence

import torch

from minisgl.engine.transfer import send
from minisgl.kernels.adjust_logits import adjust_logits
from minisgl.sampling import SamplingParams


class Adjustments:
    """One request's entries.

    Args:
        params: its settings.
        prompt_ids: what `repetition_penalty` counts besides the answer.
        stop_ids: forbidden until the answer has `min_tokens` tokens.

    >>> few = Adjustments(SamplingParams(presence_penalty=0.5, min_tokens=2), [7], stop_ids=[2])
    >>> few.update([9]), list(few.ids), list(few.penalties), list(few.biases)
    (True, [2, 9], [0.0, 0.5], [-inf, 0.0])
    >>> few.update([9, 4]), list(few.ids), list(few.penalties), list(few.biases)
    (True, [2, 9, 4], [0.0, 0.5, 0.5], [0.0, 0.0, 0.0])
    """

    def __init__(
        self, params: SamplingParams, prompt_ids: Sequence[int], stop_ids: Iterable[int]
    ) -> None:
        self.ids = array("q")
        self.divisors, self.penalties, self.biases = array("f"), array("f"), array("f")
        self._place: dict[int, int] = {}  # of each id in the arrays
        self._counts: Counter[int] = Counter()  # in the answer
        self._seen = 0  # tokens of the answer that are counted
        self._params = params
        self._prompt_ids = frozenset(prompt_ids if params.repetition_penalty != 1 else ())
        self._given = dict(params.logit_bias)
        for token, bias in params.logit_bias:
            self.biases[self._entry(token)] = bias
        if params.repetition_penalty != 1:
            for token in prompt_ids:
                self.divisors[self._entry(token)] = params.repetition_penalty
        self._forbidden = list(stop_ids) if params.min_tokens else []
        for token in self._forbidden:
            self.biases[self._entry(token)] = -math.inf

    @property
    def changes(self) -> tuple[array[float], ...]:
        """The three columns that belong to `ids`."""
        return self.divisors, self.penalties, self.biases

    @staticmethod
    def of(
        params: SamplingParams, prompt_ids: Sequence[int], stop_ids: Iterable[int]
    ) -> Adjustments | None:
        """None if the settings change no logit."""
        p = params
        if p.logit_bias or p.min_tokens or _counts_tokens(p):
            return Adjustments(params, prompt_ids, stop_ids)
        return None

    def update(self, output_ids: Sequence[int]) -> bool:
        """Take in the tokens that are new in the answer; whether any logit changes now."""
        p = self._params
        if _counts_tokens(p):
            for token in output_ids[self._seen :]:
                self._counts[token] += 1
                place = self._entry(token)
                self.divisors[place] = p.repetition_penalty
                self.penalties[place] = (
                    p.presence_penalty + p.frequency_penalty * self._counts[token]
                )
        self._seen = len(output_ids)
        if self._seen < p.min_tokens:
            return bool(self.ids)
        for token in self._forbidden:
            self.biases[self._place[token]] = self._given.get(token, 0.0)
        self._forbidden = []
        # Where only `min_tokens` was set, what is left changes nothing.
        return bool(self.ids) and (bool(p.logit_bias) or _counts_tokens(p))

    def rewind(self, output_ids: Sequence[int], start: int) -> None:
        """The answer was `output_ids`; from `start` on other tokens will stand there."""
        p = self._params
        for token in output_ids[start : self._seen] if _counts_tokens(p) else ():
            self._counts[token] -= 1
            count, place = self._counts[token], self._entry(token)
            self.penalties[place] = (count > 0) * p.presence_penalty + p.frequency_penalty * count
            if not count and token not in self._prompt_ids:
                self.divisors[place] = 1.0
        self._seen = min(self._seen, start)

    def _entry(self, token: int) -> int:
        """The place of `token` in the arrays; an entry that changes nothing if it is new."""
        place = self._place.get(token)
        if place is None:
            place = self._place[token] = len(self.ids)
            self.ids.append(token)
            self.divisors.append(1.0)
            self.penalties.append(0.0)
            self.biases.append(0.0)
        return place


def _counts_tokens(p: SamplingParams) -> bool:
    return bool(p.repetition_penalty != 1 or p.frequency_penalty or p.presence_penalty)


def adjusted(
    logits: torch.Tensor, rows: Sequence[int], adjustments: Sequence[Adjustments | None]
) -> torch.Tensor:
    """`logits[rows]` [N, V] as each row's `Adjustments` change it, if it has any.

    In fp32, where a small penalty is not rounded away, and apart from `logits` [B, V], which stay
    the model's own.
    """
    places, ids, changes = array("q"), array("q"), array("f")
    present = [(i, each) for i, each in enumerate(adjustments) if each is not None]
    for i, each in present:
        places.extend(array("q", [i]) * len(each.ids))
        ids.extend(each.ids)
    for column in zip(*(each.changes for _, each in present), strict=True):
        for part in column:
            changes.extend(part)
    device = logits.device
    (index,) = send(device, torch.int64, rows)
    copy = logits[index].float()
    if not ids:
        return copy
    adjust_logits(
        copy,
        _send(places, torch.int64, device),
        _send(ids, torch.int64, device),
        _send(changes, torch.float32, device).view(3, -1),
    )
    return copy


def _send(
    values: array[int] | array[float], dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """As `transfer.send`, for one array: without a look at each element."""
    host = torch.frombuffer(values, dtype=dtype)
    if device.type == "cuda":
        host = host.pin_memory()
    return host.to(device, non_blocking=True)

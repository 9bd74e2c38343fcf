"""Log-probabilities of sampled tokens and of prompt tokens.

    logits of position p --log_softmax--> how likely each token is at position p + 1

They are the model's own: `logits` are read as the model gave them, before any setting changes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from minisgl.engine.images import NARROW
from minisgl.engine.output import TokenLogprob
from minisgl.engine.req import Req
from minisgl.engine.step import Extend
from minisgl.engine.transfer import send
from minisgl.kernels.logprob import logprob
from minisgl.kernels.top_tokens import top_tokens

ROWS = 64  # at a time, which bounds what the work needs besides the logits


def output_logprobs(
    logits: torch.Tensor, ids: Sequence[int], reqs: Sequence[Req]
) -> list[TokenLogprob | None]:
    """Of the token that each request sampled from its row of `logits` [B, V]; None where no one
    asked."""
    told: list[TokenLogprob | None] = [None] * len(reqs)
    asked = [i for i, req in enumerate(reqs) if req.params.logprobs is not None and ids[i] >= 0]
    if asked:
        if len(asked) < len(reqs):
            (index,) = send(logits.device, torch.int64, asked)
            logits = logits[index]
        tops = [reqs[i].params.logprobs or 0 for i in asked]
        found = _describe(logits, [ids[i] for i in asked], tops)
        for i, each in zip(asked, found, strict=True):
            told[i] = each
    return told


def add_prompt_logprobs(logits: torch.Tensor, extends: Sequence[Extend]) -> None:
    """Give each request those of its prompt that became known.

    `logits` [M, V] are of the positions `Extend.prompt_rows`, one extend after the other.
    """
    tokens: list[int] = []
    tops: list[int] = []
    for e in extends:
        tokens += [e.req.prompt_ids[p + 1] for p in e.prompt_rows]
        tops += [e.req.params.logprobs or 0] * len(e.prompt_rows)
    ids = [token if token < NARROW else 0 for token in tokens]
    told: list[TokenLogprob | None] = [*_describe(logits, ids, tops)]
    for i in (i for i, token in enumerate(tokens) if token >= NARROW):
        told[i] = None  # nobody predicts an image
    first = 0
    for e in extends:
        n = len(e.prompt_rows)
        e.req.prompt_logprobs += told[first : first + n]
        first += n


def told_of_prompt(req: Req) -> list[TokenLogprob | None] | None:
    """What is known of the prompt as its caller counts it: an image is one token, with None."""
    first = req.params.prompt_logprobs_from
    if first is None:
        return None
    told = list(req.prompt_logprobs)
    for span in reversed(req.images):
        if span.start >= first:
            del told[span.start + 1 - first : span.stop - first]
    return told


def has_nan(req: Req) -> bool:
    """Whether the model failed somewhere in the prompt."""
    return any(each is not None and math.isnan(each.logprob) for each in req.prompt_logprobs)


@torch.inference_mode()
def _describe(logits: torch.Tensor, ids: Sequence[int], tops: Sequence[int]) -> list[TokenLogprob]:
    """Of ids[i], and of the tops[i] likeliest tokens, in row i of `logits` [N, V]."""
    (chosen,) = send(logits.device, torch.int64, ids)
    k = min(max(tops), logits.shape[1])
    found: list[tuple[list[int], list[float]]] = []
    for rows, column in zip(logits.split(ROWS), chosen.unsqueeze(1).split(ROWS), strict=True):
        tokens = torch.cat([column, top_tokens(rows, k)], dim=1) if k else column
        found += zip(tokens.tolist(), logprob(rows, tokens).tolist(), strict=True)
    return [
        TokenLogprob(tokens[0], values[0], tuple(zip(tokens[1:], values[1:], strict=True))[:top])
        for (tokens, values), top in zip(found, tops, strict=True)
    ]

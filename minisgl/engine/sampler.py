"""From logits to the next tokens: each request's own settings, row by row."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from minisgl.engine.req import Req
from minisgl.engine.transfer import send
from minisgl.kernels.sample import sample

_MASK = (1 << 64) - 1


def uniform(seed: int, position: int) -> float:
    """The number in [0, 1) that decides a request's token at `position`.

    A pure function (splitmix64 of both), so a seeded request gives the same text in any batch,
    after a retraction, on a CPU and on a GPU.

    >>> uniform(7, 0) == uniform(7, 0) != uniform(7, 1)
    True
    """
    x = (seed * 0x9E3779B97F4A7C15 + (position + 1) * 0xD1342543DE82EF95) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return ((x ^ (x >> 31)) >> 40) / (1 << 24)  # 24 bits: exact in float32, never rounded up to 1


def sample_rows(logits: torch.Tensor, reqs: Sequence[Req]) -> list[int]:
    """logits [B, V], one row per request -> the next token of each; -1 for a row with NaN."""
    p = [req.params for req in reqs]
    device = logits.device
    if all(x.temperature == 0 for x in p):
        best = logits.max(dim=-1)
        ids = torch.where(best.values.isnan(), -1, best.indices)
        return [int(i) for i in ids.tolist()]
    (top_k,) = send(device, torch.int32, [max(0, x.top_k) for x in p])
    temperature, top_p, min_p, draws = send(
        device,
        torch.float32,
        [x.temperature for x in p],
        [x.top_p for x in p],
        [x.min_p for x in p],
        [uniform(r.seed, len(r.output_ids)) for r in reqs],
    )
    ids = sample(logits, temperature, top_k, top_p, min_p, draws)
    return [int(i) for i in ids.tolist()]

"""From logits to the next tokens: each request's own settings, row by row."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from minisgl.engine.adjustments import Adjustments, adjusted
from minisgl.engine.constrained import Constraint
from minisgl.engine.req import Req
from minisgl.engine.transfer import send
from minisgl.kernels.sample import sample
from minisgl.kernels.vocab_mask import vocab_mask

HOTTEST = 1e30  # all tokens are equally likely long before; float32 has no room for much more
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


@torch.inference_mode()
def sample_rows(logits: torch.Tensor, reqs: Sequence[Req]) -> list[int]:
    """logits [B, V], one row per request -> the next token of each.

    A request's token depends on its own row, settings and seed, never on the rest of the batch.
    -1 for a row that has no distribution: NaN or +inf in it, or every token is forbidden.  Where a
    pattern has written the next token already it is that one.  `logits` stay the model's own.
    """
    adjustments = [_adjustments(req) for req in reqs]
    constraints = [req.constraint for req in reqs]
    written = {i: c.pending[0][0] for i, c in enumerate(constraints) if c is not None and c.pending}
    for i in written:
        constraints[i] = None
    changed = [i for i in range(len(reqs)) if adjustments[i] or constraints[i]]
    if not changed:
        ids = _draw(logits, reqs)
    else:
        copy = adjusted(logits, changed, [adjustments[i] for i in changed])
        kept = _mask(copy, [constraints[i] for i in changed])
        drawn = _draw(copy, [reqs[i] for i in changed])
        if len(changed) == len(reqs):
            ids = drawn
        else:  # drawing for all is less work than to gather the rows of the others
            ids = _draw(logits, reqs)
            (index,) = send(logits.device, torch.int64, list(changed))
            ids.index_copy_(0, index, drawn)
        if kept is not None:
            for i, share in zip(changed, kept.tolist(), strict=True):
                if (constraint := constraints[i]) is not None:
                    constraint.removed.append(1.0 - share)
    return [written.get(i, int(token)) for i, token in enumerate(ids.tolist())]


def _adjustments(req: Req) -> Adjustments | None:
    """Those of a request that change any logit now."""
    each = req.adjustments
    return each if each is not None and each.update(req.output_ids) else None


def _mask(logits: torch.Tensor, constraints: Sequence[Constraint | None]) -> torch.Tensor | None:
    """Forbid in `logits` [N, V] what each row's pattern forbids; the share of each row's
    distribution that is left [N], or None if no row has a pattern."""
    present = [constraint for constraint in constraints if constraint is not None]
    if not present:
        return None
    table, numbers = present[0].table.rows(present)
    each = iter(numbers)
    (rows,) = send(
        logits.device, torch.int64, [-1 if c is None else next(each) for c in constraints]
    )
    return vocab_mask(logits, table, rows)


def _draw(logits: torch.Tensor, reqs: Sequence[Req]) -> torch.Tensor:
    """logits [B, V] as they will be sampled from -> ids [B]."""
    p, V = [req.params for req in reqs], logits.shape[1]
    (top_k,) = send(logits.device, torch.int32, [max(0, min(x.top_k, V)) for x in p])
    temperature, top_p, min_p, draws = send(
        logits.device,
        torch.float32,
        [min(x.temperature, HOTTEST) for x in p],
        [x.top_p for x in p],
        [x.min_p for x in p],
        [uniform(r.seed, len(r.output_ids)) for r in reqs],
    )
    return sample(logits, temperature, top_k, top_p, min_p, draws)

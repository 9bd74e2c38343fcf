"""`Step`: what one forward pass computes.  The scheduler plans it, the model runner computes it."""

from __future__ import annotations

from dataclasses import dataclass

from minisgl.engine.req import Req


@dataclass(frozen=True)
class Extend:
    """A chunk: positions [start, stop) of `req` are computed in this step.

    is_last: the request's next token can be sampled after it.
    prompt_rows: positions in it whose logits tell how likely the prompt's next token is.
    """

    req: Req
    start: int
    stop: int
    is_last: bool
    prompt_rows: range

    @classmethod
    def of(cls, req: Req, start: int, stop: int) -> Extend:
        """Planned as `req` is now: when the step is done, it wants other logits."""
        is_last = stop == req.seq_len
        return cls(req, start, stop, is_last, range(max(start, req.logits_from), stop - is_last))

    @classmethod
    def next_token(cls, req: Req) -> Extend:
        """A decode is an extend by one token."""
        return cls.of(req, req.kv_len, req.kv_len + 1)

    def __len__(self) -> int:
        return self.stop - self.start


@dataclass(frozen=True)
class Step:
    """What one forward pass computes: one token of each of `decodes`, and the `extends`."""

    decodes: list[Req]
    extends: list[Extend]

    @property
    def rows(self) -> int:
        """Of logits: as many tokens pass the model's last layer."""
        wanted = sum(extend.is_last + len(extend.prompt_rows) for extend in self.extends)
        return len(self.decodes) + wanted

    def __bool__(self) -> bool:
        return bool(self.decodes or self.extends)

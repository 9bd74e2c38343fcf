"""`Step`: what one forward pass computes.  The scheduler plans it, the model runner computes it."""

from __future__ import annotations

from dataclasses import dataclass

from minisgl.engine.req import Req


@dataclass(frozen=True)
class Extend:
    """A chunk: positions [start, stop) of `req` are computed in this step.

    is_last: the request's next token can be sampled after it.
    """

    req: Req
    start: int
    stop: int
    is_last: bool

    def __len__(self) -> int:
        return self.stop - self.start

    @classmethod
    def next_token(cls, req: Req) -> Extend:
        """A decode is an extend by one token."""
        return cls(req, req.kv_len, req.kv_len + 1, is_last=True)

    @property
    def prompt_rows(self) -> range:
        """Positions in it whose logits are wanted for the prompt's next token, which is known."""
        return range(max(self.start, self.req.logits_from), self.stop - self.is_last)


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

"""`Req`: one generation job, from submission to its one final event.

Where its tokens' K and V are, in half-open intervals of positions:

    [0, prefix_len)          slots of the radix tree, which `node` keeps locked
    [prefix_len, kv_len)     slots of this request, computed
    [kv_len, len(tokens))    not computed yet: waiting prompt, or the token sampled last
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from minisgl.engine.handle import Mailbox
from minisgl.sampling import SamplingParams

if TYPE_CHECKING:
    from minisgl.cache.radix_cache import TreeNode
    from minisgl.detokenizer import Detokenizer

_ids = itertools.count()


@dataclass(eq=False)
class Req:
    """One request.  Only the engine thread changes it; `mailbox` is how the caller hears of it."""

    prompt_ids: list[int]
    params: SamplingParams
    max_tokens: int  # resolved: never past the context
    stop_ids: frozenset[int]
    seed: int
    detokenizer: Detokenizer
    index: int = 0  # among the `params.n` answers to one prompt
    id: int = field(default_factory=lambda: next(_ids))  # rises with arrival
    submitted_at: float = field(default_factory=time.perf_counter)

    output_ids: list[int] = field(default_factory=list)
    cached_tokens: int = 0  # prompt tokens that a cache hit saved, at first admission

    # While admitted (`row` is not None):
    row: int | None = None  # in req_to_token
    node: TreeNode | None = None  # deepest tree node of the prefix, locked
    prefix_len: int = 0
    kv_len: int = 0
    was_admitted: bool = False

    sent: int = 0  # of output_ids, posted so far
    mailbox: Mailbox = field(default_factory=Mailbox)

    @property
    def tokens(self) -> list[int]:
        """Prompt and output: what a retracted request is prefilled from when it returns."""
        return self.prompt_ids + self.output_ids

    @property
    def seq_len(self) -> int:
        """Tokens of prompt and output so far."""
        return len(self.prompt_ids) + len(self.output_ids)

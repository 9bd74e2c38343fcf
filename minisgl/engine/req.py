"""`Req`: one generation job, from submission to its one final event.

Where its tokens' K and V are, in half-open intervals of positions:

    [0, prefix_len)          slots of the radix tree, which `node` keeps locked
    [prefix_len, slot_len)   slots of this request
    [kv_len, len(tokens))    not computed yet: waiting prompt, or the token sampled last

Between two steps `kv_len == slot_len`; during a step the tokens between them are being computed.
"""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from minisgl.engine.adjustments import Adjustments
from minisgl.engine.handle import Mailbox
from minisgl.engine.output import TokenLogprob
from minisgl.sampling import SamplingParams

if TYPE_CHECKING:
    from minisgl.cache.radix_cache import Peek, TreeNode
    from minisgl.detokenizer import Detokenizer
    from minisgl.engine.constrained import Constraint
    from minisgl.engine.images import ImageSpan

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
    adjustments: Adjustments | None = None  # of its logits
    constraint: Constraint | None = None  # a pattern that the answer follows
    images: tuple[ImageSpan, ...] = ()  # of the prompt, in order; their tokens are no ids
    index: int = 0  # among the `params.n` answers to one prompt
    id: int = field(default_factory=lambda: next(_ids))  # rises with arrival
    submitted_at: float = field(default_factory=time.perf_counter)

    output_ids: list[int] = field(default_factory=list)
    passes: int = 0  # forward passes that gave it a token
    last_token_at: float = 0.0  # when the last of them did
    logprobs: list[TokenLogprob] = field(default_factory=list)  # of output_ids, if asked for
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    """Of the prompt from `params.prompt_logprobs_from` on, as far as they are known."""
    cached_tokens: int = 0  # prompt tokens that a cache hit saved, at first admission

    # The scheduler's:
    key: tuple[int, ...] = ()  # `tokens` when it last joined the queue: what prefill computes
    peek: Peek | None = None  # what the tree held of `key` when the queue was last looked at
    overtakes: int = 0  # later arrivals that were admitted while it waited
    retractions: int = 0
    was_admitted: bool = False
    # While admitted (`row` is not None):
    row: int | None = None  # in req_to_token
    node: TreeNode | None = None  # deepest tree node of the prefix, locked
    own_slots: list[int] = field(default_factory=list)  # of positions [prefix_len, slot_len)
    prefix_len: int = 0
    kv_len: int = 0

    sent: int = 0  # of output_ids, posted so far
    mailbox: Mailbox = field(default_factory=Mailbox)

    @property
    def tokens(self) -> list[int]:
        """Prompt and output: what a retracted request is prefilled from when it returns."""
        return self.prompt_ids + self.output_ids

    def tokens_between(self, start: int, stop: int) -> list[int]:
        """`tokens[start:stop]`, at the cost of those alone."""
        n = len(self.prompt_ids)
        return self.prompt_ids[start:stop] + self.output_ids[max(0, start - n) : max(0, stop - n)]

    @property
    def slot_len(self) -> int:
        """Tokens that have a slot."""
        return self.prefix_len + len(self.own_slots)

    @property
    def seq_len(self) -> int:
        """Tokens of prompt and output so far."""
        return len(self.prompt_ids) + len(self.output_ids)

    @property
    def logits_from(self) -> int:
        """The first position whose logits are wanted: K and V of those before it may be cached.

        For most requests that is the last, which the next token is sampled from.
        """
        first = self.params.prompt_logprobs_from
        if first is not None:
            unknown = first + len(self.prompt_logprobs)
            if unknown < len(self.prompt_ids):
                return unknown - 1  # whose logits tell how likely the next token is
        return self.seq_len - 1

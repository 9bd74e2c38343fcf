"""The slow, obvious model of an engine: what each slot holds is written down as a prefix.

`PrefixModel` runs a real `Scheduler` and stands in for the language model.  The "keys and values"
of a token are the namespace and all tokens up to it, which is what real ones depend on.  So after a
step it can be asked of every position that the step read: was this the K/V of that very prefix?

The next token is a pure function of the tokens so far, so every request has one right answer,
which `answer_alone` works out with no scheduler at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch

from minisgl import SamplingParams
from minisgl.cache.kv_pool import KVPool
from minisgl.cache.req_to_token import ReqToToken
from minisgl.detokenizer import Detokenizer
from minisgl.engine.req import Req
from minisgl.engine.scheduler import Scheduler
from minisgl.engine.step import Step

Prefix = tuple[str | None, tuple[int, ...]]

STOP = 7  # ends an answer
LETTERS = 3  # so that answers and prompts collide all the time


def next_token(tokens: Sequence[int], *, stops: bool) -> int:
    """A letter; where answers may stop, now and then STOP."""
    mixed = hash(tuple(tokens)) % 1_000_003  # of integers: the same in every process
    return STOP if stops and mixed % 11 == 0 else mixed % LETTERS


def jumped(prompt: Sequence[int], output: Sequence[int], max_tokens: int) -> list[int] | None:
    """What jump-forward makes of an answer: now and then its last letters are others, and more."""
    mixed = hash((*prompt, *output, -1)) % 1_000_003
    if mixed % 4:
        return None
    kept = output[: max(0, len(output) - mixed // 4 % 3)]
    count = len(output) - len(kept) + 1 + mixed // 12 % 4
    letters = [(mixed + i) % LETTERS for i in range(count)]
    return [*kept, *letters][:max_tokens]


def answer_alone(
    prompt: Sequence[int],
    max_tokens: int,
    slots: int,
    *,
    stops: bool = False,
    jumps: bool = False,
) -> list[int]:
    """The answer of an engine that has all `slots` for one request, which stops where it must."""
    output: list[int] = []
    while len(output) < max_tokens and len(prompt) + len(output) <= slots:
        output.append(next_token([*prompt, *output], stops=stops))
        if output[-1] == STOP:
            break
        if jumps and len(output) < max_tokens:
            output = jumped(prompt, output, max_tokens) or output
    return output


def make_req(
    prompt: Sequence[int],
    max_tokens: int = 1,
    namespace: str | None = None,
    prompt_logprobs_from: int | None = None,
) -> Req:
    """A request as the door would make it, with nothing to detokenize."""
    return Req(
        prompt_ids=list(prompt),
        params=SamplingParams(namespace=namespace, prompt_logprobs_from=prompt_logprobs_from),
        max_tokens=max_tokens,
        stop_ids=frozenset([STOP]),
        seed=0,
        detokenizer=cast(Detokenizer, None),
        prompt_logprobs=[None] if prompt_logprobs_from == 0 else [],
    )


@dataclass
class Tally:
    """Tokens, over all steps."""

    prefilled: int = 0  # computed as part of a chunk
    steps: int = 0


class PrefixModel:
    """A scheduler, the slots' contents, and who has ended how."""

    def __init__(
        self,
        slots: int,
        *,
        rows: int = 8,
        context: int = 256,
        stops: bool = False,
        jumps: bool = False,
        prefix_cache: str = "tree",
        **settings: Any,
    ) -> None:
        settings["prefix_cache"] = self.prefix_cache = prefix_cache
        pool = KVPool(slots, 1, num_kv_heads=1, head_dim=1, dtype=torch.float32, device="cpu")
        self.scheduler = Scheduler(pool, ReqToToken(rows, context, "cpu"), **settings)
        self.stops = stops
        self.jumps = jumps
        self.content: dict[int, Prefix] = {}
        self.ended: dict[Req, str] = {}
        self.submitted = 0
        self.tally = Tally()

    def submit(self, prompt: Sequence[int], *args: Any, **kw: Any) -> Req:
        """Arguments as `make_req`.  Numbered anew for each model: the policy "random" draws from
        the number, and the same run has to be the same run."""
        req = make_req(prompt, *args, **kw)
        req.id = self.submitted
        self.submitted += 1
        self.scheduler.submit(req)
        return req

    def live(self) -> list[Req]:
        s = self.scheduler
        return [*s.waiting, *s.prefilling, *s.running]

    def end(self, req: Req, how: str) -> None:
        assert req not in self.ended, "a request ends once"
        self.scheduler.finish(req, keep=how != "fail")
        self.ended[req] = how

    def step(self) -> Step:
        """Schedule, compute, sample, and check everything there is to check."""
        s = self.scheduler
        waiting = {req: req.overtakes for req in s.waiting}
        retractions = s.retractions
        step = s.next_step()
        if s.retractions > retractions:
            assert set(waiting) < set(s.waiting), "room that others made went to a newcomer"
        self._check_budget(step)
        self._check_overtakes(waiting)
        for req in s.stuck:
            self.end(req, "length")
        self._compute(step)
        s.after_step(step)
        for req in step.decodes + [e.req for e in step.extends if e.is_last]:
            self._sample(req)
        s.check()
        return step

    def run(self, most_steps: int = 10_000) -> None:
        """Until nobody is left."""
        for _ in range(most_steps):
            if self.scheduler.is_idle:
                return
            self.step()
        raise AssertionError(f"{len(self.live())} requests are there after {most_steps} steps")

    # ------------------------------------------------------------------ one step's parts

    def _compute(self, step: Step) -> None:
        """What one layer does: write the K/V of all tokens of the step, then let all attend."""
        s = self.scheduler
        spans = [(req, req.kv_len, req.kv_len + 1) for req in step.decodes]
        spans += [(e.req, e.start, e.stop) for e in step.extends]
        written: set[int] = set()
        rows = []
        for req, start, stop in spans:
            assert req.row is not None
            slots = s.req_to_token.row(req.row, stop)
            rows.append((req, stop, slots))
            for position in range(start, stop):
                assert slots[position] not in written, "two tokens of a step in one slot"
                written.add(slots[position])
                self.content[slots[position]] = prefix(req, position)
        for req, stop, slots in rows:
            for position in range(stop):
                assert self.content[slots[position]] == prefix(req, position), (
                    f"request {req.id} reads another's K/V at position {position}"
                )
        self._check_computed_once(step)
        for e, n in [(e, len(e.prompt_rows)) for e in step.extends]:
            e.req.prompt_logprobs += [None] * n
        self.tally.prefilled += sum(e.stop - e.start for e in step.extends)
        self.tally.steps += 1 if step else 0

    def _sample(self, req: Req) -> None:
        if req.max_tokens:
            req.output_ids.append(next_token(req.tokens, stops=self.stops))
        if req.output_ids[-1:] == [STOP]:
            self.end(req, "stop")
            return
        after = jumped(req.prompt_ids, req.output_ids, req.max_tokens) if self.jumps else None
        if len(req.output_ids) < req.max_tokens and after is not None:
            before, req.output_ids = req.output_ids, after
            pairs = zip(before, after, strict=False)
            same = next((i for i, (a, b) in enumerate(pairs) if a != b), len(before))
            self.scheduler.rewrite(req, len(req.prompt_ids) + min(same, len(after)))
        if len(req.output_ids) == req.max_tokens:
            self.end(req, "length")

    def _check_computed_once(self, step: Step) -> None:
        """Of a prompt's tokens only those whose logits are wanted, most often the last, and those
        beyond the greatest hit rate may be computed although the tree holds them."""
        if self.prefix_cache != "tree":
            return
        in_tree = {}
        for node in self.scheduler.tree.nodes():
            path = tuple(token for step in node.path() for token in step.key)
            first = len(path) - len(node.key) + 1
            for n, slot in enumerate(node.slots, start=first):
                in_tree[node.namespace, path[:n]] = slot
        for e in step.extends:
            assert e.req.row is not None
            if len(e.req.own_slots) > e.stop - e.start and self.jumps:
                continue  # an answer that jumped: after what it computed for itself comes more
            slots = self.scheduler.req_to_token.row(e.req.row, e.stop)
            most = int(self.scheduler.max_hit_rate * len(e.req.key))
            for position in range(e.start, min(e.stop, e.req.logits_from, most)):
                assert in_tree[prefix(e.req, position)] == slots[position], (
                    "a token was computed that the tree holds, or was not shared at once"
                )

    def _check_budget(self, step: Step) -> None:
        tokens = len(step.decodes) + sum(e.stop - e.start for e in step.extends)
        assert tokens <= max(self.scheduler.prefill_budget, len(step.decodes) + 1)

    def _check_overtakes(self, before: dict[Req, int]) -> None:
        """Count again who was passed over."""
        after = set(self.scheduler.waiting)
        admitted = [req for req in before if req not in after]
        for req in after & set(before):
            passed = sum(other.id > req.id for other in admitted)
            assert req.overtakes == before[req] + passed


def prefix(req: Req, position: int) -> Prefix:
    """What the K/V of a position depends on."""
    return req.params.namespace, tuple(req.tokens[: position + 1])


def distinct_prefixes(prompts: Sequence[Sequence[int]]) -> int:
    """Tokens on the edges of the radix tree of `prompts`: the least that can be computed."""
    return len({tuple(p[:n]) for p in prompts for n in range(1, len(p) + 1)})

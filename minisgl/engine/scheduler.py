"""The scheduler: which tokens the next step computes, and who owns which slot.

Continuous batching (Orca) with chunked prefill: every step holds one token of each running request
and, in what is left of the token budget, new tokens of waiting prompts, in chunks where they are
long.

    waiting --admit--> prefilling --last chunk--> running --finish--> done
       ^                                             |
       '------------------ retract ------------------'

Slots change hands in four places, and only here: admit (the tree lends a prefix), `_share` (the
tree takes over a computed prompt), `_release` (it takes over the rest), and allocation for a step.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from minisgl.cache.kv_pool import KVPool
from minisgl.cache.radix_cache import RadixCache
from minisgl.cache.req_to_token import ReqToToken
from minisgl.engine.policy import ORDERS
from minisgl.engine.req import Req


@dataclass(frozen=True)
class Extend:
    """A chunk: positions [start, stop) of `req` are computed in this step."""

    req: Req
    start: int
    stop: int

    @property
    def is_last(self) -> bool:
        """Whether the request's next token can be sampled after it."""
        return self.stop == self.req.seq_len


@dataclass(frozen=True)
class Step:
    """What one forward pass computes: one token of each of `decodes`, and the `extends`."""

    decodes: list[Req]
    extends: list[Extend]

    def __bool__(self) -> bool:
        return bool(self.decodes or self.extends)


class Scheduler:
    """Owns the queue, the tree, the pool and the slot table."""

    def __init__(
        self,
        pool: KVPool,
        req_to_token: ReqToToken,
        *,
        policy: str = "lpm",
        prefill_budget: int = 2048,
        use_cache: bool = True,
    ) -> None:
        self.pool = pool
        self.req_to_token = req_to_token
        self.tree = RadixCache()
        self.order = ORDERS[policy if use_cache else "fcfs"]
        self.prefill_budget = prefill_budget
        self.use_cache = use_cache
        self.waiting: deque[Req] = deque()
        self.prefilling: list[Req] = []
        self.running: list[Req] = []
        self.stuck: list[Req] = []  # fill the pool alone, as of the last `next_step`
        self.retractions = 0
        self.left: list[Req] = []  # gave their row back; the model runner forgets them and clears

    @property
    def is_idle(self) -> bool:
        """Nothing waits and nothing computes."""
        return not (self.waiting or self.prefilling or self.running)

    @property
    def room(self) -> int:
        """Slots that can be had: free ones, and cached ones that nobody reads."""
        return self.pool.available_size + self.tree.evictable_size

    def requests(self) -> list[Req]:
        """Everyone who has not left."""
        return [*self.waiting, *self.prefilling, *self.running]

    def submit(self, req: Req) -> None:
        """A new request joins the queue."""
        self.waiting.append(req)

    # ------------------------------------------------------------------ one step

    def next_step(self) -> Step:
        """Choose the tokens of the next step and give each a slot."""
        decodes = self._schedule_decodes()
        budget = max(1, self.prefill_budget - len(decodes))  # prompts always get on
        extends: list[Extend] = []
        for req in self.prefilling:  # chunks under way go first: they hold slots
            budget -= self._schedule_chunk(req, budget, extends)
        if budget > 0 and self.waiting and self.req_to_token.available_rows:
            for req in self.order(list(self.waiting), self._matched):
                if budget <= 0 or not self._admit(req):
                    break
                self.waiting.remove(req)
                self.prefilling.append(req)
                budget -= self._schedule_chunk(req, budget, extends)
        if not decodes and not extends and len(self.prefilling) > 1:
            self.retract(self.prefilling[-1])  # they hold the pool between them: one goes on alone
            return self.next_step()
        self.stuck = [] if decodes or extends else (self.running or self.prefilling)[:1]
        return Step(decodes, extends)

    def _schedule_decodes(self) -> list[Req]:
        # The newest give way until the others have a slot each; one alone is never retracted.
        while len(self.running) > self.room and len(self.running) > 1:
            self.retract(self.running[-1])
        while len(self.running) > self.room and self.prefilling:
            self.retract(self.prefilling[-1])
        decodes = self.running if len(self.running) <= self.room else []
        if decodes:
            slots = self._alloc(len(decodes))
            rows = [req.row for req in decodes if req.row is not None]
            self.req_to_token.write_each(rows, [req.kv_len for req in decodes], slots)
        return list(decodes)

    def _schedule_chunk(self, req: Req, budget: int, extends: list[Extend]) -> int:
        """Positions [kv_len, kv_len + n) of `req` join the step; n, at most `budget`."""
        assert req.row is not None
        n = max(0, min(req.seq_len - req.kv_len, budget, self.room))
        if n:
            self.req_to_token.write(req.row, req.kv_len, self._alloc(n))
            extends.append(Extend(req, req.kv_len, req.kv_len + n))
        return n

    def after_step(self, step: Step) -> None:
        """The step was computed: its tokens have K and V now."""
        for req in step.decodes:
            req.kv_len += 1
        for extend in step.extends:
            req = extend.req
            req.kv_len = extend.stop
            if extend.is_last:
                self._share(req)
                self.prefilling.remove(req)
                self.running.append(req)

    # ------------------------------------------------------------------ slots change hands

    def _matched(self, req: Req) -> int:
        return self.tree.prefix_len(req.tokens)

    def _admit(self, req: Req) -> bool:
        """Lend `req` its cached prefix and a row, if the rest of its prompt fits."""
        if not self.req_to_token.available_rows:
            return False
        tokens = req.tokens
        # subtle: the last token is always computed anew, since its logits are wanted
        match = self.tree.match_prefix(tokens[: len(tokens) - 1])
        self.tree.lock(match.node)
        # What is still to come of prompts under way, and one step of every running request.
        promised = sum(r.seq_len - r.kv_len for r in self.prefilling) + len(self.running)
        if len(tokens) - len(match.slots) + promised > self.room:
            self.tree.unlock(match.node)
            return False
        req.row = self.req_to_token.alloc_row()
        self.req_to_token.write(req.row, 0, match.slots)
        req.node, req.prefix_len, req.kv_len = match.node, len(match.slots), len(match.slots)
        if not req.was_admitted:
            req.was_admitted, req.cached_tokens = True, len(match.slots)
        return True

    def _insert(self, req: Req) -> int:
        """The tree takes over [prefix_len, kv_len); slots it had already are freed.  The number of
        leading tokens that the tree now holds."""
        assert req.row is not None
        tokens = req.tokens[: req.kv_len]
        slots = self.req_to_token.row(req.row, req.kv_len)
        known = self.tree.insert(tokens, slots)
        self.pool.free(slots[req.prefix_len : known])  # computed twice: the tree's copy stays
        return len(tokens)

    def _share(self, req: Req) -> None:
        """A computed prompt becomes a prefix that others can match, while `req` goes on."""
        if not self.use_cache:
            return
        assert req.row is not None and req.node is not None
        self._insert(req)
        match = self.tree.match_prefix(req.tokens[: req.kv_len])
        assert len(match.slots) == req.kv_len
        self.req_to_token.write(req.row, 0, match.slots)
        self.tree.lock(match.node)
        self.tree.unlock(req.node)
        req.node, req.prefix_len = match.node, req.kv_len

    def _release(self, req: Req) -> None:
        """`req` gives everything back: what it computed to the tree, its row, its lock."""
        assert req.row is not None and req.node is not None
        # A step may have been chosen but not computed (an error in it): those slots hold nothing.
        if self.use_cache:
            self._insert(req)
        else:
            self.pool.free(self.req_to_token.row(req.row, req.kv_len))
        self.tree.unlock(req.node)
        self.req_to_token.free_row(req.row)
        req.row, req.node, req.prefix_len, req.kv_len = None, None, 0, 0
        self.left.append(req)

    def _alloc(self, n: int) -> list[int]:
        short = n - self.pool.available_size
        if short > 0:
            self.pool.free(self.tree.evict(short))
        return self.pool.alloc(n)

    # ------------------------------------------------------------------ leaving

    def finish(self, req: Req) -> None:
        """`req` leaves, whatever it was doing."""
        if req.row is not None:
            self._release(req)
        for place in (self.waiting, self.prefilling, self.running):
            if req in place:
                place.remove(req)

    def retract(self, req: Req) -> None:
        """`req` makes room: its tokens stay cached while there is space, and it goes back to the
        head of the queue, output and all."""
        self.retractions += 1
        self._release(req)
        for place in (self.prefilling, self.running):
            if req in place:
                place.remove(req)
        self.waiting.appendleft(req)

    def flush(self) -> bool:
        """Forget every cached prefix; False (and nothing done) while anyone needs one."""
        if not self.is_idle:
            return False
        self.pool.free(self.tree.reset())
        return True

    def check(self) -> None:
        """free + cached + owned by requests == all slots; tree, pool and table are consistent."""
        self.tree.check()
        self.pool.check()
        self.req_to_token.check()
        owned = sum(r.kv_len - r.prefix_len for r in self.prefilling + self.running)
        held = self.tree.total_size + owned
        assert self.pool.available_size + held == self.pool.num_slots, (
            f"{self.pool.available_size} free + {self.tree.total_size} cached + {owned} owned "
            f"is not {self.pool.num_slots}"
        )
        if self.is_idle:
            assert self.tree.protected_size == 0, "nobody runs, but part of the tree is locked"
            assert self.req_to_token.available_rows == len(self.req_to_token.table)

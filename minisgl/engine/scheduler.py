"""The scheduler: which tokens the next step computes, and who owns which slot.

Continuous batching (Orca) with chunked prefill: every step holds one token of each running request
and, in what is left of the token budget, new tokens of waiting prompts, in chunks where they are
long.

    waiting --admit--> prefilling --last chunk--> running --finish--> done
       ^                    |                        |
       '----------------- retract -------------------'

The tree learns of a chunk when it is *scheduled*.  In each layer the model writes the keys and
values of all tokens of a step before any of them attends, so a request may build on what another
one computes in the very same step: prompts that arrive together compute a common prefix once.

Slots change hands in six places, and only here: `_admit` and `_follow` (the tree lends a prefix),
`_share` (it takes over a chunk), `_release` (it takes over the rest), `_cut`, and `_alloc`.
"""

from __future__ import annotations

from minisgl.cache.kv_pool import KVPool
from minisgl.cache.radix_cache import Match, Peek, RadixCache
from minisgl.cache.req_to_token import ReqToToken
from minisgl.cache.table_cache import TableCache
from minisgl.engine.req import Req
from minisgl.engine.step import Extend, Step
from minisgl.engine.waiting import WINDOW, WaitingQueue

CACHES = {"tree": RadixCache, "table": TableCache, "none": RadixCache}  # the last stays empty
PROMPT_ROWS = 512  # of logits of prompts in one step: each row is a vocabulary of floats


class Scheduler:
    """Owns the queue, the tree, the pool and the slot table.

    Args:
        policy, max_overtakes: see `WaitingQueue`.
        prefill_budget: most tokens of a step; one more where requests that decode fill it.
        prefix_cache: a name in `CACHES`; "none": nothing is shared or kept, and the policy is
            "fcfs".
        max_hit_rate: share of a prompt's tokens that may come from the cache at most; the others
            are computed although it holds them.
        max_cached_tokens: most tokens that the tree keeps although nobody reads them; None: as many
            as the pool has room for.
        look_ahead: a newcomer must leave room for so many more tokens of each running request (or
            those that it may still give, if they are fewer), so that it is not retracted soon.
    """

    def __init__(
        self,
        pool: KVPool,
        req_to_token: ReqToToken,
        *,
        policy: str = "lpm",
        max_overtakes: int = 128,
        prefill_budget: int = 2048,
        prefix_cache: str = "tree",
        max_hit_rate: float = 1.0,
        max_cached_tokens: int | None = None,
        look_ahead: int = 32,
    ) -> None:
        self.pool = pool
        self.req_to_token = req_to_token
        self.tree = CACHES[prefix_cache]()
        self.prefill_budget = prefill_budget
        self.use_cache = prefix_cache != "none"
        self.max_hit_rate = max_hit_rate
        self.max_cached_tokens = max_cached_tokens
        self.look_ahead = look_ahead
        self.waiting = WaitingQueue(policy if self.use_cache else "fcfs", max_overtakes)
        self.prefilling: list[Req] = []
        self.running: list[Req] = []
        self.stuck: list[Req] = []  # too large for the pool even alone, as of the last `next_step`
        self.retractions = 0
        self._is_blocked = False  # the next in line does not fit, and nothing has changed since
        self._just_left = 0  # cached tokens of those who ended since the last step was planned
        self.left: list[Req] = []  # gave their row back; the model runner forgets them and clears

    @property
    def is_idle(self) -> bool:
        """Nothing waits and nothing computes."""
        return not (self.waiting or self.prefilling or self.running)

    @property
    def room(self) -> int:
        """Slots that can be had: free ones, and cached ones that nobody reads."""
        return self.pool.available_size + self.tree.evictable_size

    def submit(self, req: Req) -> None:
        """A new request joins the queue."""
        req.key = tuple(req.tokens)
        self.waiting.add(req)
        self._is_blocked = False

    # ------------------------------------------------------------------ one step

    def next_step(self) -> Step:
        """Choose the tokens of the next step and give each a slot."""
        self.stuck = []
        has_room = self._make_room()
        decodes = self._schedule_decodes()
        budget = max(1, self.prefill_budget - len(decodes))  # prompts always get on
        extends: list[Extend] = []
        for req in self.prefilling:  # chunks under way go first: they hold slots
            self._follow(req)
            budget -= self._schedule_chunk(req, budget, extends)
        may_admit = has_room and self.req_to_token.available_rows and not self._is_blocked
        if budget > 0 and may_admit:
            self._admit_waiting(budget, extends)
        if self.prefilling and not (decodes or extends or self.stuck):
            self.stuck = list(self.prefilling)  # one alone, whose answer jumped beyond the pool
        self._just_left = 0
        return Step(decodes, extends)

    def _make_room(self) -> bool:
        """One slot for each running request, or one for a prompt.  The latest arrivals give way, so
        that the earliest always gets on; one alone never does.  False: somebody had to, and the
        room is not for newcomers."""
        before = self.retractions
        while len(self.running) + len(self.prefilling) > 1:
            if self.room >= max(1, len(self.running)):
                break
            self.retract(max(self.running + self.prefilling, key=lambda req: req.id))
        return self.retractions == before

    def _schedule_decodes(self) -> list[Req]:
        decodes = list(self.running)
        if len(decodes) > self.room:  # one alone, and all slots are its own
            self.stuck = decodes
            return []
        slots = self._alloc(len(decodes))
        rows = [req.row for req in decodes if req.row is not None]
        self.req_to_token.write_each(rows, [req.kv_len for req in decodes], slots)
        for req, slot in zip(decodes, slots, strict=True):
            req.own_slots.append(slot)
        return decodes

    def _schedule_chunk(self, req: Req, budget: int, extends: list[Extend]) -> int:
        """The next n tokens of `req`'s prompt join the step; n, at most `budget`."""
        assert req.row is not None
        start = req.slot_len
        n = len(req.key) - start
        if req.logits_from < len(req.key) - 1:  # log-probabilities of the prompt are wanted
            left = PROMPT_ROWS - sum(len(e.prompt_rows) for e in extends)
            n = min(n, req.logits_from - start + max(1, left))
        n = max(0, min(n, budget, self.room))
        if n:
            slots = self._alloc(n)
            self.req_to_token.write(req.row, start, slots)
            self._share(req, slots)
            extends.append(Extend.of(req, start, start + n))
        return n

    def _admit_waiting(self, budget: int, extends: list[Extend]) -> None:
        for req in self.waiting.candidates(self._peek):
            if not self._admit(req):
                # While others only decode, room shrinks and nothing new is cached: ask no more.
                self._is_blocked = not self._just_left
                if not (self.running or self.prefilling):
                    self.stuck = [req]  # not even alone
                return
            is_anyone_due = self.waiting.admitted(req)
            self.prefilling.append(req)
            budget -= self._schedule_chunk(req, budget, extends)
            if is_anyone_due or budget <= 0 or not self.req_to_token.available_rows:
                return

    def after_step(self, step: Step) -> None:
        """The step was computed: its tokens have K and V now."""
        for req in step.decodes:
            req.kv_len += 1
        for extend in step.extends:
            self._is_blocked = False
            req = extend.req
            req.kv_len = extend.stop
            if extend.is_last:
                self.prefilling.remove(req)
                self.running.append(req)

    # ------------------------------------------------------------------ slots change hands

    def _peek(self, req: Req) -> Peek:
        req.peek = self.tree.peek(req.key, req.params.namespace, last=req.peek)
        return req.peek

    def _match(self, req: Req) -> Match:
        """What the tree holds of `req`'s tokens after those that have a slot."""
        # subtle: at least the last token is always computed anew, since its logits are wanted
        stop = min(req.logits_from, int(self.max_hit_rate * len(req.key)))
        tokens = req.key[req.slot_len : max(req.slot_len, stop)]
        return self.tree.match_prefix(tokens, req.params.namespace, below=req.node)

    def _lend(self, req: Req, match: Match) -> None:
        """A match, already locked, becomes part of `req`'s prefix."""
        assert req.row is not None
        self.req_to_token.write(req.row, req.prefix_len, match.slots)
        req.node = match.node
        req.prefix_len += len(match.slots)
        req.kv_len = req.prefix_len
        if not req.retractions:
            req.cached_tokens += len(match.slots)

    def _promised_to(self, req: Req) -> int:
        """Slots that `req`, admitted, will want soon: for the rest of its prompt, and to go on."""
        prompt = max(0, len(req.key) - req.slot_len)
        answer = req.max_tokens - len(req.output_ids) - 1  # the last token needs no slot
        return prompt + max(0, min(self.look_ahead, answer))

    def _admit(self, req: Req) -> bool:
        """Lend `req` its cached prefix and a row, if the rest of its prompt fits.

        While others run, not in place of what somebody left a step ago, who goes on with it more
        often than not (docs/decisions.md).
        """
        match = self._match(req)
        evictable = self.tree.evictable_size
        self.tree.lock(match.node)
        spared = max(0, self._just_left - (evictable - self.tree.evictable_size))
        if not (self.running or self.prefilling):
            spared = 0
        promised = sum(self._promised_to(other) for other in self.prefilling + self.running)
        if len(req.key) - len(match.slots) + promised > self.room - spared:
            self.tree.unlock(match.node)
            return False
        self._just_left = spared
        req.row = self.req_to_token.alloc_row()
        req.was_admitted = True
        self._lend(req, match)
        return True

    def _follow(self, req: Req) -> None:
        """A prompt under way takes what the tree has learnt of it from others in the meantime."""
        if req.own_slots:
            return
        match = self._match(req)
        if match.slots:
            assert req.node is not None
            self.tree.lock(match.node)
            self.tree.unlock(req.node)
            self._lend(req, match)

    def _share(self, req: Req, slots: list[int]) -> None:
        """The tree takes over the chunk in `slots`, which comes next in `req`'s prompt.

        subtle: only where it knows nothing of it.  The last token of a cached prompt is computed
        twice, and the step writes it to the slot that stands in the table: that slot stays the
        request's own, and so does all that follows; `_release` sorts them out.
        """
        leaf = None
        if self.use_cache and not req.own_slots:
            assert req.node is not None
            tokens = req.key[req.prefix_len : req.prefix_len + len(slots)]
            leaf = self.tree.append(req.node, tokens, slots, req.params.namespace)
        if leaf is None:
            req.own_slots += slots
        else:
            req.node = leaf
            req.prefix_len += len(slots)

    def _release(self, req: Req, *, keep: bool) -> None:
        """`req` gives everything back: its own slots (to the tree, if it keeps them), row, lock."""
        assert req.row is not None and req.node is not None
        assert req.slot_len == req.kv_len, "a request leaves between steps: all it has is computed"
        node, known = req.node, len(req.own_slots)
        if keep and self.use_cache:
            tokens = req.tokens[req.prefix_len : req.kv_len]
            known = self.tree.insert(tokens, req.own_slots, req.params.namespace, below=node)
        self.pool.free(req.own_slots[:known])  # what was computed twice: the tree's copy stays
        self.tree.unlock(node)
        if not keep:
            self.pool.free(self.tree.drop(node))
        self._keep_within_cap()
        self.req_to_token.free_row(req.row)
        req.row, req.node, req.own_slots, req.prefix_len, req.kv_len = None, None, [], 0, 0
        self.left.append(req)

    def _keep_within_cap(self) -> None:
        if self.max_cached_tokens is not None:
            self.pool.free(self.tree.evict(self.tree.evictable_size - self.max_cached_tokens))

    def _alloc(self, n: int) -> list[int]:
        short = n - self.pool.available_size
        if short > 0:
            # What somebody waits to use goes last; of that, what the earliest arrival does.
            for req in reversed(list(self.waiting)[:WINDOW]):
                if req.peek is not None:
                    self.tree.touch(req.peek)
            self.pool.free(self.tree.evict(short))
        return self.pool.alloc(n)

    # ------------------------------------------------------------------ jump-forward

    def rewrite(self, req: Req, start: int) -> None:
        """`req`'s tokens from position `start` on are others now, or more: they are prefilled."""
        req.key, req.peek = tuple(req.tokens), None
        if req.row is None:
            return
        if start < req.kv_len:
            self._cut(req, start)
        self.running.remove(req)
        self.prefilling.append(req)

    def _cut(self, req: Req, length: int) -> None:
        """`req` gives back the slots from position `length` on."""
        assert req.row is not None and req.node is not None
        if length < req.prefix_len:  # it was retracted, and the tree lends what was its own
            match = self.tree.match_prefix(req.key[:length], req.params.namespace)
            length = len(match.slots)  # less where entries are not cut: the rest is prefilled
            self.tree.lock(match.node)
            self.tree.unlock(req.node)
            req.node, req.prefix_len = match.node, length
            self.req_to_token.write(req.row, 0, match.slots)
            self._keep_within_cap()
        kept = length - req.prefix_len
        self.pool.free(req.own_slots[kept:])
        req.own_slots, req.kv_len = req.own_slots[:kept], length

    # ------------------------------------------------------------------ leaving

    def finish(self, req: Req, *, keep: bool = True) -> None:
        """`req` leaves, whatever it was doing.  `keep=False`: what it computed is not to be trusted
        and leaves the tree, as far as nobody else stands on it."""
        self._is_blocked = False
        if req.row is None:
            self.waiting.remove(req)
            return
        evictable = self.tree.evictable_size
        self._release(req, keep=keep)
        self._just_left += max(0, self.tree.evictable_size - evictable)
        (self.running if req in self.running else self.prefilling).remove(req)

    def retract(self, req: Req) -> None:
        """`req` makes room: its tokens stay cached while there is space, and it goes back to its
        place in the queue, output and all."""
        self.finish(req)
        self.retractions += 1
        req.retractions += 1
        self.submit(req)

    def flush(self) -> bool:
        """Forget every cached prefix; False (and nothing done) while anyone needs one."""
        if not self.is_idle:
            return False
        self.pool.free(self.tree.reset())
        return True

    # ------------------------------------------------------------------ invariants, between steps

    def check_accounts(self) -> None:
        """free + cached + owned by requests == all slots, by what everyone has counted.

        O(requests): the engine does this each time it goes idle.
        """
        owned = sum(len(req.own_slots) for req in self.running + self.prefilling)
        free, cached = self.pool.available_size, self.tree.total_size
        assert free + cached + owned == self.pool.num_slots, (
            f"{free} free + {cached} cached + {owned} owned is not {self.pool.num_slots}"
        )
        if self.max_cached_tokens is not None:
            assert self.tree.evictable_size <= self.max_cached_tokens
        if self.is_idle:
            assert self.tree.protected_size == 0, "nobody runs, but part of the tree is locked"
            assert self.req_to_token.available_rows == len(self.req_to_token.table)

    def check(self) -> None:
        """`check_accounts`, and count everything again: tree, pool, table, queue, requests."""
        self.check_accounts()
        self.tree.check()
        self.pool.check()
        self.req_to_token.check()
        self.waiting.check()
        for req in self.running + self.prefilling:
            assert req.row is not None and req.node is not None
            assert req.slot_len == req.kv_len, "scheduled, but not computed"
            lent = [slot for node in req.node.path() for slot in node.slots]
            assert len(lent) == req.prefix_len, "the prefix ends where the locked node ends"
            assert self.req_to_token.row(req.row, req.kv_len) == lent + req.own_slots

"""Scheduler, pool, tree and table together, under anything that can happen to them.

`PrefixModel.step` checks every invariant after every step, and that each position read is its own
prefix's; see tests/reference/prefix_model.py.
"""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
)

from minisgl.config import POLICIES
from minisgl.engine.req import Req
from tests.reference.prefix_model import LETTERS, PrefixModel, answer_alone

letters = st.integers(0, LETTERS - 1)


class Machine(RuleBasedStateMachine):
    prompts = Bundle("prompts")

    @initialize(
        slots=st.integers(4, 40),
        rows=st.integers(1, 5),
        budget=st.integers(1, 12),
        policy=st.sampled_from(POLICIES),
        max_overtakes=st.sampled_from([0, 1, 2, 100]),
        prefix_cache=st.sampled_from(["tree", "tree", "table", "none"]),
        max_hit_rate=st.sampled_from([1.0, 1.0, 0.5, 0.0]),
        max_cached_tokens=st.sampled_from([None, None, 0, 5]),
        look_ahead=st.sampled_from([1, 1, 4, 32]),
        jumps=st.booleans(),
    )
    def start(
        self,
        slots: int,
        rows: int,
        budget: int,
        policy: str,
        max_overtakes: int,
        prefix_cache: str,
        max_hit_rate: float,
        max_cached_tokens: int | None,
        look_ahead: int,
        jumps: bool,
    ) -> None:
        self.slots = slots
        self.model = PrefixModel(
            slots,
            rows=rows,
            stops=True,
            jumps=jumps,
            prefill_budget=budget,
            policy=policy,
            max_overtakes=max_overtakes,
            prefix_cache=prefix_cache,
            max_hit_rate=max_hit_rate,
            max_cached_tokens=max_cached_tokens,
            look_ahead=look_ahead,
        )
        self.reqs: list[Req] = []

    @initialize(target=prompts)
    def an_empty_base(self) -> tuple[int, ...]:
        return ()

    @rule(
        target=prompts,
        base=prompts,
        keep=st.integers(0, 40),
        suffix=st.lists(letters, min_size=1, max_size=8),
        max_tokens=st.integers(0, 12),
        namespace=st.sampled_from([None, None, None, "adapter"]),
        copies=st.sampled_from([1, 1, 1, 3]),
        logprobs_from=st.sampled_from([None, None, 0, 1, 5]),
    )
    def submit(
        self,
        base: tuple[int, ...],
        keep: int,
        suffix: list[int],
        max_tokens: int,
        namespace: str | None,
        copies: int,
        logprobs_from: int | None,
    ) -> tuple[int, ...]:
        """Fork-like: a prompt begins as one before it did."""
        prompt = (*base[:keep], *suffix)[: self.slots - 1]  # the door refuses longer ones
        if logprobs_from is not None:
            logprobs_from = min(logprobs_from, len(prompt) - 1)
        for _ in range(copies):
            self.reqs.append(self.model.submit(prompt, max_tokens, namespace, logprobs_from))
        return prompt

    @rule(steps=st.integers(1, 6))
    def step(self, steps: int) -> None:
        for _ in range(steps):
            self.model.step()

    @precondition(lambda self: self.model.live())
    @rule(which=st.integers(0, 100), how=st.sampled_from(["abort", "abort", "fail"]))
    def leave(self, which: int, how: str) -> None:
        live = self.model.live()
        self.model.end(live[which % len(live)], how)
        self.model.scheduler.check()

    @rule()
    def flush(self) -> None:
        assert self.model.scheduler.flush() == (not self.model.live())

    def teardown(self) -> None:
        if not hasattr(self, "model"):
            return  # the machine was not started
        work = sum(len(req.prompt_ids) + req.max_tokens for req in self.reqs)
        # Each token may have to be computed again, but nobody goes round in circles.
        self.model.run(most_steps=4 * work + 1)
        assert set(self.model.ended) == set(self.reqs), "every request ends"
        for req, how in self.model.ended.items():
            alone = answer_alone(
                req.prompt_ids, req.max_tokens, self.slots, stops=True, jumps=self.model.jumps
            )
            if how in ("abort", "fail"):
                if self.model.jumps:
                    continue  # its last letters may still have changed
                alone = alone[: len(req.output_ids)]
            elif (first := req.params.prompt_logprobs_from) is not None:
                assert len(req.prompt_logprobs) == len(req.prompt_ids) - first, "each one once"
            assert req.output_ids == alone, "in any company the answer is the same"
        scheduler = self.model.scheduler
        assert scheduler.flush()
        scheduler.check()
        assert scheduler.pool.available_size == self.slots, "every slot is free in the end"


TestAnything = Machine.TestCase

"""The scheduler, case by case.  Names like D13 are those of reported faults of such systems.

Nothing here needs a model: see tests/reference/prefix_model.py, which also checks after every step
that each slot is accounted for and that each position read is its own prefix's.
"""

from __future__ import annotations

from itertools import product

import pytest

from minisgl.config import POLICIES
from minisgl.engine.req import Req
from minisgl.engine.step import Step
from tests.reference.prefix_model import PrefixModel, answer_alone, distinct_prefixes


def spans(step: Step) -> list[tuple[int, int]]:
    return [(e.start, e.stop) for e in step.extends]


def run_to_first_token(model: PrefixModel, req: Req) -> None:
    while not req.output_ids:
        model.step()


class TestInFlightSharing:
    def test_eight_cold_prompts_compute_their_prefix_once_in_one_step(self) -> None:
        model = PrefixModel(200)
        prefix = list(range(40))
        reqs = [model.submit([*prefix, 50 + i], 4) for i in range(8)]
        step = model.step()
        assert spans(step) == [(0, 41)] + [(40, 41)] * 7
        assert model.tally.prefilled == 40 + 8
        assert [req.cached_tokens for req in reqs] == [0] + [40] * 7

    def test_what_is_chunked_is_shared_chunk_by_chunk(self) -> None:
        model = PrefixModel(200, prefill_budget=16)
        for i in range(3):
            model.submit([*range(40), 50 + i])
        assert [spans(model.step()) for _ in range(3)] == [
            [(0, 16)],
            [(16, 32)],
            [(32, 41), (40, 41), (40, 41)],
        ]

    def test_a_prompt_under_way_takes_over_what_others_leave_in_the_meantime(self) -> None:
        model = PrefixModel(200, prefill_budget=4, rows=2)
        long = model.submit([*range(20, 40)])
        assert spans(model.step()) == [(0, 4)]
        # Meanwhile somebody else leaves exactly this prompt in the tree, two tokens short.
        scheduler = model.scheduler
        assert long.node is not None
        slots = scheduler.pool.alloc(14)
        for position, slot in enumerate(slots, start=4):
            model.content[slot] = (None, tuple(range(20, 21 + position)))
        assert scheduler.tree.insert(range(24, 38), slots, below=long.node) == 0
        assert spans(model.step()) == [(18, 20)]
        assert long.cached_tokens == 14

    def test_equal_prompts_keep_their_own_last_token_until_they_leave(self) -> None:
        model = PrefixModel(100)
        first, second = model.submit([1, 2, 3], 3), model.submit([1, 2, 3], 3)
        assert spans(model.step()) == [(0, 3), (2, 3)]
        assert (first.prefix_len, second.prefix_len) == (3, 2)
        assert model.scheduler.tree.total_size == 3
        model.run()
        assert first.output_ids == second.output_ids
        kept = 3 + len(first.output_ids) - 1  # all but the token sampled last have K/V
        assert model.scheduler.tree.total_size == kept
        assert model.scheduler.pool.available_size == 100 - kept

    def test_a_warm_prompt_computes_its_last_token_only(self) -> None:
        model = PrefixModel(100)
        for _ in range(2):
            req = model.submit(list(range(16)))
            model.run()
        assert model.tally.prefilled == 16 + 1
        assert req.cached_tokens == 15

    def test_what_a_running_request_computes_is_protected(self) -> None:
        model = PrefixModel(20)
        req = model.submit(list(range(10)), 5)
        model.step()
        assert model.scheduler.tree.protected_size == 10
        assert model.scheduler.room == 10
        model.end(req, "abort")
        assert model.scheduler.tree.protected_size == 0

    def test_without_a_cache_nothing_is_shared(self) -> None:
        model = PrefixModel(100, prefix_cache="none", policy="lpm")
        for i in range(3):
            model.submit([*range(10), 50 + i])
        model.run()
        assert model.tally.prefilled == 33
        assert model.scheduler.tree.total_size == 0

    def test_without_a_cache_lpm_is_fcfs(self) -> None:
        model = PrefixModel(100, prefix_cache="none", policy="lpm", rows=1)
        reqs = [model.submit([i]) for i in (3, 1, 2)]
        model.run()
        assert list(model.ended) == reqs


class TestNamespaces:
    def test_equal_tokens_in_two_namespaces_share_nothing(self) -> None:
        model = PrefixModel(200)
        reqs = [
            model.submit(list(range(10)), 3, namespace)
            for namespace in (None, "adapter", None, "salt", "adapter")
        ]
        # one tree for each, and a second asker follows the first at once
        assert spans(model.step()) == [(0, 10), (9, 10), (0, 10), (9, 10), (0, 10)]
        model.run()
        assert [req.cached_tokens for req in reqs] == [0, 0, 9, 0, 9]
        again = model.submit(list(range(10)), 1, "salt")
        model.run()
        assert again.cached_tokens == 9


class TestChunks:
    def test_the_budget_counts_what_is_computed_not_what_is_cached(self) -> None:
        model = PrefixModel(100, prefill_budget=10)
        for i in range(4):
            model.submit([*range(7), 50 + i])
        assert spans(model.step()) == [(0, 8), (7, 8), (7, 8)]  # 10 tokens: 8 new, then 1 and 1

    def test_a_newcomer_gets_what_the_chunk_leaves(self) -> None:
        model = PrefixModel(100, prefill_budget=6)
        model.submit(list(range(16)), 2)
        model.submit([50, 51, 52], 2)
        assert [spans(model.step()) for _ in range(4)] == [
            [(0, 6)],
            [(6, 12)],
            [(12, 16), (0, 2)],
            [(2, 3)],
        ]

    def test_a_prompt_larger_than_what_is_left_of_the_budget_is_cut(self) -> None:
        model = PrefixModel(100, prefill_budget=4)
        running = [model.submit([50 + i], 30) for i in range(3)]
        model.step()
        model.submit(list(range(5)))
        assert [spans(model.step()) for _ in range(2)] == [[(0, 1)], [(1, 2)]]
        for req in running:
            if req not in model.ended:
                model.end(req, "abort")
        assert spans(model.step()) == [(2, 5)]

    def test_prompts_get_on_when_decodes_fill_the_budget(self) -> None:
        model = PrefixModel(100, prefill_budget=2)
        for i in range(3):
            run_to_first_token(model, model.submit([50 + i], 40))
        newcomer = model.submit([1, 2, 3], 1)
        run_to_first_token(model, newcomer)

    def test_the_latest_answer_token_is_prefilled_when_a_request_returns(self) -> None:
        model = PrefixModel(60)
        first, second = model.submit([50], 30), model.submit([51, 52], 30)
        run_to_first_token(model, second)
        model.step()
        tokens = second.seq_len
        model.scheduler.retract(second)
        step = model.step()
        assert step.decodes == [first]
        assert [(e.req, e.start, e.stop) for e in step.extends] == [(second, tokens - 1, tokens)]


class TestRetraction:
    def test_two_that_need_60_percent_of_the_pool_both_finish(self) -> None:
        model = PrefixModel(20, look_ahead=1)
        reqs = [model.submit([50 + i, 60 + i, 61], 10) for i in range(2)]
        model.run(most_steps=3 + 2 * 10)
        for req in reqs:
            assert req.output_ids == answer_alone(req.prompt_ids, 10, 20)
        assert [req.retractions for req in reqs] == [0, 1], "the later arrival gives way, once"

    def test_one_alone_that_outgrows_the_pool_ends_with_length(self) -> None:
        model = PrefixModel(12)
        req = model.submit([50, 51, 52], 100)
        other = model.submit([60], 1)
        model.run(most_steps=15)
        assert model.ended == {req: "length", other: "length"}
        assert req.output_ids == answer_alone(req.prompt_ids, 100, 12)
        assert len(req.prompt_ids) + len(req.output_ids) == 12 + 1  # the last has no K/V, no slot

    def test_a_prompt_that_no_pool_could_hold_ends_too(self) -> None:
        """The door refuses such prompts.  Should one come, the queue must not wait for ever."""
        model = PrefixModel(8)
        large, small = model.submit(range(9)), model.submit([1])
        model.run(most_steps=5)
        assert (large.output_ids, model.ended[large]) == ([], "length")
        assert small.output_ids

    @pytest.mark.parametrize("look_ahead", [1, 32])
    @pytest.mark.parametrize("slots", [5, 6, 8])
    def test_no_two_or_three_retract_each_other_for_ever(self, slots: int, look_ahead: int) -> None:
        """Every mix of small requests on a tiny pool ends, and the earliest never gives way."""
        prompts = [[50], [50, 51, 52], [50, 61, 62, 63]]
        kinds = list(product(prompts, (1, 4, 9)))
        for mix in [*product(kinds, repeat=2), *zip(kinds, kinds[1:], kinds[2:], strict=False)]:
            for budget in (1, 8):
                model = PrefixModel(slots, prefill_budget=budget, look_ahead=look_ahead)
                reqs = [model.submit(prompt, most) for prompt, most in mix]
                work = sum(len(prompt) + most for prompt, most in mix)
                model.run(most_steps=2 * work)
                assert reqs[0].retractions == 0
                assert model.scheduler.retractions <= work
                for req in reqs:
                    alone = answer_alone(req.prompt_ids, req.max_tokens, slots)
                    assert req.output_ids == alone

    def test_a_retracted_request_goes_before_all_that_arrived_later(self) -> None:
        model = PrefixModel(40, rows=2)
        first, second = model.submit([50, 51], 12), model.submit([60, 61], 12)
        run_to_first_token(model, second)
        model.scheduler.retract(second)
        late = [model.submit([60, 61, 62 + i]) for i in range(3)]  # lpm would like them
        assert list(model.scheduler.waiting) == [second, *late]
        step = model.step()
        assert [e.req for e in step.extends] == [second]
        model.run()
        assert second.output_ids == answer_alone([60, 61], 12, 40)
        assert first.output_ids == answer_alone([50, 51], 12, 40)

    def test_nobody_is_admitted_into_room_that_was_just_made(self) -> None:
        """Its own slots are room once it is retracted, so the request itself would fit again: it
        wants the log-probabilities of its prompt, which no cached token has."""
        model = PrefixModel(13, rows=2, prefill_budget=3, look_ahead=1)
        long = model.submit([0] * 8, 3)
        model.step()
        asks = model.submit([1, 1, 1], 2, None, 0)
        while not asks.retractions:
            model.step()
            assert not long.retractions
        assert asks.row is None
        model.run()

    def test_what_was_retracted_is_found_again(self) -> None:
        model = PrefixModel(100)
        model.submit([50], 30)
        req = model.submit(list(range(60, 80)), 30)
        run_to_first_token(model, req)
        before = model.tally.prefilled
        model.scheduler.retract(req)
        model.step()
        assert model.tally.prefilled == before + 1
        assert req.cached_tokens == 0, "of its first admission, not of its return"

    def test_looking_ahead_retracts_less_and_computes_less(self) -> None:
        retractions, computed = {}, {}
        for look_ahead in (1, 32):
            model = PrefixModel(120, rows=16, context=128, look_ahead=look_ahead)
            for i in range(24):
                model.submit([1000 + 16 * i + j for j in range(8)], 30)
            model.run()
            retractions[look_ahead] = model.scheduler.retractions
            computed[look_ahead] = model.tally.prefilled
        assert retractions[32] < retractions[1] / 2
        assert computed[32] < computed[1]

    def test_a_newcomer_must_leave_room_for_those_who_run(self) -> None:
        model = PrefixModel(50, look_ahead=10)
        model.submit([50], 30)
        model.step()
        waits = model.submit(range(39))
        model.step()  # 2 slots are in use by now, 10 promised
        assert waits in model.scheduler.waiting
        model.end(waits, "abort")
        model.submit(range(37))
        assert spans(model.step()) == [(0, 37)]

    def test_less_is_promised_to_one_that_ends_soon(self) -> None:
        model = PrefixModel(50, look_ahead=10)
        model.submit([50], 4)
        model.step()
        model.submit(range(46))  # in that step 2 slots are in use, 2 promised, and then it ends
        assert spans(model.step()) == [(0, 46)]


class TestLeaving:
    @pytest.mark.parametrize("state", ["waiting", "prefilling", "running"])
    def test_abort_frees_what_was_held(self, state: str) -> None:
        model = PrefixModel(40, prefill_budget=4, rows=1)
        if state == "waiting":
            blocker = model.submit([50], 2)
        req = model.submit(list(range(10)), 9)
        for _ in range({"waiting": 1, "prefilling": 2, "running": 5}[state]):
            model.step()
        assert req in getattr(model.scheduler, state)
        model.end(req, "abort")
        model.scheduler.check()
        if state == "waiting":
            assert blocker not in model.ended
        model.run()
        assert model.scheduler.flush()
        assert model.scheduler.pool.available_size == 40

    def test_an_aborted_chunk_stays_for_those_who_stand_on_it(self) -> None:
        model = PrefixModel(40)
        a, b = model.submit([*range(10), 50], 5), model.submit([*range(10), 51], 5)
        model.step()
        model.end(a, "abort")
        model.run()
        assert b.output_ids == answer_alone(b.prompt_ids, 5, 40)
        assert b.cached_tokens == 10

    def test_what_failed_leaves_the_tree(self) -> None:
        model = PrefixModel(40)
        req = model.submit(list(range(10)), 5)
        model.step()
        model.step()
        model.end(req, "fail")
        model.scheduler.check()
        assert model.scheduler.pool.available_size == 40

    def test_what_failed_stays_while_others_stand_on_it_and_leaves_with_the_last(self) -> None:
        model = PrefixModel(60)
        reqs = [model.submit([*range(10), 50 + i, 60], 5) for i in range(3)]
        model.step()
        for left, req in zip((2, 1, 0), reqs, strict=True):
            model.end(req, "fail")
            model.scheduler.check()
            assert model.scheduler.tree.total_size == (10 + 2 * left if left else 0)

    def test_what_others_cached_below_a_failure_stays(self) -> None:
        model = PrefixModel(60)
        model.submit([*range(10), 50])
        model.run()
        model.submit([*range(10), 51], 5)
        model.step()
        (failed,) = model.scheduler.running
        model.end(failed, "fail")
        assert model.scheduler.tree.peek([*range(10), 50]).num_tokens == 11
        assert model.scheduler.tree.peek([*range(10), 51]).num_tokens == 10

    def test_flush_waits_for_nobody(self) -> None:
        model = PrefixModel(40)
        model.submit([1, 2, 3], 5)
        model.step()
        assert not model.scheduler.flush()
        model.run()
        assert model.scheduler.flush()
        assert model.scheduler.pool.available_size == 40


class TestEviction:
    @pytest.mark.parametrize(("policy", "oldest_stays"), [("lpm", True), ("fcfs", False)])
    def test_what_somebody_waits_for_goes_last(self, policy: str, oldest_stays: bool) -> None:
        """Of three cached prompts nobody waits for the latest; only `lpm` looks who does."""
        model = PrefixModel(50, look_ahead=1, policy=policy)
        for first in (50, 70, 30):
            model.submit(range(first, first + 10), 1)
            model.run()
        model.submit([90, 91], 25)
        model.step()
        first = model.submit([*range(70, 80), *range(38)], 1)  # there is no room for it
        second = model.submit([*range(50, 58), 0], 1)
        for _ in range(20):  # until the answer needs more slots
            model.step()
        assert not first.was_admitted and not second.was_admitted
        held = {n: model.scheduler.tree.peek(range(n, n + 10)).num_tokens for n in (50, 70, 30)}
        assert held == {50: 10 * oldest_stays, 70: 10, 30: 10 * (not oldest_stays)}


class TestPatience:
    """What somebody left a step ago is not taken from them while others run."""

    def make(self, *, others: bool, newcomer: int) -> tuple[PrefixModel, Req]:
        """After a step in which one request left 10 of 30 tokens, and a newcomer did not fit."""
        model = PrefixModel(30, look_ahead=1)
        model.submit(range(50, 60), 1)
        if others:
            model.submit([70, 71], 15)
        waits = model.submit(range(80, 80 + newcomer), 1)
        model.step()
        assert not waits.was_admitted
        return model, waits

    def test_who_comes_back_within_a_step_finds_it(self) -> None:
        model, waits = self.make(others=True, newcomer=20)
        model.step()
        assert not waits.was_admitted and model.scheduler.room >= 21
        back = model.submit([*range(50, 60), 0, 60], 1)
        model.step()
        assert back.cached_tokens == 10

    def test_if_nobody_does_the_newcomer_waits_for_that_step_only(self) -> None:
        model, waits = self.make(others=True, newcomer=20)
        model.step()
        assert not waits.was_admitted
        model.step()
        assert waits.was_admitted

    def test_no_step_stays_empty_for_it(self) -> None:
        model, waits = self.make(others=False, newcomer=25)
        model.step()
        assert waits.was_admitted

    def test_what_was_left_longer_ago_counts_as_room(self) -> None:
        model = PrefixModel(30, look_ahead=1)
        model.submit(range(50, 60), 1)
        model.run()
        model.submit([70, 71], 15)
        model.step()
        newcomer = model.submit(range(80, 100), 1)
        model.step()
        assert newcomer.was_admitted


class TestCap:
    @pytest.mark.parametrize("cap", [0, 5, 12, 1000])
    def test_no_more_is_kept_than_was_asked_for(self, cap: int) -> None:
        model = PrefixModel(100, max_cached_tokens=cap)
        for i in range(6):
            model.submit([10 * i + j for j in range(5)])
            model.run()
            assert model.scheduler.tree.evictable_size <= cap
        assert model.scheduler.tree.evictable_size == min(30, cap - cap % 5)

    def test_it_does_not_hinder_those_who_run(self) -> None:
        model = PrefixModel(100, max_cached_tokens=0)
        for i in range(4):
            model.submit([*range(20), 50 + i], 5)
        model.run()
        assert model.tally.prefilled == distinct_prefixes([[*range(20), 50 + i] for i in range(4)])
        assert model.scheduler.pool.available_size == 100

    def test_the_oldest_go(self) -> None:
        model = PrefixModel(100, max_cached_tokens=6)
        for prompt in ([1, 1, 1], [2, 2, 2], [1, 1, 1], [3, 3, 3]):
            model.submit(prompt)
            model.run()
        peek = model.scheduler.tree.peek
        assert [peek([i] * 3).num_tokens for i in (1, 2, 3)] == [3, 0, 3]


class TestCost:
    def test_a_queue_that_can_not_move_is_not_looked_at(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = PrefixModel(30, look_ahead=1)
        model.submit([50], 20)
        model.step()
        large = model.submit(range(29))
        model.step()
        assert large in model.scheduler.waiting
        scheduler, looks = model.scheduler, []
        monkeypatch.setattr(scheduler, "_peek", looks.append)
        for _ in range(3):
            assert len(model.step().decodes) == 1
        assert looks == []

    def test_a_newcomer_is_looked_at_although_the_queue_could_not_move(self) -> None:
        model = PrefixModel(30, look_ahead=1)
        model.submit([50], 20)
        model.step()
        large = model.submit(range(29))
        model.step()
        small = model.submit([50, 51])  # the tree holds some of it, so it is first in line
        model.step()
        assert small.was_admitted and not large.was_admitted

    def test_the_queue_is_looked_at_again_when_prompts_have_grown_the_tree(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("minisgl.engine.scheduler.PROMPT_ROWS", 2)
        model = PrefixModel(29)
        model.submit(range(12), 8, prompt_logprobs_from=0)  # two tokens a step
        follower = model.submit([*range(12), 50])
        model.step()  # 11 tokens are new, 10 + 7 are promised: one too many for 27 slots
        assert not follower.was_admitted
        model.step()  # 9 new, 8 + 7 promised, 25 slots
        assert follower.was_admitted

    @pytest.mark.parametrize("policy", POLICIES)
    def test_a_long_queue_costs_no_more_than_its_window(
        self, policy: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = PrefixModel(4000, rows=4, policy=policy, max_overtakes=10_000)
        for i in range(600):
            model.submit([i % 7, i])
        scheduler, peeks = model.scheduler, 0
        peek = scheduler._peek

        def counted(req: Req) -> object:
            nonlocal peeks
            peeks += 1
            return peek(req)

        monkeypatch.setattr(scheduler, "_peek", counted)
        assert len(scheduler.next_step().extends) == 4
        assert peeks <= 4 * 128


class TestBooks:
    def test_a_lost_slot_is_named(self) -> None:
        model = PrefixModel(20)
        model.submit([1, 2, 3])
        model.run()
        model.scheduler.pool.alloc(1)
        with pytest.raises(AssertionError, match=r"16 free \+ 3 cached \+ 0 owned is not 20"):
            model.scheduler.check_accounts()

    def test_a_lock_left_behind_is_named(self) -> None:
        model = PrefixModel(20)
        model.submit([1, 2, 3])
        model.run()
        tree = model.scheduler.tree
        tree.lock(tree.match_prefix([1, 2]).node)
        with pytest.raises(AssertionError, match="part of the tree is locked"):
            model.scheduler.check_accounts()

    def test_a_table_that_names_another_slot_is_found(self) -> None:
        model = PrefixModel(20)
        req = model.submit([1, 2, 3], 9)
        model.step()
        assert req.row is not None
        model.scheduler.req_to_token.write(req.row, 1, [19])
        with pytest.raises(AssertionError):
            model.scheduler.check()

"""The offline optimum: no scheduler computes less, and one that has the best order computes no
more; with answers that others' prompts begin with, and with log-probabilities of prompts."""

from __future__ import annotations

import doctest
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from minisgl import SamplingParams
from minisgl.config import POLICIES
from minisgl.engine.req import Req
from scripts.bench import optimum
from scripts.bench.optimum import Asked, hit_rates, least_computed, recorded
from scripts.make_tiny_model import make_tiny_model
from tests.engine.common import fp32
from tests.reference.prefix_model import LETTERS, PrefixModel

prompts = st.lists(
    st.lists(st.integers(0, LETTERS - 1), min_size=1, max_size=8), min_size=1, max_size=10
)
LONGEST = 8 + 4  # tokens of a prompt and its answer


def asked(req: Req, logits_from: int) -> Asked:
    return Asked(req.prompt_ids, logits_from, req.output_ids, req.cached_tokens)


@given(
    prompts=prompts,
    policy=st.sampled_from(POLICIES),
    slots=st.integers(LONGEST, 100),
    rows=st.integers(1, 8),
    budget=st.integers(1, 40),
    max_tokens=st.integers(0, 4),
    from_first=st.booleans(),
)
def test_no_schedule_computes_less(
    prompts: list[list[int]],
    policy: str,
    slots: int,
    rows: int,
    budget: int,
    max_tokens: int,
    from_first: bool,
) -> None:
    model = PrefixModel(slots, rows=rows, policy=policy, prefill_budget=budget)
    first = 0 if from_first else None
    reqs = [model.submit(p, max_tokens, prompt_logprobs_from=first) for p in prompts]
    starts = [req.logits_from for req in reqs]
    model.run()
    least = least_computed(map(asked, reqs, starts))
    assert model.tally.prefilled >= least
    if not model.scheduler.retractions:
        found = sum(req.cached_tokens for req in reqs)
        assert model.tally.prefilled == sum(map(len, prompts)) - found


@given(prompts=prompts, max_tokens=st.integers(0, 4))
def test_the_best_order_reaches_it(prompts: list[list[int]], max_tokens: int) -> None:
    """Sorted, a prompt comes before those that begin with it, or with it and its answer."""
    model = PrefixModel(1000, policy="fcfs", rows=1)
    reqs = []
    for prompt in sorted(prompts):
        reqs.append(model.submit(prompt, max_tokens))
        model.run()
    done = [asked(req, len(req.prompt_ids) - 1) for req in reqs]
    assert model.tally.prefilled == least_computed(done)
    achieved, optimal = hit_rates(done)
    assert abs(achieved - optimal) < 1e-9


def test_namespaces_share_nothing() -> None:
    mine, yours = (Asked([1, 2, 3], 2, namespace=name) for name in (None, "yours"))
    assert least_computed([mine, mine]) == 4 and least_computed([mine, yours]) == 6


def test_what_an_engine_is_asked_is_written_down(tmp_path: Any) -> None:
    with fp32(str(make_tiny_model(tmp_path / "tiny")), kv_tokens=512) as engine:
        with recorded(engine) as requests:
            first = engine.generate([5, 6, 7], SamplingParams(temperature=0, max_tokens=4))
            engine.generate([5, 6, 7, *first.token_ids], SamplingParams(max_tokens=0))
        engine.generate([9, 9], SamplingParams(max_tokens=1))
    a, b = requests
    assert (a.prompt, a.logits_from, a.output, a.cached) == ([5, 6, 7], 2, first.token_ids, 0)
    assert len(b.prompt) == 3 + len(first.token_ids) and b.cached == len(b.prompt) - 1
    assert least_computed(requests) == 3 + 1
    assert hit_rates(requests) == (b.cached / (3 + len(b.prompt)),) * 2


def test_examples() -> None:
    assert doctest.testmod(optimum).failed == 0

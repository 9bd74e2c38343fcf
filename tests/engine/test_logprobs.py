"""Log-probabilities and scores against transformers' log_softmax; user-case rows C but select."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from minisgl import Completion, Engine, SamplingParams, Score, TokenLogprob
from minisgl.engine import scheduler
from minisgl.engine.engine import EngineError
from scripts.make_tiny_model import make_tiny_model
from tests.engine.common import fp32, greedy
from tests.toy_tokenizers import sentencepiece

INF = math.inf
PROMPT = [*range(20, 60), 5, 6, 7, 8, 5, 6, 300]
NEAR = 1e-4


@pytest.fixture(scope="module")
def engine(tiny_model_dir: Path) -> Iterator[Engine]:
    with fp32(str(tiny_model_dir)) as engine:
        yield engine


@pytest.fixture(scope="module")
def theirs(tiny_model_dir: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)


@torch.inference_mode()
def log_softmax(model: Any, ids: list[int], size: int = 384) -> torch.Tensor:
    """[T, V]: row p says how likely each of the first `size` tokens is at position p + 1."""
    return torch.log_softmax(model(torch.tensor([ids])).logits[0, :, :size].double(), dim=-1)


def assert_right(
    told: list[TokenLogprob | None], first: int, ids: list[int], table: torch.Tensor, k: int
) -> None:
    """`told` is of ids[first:], each with its k likeliest tokens."""
    assert len(told) == len(ids) - first
    for position, each in enumerate(told, first):
        if position == 0:
            assert each is None
            continue
        assert each is not None
        row = table[position - 1]
        assert each.token_id == ids[position]
        assert each.logprob == pytest.approx(float(row[ids[position]]), abs=NEAR)
        values, tokens = row.topk(k)
        assert [v for _, v in each.top] == pytest.approx(values.tolist(), abs=NEAR)
        assert {i for i, _ in each.top} == set(tokens.tolist())


class TestOutput:
    @pytest.mark.parametrize("k", [0, 1, 5, 20])
    def test_each_token_and_the_likeliest_beside_it(
        self, engine: Engine, theirs: Any, k: int
    ) -> None:
        params = SamplingParams(temperature=2.0, seed=3, max_tokens=9, logprobs=k)
        out = engine.generate(PROMPT, params)
        ids = PROMPT + out.token_ids
        assert out.logprobs is not None
        assert out.prompt_logprobs is None
        assert_right(list(out.logprobs), len(PROMPT), ids, log_softmax(theirs, ids), k)

    def test_they_are_the_models_own_whatever_is_sampled_from(self, engine: Engine) -> None:
        plain = engine.generate(PROMPT, greedy(1, logprobs=5)).logprobs
        for params in (
            {"temperature": 0.5, "top_k": 1},
            {"repetition_penalty": 1.5, "presence_penalty": 1.0, "logit_bias": {9: 5.0}},
            {"logit_bias": dict.fromkeys(range(384), 1.0), "min_tokens": 1},
        ):
            other = engine.generate(PROMPT, replace(greedy(1, logprobs=5), **params)).logprobs
            assert plain is not None
            assert other is not None
            assert [v for _, v in other[0].top] == pytest.approx([v for _, v in plain[0].top])
            assert [i for i, _ in other[0].top] == [i for i, _ in plain[0].top]

    def test_one_for_each_token_the_stop_token_too(self, engine: Engine) -> None:
        stop = engine.generate(PROMPT, greedy(4)).token_ids[3]
        out = engine.generate(PROMPT, greedy(9, stop_token_ids=(stop,), logprobs=0))
        assert out.finish_reason == "stop"
        assert [t.token_id for t in out.logprobs or ()] == out.token_ids

    def test_off_is_none_and_mixed_batches_know_who_asked(self, engine: Engine) -> None:
        params = [greedy(3), greedy(3, logprobs=0), greedy(3, logprobs=4), greedy(3)]
        off, zero, four, _ = engine.generate([PROMPT] * 4, params)
        assert off.logprobs is None
        assert [t.top for t in zero.logprobs or ()] == [()] * 3
        assert [len(t.top) for t in four.logprobs or ()] == [4] * 3

    def test_they_do_not_defeat_the_cache(self, engine: Engine) -> None:
        engine.flush_cache()
        engine.generate(PROMPT, greedy(2))
        out = engine.generate(PROMPT, greedy(2, logprobs=5))
        assert out.cached_tokens == len(PROMPT) - 1

    def test_top_tokens_are_ids(self, engine: Engine) -> None:
        """Halves of characters have one text, U+FFFD, and 20 different ids."""
        out = engine.generate(PROMPT, greedy(1, logprobs=20))
        assert out.logprobs is not None
        texts = [engine.tokenizer.decode([i]) for i, _ in out.logprobs[0].top]
        assert len(set(texts)) < 20
        assert len({i for i, _ in out.logprobs[0].top}) == 20

    @pytest.mark.parametrize("allowed", [1, 3])
    def test_minus_infinity_is_a_value(self, tiny_model_dir: Path, allowed: int) -> None:
        with fp32(str(tiny_model_dir)) as engine:
            runner = engine.loop.runner
            forward = runner.forward

            def masked(step: Any) -> Any:
                reqs, logits, prompt_logits = forward(step)
                return reqs, logits.index_fill(1, torch.arange(allowed, 384), -INF), prompt_logits

            engine.call(lambda: setattr(runner, "forward", masked))
            out = engine.generate(PROMPT, greedy(2, logprobs=5))
            assert out.logprobs is not None
            for each in out.logprobs:
                assert each.token_id < allowed
                values = [v for _, v in each.top]
                assert sum(map(math.exp, values)) == pytest.approx(1.0)
                assert values[allowed:] == [-INF] * (5 - allowed)


class TestPrompt:
    @pytest.mark.parametrize("first", [0, 1, 2, 17, len(PROMPT) - 1])
    @pytest.mark.parametrize(
        "settings",
        [{}, {"prefix_cache": "none"}, {"prefill_budget": 7}, {"decode_workspace": False}],
        ids=str,
    )
    def test_cold_warm_and_chunked(
        self, tiny_model_dir: Path, theirs: Any, first: int, settings: dict[str, Any]
    ) -> None:
        table = log_softmax(theirs, PROMPT)
        params = greedy(2, prompt_logprobs_from=first, logprobs=3)
        with fp32(str(tiny_model_dir), **settings) as engine:
            cold = engine.generate(PROMPT, params)
            warm = engine.generate(PROMPT, params)
            both = engine.generate([PROMPT, PROMPT, PROMPT[:9]], [params, greedy(3), greedy(3)])
            engine.check()
            for out in (cold, warm, both[0]):
                assert out.prompt_logprobs is not None
                assert_right(out.prompt_logprobs, first, PROMPT, table, 3)
                assert out.token_ids == cold.token_ids
            if "prefix_cache" not in settings:
                assert warm.cached_tokens == max(0, first - 1)  # its logits tell of token `first`
            assert both[1].prompt_logprobs is None

    @pytest.mark.parametrize("rows", [1, 3, 8])
    def test_a_step_computes_a_bounded_number_of_rows(
        self, tiny_model_dir: Path, theirs: Any, monkeypatch: pytest.MonkeyPatch, rows: int
    ) -> None:
        monkeypatch.setattr(scheduler, "PROMPT_ROWS", rows)
        seen: list[int] = []
        table = log_softmax(theirs, PROMPT)
        with fp32(str(tiny_model_dir)) as engine:
            forward = engine.loop.runner.forward

            def note(step: Any) -> Any:
                out = forward(step)
                seen.append(len(out[2]))
                return out

            engine.call(lambda: setattr(engine.loop.runner, "forward", note))
            out = engine.generate(PROMPT, greedy(0, prompt_logprobs_from=9))
            assert out.prompt_logprobs is not None
            assert_right(out.prompt_logprobs, 9, PROMPT, table, 0)
            assert sum(seen) == len(PROMPT) - 9
            assert max(seen) == min(rows, len(PROMPT) - 9)
            del seen[:]
            prompts = [[i, *PROMPT[1:]] for i in range(40, 44)]
            engine.generate(prompts, greedy(0, prompt_logprobs_from=1))
            assert max(seen) <= rows + len(prompts)  # everyone gets on by one row at least

    def test_a_prompt_of_one_token(self, engine: Engine) -> None:
        out = engine.generate([5], greedy(2, prompt_logprobs_from=0))
        assert out.prompt_logprobs == [None]

    def test_without_an_answer(self, engine: Engine, theirs: Any) -> None:
        out = engine.generate(PROMPT, greedy(0, prompt_logprobs_from=0, logprobs=2))
        assert (out.token_ids, out.logprobs, out.finish_reason) == ([], [], "length")
        assert out.prompt_logprobs is not None
        assert_right(out.prompt_logprobs, 0, PROMPT, log_softmax(theirs, PROMPT), 2)

    def test_a_hundred_suffixes_of_one_prefix_hit_the_cache(self, engine: Engine) -> None:
        engine.flush_cache()
        n = len(PROMPT)
        params = greedy(0, prompt_logprobs_from=n)
        before = engine.stats()
        outs = engine.generate([[*PROMPT, 3 + i, 9] for i in range(100)], params)
        after = engine.stats()
        assert all(len(out.prompt_logprobs or ()) == 2 for out in outs)
        computed = (after.prompt_tokens - before.prompt_tokens) - (
            after.cached_tokens - before.cached_tokens
        )
        # The first 46 of 47 once; of each its last three: 46 (whose logits are wanted), and its own
        assert computed <= n - 1 + 100 * 3
        engine.check()

    def test_a_whole_context_without_room_for_an_answer(self, tiny_model_dir: Path) -> None:
        with fp32(str(tiny_model_dir), context_length=16) as engine:
            full = list(range(20, 36))
            out = engine.generate(full, greedy(0, prompt_logprobs_from=0))
            assert len(out.prompt_logprobs or ()) == 16
            with pytest.raises(ValueError, match="16 tokens, but the context holds 16"):
                engine.generate(full, greedy(1))
            with pytest.raises(ValueError, match=r"17 tokens, but the context holds 16$"):
                engine.generate([*full, 5], greedy(0))

    def test_nan_in_the_prompt_fails_that_request_only(self, tiny_model_dir: Path) -> None:
        with fp32(str(tiny_model_dir)) as engine:
            forward = engine.loop.runner.forward

            def broken(step: Any) -> Any:
                reqs, logits, prompt_logits = forward(step)
                if len(prompt_logits) > 3:
                    prompt_logits = prompt_logits.clone()
                    prompt_logits[2, 7] = float("nan")
                return reqs, logits, prompt_logits

            engine.call(lambda: setattr(engine.loop.runner, "forward", broken))
            bad = engine.submit(PROMPT, greedy(2, prompt_logprobs_from=3))
            good = engine.submit([5, 6], greedy(2))
            with pytest.raises(EngineError, match="NaN"):
                bad.result()
            assert good.result().completion_tokens == 2
            engine.check()


def test_a_padded_vocabulary_has_no_part_in_it(tmp_path: Path) -> None:
    path = make_tiny_model(tmp_path / "m", vocab_size=2000)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    with fp32(str(path)) as engine:
        size = engine.tokenizer.vocab_size
        out = engine.generate([5, 6, 7], greedy(0, prompt_logprobs_from=0, logprobs=20))
        table = log_softmax(model, [5, 6, 7], size)
        assert_right(out.prompt_logprobs or [], 0, [5, 6, 7], table, 20)


def expected_score(model: Any, ids: list[int], start: int) -> list[float]:
    table = log_softmax(model, ids)
    return [float(table[p - 1, ids[p]]) for p in range(start, len(ids))]


class TestScore:
    def test_one_prompt_many_continuations(self, engine: Engine, theirs: Any) -> None:
        choices = [[9], [10, 11], [12, 13, 14, 15], [9]]
        scores = engine.score(PROMPT, choices)
        for choice, score in zip(choices, scores, strict=True):
            expected = expected_score(theirs, PROMPT + choice, len(PROMPT))
            assert score.token_ids == tuple(choice)
            assert list(score.logprobs) == pytest.approx(expected, abs=NEAR)
            assert score.sum == pytest.approx(sum(expected), abs=NEAR)
            assert score.mean == pytest.approx(sum(expected) / len(choice), abs=NEAR)
        assert scores[0] == scores[3]

    def test_as_many_prompts_as_continuations(self, engine: Engine, theirs: Any) -> None:
        prompts, choices = [[5, 6], [7], [5, 6]], [[9], [10, 11], [12]]
        for prompt, choice, score in zip(
            prompts, choices, engine.score(prompts, choices), strict=True
        ):
            expected = expected_score(theirs, prompt + choice, len(prompt))
            assert list(score.logprobs) == pytest.approx(expected, abs=NEAR)

    def test_text(self, engine: Engine, theirs: Any) -> None:
        prompt, choices = "What is the capital of France? The capital of", [" France", " the tree"]
        bare = engine.tokenizer.encode(prompt)
        for choice, score in zip(choices, engine.score(prompt, choices), strict=True):
            ids = engine.tokenizer.encode(prompt + choice)
            assert ids[: len(bare)] == bare
            assert list(score.token_ids) == ids[len(bare) :]
            expected = expected_score(theirs, ids, len(bare))
            assert list(score.logprobs) == pytest.approx(expected, abs=NEAR)

    def test_the_prompts_last_token_is_in_no_score(self, engine: Engine) -> None:
        scores = engine.score(">>>", ["all", "get"])
        for score, word in zip(scores, ("all", "get"), strict=True):
            assert engine.tokenizer.decode(score.token_ids) == word

    def test_a_prompt_that_ends_in_a_space(self, tmp_path: Path) -> None:
        path = make_tiny_model(tmp_path / "m", vocab_size=500)
        (path / "special_tokens_map.json").unlink(missing_ok=True)
        sentencepiece(path)
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        with fp32(str(path)) as engine:
            encode, size = engine.tokenizer.encode, engine.tokenizer.vocab_size
            bare, there, five = encode("Hi "), encode("Hi there"), encode("Hi 5")
            assert bare == five[:-1] == [*there[:-1], bare[-1]]  # <s> ▁Hi ▁ | <s> ▁Hi ▁there
            scores = engine.score("Hi ", ["there", "5"])
            assert [list(s.token_ids) for s in scores] == [there[2:], five[2:]]
            for ids, score in zip((there, five), scores, strict=True):
                table = log_softmax(model, ids, size)
                expected = [float(table[p - 1, ids[p]]) for p in range(2, len(ids))]
                assert list(score.logprobs) == pytest.approx(expected, abs=NEAR)
            assert list(engine.score("Hi ", ["5"])[0].token_ids) == five[3:]  # nothing to match

    def test_two_thousand_with_few_rows_and_slots(self, tiny_model_dir: Path) -> None:
        with fp32(str(tiny_model_dir), max_running=8, kv_tokens=200) as engine:
            choices = [[3 + i % 300, 3 + i // 300] for i in range(2000)]
            scores = engine.score(PROMPT[:20], choices)
            assert [s.token_ids for s in scores] == [tuple(c) for c in choices]
            again = engine.score(PROMPT[:20], choices[::500])
            for a, b in zip(again, scores[::500], strict=True):
                assert a.logprobs == pytest.approx(b.logprobs, abs=NEAR)
            stats = engine.stats()
            assert stats.hit_rate > 0.75  # 19 of 22 tokens
            engine.check()

    def test_async_and_in_a_namespace(self, engine: Engine) -> None:
        engine.flush_cache()
        scores = asyncio.run(engine.ascore(PROMPT, [[9], [10]]))
        apart = engine.score(PROMPT, [[9], [10]], namespace="tenant")
        for a, b in zip(scores, apart, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=NEAR)
        assert engine.stats().tree_slots >= 2 * len(PROMPT)  # nothing is shared between the two

    def test_nothing_to_score_is_nothing(self, engine: Engine) -> None:
        assert engine.score(PROMPT, []) == []

    @pytest.mark.parametrize(
        ("prompts", "choices", "message"),
        [
            ("Once", [""], r"continuation '' of 'Once' adds no token"),
            ([5], [[]], r"adds no token"),
            ("", ["a"], r"no token of the prompt is left"),
            ([], [[5]], r"0 prompts, but 1 continuations"),
            (["a", "b"], ["c"], r"2 prompts, but 1 continuations"),
            ("a", [[5]], r"both as text or both as token ids"),
            ([5], ["a"], r"both as text or both as token ids"),
            ("a", "bc", r"give a list"),
            ([5], [[999]], r"token id 999"),
            ([5] * 500, [[6] * 13], r"513 tokens, but the context holds 512"),
        ],
    )
    def test_bad_input_is_refused_and_the_next_is_served(
        self, engine: Engine, prompts: Any, choices: Any, message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            engine.score(prompts, choices)
        assert engine.score([5], [[6]])[0].token_ids == (6,)

    def test_a_score_by_hand(self) -> None:
        score = Score((1, 2, 3), (-1.0, -0.5, -INF))
        assert (score.sum, score.mean) == (-INF, -INF)
        assert Score((1, 2), (-1.0, -0.5)).mean == -0.75


@given(
    st.lists(st.integers(3, 6), min_size=1, max_size=25),
    st.lists(st.lists(st.integers(3, 5), min_size=1, max_size=6), min_size=1, max_size=6),
)
def test_scores_do_not_depend_on_what_is_cached(
    tight: tuple[Engine, Engine], prompt: list[int], choices: list[list[int]]
) -> None:
    small, roomy = tight
    together = small.score(prompt, choices)
    small.check()
    alone = [roomy.score(prompt, [choice])[0] for choice in choices]
    for a, b in zip(together, alone, strict=True):
        assert a.token_ids == b.token_ids
        assert a.logprobs == pytest.approx(b.logprobs, abs=NEAR)


@pytest.fixture(scope="module")
def tight(tiny_model_dir: Path) -> Iterator[tuple[Engine, Engine]]:
    path = str(tiny_model_dir)
    with (
        fp32(path, kv_tokens=40, prefill_budget=6, max_running=3) as small,
        fp32(path, prefix_cache="none") as roomy,
    ):
        yield small, roomy


def test_an_aborted_request_tells_what_it_knows(engine: Engine) -> None:
    handle = engine.submit(PROMPT, greedy(None, logprobs=1, prompt_logprobs_from=40))
    next(handle)
    handle.abort()
    out: Completion = handle.result()
    assert out.finish_reason == "abort"
    assert len(out.logprobs or ()) == len(out.token_ids)
    assert len(out.prompt_logprobs or ()) == len(PROMPT) - 40

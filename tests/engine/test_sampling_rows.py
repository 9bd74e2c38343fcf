"""Every sampling setting against an obvious loop over transformers' logits; user-case rows B.

Rows B2, B6 and B14 stand in test_engine.py, B3 and B4 in tests/kernels/test_sample.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import (
    AutoModelForCausalLM,
    MinNewTokensLengthLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from minisgl import Engine, SamplingParams
from minisgl.engine.adjustments import Adjustments, adjusted
from minisgl.engine.engine import EngineError
from scripts.make_tiny_model import make_tiny_model
from tests.engine.common import first_difference, fp32, greedy

INF = math.inf
PROMPT = [5, 6, 7, 8, 5, 6, 300]

Adjust = Callable[[torch.Tensor, list[int], list[int]], torch.Tensor]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Untied: a head of its own is less in love with repeating the last token."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "untied", tie=False)


@pytest.fixture(scope="module")
def engine(model_dir: Path) -> Iterator[Engine]:
    with fp32(str(model_dir)) as engine:
        yield engine


@pytest.fixture(scope="module")
def theirs(model_dir: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)


@torch.inference_mode()
def slow_answer(model: Any, prompt: list[int], n: int, adjust: Adjust) -> list[int]:
    """Greedy, the whole text computed anew for each token."""
    output: list[int] = []
    for _ in range(n):
        logits = model(torch.tensor([prompt + output])).logits[0, -1]
        output.append(int(adjust(logits, prompt, output).argmax()))
    return output


class TestAgainstTheObviousLoop:
    @pytest.mark.parametrize("penalty", [1.3, 5.0, 0.7])
    def test_repetition_penalty(self, engine: Engine, theirs: Any, penalty: float) -> None:
        processor = RepetitionPenaltyLogitsProcessor(penalty)

        def adjust(logits: torch.Tensor, prompt: list[int], output: list[int]) -> torch.Tensor:
            return processor(torch.tensor([prompt + output]), logits[None].clone())[0]

        expected = slow_answer(theirs, PROMPT, 12, adjust)
        plain = slow_answer(theirs, PROMPT, 12, lambda logits, prompt, output: logits)
        assert expected != plain
        ours = engine.generate(PROMPT, greedy(12, repetition_penalty=penalty))
        assert ours.token_ids == expected

    @pytest.mark.parametrize(("frequency", "presence"), [(0.7, 0.0), (0.0, 1.5), (-0.5, 2.0)])
    def test_frequency_and_presence_count_the_answer_only(
        self, engine: Engine, theirs: Any, frequency: float, presence: float
    ) -> None:
        def adjust(logits: torch.Tensor, prompt: list[int], output: list[int]) -> torch.Tensor:
            for token, count in Counter(output).items():
                logits[token] -= frequency * count + presence
            return logits

        expected = slow_answer(theirs, PROMPT, 24, adjust)
        params = greedy(24, frequency_penalty=frequency, presence_penalty=presence)
        assert engine.generate(PROMPT, params).token_ids == expected
        assert expected != engine.generate(PROMPT, greedy(24)).token_ids

    def test_all_penalties_and_biases_in_their_order(self, engine: Engine, theirs: Any) -> None:
        def adjust(logits: torch.Tensor, prompt: list[int], output: list[int]) -> torch.Tensor:
            counts = Counter(output)
            for token in {*prompt, *output}:
                x = float(logits[token])
                x = x / 1.2 if x > 0 else x * 1.2
                logits[token] = x - (0.3 * counts[token] + 0.4 * (counts[token] > 0))
            for token, bias in bias_of.items():
                logits[token] += bias
            return logits

        first = engine.generate(PROMPT, greedy(1)).token_ids[0]
        bias_of = {first: -INF, 5: 0.5, 40: 1.5, 41: -3.0}
        params = greedy(
            16,
            repetition_penalty=1.2,
            frequency_penalty=0.3,
            presence_penalty=0.4,
            logit_bias=bias_of,
        )
        expected = slow_answer(theirs, PROMPT, 16, adjust)
        assert engine.generate(PROMPT, params).token_ids == expected
        assert first not in expected

    @pytest.mark.parametrize("min_tokens", [0, 1, 3, 4, 12])
    def test_min_tokens(self, tmp_path: Path, min_tokens: int) -> None:
        path = make_tiny_model(tmp_path / "m", tie=False)
        with fp32(str(path)) as engine:
            eos = engine.generate(PROMPT, greedy(3)).token_ids[2]
        (path / "generation_config.json").write_text(f'{{"eos_token_id": [2, {eos}]}}')
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
        processor = MinNewTokensLengthLogitsProcessor(len(PROMPT), min_tokens, [2, eos])

        def adjust(logits: torch.Tensor, prompt: list[int], output: list[int]) -> torch.Tensor:
            return processor(torch.tensor([prompt + output]), logits[None].clone())[0]

        expected = slow_answer(model, PROMPT, 12, adjust)
        ends = [i for i, token in enumerate(expected) if token in (2, eos)]
        expected = expected[: ends[0] + 1] if ends else expected
        with fp32(str(path)) as engine:
            params = SamplingParams(temperature=0.0, max_tokens=12, min_tokens=min_tokens)
            out = engine.generate(PROMPT, params)
        assert out.token_ids == expected
        assert len(out.token_ids) > min_tokens or out.finish_reason == "length"
        assert (out.finish_reason == "stop") == bool(ends)


class TestOneLogit:
    """What `sample_rows` would be given, by hand."""

    @pytest.mark.parametrize("prompt", [[3], [3, 3, 3]])
    def test_repetition_is_applied_once_to_either_sign(self, prompt: list[int]) -> None:
        params = SamplingParams(repetition_penalty=1.3)
        seen = Adjustments(params, [*prompt, 4], ())
        logits = torch.zeros(1, 9)
        logits[0, 3], logits[0, 4] = 2.0, -2.0
        assert seen.update([3, 3])
        out = adjusted(logits, [0], [seen])
        assert out[0, 3:5].tolist() == pytest.approx([2 / 1.3, -2 * 1.3])
        assert logits[0, 3] == 2.0  # the model's own stay

    def test_a_retracted_answer_is_counted_once(self) -> None:
        counted = Adjustments(SamplingParams(frequency_penalty=1.0), [3], ())
        for output in ([7], [7, 7], [7, 7], [7, 7, 8]):
            counted.update(output)
        assert dict(zip(counted.ids, counted.penalties, strict=True)) == {7: 2.0, 8: 1.0}

    def test_a_stop_id_gets_its_bias_when_it_may_come(self) -> None:
        params = SamplingParams(min_tokens=2, logit_bias={7: 1.5, 8: -1.0})
        few = Adjustments(params, [3], stop_ids=[2, 7])
        biases = []
        for output in ([], [5], [5, 6], [5, 6, 9]):
            assert few.update(output)
            biases.append(dict(zip(few.ids, few.biases, strict=True)))
        assert biases[0] == biases[1] == {2: -INF, 7: -INF, 8: -1.0}
        assert biases[2] == biases[3] == {2: 0.0, 7: 1.5, 8: -1.0}
        over = Adjustments(SamplingParams(min_tokens=1), [3], stop_ids=[2])
        assert [over.update(output) for output in ([], [5], [5, 6])] == [True, False, False]

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
    def test_a_small_bias_counts_in_half_precision(self, dtype: torch.dtype) -> None:
        logits = torch.tensor([[20.0, 20.0, 3.0]], dtype=dtype)
        few = Adjustments(SamplingParams(logit_bias={1: 0.01}), [], ())
        few.update([])
        assert adjusted(logits, [0], [few]).argmax() == 1


class TestEnds:
    """Each limit of each setting, through the engine."""

    def test_a_tiny_temperature_is_greedy(self, engine: Engine) -> None:
        best = engine.generate(PROMPT, greedy(12)).token_ids
        for temperature in (1e-9, 1e-5, 1e-4):
            params = SamplingParams(temperature=temperature, max_tokens=12, ignore_eos=True)
            assert engine.generate(PROMPT, params).token_ids == best

    @pytest.mark.parametrize("top_k", [-1, 0, 384, 385, 10**6, 10**12])
    def test_top_k_beyond_the_vocabulary_is_off(self, engine: Engine, top_k: int) -> None:
        plain = SamplingParams(seed=3, max_tokens=8, ignore_eos=True)
        expected = engine.generate(PROMPT, plain).token_ids
        assert engine.generate(PROMPT, replace(plain, top_k=top_k)).token_ids == expected

    @pytest.mark.parametrize("temperature", [0.0, 1.0, 100.0, 1e300])
    def test_a_bias_of_minus_infinity_forbids(self, engine: Engine, temperature: float) -> None:
        allowed = [40, 41, 42]
        bias = {i: -INF for i in range(384) if i not in allowed}
        params = SamplingParams(temperature=temperature, max_tokens=30, logit_bias=bias, seed=1)
        tokens = engine.generate(PROMPT, params).token_ids
        assert set(tokens) <= set(allowed)
        if temperature >= 100:
            assert set(tokens) == set(allowed)

    def test_a_bias_of_100_decides(self, engine: Engine) -> None:
        out = engine.generate(PROMPT, SamplingParams(max_tokens=3, logit_bias={77: 100}))
        assert out.token_ids == [77, 77, 77]

    @pytest.mark.parametrize("temperature", [0.0, 1.0])
    def test_nothing_allowed_fails_that_request_only(
        self, engine: Engine, temperature: float
    ) -> None:
        nothing = SamplingParams(
            temperature=temperature, max_tokens=4, logit_bias=dict.fromkeys(range(384), -INF)
        )
        alone = engine.generate(PROMPT, greedy(4)).token_ids
        bad, good = engine.submit(PROMPT, nothing), engine.submit(PROMPT, greedy(4))
        with pytest.raises(EngineError, match="every token is forbidden"):
            bad.result()
        assert good.result().token_ids == alone
        engine.check()

    def test_min_tokens_holds_for_every_kind_of_stop(self, engine: Engine) -> None:
        answer = engine.generate(PROMPT, greedy(12))
        second = answer.token_ids[1]
        out = engine.generate(PROMPT, greedy(12, min_tokens=5, stop_token_ids=(second,)))
        assert second not in out.token_ids[:5]
        text = engine.tokenizer.decode(answer.token_ids[:2])[-1:]
        out = engine.generate(PROMPT, greedy(12, min_tokens=5, stop=text))
        assert out.token_ids[:5] == answer.token_ids[:5]  # a stop string forbids no token
        assert text in engine.tokenizer.decode(out.token_ids[:5])
        later = engine.tokenizer.decode(answer.token_ids[5:])
        if text in later:
            assert (out.finish_reason, out.stop_match) == ("stop", text)

    def test_min_tokens_beyond_the_context_ends_with_length(self, tiny_model_dir: Path) -> None:
        with fp32(str(tiny_model_dir), context_length=16) as engine:
            out = engine.generate(PROMPT, SamplingParams(min_tokens=50))
        assert (out.completion_tokens, out.finish_reason) == (16 - len(PROMPT), "length")

    def test_no_max_tokens_means_until_the_context_is_full(self, tiny_model_dir: Path) -> None:
        with fp32(str(tiny_model_dir), context_length=200) as engine:  # not 16, nor 128
            out = engine.generate(PROMPT, SamplingParams(ignore_eos=True))
        assert (out.completion_tokens, out.finish_reason) == (200 - len(PROMPT), "length")

    def test_ignored_eos_is_not_forbidden_by_min_tokens(self, tmp_path: Path) -> None:
        path = make_tiny_model(tmp_path / "m")
        with fp32(str(path)) as engine:
            answer = engine.generate(PROMPT, greedy(8)).token_ids
        (path / "generation_config.json").write_text(f'{{"eos_token_id": {answer}}}')
        with fp32(str(path)) as engine:
            assert engine.generate(PROMPT, greedy(8, min_tokens=8)).token_ids == answer
            out = engine.generate(PROMPT, greedy(8, stop_token_ids=(answer[1],)))
            assert out.stop_match == answer[1]


class TestDoor:
    @pytest.mark.parametrize(
        ("params", "message"),
        [
            ({"logit_bias": {999999: 5}}, "logit_bias for token id 999999.*384"),
            ({"logit_bias": {384: -INF}}, "384"),
            ({"stop_token_ids": (4096,), "min_tokens": 2}, "stop token id 4096"),
            ({"prompt_logprobs_from": 7}, "prompt_logprobs_from=7.*7 tokens.*6"),
        ],
    )
    def test_ids_and_positions_that_are_not_there(
        self, engine: Engine, params: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(ValueError, match=message):
            engine.generate(PROMPT, SamplingParams(**params))
        assert engine.generate(PROMPT, greedy(1)).completion_tokens == 1

    def test_n_answers(self, engine: Engine) -> None:
        params = SamplingParams(n=3, seed=5, max_tokens=6, ignore_eos=True)
        three = engine.generate(PROMPT, params)
        assert [c.index for c in three] == [0, 1, 2]
        assert len({c.request_id for c in three}) == 3
        each = [engine.generate(PROMPT, replace(params, n=1, seed=5 + i)) for i in range(3)]
        assert [c.token_ids for c in three] == [c.token_ids for c in each]
        two = replace(params, n=2)
        four = engine.generate([PROMPT, [9, 9]], two)
        assert [(c.prompt_tokens, c.index) for c in four] == [(7, 0), (7, 1), (2, 0), (2, 1)]


@pytest.fixture(scope="module")
def padded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """The model has more ids than the tokenizer has tokens."""
    path = make_tiny_model(tmp_path_factory.mktemp("padded") / "m", vocab_size=2000)
    with fp32(str(path)) as engine:
        assert engine.tokenizer.vocab_size < 1000
        yield engine


class TestPaddedVocabulary:
    def test_only_tokens_are_sampled(self, padded: Engine) -> None:
        hot = SamplingParams(temperature=50.0, max_tokens=150, ignore_eos=True, seed=1)
        tokens = padded.generate(PROMPT, hot).token_ids
        size = padded.tokenizer.vocab_size
        assert max(tokens) < size
        assert max(tokens) > size * 0.9
        best = SamplingParams(temperature=0.0, max_tokens=100, ignore_eos=True)
        assert max(padded.generate(PROMPT, best).token_ids) < size

    @pytest.mark.parametrize("make", [
        lambda i: ([i], SamplingParams()),
        lambda i: ([5], SamplingParams(stop_token_ids=(i,))),
        lambda i: ([5], SamplingParams(logit_bias={i: 1.0})),
    ])  # fmt: skip
    def test_nor_may_they_be_named(self, padded: Engine, make: Any) -> None:
        size = padded.tokenizer.vocab_size
        with pytest.raises(ValueError, match=f"{size} is not in the vocabulary"):
            padded.generate(*make(size))
        prompt, params = make(size - 1)
        assert padded.generate(prompt, replace(params, max_tokens=1)).completion_tokens == 1


@st.composite
def settings_for(draw: st.DrawFn, prompt: list[int]) -> SamplingParams:
    share = st.floats(0.1, 1.0)
    ids = st.integers(0, 383)
    return SamplingParams(
        max_tokens=draw(st.integers(2, 9)),
        min_tokens=draw(st.integers(0, 2)),
        temperature=draw(st.sampled_from([0.0, 1e-6, 0.5, 1.0, 3.0])),
        top_k=draw(st.sampled_from([-1, 1, 3, 1000])),
        top_p=draw(st.sampled_from([1.0, 0.5, 0.9])),
        min_p=draw(st.sampled_from([0.0, 0.05])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.3, 0.8])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.5, -1.0])),
        presence_penalty=draw(st.sampled_from([0.0, 1.0])),
        logit_bias=draw(st.dictionaries(ids, share | st.just(-INF), max_size=3)),  # type: ignore[arg-type]
        stop_token_ids=draw(st.tuples(ids) | st.just(())),
        seed=draw(st.integers(0, 9)),
        logprobs=draw(st.sampled_from([None, 0, 3])),
        prompt_logprobs_from=draw(st.none() | st.integers(0, len(prompt) - 1)),
    )


@st.composite
def requests(draw: st.DrawFn) -> tuple[list[list[int]], list[SamplingParams]]:
    prompt = st.lists(st.integers(3, 6), min_size=1, max_size=20)
    prompts = draw(st.lists(prompt, min_size=1, max_size=5))
    return prompts, [draw(settings_for(p)) for p in prompts]


@pytest.fixture(scope="module")
def tight(model_dir: Path) -> Iterator[tuple[Engine, Engine]]:
    path = str(model_dir)
    with (
        fp32(path, kv_tokens=36, prefill_budget=6, max_running=3) as small,
        fp32(path, prefix_cache="none") as roomy,
    ):
        yield small, roomy


@given(requests())
def test_the_batch_changes_nobodys_answer(
    tight: tuple[Engine, Engine], given: tuple[list[list[int]], list[SamplingParams]]
) -> None:
    """Any mix of settings, together and under pressure (chunks, waiting, eviction, retraction,
    warm prefixes), gives each request what it gets alone in an empty engine."""
    prompts, params = given
    small, roomy = tight
    together = small.generate(prompts, params)
    small.check()
    for prompt, setting, ours in zip(prompts, params, together, strict=True):
        alone = roomy.generate(prompt, setting)
        same = first_difference(roomy, prompt, setting, ours.token_ids, alone.token_ids)
        if same == len(alone.token_ids):
            assert ours.finish_reason == alone.finish_reason
        for a, b in (
            (ours.logprobs, alone.logprobs),
            (ours.prompt_logprobs, alone.prompt_logprobs),
        ):
            assert (a is None) == (b is None)
            known = same if a is ours.logprobs else None
            for x, y in zip((a or ())[:known], (b or ())[:known], strict=True):
                assert (x is None) == (y is None)
                if x is not None and y is not None:
                    assert x.token_id == y.token_id
                    assert x.logprob == pytest.approx(y.logprob, abs=1e-4)
                    assert [v for _, v in x.top] == pytest.approx([v for _, v in y.top], abs=1e-4)


def test_a_tie_may_fall_either_way_and_nothing_else_may(tight: tuple[Engine, Engine]) -> None:
    """The two likeliest tokens after this text have the same logit, to the bit."""
    _, roomy = tight
    tie = greedy(6, repetition_penalty=0.8, logit_bias={293: -INF})
    one, other = [90, 136, 90, 136, 275, 125], [90, 136, 90, 136, 275, 339]
    assert first_difference(roomy, [3, 4], tie, one, one) == 6
    assert first_difference(roomy, [3, 4], tie, other, one) == 5
    with pytest.raises(AssertionError):
        first_difference(roomy, [3, 4], tie, [*other[:5], 112], one)


def test_rows_without_settings_are_not_copied(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch of plain requests and of one whose `min_tokens` is over never reach the adjusting."""
    import minisgl.engine.sampler as module

    copied: list[int] = []

    def note(logits: torch.Tensor, rows: list[int], adjustments: Any) -> torch.Tensor:
        copied.append(len(rows))
        return adjusted(logits, rows, adjustments)

    monkeypatch.setattr(module, "adjusted", note)
    engine.generate([PROMPT] * 3, greedy(6))
    assert copied == []
    engine.generate([PROMPT, [5, 9]], [greedy(6), greedy(6, min_tokens=2, stop_token_ids=(9,))])
    assert copied == [1, 1]
    del copied[:]
    engine.generate([PROMPT, [5, 9]], [greedy(4), greedy(4, presence_penalty=1.0)])
    assert copied == [1, 1, 1]  # nothing is counted before the first token

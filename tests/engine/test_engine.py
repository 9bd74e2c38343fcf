"""The engine from outside: equal answers however they are computed, and no slot lost."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

from minisgl import Completion, Engine, SamplingParams
from minisgl.engine.engine import EngineError
from minisgl.fsm import TooComplexError
from scripts.make_tiny_model import make_tiny_model

# One dtype for one row and for many, so that equal means equal.
fp32 = partial(Engine, dtype="float32")
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
PROMPTS = [
    "What is the capital of France?",
    "What is the capital of Spain?",
    "Once upon a time",
    "A",
    "The first token is slow, the next tokens are fast: their keys and values are remembered.",
    "system",
    "Two requests that begin alike share the work",
    "x y z",
]


@pytest.fixture(scope="module")
def engine(tiny_model_dir: Path) -> Iterator[Engine]:
    with fp32(str(tiny_model_dir)) as engine:
        yield engine


def greedy(max_tokens: int | None = 12, **kw: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **kw)


def ids(completions: list[Completion]) -> list[list[int]]:
    return [c.token_ids for c in completions]


@pytest.fixture(scope="module")
def expected(tiny_model_dir: Path) -> list[list[int]]:
    """transformers' greedy answers to PROMPTS, one at a time."""
    model = AutoModelForCausalLM.from_pretrained(tiny_model_dir, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    with fp32(str(tiny_model_dir)) as engine:
        encode = engine.tokenizer.encode
        prompts = [torch.tensor([encode(p, add_special_tokens=True)]) for p in PROMPTS]
    answers = []
    for prompt in prompts:
        out = model.generate(prompt, max_new_tokens=12, do_sample=False, pad_token_id=0)
        answers.append(out[0, prompt.shape[1] :].tolist())
    return answers


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"prefix_cache": "none"},
        {"prefix_cache": "table"},
        {"max_hit_rate": 0.4},
        {"prefill_budget": 8},
        {"decode_workspace": False},
        {"policy": "fcfs", "max_running": 3},
        {"kv_tokens": 60, "prefill_budget": 16},
        {"kv_tokens": 60, "prefill_budget": 16, "prefix_cache": "table"},
    ],
    ids=str,
)
def test_greedy_answers_equal_transformers_alone_together_cold_and_warm(
    tiny_model_dir: Path, expected: list[list[int]], settings: dict[str, Any]
) -> None:
    with fp32(str(tiny_model_dir), **settings) as engine:
        assert ids([engine.generate(p, GREEDY) for p in PROMPTS]) == expected
        assert ids(engine.generate(PROMPTS, GREEDY)) == expected  # warm, as one batch
        engine.flush_cache()
        assert ids(engine.generate(PROMPTS, GREEDY)) == expected  # cold, as one batch
        engine.check()


@pytest.mark.parametrize(
    "variant",
    [
        {"architecture": "MistralForCausalLM", "sliding_window": 8},
        {"hidden_size": 96, "num_heads": 6, "num_kv_heads": 2, "head_dim": 32, "tie": False},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}, "attention_bias": True},
    ],
    ids=str,
)
def test_other_models_equal_transformers_past_their_window(
    tmp_path: Path, variant: dict[str, Any]
) -> None:
    path = make_tiny_model(tmp_path / "m", **variant)
    theirs = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    theirs.generation_config.eos_token_id = None
    prompts = [list(range(7, 27)), [9, 8, 7]]
    expected = []
    for prompt in prompts:
        out = theirs.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0
        )
        expected.append(out[0, len(prompt) :].tolist())
    with fp32(str(path)) as engine:
        assert ids(engine.generate(prompts, GREEDY)) == expected
        assert ids(engine.generate(prompts, GREEDY)) == expected  # warm
        engine.check()
    with fp32(str(path), prefill_budget=6) as engine:  # in chunks shorter than the window
        assert ids(engine.generate(prompts, GREEDY)) == expected


def test_the_default_model_equals_transformers_on_twenty_prompts(default_model_dir: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(default_model_dir, dtype=torch.float32)
    model.generation_config.eos_token_id = None
    questions = [
        "What is the capital of France?",
        "Write a haiku about the sea.",
        "Explain gravity to a child.",
        "List three fruits.",
        "What is 12 times 12?",
        "Who wrote Hamlet?",
        "Translate 'good morning' to Spanish.",
        "Why is the sky blue?",
        "Give me a recipe for pancakes.",
        "What does HTTP stand for?",
        "Name a planet with rings.",
        "How do bees make honey?",
        "Write a Python function that adds two numbers.",
        "What is the opposite of hot?",
        "Tell me a joke.",
        "How many legs does a spider have?",
        "What year did the Titanic sink?",
        "Summarize the water cycle.",
        "What is photosynthesis?",
        "Say hello in French, with an emoji 🌶.",
    ]
    with fp32(str(default_model_dir)) as engine:
        prompts = [
            engine.chat_template.encode([{"role": "user", "content": q}], engine.tokenizer)
            for q in questions
        ]
        ours = ids(engine.generate(prompts, greedy(12)))
    for prompt, answer in zip(prompts, ours, strict=True):
        out = model.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, pad_token_id=0
        )
        assert out[0, len(prompt) :].tolist() == answer


class TestCache:
    def test_the_same_prompt_twice_computes_one_token(self, engine: Engine) -> None:
        engine.flush_cache()
        cold = engine.generate(PROMPTS[0], GREEDY)
        warm = engine.generate(PROMPTS[0], GREEDY)
        assert (cold.cached_tokens, warm.cached_tokens) == (0, cold.prompt_tokens - 1)
        assert cold.token_ids == warm.token_ids

    def test_the_next_turn_of_a_chat_finds_the_last_answer_cached(self, engine: Engine) -> None:
        engine.flush_cache()
        first = [5, 6, 7, 8]
        answer = engine.generate(first, GREEDY)
        turn = first + answer.token_ids + [9, 10]
        # All but the token sampled last have K and V.
        assert engine.generate(turn, GREEDY).cached_tokens == len(first) + 12 - 1

    def test_two_equal_prompts_in_one_batch_leave_one_copy(self, engine: Engine) -> None:
        engine.flush_cache()
        a, b = engine.generate([[5, 6, 7, 8], [5, 6, 7, 8]], GREEDY)
        assert a.token_ids == b.token_ids
        assert engine.stats().tree_slots == 4 + 12 - 1
        engine.check()

    def test_a_flush_frees_every_slot(self, engine: Engine) -> None:
        engine.generate(PROMPTS, GREEDY)
        assert engine.flush_cache()
        assert engine.stats().free_slots == engine.stats().pool_slots


class TestLimits:
    def test_max_tokens_beyond_the_context_gives_what_fits(self, tiny_model_dir: Path) -> None:
        with fp32(str(tiny_model_dir), context_length=64) as engine:
            out = engine.generate(list(range(3, 63)), greedy(10))
            assert (out.completion_tokens, out.finish_reason) == (4, "length")

    def test_no_max_tokens_means_to_the_end_of_the_context(self, tiny_model_dir: Path) -> None:
        with fp32(str(tiny_model_dir), context_length=40) as engine:
            out = engine.generate([5, 6, 7], greedy(None))
            assert (out.completion_tokens, out.finish_reason) == (37, "length")

    def test_max_tokens_zero_only_fills_the_cache(self, engine: Engine) -> None:
        engine.flush_cache()
        out = engine.generate([5, 6, 7, 8], greedy(0))
        assert (out.text, out.token_ids, out.finish_reason) == ("", [], "length")
        assert engine.generate([5, 6, 7, 8], greedy(1)).cached_tokens == 3

    def test_too_long_a_prompt_is_refused_with_both_numbers(self, tiny_model_dir: Path) -> None:
        with fp32(str(tiny_model_dir), context_length=64) as engine:
            with pytest.raises(ValueError, match=r"70 tokens.* 64"):
                engine.generate(list(range(3, 73)), GREEDY)
            assert engine.generate([5], greedy(1)).completion_tokens == 1

    def test_a_prompt_larger_than_the_pool_is_refused(self, tiny_model_dir: Path) -> None:
        with (
            fp32(str(tiny_model_dir), kv_tokens=16) as engine,
            pytest.raises(ValueError, match=r"20 tokens.*KV pool.* 16"),
        ):
            engine.generate(list(range(3, 23)), GREEDY)

    def test_one_request_that_outgrows_the_pool_ends_with_length(
        self, tiny_model_dir: Path
    ) -> None:
        with fp32(str(tiny_model_dir), kv_tokens=16) as engine:
            out = engine.generate([5, 6, 7], greedy(100))
            assert out.finish_reason == "length"
            assert 10 < out.completion_tokens <= 14
            assert engine.generate([5, 6], greedy(2)).completion_tokens == 2
            engine.check()

    def test_two_requests_of_60_percent_of_the_pool_both_finish(self, tiny_model_dir: Path) -> None:
        prompts = [[5, 6, 7, 8], [9, 10, 11, 12]]
        with fp32(str(tiny_model_dir)) as engine:
            alone = ids([engine.generate(p, greedy(20)) for p in prompts])
        with fp32(str(tiny_model_dir), kv_tokens=40) as engine:
            assert ids(engine.generate(prompts, greedy(20))) == alone
            engine.check()

    def test_a_prompt_longer_than_the_budget_is_prefilled_in_chunks(
        self, tiny_model_dir: Path
    ) -> None:
        long, other = list(range(3, 103)), [5, 6]
        with fp32(str(tiny_model_dir)) as engine:
            alone = ids([engine.generate(p, GREEDY) for p in (long, other)])
        with fp32(str(tiny_model_dir), prefill_budget=7) as engine:
            assert ids(engine.generate([long, other], GREEDY)) == alone
            assert engine.stats().steps > 100 / 7


class TestStops:
    def test_every_source_of_eos_stops_and_ignore_eos_does_not(self, tmp_path: Path) -> None:
        path = make_tiny_model(tmp_path / "m")
        with fp32(str(path)) as engine:
            answer = engine.generate([5, 6, 7], greedy(12)).token_ids
        stop = answer[2]
        (path / "generation_config.json").write_text(f'{{"eos_token_id": [{stop}]}}')
        cut = answer.index(stop) + 1
        with fp32(str(path)) as engine:
            assert {2, stop} <= engine.door.eos_ids  # the config's, and generation_config's
            out = engine.generate([5, 6, 7], SamplingParams(temperature=0.0, max_tokens=12))
            assert (out.token_ids, out.finish_reason) == (answer[:cut], "stop")
            assert out.stop_match == stop
            assert engine.generate([5, 6, 7], greedy(12)).token_ids == answer

    def test_stop_ids_still_stop_when_eos_is_ignored(self, engine: Engine) -> None:
        answer = engine.generate([5, 6, 7], GREEDY).token_ids
        out = engine.generate([5, 6, 7], greedy(12, stop_token_ids=(answer[3],)))
        assert out.finish_reason == "stop"
        assert out.token_ids == answer[: answer.index(answer[3]) + 1]

    def test_a_stop_string_over_token_borders(self, engine: Engine) -> None:
        whole = engine.generate(PROMPTS[2], greedy(12)).text
        stop = whole[3:6]
        out = engine.generate(PROMPTS[2], greedy(12, stop=stop))
        assert out.text == whole[: whole.index(stop)]
        assert (out.finish_reason, out.stop_match) == ("stop", stop)
        kept = engine.generate(PROMPTS[2], greedy(12, stop=stop, no_stop_trim=True))
        assert kept.text == whole[: whole.index(stop) + len(stop)]

    def test_a_stop_pattern_over_token_borders(self, engine: Engine) -> None:
        whole = engine.generate(PROMPTS[2], greedy(12)).text
        pattern = f"{re.escape(whole[3])}.{{2}}"
        start = re.search(f"(?s){pattern}", whole).start()  # type: ignore[union-attr]
        params = greedy(12, stop_regex=("no such text", f"(?s){pattern}"))
        out = engine.generate(PROMPTS[2], params)
        assert out.text == whole[:start]
        assert (out.finish_reason, out.stop_match) == ("stop", f"(?s){pattern}")
        assert "".join(piece.text for piece in engine.stream(PROMPTS[2], params)) == out.text
        kept = engine.generate(PROMPTS[2], replace(params, no_stop_trim=True))
        assert kept.text == whole[: start + 3]

    def test_a_stop_pattern_that_grows_too_complex_ends_its_request_alone(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fault(*_: object) -> None:
            raise TooComplexError("on purpose")

        with monkeypatch.context() as patch:
            patch.setattr("minisgl.detokenizer.Search.read", fault)
            with pytest.raises(EngineError, match="stop_regex of this request grew too complex"):
                engine.generate(PROMPTS[2], greedy(12, stop_regex=("a",)))
        engine.check()
        assert engine.generate(PROMPTS[2], greedy(3)).completion_tokens == 3

    @pytest.mark.parametrize("skip", [True, False])
    @pytest.mark.parametrize("keep", [False, True])
    def test_a_stop_token_is_cut_off_or_kept_as_a_stop_string_is(
        self, engine: Engine, keep: bool, skip: bool
    ) -> None:
        """A word as a stop id, the end of text, and a stop string that is one special token."""
        tokenizer = engine.tokenizer
        word, eos = tokenizer.encode("A")[-1], tokenizer.special_tokens["<|im_end|>"]
        turn = tokenizer.special_tokens["<|im_start|>"]
        bang = tokenizer.encode("!")[-1]
        kinds: list[tuple[int, dict[str, Any], str]] = [
            (word, {"stop_token_ids": (word,)}, "A" * keep),
            (eos, {"ignore_eos": False}, "<|im_end|>" * (keep and not skip)),
            (turn, {"stop": ("<|im_start|>",)}, "<|im_start|>" * keep),  # it was asked for by name
        ]
        for token, settings, kept in kinds:
            params = SamplingParams(
                temperature=0.0,
                max_tokens=9,
                min_tokens=3,  # three times "!", as the likelier token is forbidden
                logit_bias={bang: 80, token: 100},  # type: ignore[arg-type]
                no_stop_trim=keep,
                skip_special_tokens=skip,
                **{"ignore_eos": True, **settings},
            )
            out = engine.generate([5, 6, 7], params)
            assert (out.token_ids, out.finish_reason) == ([bang] * 3 + [token], "stop")
            assert out.text == "!!!" + kept
            assert "".join(piece.text for piece in engine.stream([5, 6, 7], params)) == out.text

    @pytest.mark.parametrize(("skip", "text"), [(True, ""), (False, "<|im_start|>" * 4)])
    def test_special_tokens_are_skipped_or_shown(
        self, engine: Engine, skip: bool, text: str
    ) -> None:
        turn = engine.tokenizer.special_tokens["<|im_start|>"]
        params = greedy(4, logit_bias={turn: 100}, skip_special_tokens=skip)
        out = engine.generate([5, 6, 7], params)
        assert (out.text, out.token_ids) == (text, [turn] * 4)
        assert "".join(piece.text for piece in engine.stream([5, 6, 7], params)) == text

    @pytest.mark.parametrize(("most", "reason"), [(9, "stop"), (1, "length")])
    def test_half_a_character_at_the_end_is_one_replacement(
        self, engine: Engine, most: int, reason: str
    ) -> None:
        every = range(engine.tokenizer.vocab_size)
        half = next(i for i in every if engine.tokenizer.token_bytes(i) == "世".encode()[:1])
        (eos,) = engine.tokenizer.eos_token_ids
        params = SamplingParams(
            temperature=0.0,
            max_tokens=most,
            min_tokens=1,
            logit_bias={half: 80, eos: 100},  # type: ignore[arg-type]
        )
        out = engine.generate([5, 6, 7], params)
        assert (out.token_ids, out.finish_reason) == ([half, eos][:most], reason)
        assert "".join(p.text for p in engine.stream([5, 6, 7], params)) == out.text == "\ufffd"

    @pytest.mark.parametrize("prompt", PROMPTS)
    def test_streamed_pieces_join_to_the_whole(self, engine: Engine, prompt: str) -> None:
        whole = engine.generate(prompt, GREEDY)
        pieces = list(engine.stream(prompt, GREEDY))
        assert "".join(p.text for p in pieces) == whole.text
        assert [i for p in pieces for i in p.token_ids] == whole.token_ids
        assert [p.finish_reason for p in pieces] == [None] * (len(pieces) - 1) + ["length"]


class TestSampling:
    def test_a_seed_gives_the_same_text_in_any_batch(self, engine: Engine) -> None:
        seeded = SamplingParams(temperature=1.0, seed=7, max_tokens=8, ignore_eos=True)
        free = SamplingParams(temperature=1.0, max_tokens=8, ignore_eos=True)
        alone = engine.generate(PROMPTS[0], seeded).token_ids
        batch = engine.generate(PROMPTS, [seeded] + [free] * 7)
        assert batch[0].token_ids == alone

    def test_without_a_seed_answers_differ(self, engine: Engine) -> None:
        free = SamplingParams(temperature=1.5, max_tokens=16, ignore_eos=True)
        answers = {tuple(c.token_ids) for c in engine.generate([PROMPTS[0]] * 4, free)}
        assert len(answers) > 1
        one_by_one = {tuple(engine.generate(PROMPTS[0], free).token_ids) for _ in range(4)}
        assert len(one_by_one) > 1

    def test_greedy_and_sampled_rows_in_one_batch(self, engine: Engine) -> None:
        hot = SamplingParams(temperature=2.0, max_tokens=12, ignore_eos=True)
        alone = engine.generate(PROMPTS[0], GREEDY).token_ids
        assert engine.generate(PROMPTS[:2], [GREEDY, hot])[0].token_ids == alone

    def test_top_k_of_one_is_greedy(self, engine: Engine) -> None:
        one = SamplingParams(temperature=1.0, top_k=1, max_tokens=12, ignore_eos=True)
        best = engine.generate(PROMPTS[0], GREEDY).token_ids
        assert engine.generate(PROMPTS[0], one).token_ids == best

    def test_nan_in_one_row_fails_that_request_only(self, tiny_model_dir: Path) -> None:
        with fp32(str(tiny_model_dir)) as engine:
            embed = engine.loop.runner.model.model.embed.weight
            alone = engine.generate([5, 6], GREEDY).token_ids
            engine.call(lambda: embed[300].fill_(float("nan")))
            with pytest.raises(EngineError, match="NaN"):
                engine.generate([5, 300], GREEDY)
            assert engine.generate([5, 6], GREEDY).token_ids == alone
            engine.check()


class TestBadInput:
    @pytest.mark.parametrize("prompt", ["", [[]], [10**6], [-1]])
    def test_bad_prompts_are_refused_and_the_next_is_served(
        self, engine: Engine, prompt: Any
    ) -> None:
        with pytest.raises(ValueError, match=r"empty|vocabulary"):
            engine.generate(prompt, GREEDY)
        assert engine.generate([5], greedy(1)).completion_tokens == 1

    def test_one_bad_prompt_in_a_list_runs_none(self, engine: Engine) -> None:
        before = engine.stats().requests
        with pytest.raises(ValueError, match="empty"):
            engine.generate(["fine", ""], GREEDY)
        assert engine.stats().requests == before

    def test_a_stop_id_beyond_the_vocabulary(self, engine: Engine) -> None:
        with pytest.raises(ValueError, match="4096"):
            engine.generate([5], SamplingParams(stop_token_ids=(4096,)))

    def test_as_many_params_as_prompts(self, engine: Engine) -> None:
        with pytest.raises(ValueError, match="2 prompts, but 1"):
            engine.generate(["a", "b"], [GREEDY])

    def test_an_empty_list_is_an_empty_answer(self, engine: Engine) -> None:
        assert engine.generate([], GREEDY) == []

    def test_unknown_settings_are_named(self, tiny_model_dir: Path) -> None:
        with pytest.raises(ValueError, match=r"'kv_token'.*kv_tokens"):
            fp32(str(tiny_model_dir), kv_token=3)

    def test_a_context_beyond_the_model_is_refused_with_both_numbers(
        self, tiny_model_dir: Path
    ) -> None:
        with pytest.raises(ValueError, match=r"9999.* 512"):
            fp32(str(tiny_model_dir), context_length=9999)

    def test_a_missing_model_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="nowhere"):
            fp32(str(tmp_path / "nowhere"))


class TestLife:
    def test_a_stream_that_is_closed_frees_its_slots(self, engine: Engine) -> None:
        engine.flush_cache()
        stream = engine.stream([5, 6, 7], greedy(None))
        next(stream)
        stream.close()
        assert engine.generate([9], greedy(1)).completion_tokens == 1
        engine.check()
        stats = engine.stats()
        assert (stats.running, stats.waiting) == (0, 0)

    def test_a_stream_that_is_dropped_unread_is_aborted_too(self, engine: Engine) -> None:
        before = engine.stats().output_tokens
        del_me = engine.stream([5, 6, 7], greedy(None))
        del del_me
        engine.generate([9], greedy(1))
        assert engine.stats().output_tokens - before < 400
        engine.check()

    def test_prompts_get_on_when_decodes_fill_the_budget(self, tiny_model_dir: Path) -> None:
        with fp32(str(tiny_model_dir), prefill_budget=2) as engine:
            streams = [engine.stream([5, i], greedy(None)) for i in (6, 7, 8)]
            assert engine.generate([9, 10, 11], greedy(2)).completion_tokens == 2
            for stream in streams:
                stream.close()

    def test_many_threads_share_one_engine(self, engine: Engine) -> None:
        alone = ids([engine.generate(p, GREEDY) for p in PROMPTS])
        answers: dict[int, list[int]] = {}

        def ask(i: int) -> None:
            answers[i] = engine.generate(PROMPTS[i % 8], GREEDY).token_ids

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(24)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert [answers[i] for i in range(24)] == alone * 3

    def test_a_closed_engine_says_so_and_closing_twice_is_fine(self, tiny_model_dir: Path) -> None:
        engine = fp32(str(tiny_model_dir))
        engine.close()
        engine.close()
        with pytest.raises(EngineError, match="closed"):
            engine.generate([5], GREEDY)
        with pytest.raises(EngineError, match="closed"):
            engine.stats()

    def test_closing_answers_those_who_wait(self, tiny_model_dir: Path) -> None:
        engine = fp32(str(tiny_model_dir))
        stream = engine.stream([5], greedy(None))
        next(stream)
        engine.close()
        with pytest.raises(EngineError, match="closed"):
            list(stream)

    def test_a_fault_in_a_step_reaches_every_waiting_caller(self, tiny_model_dir: Path) -> None:
        engine = fp32(str(tiny_model_dir))
        streams = [engine.stream([5, i], greedy(None)) for i in (6, 7)]
        for s in streams:
            next(s)

        def broken(step: object) -> None:
            raise RuntimeError("the forward pass broke")

        engine.call(lambda: setattr(engine.loop.runner, "forward", broken))
        for s in streams:
            with pytest.raises(EngineError, match="the forward pass broke"):
                list(s)
        with pytest.raises(EngineError, match="the forward pass broke"):
            engine.generate([5], GREEDY)
        engine.close()


@given(
    prompts=st.lists(st.lists(st.integers(3, 6), min_size=1, max_size=20), min_size=1, max_size=6),
    lengths=st.lists(st.integers(0, 9), min_size=6, max_size=6),
)
def test_any_mix_under_pressure_equals_each_alone(
    tight: tuple[Engine, Engine], prompts: list[list[int]], lengths: list[int]
) -> None:
    """Few slots, a small budget, few rows: chunks, waiting, eviction and retraction all happen."""
    small, roomy = tight
    params = [greedy(n) for n in lengths[: len(prompts)]]
    alone = [roomy.generate(p, s).token_ids for p, s in zip(prompts, params, strict=True)]
    assert ids(small.generate(prompts, params)) == alone
    small.check()


@pytest.fixture(scope="module")
def tight(tiny_model_dir: Path) -> Iterator[tuple[Engine, Engine]]:
    path = str(tiny_model_dir)
    with (
        fp32(path, kv_tokens=36, prefill_budget=6, max_running=3) as small,
        fp32(path, prefix_cache="none") as roomy,
    ):
        yield small, roomy

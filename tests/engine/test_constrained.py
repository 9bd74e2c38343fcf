"""Answers that follow a pattern: exact, in any company, with jump-forward and without; rows C7, H.

What a pattern means is tested in tests/fsm; here it meets the model, the scheduler and the caller.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pydantic
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM

import minisgl.engine.constrained as module
from minisgl import Completion, Engine, SamplingParams
from minisgl.engine.adjustments import Adjustments
from minisgl.engine.engine import EngineError
from scripts.make_tiny_model import make_tiny_model
from tests.engine.common import LONG, assert_all_free, first_difference, fp32, inside_a_step

PROMPT = [5, 6, 7, 8]
CARD = r'\{"name": "[a-z]{1,4}", "house": "(Gryffindor|Slytherin)", "alive": (true|false)\}'
PATTERNS = [
    "yes",
    "yes|no|maybe",
    CARD,
    r"the (tree|token)s? and the (root|request)\.",
    r"[a-f]{2,5}",
    r"(ab){3}c?",
    r"日(本|光)語?",
    r"(?:\d{1,2}\.){3}\d",
    r"The capital of [A-Z][a-z]{1,5} is [A-Z][a-z]{1,5}\.",
]


def follow(regex: str, max_tokens: int | None = 40, **kw: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, regex=regex, **kw)


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("models") / "untied", tie=False)


@pytest.fixture(scope="module")
def engine(model_dir: Path) -> Iterator[Engine]:
    with fp32(str(model_dir)) as engine:
        yield engine


@pytest.fixture(scope="module")
def pair(model_dir: Path) -> Iterator[tuple[Engine, Engine]]:
    """One that jumps and is short of everything, and one that does neither."""
    path = str(model_dir)
    with (
        fp32(path, kv_tokens=70, prefill_budget=9, max_running=3) as jumps,
        fp32(path, prefix_cache="none", jump_forward=False) as walks,
    ):
        yield jumps, walks


def bytes_of(engine: Engine, ids: list[int]) -> bytes:
    return b"".join(map(engine.tokenizer.token_bytes, ids))


def text_ids(engine: Engine, done: Completion) -> list[int]:
    """Without the stop token."""
    return [i for i in done.token_ids if i not in engine.tokenizer.special_ids]


class TestJumpForward:
    @given(
        st.lists(
            st.tuples(
                st.lists(st.integers(3, 300), min_size=1, max_size=8),
                st.sampled_from(PATTERNS),
                st.sampled_from([0.0, 1.0, 3.0]),
                st.integers(0, 5),
                st.sampled_from([1.0, 1.3]),
                st.sampled_from([2, 7, 40]),
            ),
            min_size=1,
            max_size=4,
        )
    )
    def test_it_changes_no_answer_in_any_company(
        self,
        pair: tuple[Engine, Engine],
        given: list[tuple[list[int], str, float, int, float, int]],
    ) -> None:
        """Together, with jumps, under pressure (chunks, eviction, retraction), like alone, one
        forward pass for each token."""
        jumps, walks = pair
        prompts = [each[0] for each in given]
        params = [
            SamplingParams(
                regex=regex,
                temperature=temperature,
                seed=seed,
                frequency_penalty=penalty - 1,
                repetition_penalty=penalty,
                max_tokens=most,
            )
            for _, regex, temperature, seed, penalty, most in given
        ]
        together = jumps.generate(prompts, params)
        jumps.check()
        for prompt, setting, ours in zip(prompts, params, together, strict=True):
            alone = walks.generate(prompt, setting)
            same = first_difference(walks, prompt, setting, ours.token_ids, alone.token_ids)
            if same < len(alone.token_ids):
                continue
            assert (ours.text, ours.finish_reason) == (alone.text, alone.finish_reason)
            # More passes than tokens: what the model had begun is fewer tokens now.
            assert ours.forward_passes <= alone.forward_passes >= alone.completion_tokens
            assert ours.removed == pytest.approx(alone.removed, abs=1e-4)

    @pytest.mark.parametrize(
        "asked",
        [
            {"regex": r"(Größe|Höhe): \d{1,3},\d m"},
            {"regex": r"naïve (café|cafè)s?|[äöüß]{2,4}"},
            {"regex": r"version \d{1,2}\.\d{1,2}(\.\d)?"},
            {"regex": r"\[(春天|春分|夏至)(, (春天|春分|夏至))?\]"},
            {"json_schema": {"enum": ["Müller", "Möller", "Ærø", "😀😃"]}},
            {"json_schema": {
                "properties": {"größe": {"type": "number", "minimum": 3, "maximum": 4}},
                "type": "object", "required": ["größe"], "additionalProperties": False,
            }},
            {"json_schema": {"type": "array", "items": {"type": "number"}, "maxItems": 2}},
        ],
        ids=lambda asked: str(next(iter(asked.values())))[:20],
    )  # fmt: skip
    @pytest.mark.parametrize("temperature", [0.0, 2.0])
    def test_umlauts_and_numbers(
        self, pair: tuple[Engine, Engine], asked: dict[str, Any], temperature: float
    ) -> None:
        jumps, walks = pair
        for seed in range(4):
            params = SamplingParams(
                temperature=temperature, seed=seed, max_tokens=50, json_space=0, **asked
            )
            ours, alone = jumps.generate(PROMPT, params), walks.generate(PROMPT, params)
            same = first_difference(walks, PROMPT, params, ours.token_ids, alone.token_ids)
            assert same < len(alone.token_ids) or ours.text == alone.text
            assert "\ufffd" not in ours.text
            if ours.finish_reason == "length":
                continue
            if "regex" in asked:
                assert re.fullmatch(asked["regex"], ours.text)
            else:  # "3.5.5" is no number
                jsonschema.validate(json.loads(ours.text), asked["json_schema"])

    @pytest.mark.parametrize("regex", PATTERNS)
    @pytest.mark.parametrize("temperature", [0.0, 2.0])
    def test_the_answer_matches_and_its_tokens_spell_it(
        self, engine: Engine, regex: str, temperature: float
    ) -> None:
        params = replace(follow(regex, 100), temperature=temperature, seed=1, n=3)
        for done in engine.generate(PROMPT, params):  # type: ignore[union-attr]
            assert done.finish_reason == "stop"
            assert re.fullmatch(regex, done.text)
            assert bytes_of(engine, text_ids(engine, done)) == done.text.encode()
        assert_all_free(engine)

    def test_what_is_forced_costs_no_pass(self, engine: Engine) -> None:
        done = engine.generate(PROMPT, follow("understood"))
        assert (done.text, done.finish_reason, done.stop_match) == ("understood", "stop", None)
        assert (done.forward_passes, done.removed) == (0, [])
        assert done.token_ids == engine.tokenizer.encode_continuation("understood")
        done = engine.generate(PROMPT, follow(CARD))
        assert done.forward_passes < done.completion_tokens / 2
        assert done.token_ids == engine.tokenizer.encode_continuation(done.text)

    @given(st.sets(st.text("the nray|", min_size=1, max_size=9), min_size=1, max_size=5))
    def test_what_could_merge_is_held_back(self, engine: Engine, words: set[str]) -> None:
        """No token of the vocabulary, in no text that is legal, begins within what was written and
        ends beyond what is forced; and that is as much as whole tokens can be."""
        regex = "|".join(map(re.escape, sorted(words)))
        constraint = engine.door.make(PROMPT, follow(regex)).constraint
        assert constraint is not None
        texts = [word.encode() for word in words]
        same = itertools.takewhile(lambda column: len(set(column)) == 1, zip(*texts, strict=False))
        forced = bytes(column[0] for column in same)  # ASCII: no half characters
        assert constraint.guide.jump() == forced
        jump = constraint.jump([], 100)
        written = bytes_of(engine, jump.ids) if jump else b""
        assert forced.startswith(written)

        def crosses(start: int) -> bool:
            return any(
                len(token) > len(forced) - start and text[start:].startswith(token)
                for token in map(engine.tokenizer.token_bytes, range(3, 384))
                for text in texts
            )

        assert not any(crosses(start) for start in range(len(written)))
        longer = engine.tokenizer.encode_continuation(forced.decode())
        n = len(jump.ids) if jump else 0
        if n < len(longer):
            more = bytes_of(engine, longer[: n + 1])
            assert any(crosses(start) for start in range(len(more)))

    def test_who_jumps_keeps_its_row_in_the_workspace(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its keys are copied out of the pool once, however often the answer jumps."""
        workspace = engine.loop.runner.workspace
        assert workspace is not None
        copied = []
        seat = workspace._seat
        monkeypatch.setattr(workspace, "_seat", lambda *args: copied.append(args) or seat(*args))
        params = follow("(a|b){2} and nothing else (a|b){2} ever after")
        (done,) = engine.generate([PROMPT], params)
        assert done.forward_passes < done.completion_tokens
        assert len(copied) == 1
        # A row that can't be kept is given back, and there is another one for what follows.
        monkeypatch.setattr(workspace, "cut", lambda owner, position: workspace.leave(owner))
        copied.clear()
        (again,) = engine.generate([PROMPT], params)
        assert again.token_ids == done.token_ids
        assert len(copied) > 1

    def test_what_the_model_began_is_tokenized_anew_with_what_follows(self, engine: Engine) -> None:
        """It may only begin with half a token; the whole one takes its place."""
        encode = engine.tokenizer.encode_continuation
        half = next(i for i in encode(" t") if engine.tokenizer.token_bytes(i) == b" t")
        assert half not in encode(" token|")
        handle = engine.stream(PROMPT, follow(r"( token\||x)", logit_bias={half: 100.0}))
        done = handle.result()
        assert done.text == " token|"
        assert done.token_ids == encode(" token|")
        assert done.forward_passes == 1
        assert [i for chunk in handle for i in chunk.token_ids] == done.token_ids
        told = engine.generate(
            PROMPT, follow(r"( token\||x)", logit_bias={half: 100.0}, logprobs=0)
        )
        assert (told.token_ids, told.text) == (done.token_ids, done.text)
        assert told.logprobs is not None
        (score,) = engine.score(PROMPT, [told.token_ids])
        assert [each.logprob for each in told.logprobs] == pytest.approx(score.logprobs, abs=1e-4)

    def test_ids_and_text_of_a_stream_are_never_taken_back(self, engine: Engine) -> None:
        for regex in PATTERNS:
            for seed in range(3):
                params = replace(follow(regex), temperature=2.0, seed=seed)
                chunks = list(engine.stream(PROMPT, params))
                done = chunks[-1].completion
                assert done is not None
                assert "".join(chunk.text for chunk in chunks) == done.text
                assert [i for chunk in chunks for i in chunk.token_ids] == done.token_ids

    def test_a_retracted_answer_goes_on_where_it_was(self, model_dir: Path) -> None:
        params = [follow(f"[ab]{{36}}(xyz[{c}c]){{8}}", 100) for c in "def"]
        prompts = [[5 + i] * 10 for i in range(3)]
        with fp32(str(model_dir), kv_tokens=100) as tight, fp32(str(model_dir)) as roomy:
            together = tight.generate(prompts, params)
            assert tight.stats().retractions > 0
            for prompt, setting, done in zip(prompts, params, together, strict=True):
                alone = roomy.generate(prompt, setting)
                assert (done.text, done.token_ids) == (alone.text, alone.token_ids)
            assert_all_free(tight)

    def test_an_answer_that_jumps_beyond_the_pool_ends_with_length(self, model_dir: Path) -> None:
        with fp32(str(model_dir), kv_tokens=16) as engine:
            done = engine.generate([5] * 8, follow("[ab]" + "xyz" * 20 + "[ab]", None))
            assert done.finish_reason == "length"
            assert done.text[1:] == "xyz" * 20
            assert_all_free(engine)
            assert engine.generate([5] * 8, follow("yes")).text == "yes"


@pytest.fixture(scope="module")
def bytes_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "bytes"
    return make_tiny_model(path, vocab_size=259, tie=False)


@pytest.fixture(scope="module")
def bytewise(bytes_dir: Path) -> Iterator[Engine]:
    with fp32(str(bytes_dir)) as engine:
        yield engine


@pytest.fixture(scope="module")
def theirs(bytes_dir: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(bytes_dir, dtype=torch.float32)


class TestAgainstTheObviousLoop:
    """With a vocabulary of single bytes there is one way to write a text, so masks alone, worked
    out from the list of all texts, must give the same tokens."""

    @given(st.sets(st.text("abß世 {", min_size=1, max_size=6), min_size=1, max_size=5))
    def test_greedy(self, bytewise: Engine, theirs: Any, words: set[str]) -> None:
        expected, removed = self._slow_answer(bytewise, theirs, {w.encode() for w in words})
        done = bytewise.generate(PROMPT, follow("|".join(map(re.escape, sorted(words)))))
        assert done.text.encode() == expected
        # Only where the model chose, which is where there was something to choose.
        assert all(any(abs(r - s) < 1e-4 for s in removed) for r in done.removed or [])

    @torch.inference_mode()
    def _slow_answer(
        self, engine: Engine, model: Any, words: set[bytes]
    ) -> tuple[bytes, list[float]]:
        text, removed = b"", []
        eos = set(engine.tokenizer.eos_token_ids)
        while True:
            ids = [*PROMPT, *(self._id_of(engine, byte) for byte in text)]
            logits = model(torch.tensor([ids])).logits[0, -1]
            allowed = {self._id_of(engine, w[len(text)]) for w in words if _goes_on(w, text)}
            allowed |= eos if text in words else set()
            p = logits.softmax(-1)
            removed.append(1 - float(p[list(allowed)].sum()))
            best = max(allowed, key=lambda i: float(logits[i]))
            if best in eos:
                return text, removed
            text += engine.tokenizer.token_bytes(best)

    def _id_of(self, engine: Engine, byte: int) -> int:
        return next(i for i in range(3, 259) if engine.tokenizer.token_bytes(i) == bytes([byte]))


def _goes_on(word: bytes, text: bytes) -> bool:
    return word.startswith(text) and len(word) > len(text)


class TestWithOtherSettings:
    def test_free_and_constrained_rows_in_one_batch(self, engine: Engine) -> None:
        free = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
        params = [free, follow(CARD), free, follow("yes|no"), replace(free, logprobs=2)]
        together = engine.generate([PROMPT] * 5, params)
        for setting, done in zip(params, together, strict=True):
            assert done.token_ids == engine.generate(PROMPT, setting).token_ids
            assert (done.removed is None) == (setting.regex is None)
        assert together[0].forward_passes == 12

    @pytest.mark.parametrize("most", range(1, 12))
    def test_max_tokens_cuts_a_jump(self, engine: Engine, most: int) -> None:
        whole = engine.generate(PROMPT, follow("The capital of France is Paris\\."))
        done = engine.generate(PROMPT, follow("The capital of France is Paris\\.", most))
        assert done.completion_tokens == min(most, whole.completion_tokens)
        assert done.finish_reason == ("stop" if most >= whole.completion_tokens else "length")
        assert whole.text.startswith(done.text)
        assert bytes_of(engine, done.token_ids) == done.text.encode()

    @pytest.mark.parametrize("trim", [True, False])
    @pytest.mark.parametrize("jump_forward", [True, False])
    def test_a_stop_string_inside_forced_text_ends_it(
        self, model_dir: Path, trim: bool, jump_forward: bool
    ) -> None:
        with fp32(str(model_dir), jump_forward=jump_forward) as engine:
            params = follow("one two three (four|five)", stop="two", no_stop_trim=not trim)
            done = engine.generate(PROMPT, params)
            assert done.text == ("one " if trim else "one two")
            assert (done.finish_reason, done.stop_match) == ("stop", "two")
            assert bytes_of(engine, done.token_ids[:-1]) in (b"one ", b"one t", b"one tw", b"one")
            assert_all_free(engine)

    def test_stop_strings_wait_for_min_tokens(self, engine: Engine) -> None:
        params = follow("one two three two", stop="two", min_tokens=8)
        assert engine.generate(PROMPT, params).text == "one two three "

    def test_a_complete_answer_ends_before_min_tokens(self, engine: Engine) -> None:
        """Nothing else can be written; the pattern is the stronger word."""
        done = engine.generate(PROMPT, follow("yes|no", min_tokens=9))
        assert done.text in ("yes", "no")
        assert done.finish_reason == "stop"

    def test_own_stop_ids_are_allowed_at_the_end_only(self, engine: Engine) -> None:
        b = engine.tokenizer.encode_continuation("b")[0]
        for seed in range(10):
            params = replace(
                follow("a[bc]{1,3}d?", stop_token_ids=(b,)), temperature=2.0, seed=seed
            )
            done = engine.generate(PROMPT, params)
            assert done.finish_reason == "stop"
            assert re.fullmatch("a[bc]{1,3}d?", done.text)

    @given(
        st.sampled_from(
            ["[a-c]{1,3}(d|ef)?", "(ab)*c?", "yes|yes, sir", r"\d+(\.\d+)?", "日(本語?)?", "a?"]
        ),
        st.randoms(use_true_random=False),
    )
    def test_eos_is_allowed_exactly_where_the_text_is_complete(
        self, engine: Engine, regex: str, random: Any
    ) -> None:
        constraint = engine.door.make(PROMPT, follow(regex)).constraint
        assert constraint is not None
        guide, text = constraint.guide, b""
        eos = engine.tokenizer.eos_token_ids
        for _ in range(8):
            allowed = guide.masks.vocab.ids(guide.allowed())
            is_complete = re.fullmatch(regex, text.decode(errors="replace")) is not None
            assert eos <= {*allowed} if is_complete else eos.isdisjoint(allowed)
            others = [i for i in allowed if i not in eos]
            if not others:
                assert is_complete
                break
            token = random.choice(others)
            guide.advance(token)
            text += engine.tokenizer.token_bytes(token)

    def test_a_model_that_wants_to_end_does_so_as_soon_as_it_may(self, engine: Engine) -> None:
        bias = dict.fromkeys(engine.tokenizer.eos_token_ids, 100.0)
        for regex, text in [("[a-c]{2,9}", ".."), (r"x\d+(\.\d+)?", "x."), ("(ab)*", "")]:
            done = engine.generate(PROMPT, follow(regex, logit_bias=bias))
            assert (done.finish_reason, done.stop_match) == ("stop", min(bias))
            assert re.fullmatch(regex, done.text) and re.fullmatch(text, done.text)

    def test_ignore_eos_goes_on_while_it_can(self, engine: Engine) -> None:
        done = engine.generate(PROMPT, follow("[ab]{1,20}", ignore_eos=True))
        assert len(done.text) == 20
        assert (done.finish_reason, done.stop_match) == ("stop", None)

    def test_logprobs_are_those_of_the_same_answer(self, engine: Engine) -> None:
        plain = engine.generate(PROMPT, follow(CARD))
        told = engine.generate(PROMPT, follow(CARD, logprobs=2))
        assert told.token_ids == plain.token_ids
        assert told.logprobs is not None
        assert [each.token_id for each in told.logprobs] == told.token_ids
        (score,) = engine.score(PROMPT, [told.token_ids])
        assert [each.logprob for each in told.logprobs] == pytest.approx(score.logprobs, abs=1e-4)
        assert told.forward_passes == told.completion_tokens

    def test_prompt_logprobs_come_first(self, engine: Engine) -> None:
        done = engine.generate(PROMPT, follow("yes", prompt_logprobs_from=0))
        assert done.prompt_logprobs is not None
        assert len(done.prompt_logprobs) == len(PROMPT)
        assert done.text == "yes"

    @pytest.mark.parametrize("temperature", [0.0, 2.0])
    def test_logprobs_of_a_constrained_answer_are_numbers(
        self, engine: Engine, temperature: float
    ) -> None:
        """They are the model's own, so that what the mask forbids is not -inf among them: JSON,
        which has no infinity, can hold them all."""
        for regex in PATTERNS:
            params = replace(follow(regex, logprobs=5), temperature=temperature, seed=0)
            done = engine.generate(PROMPT, params)
            assert done.logprobs is not None and len(done.logprobs) == len(done.token_ids)
            json.dumps([dataclasses.asdict(each) for each in done.logprobs], allow_nan=False)
            assert all(len(each.top) == 5 for each in done.logprobs)
            assert any(each.token_id != each.top[0][0] for each in done.logprobs)

    def test_a_pattern_with_no_token_allowed_is_an_error(self, engine: Engine) -> None:
        never = {i: -float("inf") for i in range(384)}
        with pytest.raises(EngineError, match="every token is forbidden"):
            engine.generate(PROMPT, follow("[ab]", logit_bias=never))
        assert_all_free(engine)

    def test_an_abort_in_the_middle(self, engine: Engine) -> None:
        with inside_a_step(engine) as inside:
            handle = engine.stream(PROMPT, follow("([ab]xyz){2,}", None))
            assert inside.wait(LONG)
            handle.abort()
        done = handle.result()
        assert done.finish_reason == "abort"
        assert re.fullmatch("([ab]xyz)*([ab]x?y?)?", done.text)
        assert_all_free(engine)

    def test_answers_of_one_prompt_go_their_own_ways(self, engine: Engine) -> None:  # forks
        params = replace(follow("([ab]xyz){8}"), n=6, temperature=3.0, seed=0)
        done: Any = engine.generate(PROMPT, params)
        assert len({each.text for each in done}) > 1
        assert all(re.fullmatch("([ab]xyz){8}", each.text) for each in done)

    def test_special_tokens_are_text_when_a_pattern_forces_them(self, engine: Engine) -> None:
        done = engine.generate(PROMPT, follow(r"<\|im_end\|>!", skip_special_tokens=False))
        assert done.text == "<|im_end|>!"
        assert engine.tokenizer.special_ids.isdisjoint(done.token_ids)


class TestTheDoor:
    @pytest.mark.parametrize(
        ("regex", "words"),
        [
            ("a(b", "position 1"),
            (r"([a-z])-\1", "position 8"),
            ("[z-a]", "position"),
            ("a{3,1}", "position"),
            ("(?=b)a", "no text"),
        ],
    )  # fmt: skip
    def test_a_bad_pattern_is_refused_and_the_next_is_served(
        self, engine: Engine, regex: str, words: str
    ) -> None:
        with pytest.raises(ValueError, match=words):
            engine.generate([PROMPT, PROMPT], [follow("yes"), follow(regex)])
        assert engine.generate(PROMPT, follow("yes")).text == "yes"
        assert_all_free(engine)

    def test_a_pattern_that_is_too_complex_is_refused(self, engine: Engine) -> None:
        with pytest.raises(ValueError, match="20000 states"):
            engine.generate(PROMPT, follow(r"(?=.{100000}x).*(?!x)."))
        assert engine.generate(PROMPT, follow("yes")).text == "yes"

    @pytest.mark.parametrize("limit", [1, 2, 3, 5, 8, 13])
    def test_one_that_grows_too_complex_on_the_way_fails_alone(
        self, engine: Engine, monkeypatch: pytest.MonkeyPatch, limit: int
    ) -> None:
        """States are found as the answer goes on, and there is a bound on them."""
        with monkeypatch.context() as patch:
            patch.setattr("minisgl.fsm.automaton.MAX_STATES", limit)
            # A pattern of its own for each limit: what was found once is kept.
            handle = engine.submit(PROMPT, follow(f"([ab]{{{limit + 7}}}c)*d"))
            free = engine.submit(PROMPT, SamplingParams(temperature=0.0, max_tokens=9))
            with pytest.raises(EngineError, match="too complex"):
                handle.result()
            assert free.result().completion_tokens == 9
        assert len(engine.generate(PROMPT, follow("[ab]{9}")).text) == 9
        assert_all_free(engine)

    @pytest.mark.parametrize(
        ("settings", "words"),
        [
            ({"regex": "a", "json_schema": {}}, "give one"),
            ({"regex": 3}, "regex=3"),
            ({"json_schema": {}, "json_space": -1}, "json_space=-1"),
            ({"json_schema": {"type": {1}}}, "can't be written as JSON"),
        ],
    )
    def test_settings_that_make_no_sense(self, settings: Any, words: str) -> None:
        with pytest.raises(ValueError, match=words):
            SamplingParams(**settings)

    @pytest.mark.parametrize("schema", ["{", {"type": "array", "uniqueItems": True}, 3])
    def test_a_schema_that_cannot_be_enforced_is_refused(self, engine: Engine, schema: Any) -> None:
        with pytest.raises(ValueError):
            engine.generate(PROMPT, SamplingParams(json_schema=schema))
        assert engine.generate(PROMPT, follow("yes")).text == "yes"

    def test_patterns_are_compiled_once(self, engine: Engine) -> None:
        a = engine.door.make(PROMPT, follow("once (a|b)"))
        b = engine.door.make(PROMPT, follow("once (a|b)"))
        assert a.constraint is not None and b.constraint is not None
        assert a.constraint.guide.masks is b.constraint.guide.masks
        assert a.constraint.guide is not b.constraint.guide


@dataclasses.dataclass
class Point:
    x: int
    tags: list[str]


class Card(pydantic.BaseModel):
    name: str
    alive: bool


class TestJson:
    @pytest.mark.parametrize(
        "schema",
        [
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            {"type": "array", "items": {"enum": ["red", 3, None]}, "minItems": 1, "maxItems": 3},
            {"const": {"x": "a\"b"}},
            '{"type": "boolean"}',
            Point,
            Card,
        ],
    )  # fmt: skip
    @pytest.mark.parametrize("space", [0, 3])
    def test_the_answer_is_valid(self, engine: Engine, schema: Any, space: int) -> None:
        params = SamplingParams(
            json_schema=schema, json_space=space, temperature=1.0, seed=3, n=4, max_tokens=300
        )
        plain = json.loads(_as_json(schema))
        for done in engine.generate(PROMPT, params):  # type: ignore[union-attr]
            if done.finish_reason == "stop":
                value = json.loads(done.text)
                jsonschema.validate(value, plain)
                compact = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
                assert space or len(done.text) <= len(json.dumps(value)) or done.text == compact
        assert any(done.finish_reason == "stop" for done in engine.generate(PROMPT, params))  # type: ignore[union-attr]

    def test_settings_with_a_schema_can_be_compared(self) -> None:
        a, b = (SamplingParams(json_schema={"type": "null"}) for _ in range(2))
        assert a == b
        assert hash(a) == hash(b)


def _as_json(schema: Any) -> str:
    from minisgl.fsm.json_schema import as_schema

    return json.dumps(as_schema(schema))


class TestTheTable:
    def test_masks_travel_once_and_are_found_anew_when_dropped(
        self, model_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with fp32(str(model_dir)) as engine:
            params = [follow(regex) for regex in PATTERNS]
            before = engine.generate([PROMPT] * len(params), params)
            monkeypatch.setattr(module, "MOST_ROWS", 3)
            after = engine.generate([PROMPT] * len(params), params)
            assert [d.token_ids for d in before] == [d.token_ids for d in after]
            table = engine.door.constrainer.table
            assert table.vocab.generation > 0
            rows, numbers = table.rows([])
            assert numbers == []
            n = table.vocab.num_rows
            assert torch.equal(rows[:n], torch.from_numpy(table.vocab.rows[:n]))


@given(st.data())
def test_rewound_adjustments_are_those_of_the_new_answer(data: st.DataObject) -> None:
    ids = st.lists(st.integers(0, 5), max_size=8)
    prompt, old, tail = data.draw(ids), data.draw(ids), data.draw(ids)
    start = data.draw(st.integers(0, len(old)))
    params = SamplingParams(
        repetition_penalty=1.5, frequency_penalty=0.5, presence_penalty=1.0, logit_bias={2: 1.0}
    )
    rewound = Adjustments(params, prompt, [])
    rewound.update(old)
    rewound.rewind(old, start)
    new = [*old[:start], *tail]
    rewound.update(new)
    fresh = Adjustments(params, prompt, [])
    fresh.update(new)
    assert _entries(rewound) == _entries(fresh)


def _entries(adjustments: Adjustments) -> set[tuple[int, float, float, float]]:
    """Those that change anything."""
    columns = zip(adjustments.ids, *adjustments.changes, strict=True)
    return {entry for entry in columns if entry[1:] != (1.0, 0.0, 0.0)}

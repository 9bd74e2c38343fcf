"""Programs on a real engine: exact at token borders, prefixes computed once, errors at once."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import shutil
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import minisgl.lang as sgl
from minisgl import Engine, SamplingParams
from minisgl.chat_template import ChatTemplate
from minisgl.engine.engine import EngineError
from minisgl.lang.backends import as_backend
from minisgl.lang.backends.engine import EngineBackend
from minisgl.lang.context import Context
from minisgl.tokenizer import Tokenizer
from tests import toy_tokenizers as toys
from tests.engine.common import assert_all_free, fp32
from tests.lang.fake import no_thread_stays

GREEDY = {"temperature": 0, "ignore_eos": True, "max_tokens": 6}
PROMPTS = ["The capital of France is", "A radix tree", "Two requests that", "Once upon a time"]


@pytest.fixture(scope="module")
def engine(tiny_model_dir: Path) -> Iterator[Engine]:
    with fp32(str(tiny_model_dir)) as engine:
        yield engine


@pytest.fixture(autouse=True)
def clean(engine: Engine) -> Iterator[None]:
    assert engine.flush_cache()
    yield
    assert_all_free(engine)


@sgl.function
def complete(s: sgl.ProgramState, prompt: str) -> None:
    s += prompt + sgl.gen("x", **GREEDY)  # type: ignore[arg-type]


class TestGen:
    def test_is_what_the_engine_says(self, engine: Engine) -> None:
        state = complete.run(PROMPTS[0], backend=engine)
        done = engine.generate(PROMPTS[0], SamplingParams(**GREEDY))
        assert (state["x"], state.text()) == (done.text, PROMPTS[0] + done.text)

    def test_tells_about_itself(self, engine: Engine) -> None:
        complete.run(PROMPTS[0], backend=engine)
        meta = complete.run(PROMPTS[0], backend=engine).get_meta_info("x")
        prompt_tokens = len(engine.tokenizer.encode(PROMPTS[0]))
        assert meta["prompt_tokens"] == prompt_tokens
        assert meta["cached_tokens"] == prompt_tokens - 1
        assert meta["completion_tokens"] == 6
        assert meta["finish_reason"] == {"type": "length", "length": 6}

        @sgl.function
        def stops(s: sgl.ProgramState) -> None:
            text = complete.run(PROMPTS[0], backend=engine)["x"]
            s += PROMPTS[0] + sgl.gen("y", temperature=0, stop=text[-1])

        reason = stops.run(backend=engine).get_meta_info("y")["finish_reason"]
        assert reason["type"] == "stop" and reason["matched"] is not None

    def test_the_second_gen_finds_the_first_in_the_cache(self, engine: Engine) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += PROMPTS[0] + sgl.gen("x", **GREEDY)  # type: ignore[arg-type]
            s += ". And then" + sgl.gen("y", **GREEDY)  # type: ignore[arg-type]

        state = f.run(backend=engine)
        first, second = (state.get_meta_info(name) for name in "xy")
        assert second["cached_tokens"] >= first["prompt_tokens"]

    def test_logprobs_are_the_engines(self, engine: Engine) -> None:
        @sgl.function
        def f(s: sgl.ProgramState, start: int) -> None:
            s += PROMPTS[0] + sgl.gen(
                "x", return_logprob=True, top_logprobs_num=2, logprob_start_len=start, **GREEDY
            )

        params = SamplingParams(**GREEDY, logprobs=2, prompt_logprobs_from=0)
        done = engine.generate(PROMPTS[0], params)
        assert done.logprobs is not None and done.prompt_logprobs is not None
        for start in (0, 3):
            meta = f.run(start, backend=engine).get_meta_info("x")
            output = meta["output_token_logprobs"]
            assert [t[1] for t in output] == [t.token_id for t in done.logprobs]
            assert [t[0] for t in output] == pytest.approx(
                [t.logprob for t in done.logprobs], abs=1e-4
            )
            assert "".join(t[2] for t in output) == done.text
            assert all(len(top) == 2 for top in meta["output_top_logprobs"])
            told = [t for t in done.prompt_logprobs[start + 1 if start else 0 :] if t is not None]
            assert [t[1] for t in meta["input_token_logprobs"]] == [t.token_id for t in told]
            for ours, theirs in zip(meta["input_token_logprobs"], told, strict=True):
                assert math.isclose(ours[0], theirs.logprob, abs_tol=1e-4)

    def test_pieces_join(self, engine: Engine) -> None:
        state = complete.run(PROMPTS[1], backend=engine, stream=True)

        async def read() -> list[tuple[str, Any]]:
            return [p async for p in state.text_async_iter("x", return_meta_data=True)]

        pairs = asyncio.run(read())
        done = engine.generate(PROMPTS[1], SamplingParams(**GREEDY))
        assert "".join(text for text, _ in pairs) == state["x"] == done.text
        assert pairs[-1][1]["completion_tokens"] == 6
        assert "".join(state.text_iter()) == PROMPTS[1] + done.text

    def test_several_answers(self, engine: Engine) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += PROMPTS[0] + sgl.gen("x", n=3, seed=5, max_tokens=6, ignore_eos=True)

        params = SamplingParams(n=3, seed=5, max_tokens=6, ignore_eos=True)
        done = engine.generate(PROMPTS[0], params)
        assert isinstance(done, list)
        assert f.run(backend=engine)["x"] == [completion.text for completion in done]

    def test_nothing_is_generated_and_a_hundred_suffixes_are_scored(self, engine: Engine) -> None:
        """C12, C8: from the given position on, and all before it comes from the cache."""
        prefix = "Two requests that begin alike share the work, and the tree knows"
        start = len(engine.tokenizer.encode(prefix)) - 1

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += prefix
            forks = s.fork(100)
            forks += lambda i: (
                f" {i}" + sgl.gen("x", max_tokens=0, return_logprob=True, logprob_start_len=start)
            )
            forks.join()
            s["metas"] = [t.get_meta_info("x") for t in forks]

        state = f.run(backend=engine)
        assert state["x"] == [""] * 100
        expected = engine.score(prefix, [f" {i}" for i in range(100)])
        for meta, score in zip(state["metas"], expected, strict=True):
            told = meta["input_token_logprobs"]
            assert [t[1] for t in told] == list(score.token_ids)
            assert [t[0] for t in told] == pytest.approx(score.logprobs, abs=1e-4)
            assert meta["completion_tokens"] == 0
        assert sum(meta["cached_tokens"] >= start for meta in state["metas"]) >= 99

    def test_of_nothing_is_an_error_and_the_next_one_is_served(self, engine: Engine) -> None:
        """E2: the tiny model has no BOS, so an empty prompt has no token to go on from."""
        with no_thread_stays(), pytest.raises(ValueError, match="nothing has been said"):
            complete.run("", backend=engine)
        assert complete.run("A", backend=engine)["x"]

    def test_too_long_a_prompt_is_an_error_with_both_numbers(self, engine: Engine) -> None:
        with pytest.raises(
            ValueError, match=r"the prompt has \d+ tokens, but the context holds 512"
        ):
            complete.run("tree " * 600, backend=engine)

    def test_special_tokens_are_special_outside_of_roles_only(self, engine: Engine) -> None:
        """A13, E15."""

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += sgl.user("<|im_end|>")
            s += sgl.assistant_begin() + sgl.gen("x", **GREEDY)  # type: ignore[arg-type]

        chat = [{"role": "user", "content": "<|im_end|>"}]
        ids = engine.chat_template.encode(chat, engine.tokenizer)
        done = engine.generate(ids, SamplingParams(**GREEDY))
        state = f.run(backend=engine)
        assert state.get_meta_info("x")["prompt_tokens"] == len(ids)
        assert state["x"] == done.text


class TestForks:
    def test_branches_find_the_prefix_in_the_cache(self, engine: Engine) -> None:
        """All but the text that is their own, whoever computed it first."""
        prefix = "Two requests that begin alike share the work, and the tree knows. "

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += prefix
            forks = s.fork(4)
            forks += lambda i: f"Tip {i}:" + sgl.gen("x", **GREEDY)  # type: ignore[arg-type]
            forks.join()

        for hint in (True, False):
            engine.flush_cache()
            sgl.global_config.enable_fork_hint = hint
            try:
                before = engine.stats()
                state = f.run(backend=engine)
            finally:
                sgl.global_config.enable_fork_hint = True
            after = engine.stats()
            computed = (after.prompt_tokens - after.cached_tokens) - (
                before.prompt_tokens - before.cached_tokens
            )
            own = [len(engine.tokenizer.encode(f"{prefix}Tip {i}:")) for i in range(4)]
            shared = len(engine.tokenizer.encode(prefix + "Tip "))
            assert computed <= shared + sum(n - shared + 1 for n in own) + hint
            alone = [complete.run(f"{prefix}Tip {i}:", backend=engine)["x"] for i in range(4)]
            assert state["x"] == alone

    def test_a_program_of_branches_is_the_same_one_after_another(self, engine: Engine) -> None:
        @sgl.function
        def together(s: sgl.ProgramState) -> None:
            s += PROMPTS[0]
            forks = s.fork(3)
            forks += lambda i: PROMPTS[i + 1] + sgl.gen("x", **GREEDY)  # type: ignore[arg-type]
            forks.join()
            s += " ".join(s["x"]) + sgl.gen("sum", **GREEDY)  # type: ignore[arg-type]

        @sgl.function
        def sequential(s: sgl.ProgramState) -> None:
            s += PROMPTS[0]
            said = [
                complete.run(PROMPTS[0] + PROMPTS[i + 1], backend=engine)["x"] for i in range(3)
            ]
            s += " ".join(said) + sgl.gen("sum", **GREEDY)  # type: ignore[arg-type]

        assert together.run(backend=engine).text() == sequential.run(backend=engine).text()


class TestSelect:
    @staticmethod
    def brute_force(engine: Engine, prompt: str, choices: list[str]) -> dict[str, Any]:
        """The model on each joined string, whole, without any cache; from the definition."""
        encode = engine.tokenizer.encode
        bare, joined = encode(prompt), [encode(prompt + choice) for choice in choices]
        start = min(
            next((i for i, (a, b) in enumerate(zip(bare, ids, strict=False)) if a != b), len(bare))
            for ids in joined
        )
        return {
            choice: [
                [round(logprob, 4), i]  # equal tokens are equal, whatever the rounding
                for logprob, i in zip(logprobs_of(engine, ids)[start:], ids[start:], strict=True)
            ]
            for choice, ids in zip(choices, joined, strict=True)
        }

    @pytest.mark.parametrize(
        "method",
        [
            sgl.token_length_normalized,
            sgl.greedy_token_selection,
            sgl.unconditional_likelihood_normalized,
        ],
        ids=lambda m: type(m).__name__,
    )
    @settings(max_examples=15)
    @given(
        prompt=st.sampled_from(
            ["The capital of France is", "user: tree ", "A", "Paris. Two re", "A<|im_end|>"]
        ),
        choices=st.lists(
            st.sampled_from([" Paris", " Par", "is", " is", "quests", " t", "the tree", "5", " 5"]),
            min_size=2, max_size=5, unique=True,
        ),
    )  # fmt: skip
    def test_is_brute_force_on_the_joined_strings(
        self, engine: Engine, method: Any, prompt: str, choices: list[str]
    ) -> None:
        """C2, C3: whatever the tokenizer merges at the border."""

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += prompt + sgl.select("x", choices, choices_method=method)

        expected = self.brute_force(engine, prompt, choices)
        tokens = [expected[choice] for choice in choices]
        alone = [
            [[lp, i] for lp, i in zip(logprobs_of(engine, ids), ids, strict=True)]
            for ids in ([t[1] for t in each] for each in tokens)
        ]
        decision = method(
            choices=choices,
            normalized_prompt_logprobs=[sum(t[0] for t in ts) / len(ts) for ts in tokens],
            input_token_logprobs=tokens,
            output_token_logprobs=[[] for _ in choices],
            unconditional_token_logprobs=alone,
        )
        state = f.run(backend=engine)
        meta = state.get_meta_info("x")
        told = meta["input_token_logprobs"]
        assert [[t[1] for t in ts] for ts in told] == [[t[1] for t in ts] for ts in tokens]
        ours = [t[0] for ts in told for t in ts]
        assert ours == pytest.approx([t[0] for ts in tokens for t in ts], abs=1e-4)
        if method.requires_unconditional_logprobs:
            told_alone = meta["unconditional_token_logprobs"]
            assert all(ts[0][0] is None for ts in told_alone)
            assert [t[0] for ts in told_alone for t in ts[1:]] == pytest.approx(
                [t[0] for ts in alone for t in ts[1:]], abs=1e-4
            )
        assert state["x"] == decision.decision
        assert state.text() == prompt + state["x"]

    def test_in_a_role_special_tokens_are_text(self, engine: Engine) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += sgl.user("Which?")
            s += sgl.assistant(sgl.select("x", ["<|im_end|>", "yes"]))

        tokens = f.run(backend=engine).get_meta_info("x")["input_token_logprobs"]
        assert len(tokens[0]) > 1
        assert engine.tokenizer.special_tokens["<|im_end|>"] not in [t[1] for t in tokens[0]]

    def test_choices_share_the_context_and_their_beginnings(self, engine: Engine) -> None:
        prompt = "Two requests that begin alike share the work"
        choices = [f" and the tree knows how far they agree {i}" for i in range(8)]

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += prompt + sgl.select("x", choices)

        before = engine.stats()
        f.run(backend=engine)
        after = engine.stats()
        computed = (after.prompt_tokens - after.cached_tokens) - (
            before.prompt_tokens - before.cached_tokens
        )
        encode = engine.tokenizer.encode
        shared = len(encode(prompt + choices[0][:-1]))
        # The token before the first one that is its own each computes again, for its logits.
        assert computed <= shared + sum(len(encode(prompt + c)) - shared + 1 for c in choices)

    def test_two_thousand_choices(self, tiny_model_dir: Path) -> None:
        """C6: more than may run at a time."""
        choices = [f" {i}" for i in range(2000)]

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "The number is" + sgl.select("x", choices)

        with fp32(str(tiny_model_dir), max_running=8) as engine:
            state = f.run(backend=engine)
            means = state.get_meta_info("x")["normalized_prompt_logprobs"]
            assert state["x"] == choices[max(range(2000), key=means.__getitem__)]
            assert_all_free(engine)

    def test_one_choice_and_equal_choices(self, engine: Engine) -> None:
        """C5."""

        @sgl.function
        def f(s: sgl.ProgramState, choices: list[str]) -> None:
            s += "A" + sgl.select("x", choices)

        assert f.run(["a"], backend=engine)["x"] == "a"
        state = f.run(["b", "b"], backend=engine)
        first, second = state.get_meta_info("x")["normalized_prompt_logprobs"]
        assert (state["x"], first) == ("b", second)

    def test_at_a_temperature_it_is_drawn(self, engine: Engine) -> None:
        """C4: run's temperature is of its gens; a select's own draws, and a seed repeats it."""

        def drawn(select: dict[str, Any], run: dict[str, Any]) -> str:
            @sgl.function
            def g(s: sgl.ProgramState) -> None:
                s += "A" + sgl.gen("x", choices=[" a", " b", " c", " d"], **select)

            return g.run(backend=engine, **run)["x"]

        best = drawn({}, {})
        unset = {"temperature": None}
        assert {drawn(unset, {"temperature": 0.9}) for _ in range(4)} == {best}
        assert {drawn({}, {"temperature": 0.9}) for _ in range(8)} == {best}
        draws = [drawn({"temperature": 50.0, "seed": i}, {}) for i in range(30)]
        assert len(set(draws)) > 1
        assert draws == [drawn({"temperature": 50.0, "seed": i}, {}) for i in range(30)]


class TestBatch:
    def test_a_batch_is_the_same_one_by_one(self, engine: Engine) -> None:
        """B15, in float32."""
        states = complete.run_batch([{"prompt": p} for p in PROMPTS], backend=engine)
        alone = [complete.run(p, backend=engine)["x"] for p in PROMPTS]
        assert [state["x"] for state in states] == alone

    def test_the_constant_prefix_is_computed_once(self, engine: Engine) -> None:
        """E9, D13: every program of the batch finds it, the first included."""
        prefix = "Two requests that begin alike share the work, and the tree knows how far. "

        @sgl.function
        def f(s: sgl.ProgramState, question: str) -> None:
            s += prefix + "Q: " + question + sgl.gen("x", **GREEDY)  # type: ignore[arg-type]

        states = f.run_batch([(f"what is {i}?",) for i in range(12)], backend=engine)
        known = len(engine.tokenizer.encode(prefix)) - 1
        assert all(state.get_meta_info("x")["cached_tokens"] >= known for state in states)


def test_nothing_of_a_namespace_is_found_outside_of_it(engine: Engine) -> None:
    """D15: gens, selects, the hints of forks and the prefix of a batch."""
    prefix = "Two requests that begin alike share the work, and the tree knows how far they agree. "

    @sgl.function
    def f(s: sgl.ProgramState, i: int) -> None:
        s += prefix
        s += f"{i}" + sgl.select("choice", [" a", " b"])
        forks = s.fork(2)
        forks += sgl.gen("x", **GREEDY)  # type: ignore[arg-type]
        forks.join()

    def cached(namespace: str | None) -> int:
        params = SamplingParams(max_tokens=0, namespace=namespace)
        return engine.generate(prefix, params).cached_tokens

    f.run_batch([(1,), (2,)], backend=engine, namespace="tenant")
    assert cached(None) == cached("other") == 0
    assert cached("tenant") > 10


class TestEnds:
    @pytest.mark.parametrize("stream", [False, True])
    def test_closing_the_engine_ends_every_program_at_once(
        self, tiny_model_dir: Path, stream: bool
    ) -> None:
        """E3."""

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "A tree"
            forks = s.fork(3)
            forks += sgl.gen("x", max_tokens=None, ignore_eos=True)
            forks += sgl.select("y", ["a", "b"])
            forks.join()

        with no_thread_stays():
            engine = fp32(str(tiny_model_dir))
            timer = threading.Timer(0.05, engine.close)
            timer.start()
            start = time.monotonic()
            with pytest.raises(EngineError, match="the engine is closed"):
                f.run(backend=engine, stream=stream, max_tokens=500).sync()
            assert time.monotonic() - start < 5
            timer.join()
            with pytest.raises(EngineError, match="the engine is closed"):
                complete.run("A", backend=engine)

    def test_an_interrupted_program_leaves_nothing_in_the_engine(self, engine: Engine) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "A tree"
            forks = s.fork(3)
            forks += sgl.gen("x", ignore_eos=True, max_tokens=400)
            while engine.stats().running < 3:
                time.sleep(0.001)
            raise KeyboardInterrupt

        with no_thread_stays(), pytest.raises(KeyboardInterrupt):
            f.run(backend=engine)
        while engine.stats().running:
            time.sleep(0.001)

    def test_nobody_holds_an_engine_that_programs_ran_on(self, tiny_model_dir: Path) -> None:
        engine = fp32(str(tiny_model_dir))
        complete.run("A", backend=engine)
        gone = weakref.ref(engine)
        del engine
        gc.collect()
        assert gone() is None


class TestChat:
    @pytest.mark.parametrize("adds_bos", [True, False])
    def test_a_conversation_has_the_tokens_of_the_template_and_one_bos(
        self, tmp_path: Path, adds_bos: bool
    ) -> None:
        """E16: the template prints it, the tokenizer would add it; and plain text has it too."""
        toys.sentencepiece(tmp_path, chat_template=toys.MISTRAL, add_bos=adds_bos)
        tokenizer, template = Tokenizer(tmp_path), ChatTemplate(tmp_path)
        backend = object.__new__(EngineBackend)
        door = SimpleNamespace(image_reader=None, encoder=tokenizer)
        backend.engine = SimpleNamespace(  # type: ignore[assignment]
            tokenizer=tokenizer, chat_template=template, door=door
        )
        words = ["Hi there </s>", "STOP", "Hi"]
        messages = [
            {"role": role, "content": text}
            for role, text in zip(("user", "assistant", "user"), words, strict=True)
        ]
        context = Context()
        for message in messages:
            context = context.begin_role(message["role"], backend.chat).say(message["content"])
            context = context.end_role(backend.chat)
        ids = backend._encode(context)
        assert ids == template.encode(messages, tokenizer)
        assert ids.count(tokenizer.bos_token_id) == 1
        plain = backend._encode(Context().say("Hi there"))
        assert plain == tokenizer.encode("Hi there", add_special_tokens=True)

    def test_a_model_without_a_template_is_no_chat_model(
        self, tiny_model_dir: Path, tmp_path: Path
    ) -> None:
        """E15: none is made up."""
        path = tmp_path / "plain"
        shutil.copytree(tiny_model_dir, path)
        config = json.loads((path / "tokenizer_config.json").read_text())
        config.pop("chat_template", None)
        (path / "tokenizer_config.json").write_text(json.dumps(config))
        (path / "chat_template.jinja").unlink(missing_ok=True)

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += "plain text works" + sgl.gen("x", max_tokens=1)
            s += sgl.user("Hi")

        with fp32(str(path)) as engine, pytest.raises(ValueError, match="no chat template"):
            f.run(backend=engine)


class TestBackends:
    def test_any_event_loop_and_none(self, engine: Engine) -> None:
        """E8: a plain call, `asyncio.run` twice, and a call from inside a running loop."""
        expected = complete.run(PROMPTS[0], backend=engine)["x"]

        async def inside() -> str:
            return complete.run(PROMPTS[0], backend=engine)["x"]

        async def streamed() -> str:
            state = complete.run(PROMPTS[0], backend=engine, stream=True)
            return "".join([piece async for piece in state.text_async_iter("x")])

        assert asyncio.run(inside()) == asyncio.run(streamed()) == expected

    def test_the_default_one(self, engine: Engine) -> None:
        sgl.set_default_backend(engine)
        try:
            assert complete.run("A").text() == complete("A").text()
            assert sgl.flush_cache()
            info = sgl.get_server_info()
            assert info["model"] == engine.config.model
            assert info["requests"] >= 2 and info["max_running"] == 64
        finally:
            sgl.set_default_backend(None)

    def test_the_embedded_model_where_there_is_none(
        self, tiny_model_dir: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import minisgl.lang.backends.engine as module

        made = []

        def make(model: str | None = None, **settings: Any) -> Engine:
            made.append(model)
            return Engine(str(tiny_model_dir), dtype="float32")

        monkeypatch.setattr(
            module.Runtime, "__init__", lambda self: EngineBackend.__init__(self, make())
        )
        try:
            texts = [complete.run("A").text() for _ in range(2)]
            assert texts[0] == texts[1] and made == [None]
            assert sgl.global_config.default_backend is as_backend(None)
        finally:
            sgl.global_config.default_backend.shutdown()
            sgl.set_default_backend(None)

    def test_runtime_has_its_own_engine(self, tiny_model_dir: Path) -> None:
        with sgl.Runtime(model_path=str(tiny_model_dir), dtype="float32") as runtime:
            assert complete.run("A", backend=runtime)["x"]
            assert runtime.name == str(tiny_model_dir)
        with pytest.raises(EngineError, match="closed"):
            complete.run("A", backend=runtime)
        with pytest.raises(ValueError, match="unknown setting 'tensor_size'"):
            sgl.Runtime(model_path=str(tiny_model_dir), tensor_size=2)

    def test_something_else_is_refused(self) -> None:
        with pytest.raises(ValueError, match="backend='gpt': give an Engine"):
            complete.run("A", backend="gpt")

    def test_a_text_model_says_that_it_can_not_see(self, engine: Engine) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += sgl.user(sgl.image("cat.png") + "What is it?")

        with pytest.raises(ValueError, match="this model can't see: "):
            f.run(backend=engine)


def logprobs_of(engine: Engine, ids: list[int]) -> list[float | None]:
    """Of every token of `ids`, by one request that nothing is cached for."""
    done = engine.generate(
        ids, SamplingParams(max_tokens=0, prompt_logprobs_from=0, namespace=f"alone {ids}")
    )
    assert not isinstance(done, list) and done.prompt_logprobs is not None
    assert done.cached_tokens == 0
    return [None if t is None else t.logprob for t in done.prompt_logprobs]

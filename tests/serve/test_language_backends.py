"""Programs on our own server, by its native API and by OpenAI's: the same as on its engine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import minisgl.lang as sgl
from minisgl import Engine, SamplingParams
from minisgl.lang.backends.engine import EngineBackend
from scripts.make_tiny_model import make_tiny_model
from tests.serve.common import Running, serving
from tests.toy_tokenizers import sentencepiece

SETTINGS = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
QUICK = sgl.Retries(most=0)


@sgl.function
def program(s):
    s += sgl.system("Be brief.") + sgl.user("Where is Paris?")
    s += sgl.assistant(sgl.gen("where") + " and " + sgl.gen("more", regex="[a-z]{3}"))
    branches = s.fork(2)
    branches += lambda i: sgl.user(f"And {i}?")
    branches += sgl.assistant(sgl.select("kind", ["city", "river", "mountain"]))
    branches.join()


def outcome(state: sgl.ProgramState) -> list[Any]:
    return [state.text(), state["where"], state["more"], state["kind"], state.messages()]


@pytest.fixture
def endpoint(server: Running) -> sgl.RuntimeEndpoint:
    return sgl.RuntimeEndpoint(server.url, retries=QUICK)


@pytest.mark.parametrize("stream", [False, True])
def test_the_native_api_gives_what_the_engine_gives(
    server: Running, endpoint: sgl.RuntimeEndpoint, stream: bool
) -> None:
    expected = program.run(backend=EngineBackend(server.engine), **SETTINGS)
    found = program.run(backend=endpoint, stream=stream, **SETTINGS)
    assert outcome(found) == outcome(expected)
    ours, theirs = (s.get_meta_info("where") for s in (found, expected))
    for name in ("prompt_tokens", "completion_tokens", "finish_reason"):
        assert ours[name] == theirs[name]
    assert sgl.get_server_info(endpoint)["server"] == "minisgl"


@pytest.mark.parametrize(
    "method",
    [
        sgl.token_length_normalized,
        sgl.greedy_token_selection,
        sgl.unconditional_likelihood_normalized,
    ],
)
def test_select_sees_the_same_log_probabilities(
    server: Running, endpoint: sgl.RuntimeEndpoint, method: sgl.ChoicesSamplingMethod
) -> None:
    @sgl.function
    def choose(s):
        s += "The answer is " + sgl.select("x", ["yes", "no", "now"], choices_method=method)

    metas = []
    for backend in (EngineBackend(server.engine), endpoint):
        state = choose.run(backend=backend)
        metas.append((state["x"], state.get_meta_info("x")["input_token_logprobs"]))
    (one, inside), (other, found) = metas
    assert one == other
    assert [[t[1] for t in c] for c in inside] == [[t[1] for t in c] for c in found]
    for a, b in zip(inside, found, strict=True):
        assert [t[0] for t in a] == pytest.approx([t[0] for t in b], abs=1e-4)


@pytest.mark.parametrize("vocabulary", ["byte-level", "with BOS", "SentencePiece"])
def test_select_scores_the_same_over_openai_s_api(tmp_path: Path, vocabulary: str) -> None:
    """Whatever the tokens are: a BOS has a name there, and half a character has one, too."""
    path = make_tiny_model(tmp_path / "model", add_bos=vocabulary == "with BOS")
    if vocabulary == "SentencePiece":
        sentencepiece(path)
    with Engine(str(path), dtype="float32", kv_tokens=2048) as engine, serving(engine) as server:
        openai = sgl.OpenAI("default", is_chat=False, base_url=server.url + "/v1", retries=QUICK)

        @sgl.function
        def choose(s, begun, choices):
            s += begun + sgl.select("x", choices)

        for begun in ("The answer is ", "Où? 🌶🌶 世界: ", "Hi there. Hi", "It is\n\n", "é🌶"):
            for choices in (
                ["yes", "no"], ["Paris", " Paris", "Par"], ["🌶", "世", "é"], ["there", "the"],
            ):  # fmt: skip
                told = []
                for backend in (EngineBackend(engine), openai):
                    state = choose.run(begun, choices, backend=backend)
                    told.append((state["x"], state.get_meta_info("x")["input_token_logprobs"]))
                (one, inside), (other, found) = told
                assert one == other
                for a, b in zip(inside, found, strict=True):
                    assert [t[0] for t in b] == pytest.approx([t[0] for t in a], abs=1e-4)


def test_settings_arrive(server: Running, endpoint: sgl.RuntimeEndpoint) -> None:
    @sgl.function
    def write(s, **_):
        s += "Once" + sgl.gen("x")

    settings = {
        "max_tokens": 6, "temperature": 0.8, "seed": 3, "top_k": 5, "n": 2, "namespace": "tenant",
        "logit_bias": {5: 1.0}, "repetition_penalty": 1.1, "min_tokens": 2, "logprobs": 2,
        "prompt_logprobs_from": 0, "stop_token_ids": [7],
    }  # fmt: skip
    expected = write.run(backend=EngineBackend(server.engine), **settings)
    found = write.run(backend=endpoint, **settings)
    assert found["x"] == expected["x"]
    for a, b in zip(found.get_meta_info("x"), expected.get_meta_info("x"), strict=True):
        for name in ("input_token_logprobs", "output_token_logprobs"):
            assert [t[1] for t in a[name]] == [t[1] for t in b[name]]


@pytest.mark.parametrize("stream", [False, True])
def test_a_stop_pattern(server: Running, endpoint: sgl.RuntimeEndpoint, stream: bool) -> None:
    whole = server.engine.generate("Once", SamplingParams(**SETTINGS)).text
    pattern = re.escape(whole[2:4]) + "(.|\n)"

    @sgl.function
    def write(s):
        s += "Once" + sgl.gen("x", stop_regex=pattern)

    openai = sgl.OpenAI(
        "tiny", is_chat=False, base_url=server.url + "/v1", extensions=True, retries=QUICK
    )
    for backend in (EngineBackend(server.engine), endpoint, openai):
        state = write.run(backend=backend, stream=stream, **SETTINGS)
        assert state["x"] == whole[: re.search(pattern, whole).start()]
    plain = sgl.OpenAI("tiny", is_chat=False, base_url=server.url + "/v1", retries=QUICK)
    with pytest.raises(ValueError, match="stop_regex"):
        write.run(backend=plain, **SETTINGS)["x"]
    with pytest.raises(ValueError, match="matches the empty text"):
        sgl.gen("x", stop_regex=["b", "a*"])


def test_openai_s_api_with_extensions(server: Running) -> None:
    settings = {**SETTINGS, "max_tokens": 6}

    @sgl.function
    def turns(s):
        s += sgl.user("Where?") + sgl.assistant(sgl.gen("a"))
        s += sgl.user("So?") + sgl.assistant(sgl.gen("b", regex="[a-z]{3}"))

    @sgl.function
    def plain(s):
        s += "Once" + sgl.gen("a") + " so" + sgl.gen("b", regex="[a-z]{3}")

    url = server.url + "/v1"
    chat = sgl.OpenAI("tiny", base_url=url, extensions=True, retries=QUICK)
    completion = sgl.OpenAI("tiny", is_chat=False, base_url=url, extensions=True, retries=QUICK)
    engine = EngineBackend(server.engine)
    for one, backend in ((plain, completion), (turns, chat)):
        expected = one.run(backend=engine, **settings)
        found = one.run(backend=backend, **settings)
        assert (found["a"], found["b"]) == (expected["a"], expected["b"])


def test_speculation_on_a_real_model(server: Running, endpoint: sgl.RuntimeEndpoint) -> None:
    """Random weights go on as no program does; what is right must come out all the same."""

    def write(s):
        s += "Once" + sgl.gen("a", max_tokens=4) + sgl.gen("b", max_tokens=3)

    settings = {"temperature": 0, "ignore_eos": False}
    expected = sgl.function(write).run(backend=endpoint, **settings)
    found = sgl.function(num_api_spec_tokens=16)(write).run(backend=endpoint, **settings)
    assert found["a"] == expected["a"] and found.usage().spent.calls <= 2

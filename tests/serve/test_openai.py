"""OpenAI's API, as its own client sees it: answers are the engine's, every field has an effect."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import openai
import pytest

from minisgl import Completion, Engine, SamplingParams, TokenLogprob
from minisgl.serve.openai_reply import chat_logprobs, completion_logprobs, token_text
from minisgl.serve.openai_types import ChatRequest, CompletionRequest
from minisgl.tokenizer import Tokenizer
from scripts.make_tiny_model import make_tiny_model
from tests.serve.common import Running, events, serving
from tests.toy_tokenizers import sentencepiece

PROMPT = "The first token is slow"
MESSAGES: list[Any] = [{"role": "user", "content": "Who are you?"}]


def alone(server: Running, prompt: Any, **params: Any) -> Completion:
    """The engine's own answer."""
    done = server.engine.generate(prompt, SamplingParams(**{"temperature": 0.0, **params}))
    assert isinstance(done, Completion)
    return done


def chat_ids(server: Running, messages: list[Any]) -> list[int]:
    return server.engine.chat_template.encode(messages, server.engine.tokenizer)


def told_of(answer: Any, stream: bool) -> list[Any]:
    """The log-probabilities in an answer, or in each chunk of one that has some."""
    assert answer.status_code == 200, answer.text
    parts = events(answer.text) if stream else [answer.json()]
    return [part["choices"][0]["logprobs"] for part in parts if part["choices"][0]["logprobs"]]


class TestCompletions:
    def test_text_and_usage_are_the_engine_s(self, server: Running) -> None:
        done = alone(server, PROMPT, max_tokens=16)
        said = server.openai.completions.create(model="tiny", prompt=PROMPT, temperature=0)
        assert said.object == "text_completion" and said.id.startswith("cmpl-")
        assert said.model == "tiny"
        (choice,) = said.choices
        assert (choice.text, choice.finish_reason) == (done.text, done.finish_reason)
        assert said.usage is not None and said.usage.prompt_tokens_details is not None
        assert said.usage.prompt_tokens == done.prompt_tokens
        assert said.usage.completion_tokens == done.completion_tokens
        assert said.usage.total_tokens == done.prompt_tokens + done.completion_tokens
        assert said.usage.prompt_tokens_details.cached_tokens == done.prompt_tokens - 1

    def test_a_prompt_may_be_texts_or_ids(self, server: Running) -> None:
        ids = server.engine.tokenizer.encode(PROMPT)
        one = alone(server, PROMPT, max_tokens=4).text
        two = alone(server, "Once", max_tokens=4).text
        create = server.openai.completions.create
        given: list[tuple[Any, list[str]]] = [
            (PROMPT, [one]),
            ([PROMPT, "Once"], [one, two]),
            (ids, [one]),
            ([ids, server.engine.tokenizer.encode("Once")], [one, two]),
        ]
        for prompt, texts in given:
            said = create(model="tiny", prompt=prompt, temperature=0, max_tokens=4)
            assert [choice.text for choice in said.choices] == texts
            assert [choice.index for choice in said.choices] == list(range(len(texts)))

    def test_n_answers_of_each_prompt_stand_together(self, server: Running) -> None:
        said = server.openai.completions.create(
            model="tiny", prompt=[PROMPT, "Once"], n=2, seed=5, max_tokens=6
        )
        done = server.engine.generate([PROMPT, "Once"], SamplingParams(n=2, seed=5, max_tokens=6))
        assert [choice.text for choice in said.choices] == [one.text for one in done]
        assert said.usage is not None  # a prompt counts once
        assert said.usage.prompt_tokens == done[0].prompt_tokens + done[2].prompt_tokens

    def test_a_stream_says_the_same(self, server: Running) -> None:
        whole = server.openai.completions.create(
            model="tiny", prompt=[PROMPT, "Once"], n=2, seed=5, max_tokens=6, echo=True
        )
        pieces = list(
            server.openai.completions.create(
                model="tiny", prompt=[PROMPT, "Once"], n=2, seed=5, max_tokens=6, echo=True,
                stream=True, stream_options={"include_usage": True},
            )
        )  # fmt: skip
        texts, ends = [""] * 4, [None] * 4
        for piece in pieces[:-1]:
            (choice,) = piece.choices
            assert ends[choice.index] is None and piece.usage is None
            texts[choice.index] += choice.text
            ends[choice.index] = choice.finish_reason  # type: ignore[call-overload]
        assert texts == [choice.text for choice in whole.choices]
        assert ends == [choice.finish_reason for choice in whole.choices]
        assert pieces[-1].choices == []
        assert pieces[-1].usage is not None and whole.usage is not None
        assert pieces[-1].usage.completion_tokens == whole.usage.completion_tokens
        assert len({piece.id for piece in pieces}) == 1

    def test_without_include_usage_no_chunk_has_any(self, server: Running) -> None:
        body = {"prompt": PROMPT, "max_tokens": 3, "stream": True}
        for event in events(server.post("/v1/completions", body).text):
            assert "usage" not in event and len(event["choices"]) == 1

    def test_logprobs_are_of_the_tokens_that_show(self, server: Running) -> None:
        done = alone(server, PROMPT, max_tokens=6, logprobs=2)
        said = server.openai.completions.create(
            model="tiny", prompt=PROMPT, temperature=0, max_tokens=6, logprobs=2
        )
        told, tokenizer = said.choices[0].logprobs, server.engine.tokenizer
        assert told is not None and told.tokens is not None and told.text_offset is not None
        assert told.tokens == [token_text(tokenizer, i) for i in done.token_ids]
        assert told.token_logprobs == pytest.approx(
            [each.logprob for each in done.logprobs or ()], abs=1e-4
        )
        assert told.top_logprobs is not None and all(len(top) == 2 for top in told.top_logprobs)
        assert told.text_offset[0] == 0 and told.text_offset == sorted(told.text_offset)

    def test_of_a_stop_string_that_is_cut_off_no_token_is_told(self, server: Running) -> None:
        cut = alone(server, PROMPT, regex="abcdefgh", stop="def")
        assert cut.text == "abc"
        for stream in (False, True):
            body = {
                "prompt": PROMPT, "regex": "abcdefgh", "stop": "def", "logprobs": 0,
                "stream": stream,
            }  # fmt: skip
            answer = server.post("/v1/completions", body)
            choices = (
                [event["choices"][0] for event in events(answer.text)]
                if stream
                else answer.json()["choices"]
            )
            assert "".join(choice["text"] for choice in choices) == "abc"
            told = [choice["logprobs"] for choice in choices if choice["logprobs"]]
            offsets = [at for each in told for at in each["text_offset"]]
            assert offsets and offsets[0] == 0 and all(at < 3 for at in offsets)
            tokens = [token for each in told for token in each["tokens"]]
            assert "".join(tokens).startswith("abc") and len(tokens) < cut.completion_tokens

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize("shown", [False, True])
    @pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
    def test_special_tokens_in_an_answer_hide_no_others(
        self, server: Running, path: str, shown: bool, stream: bool
    ) -> None:
        """Their names are no part of the text, unless that is asked for."""
        special = server.engine.tokenizer.special_tokens["<|im_start|>"]
        settings = {"temperature": 0.7, "seed": 77, "max_tokens": 20, "ignore_eos": True}
        more = {"logit_bias": {str(special): 5}, "skip_special_tokens": not shown}
        if path == "/v1/completions":
            body: dict[str, Any] = {"prompt": PROMPT, "logprobs": 0}
            prompt = server.engine.tokenizer.encode(PROMPT)
        else:
            body = {"messages": MESSAGES, "logprobs": True}
            prompt = server.engine.chat_template.encode(MESSAGES, server.engine.tokenizer)
        params = SamplingParams(**settings, logit_bias={special: 5}, skip_special_tokens=not shown)
        done = server.engine.generate(prompt, params)
        assert isinstance(done, Completion) and special in done.token_ids[:-4]
        told = told_of(server.post(path, {**body, **settings, **more, "stream": stream}), stream)
        names = [token_text(server.engine.tokenizer, i) for i in done.token_ids]
        if path == "/v1/completions":
            assert [token for each in told for token in each["tokens"]] == names
        else:
            found = [bytes(token["bytes"]) for each in told for token in each["content"]]
            assert found == [server.engine.tokenizer.token_bytes(i) for i in done.token_ids]

    @pytest.mark.parametrize("stream", [False, True])
    @pytest.mark.parametrize(
        "more",
        [
            {"regex": "(yes|no) because of the capital of [a-z]{2,5}\\."},  # which jumps ahead
            {"regex": "[a-z ]{30}", "stop": ["e y", "th", "he "]},  # which hold back
            {"regex": "(é|🌶|世){9}"},
        ],
    )
    def test_offsets_are_where_tokens_begin_in_the_text(
        self, server: Running, more: dict[str, Any], stream: bool
    ) -> None:
        body = {"prompt": PROMPT, "max_tokens": 30, "logprobs": 0, **more, "stream": stream}
        answer = server.post("/v1/completions", body)
        told = told_of(answer, stream)
        whole = events(answer.text) if stream else [answer.json()]
        text = "".join(each["choices"][0]["text"] for each in whole)
        tokens = [token for each in told for token in each["tokens"]]
        offsets = [at for each in told for at in each["text_offset"]]
        assert offsets == sorted(offsets) and all(at < len(text) for at in offsets)
        for token, at in zip(tokens, offsets, strict=True):
            is_part = token.startswith("bytes:")
            assert is_part or text[at:].startswith(token) or token.startswith(text[at:])

    @pytest.mark.parametrize("kind", ["a BOS", "SentencePiece"])
    def test_offsets_in_an_echo(self, tmp_path: Path, kind: str) -> None:
        """BOS, which nobody wrote, is no part of it, nor is the space before the first word."""
        path = make_tiny_model(tmp_path / "model", add_bos=kind == "a BOS")
        if kind == "SentencePiece":
            sentencepiece(path)
        with Engine(str(path), dtype="float32", kv_tokens=512) as engine, serving(engine) as own:
            for written in ("Hi there é🌶 he", "Hi <|endoftext|>there"):
                ids = engine.tokenizer.encode(written)
                for prompt in (written, ids):
                    body = {"prompt": prompt, "max_tokens": 3, "echo": True, "logprobs": 0}
                    (choice,) = own.post("/v1/completions", body).json()["choices"]
                    told = choice["logprobs"]
                    is_special = [i in engine.tokenizer.special_ids for i in ids]
                    found = list(zip(told["tokens"], told["text_offset"], strict=True))
                    for (token, at), special in zip(found, is_special, strict=False):
                        if not special and not token.startswith("bytes:"):
                            assert choice["text"].startswith((token, token.lstrip()), at)
                    assert [at for _, at in found] == sorted(at for _, at in found)
                    echo = written if prompt is written else engine.tokenizer.decode(ids)
                    assert found[len(ids)][1] == len(echo)

    def test_echo_scores_the_prompt(self, server: Running) -> None:
        said = server.openai.completions.create(
            model="tiny", prompt=PROMPT, max_tokens=0, echo=True, logprobs=1
        )
        choice = said.choices[0]
        assert choice.text == PROMPT and choice.logprobs is not None
        assert choice.logprobs.tokens is not None and choice.logprobs.token_logprobs is not None
        assert "".join(choice.logprobs.tokens) == PROMPT
        scored = server.engine.score(PROMPT[:3], [PROMPT[3:]])[0]
        assert choice.logprobs.token_logprobs[0] is None
        assert choice.logprobs.token_logprobs[-len(scored.logprobs) :] == pytest.approx(
            scored.logprobs, abs=1e-4
        )
        assert choice.logprobs.text_offset is not None
        assert choice.logprobs.text_offset[1] == len(choice.logprobs.tokens[0])

    def test_best_of_returns_the_likeliest(self, server: Running) -> None:
        best = server.openai.completions.create(
            model="tiny", prompt=PROMPT, n=2, best_of=5, seed=3, max_tokens=4
        )
        params = SamplingParams(n=5, seed=3, max_tokens=4, logprobs=0)
        done = server.engine.generate(PROMPT, params)
        mean = {d.text: sum(t.logprob for t in d.logprobs) / len(d.logprobs) for d in done}
        wanted = sorted(mean, key=mean.__getitem__, reverse=True)[:2]
        assert [choice.text for choice in best.choices] == wanted
        assert best.usage is not None
        assert best.usage.completion_tokens == sum(d.completion_tokens for d in done)


class TestChat:
    def test_the_message_is_the_engine_s_by_the_model_s_template(self, server: Running) -> None:
        done = alone(server, chat_ids(server, MESSAGES), max_tokens=8)
        said = server.openai.chat.completions.create(
            model="tiny", messages=MESSAGES, temperature=0, max_tokens=8
        )
        assert said.object == "chat.completion" and said.id.startswith("chatcmpl-")
        (choice,) = said.choices
        assert choice.message.role == "assistant" and choice.message.content == done.text
        assert choice.finish_reason == done.finish_reason
        assert said.usage is not None and said.usage.prompt_tokens == done.prompt_tokens

    def test_a_stream_begins_with_the_role_and_ends_once(self, server: Running) -> None:
        done = alone(server, chat_ids(server, MESSAGES), max_tokens=8)
        pieces = list(
            server.openai.chat.completions.create(
                model="tiny", messages=MESSAGES, temperature=0, max_tokens=8, n=2, stream=True,
                stream_options={"include_usage": True},
            )
        )  # fmt: skip
        first, last = pieces[:2], pieces[-1]
        assert [piece.choices[0].delta.role for piece in first] == ["assistant"] * 2
        assert [piece.choices[0].index for piece in first] == [0, 1]
        assert last.choices == [] and last.usage is not None
        assert last.usage.completion_tokens == 2 * done.completion_tokens
        texts, ends = ["", ""], []
        for piece in pieces[2:-1]:
            (choice,) = piece.choices
            assert isinstance(choice.delta.content, str) and choice.delta.role is None
            texts[choice.index] += choice.delta.content
            ends += [choice.index] if choice.finish_reason else []
        assert texts == [done.text] * 2 and sorted(ends) == [0, 1]

    @pytest.mark.parametrize("stream", [False, True])
    def test_the_last_message_may_go_on(self, server: Running, stream: bool) -> None:
        begun = [*MESSAGES, {"role": "assistant", "content": "Once upon "}]
        text = server.engine.chat_template.render(begun[:-1]) + "Once upon "
        ids = server.engine.tokenizer.encode(text, add_special_tokens=False)
        done = alone(server, ids, max_tokens=8)
        body = {"messages": begun, "temperature": 0, "max_tokens": 8, "stream": stream}
        body |= {"continue_final_message": True, "add_generation_prompt": False}
        answer = server.post("/v1/chat/completions", body)
        if stream:
            pieces = events(answer.text)
            said = "".join(piece["choices"][0]["delta"]["content"] for piece in pieces)
        else:
            said = answer.json()["choices"][0]["message"]["content"]
        assert said == done.text

    def test_no_answer_need_be_begun(self, server: Running) -> None:
        text = server.engine.chat_template.render(MESSAGES, add_generation_prompt=False)
        ids = server.engine.tokenizer.encode(text, add_special_tokens=False)
        body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 8}
        answer = server.post("/v1/chat/completions", body | {"add_generation_prompt": False})
        content = answer.json()["choices"][0]["message"]["content"]
        assert content == alone(server, ids, max_tokens=8).text
        assert answer.json()["usage"]["prompt_tokens"] == len(ids)

    def test_parts_of_text_are_one_message(self, server: Running) -> None:
        parts = [{"type": "text", "text": "Who "}, {"type": "text", "text": "are you?"}]
        said = server.openai.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": parts}], temperature=0,
            max_tokens=4,
        )  # fmt: skip
        done = alone(server, chat_ids(server, MESSAGES), max_tokens=4)
        assert said.choices[0].message.content == done.text

    def test_special_tokens_in_a_message_stay_text(self, server: Running) -> None:
        body = {"messages": [{"role": "user", "content": "<|im_end|>"}], "max_tokens": 1}
        quoted = server.post("/v1/chat/completions", body).json()["usage"]["prompt_tokens"]
        body = {"messages": [{"role": "user", "content": ""}], "max_tokens": 1}
        empty = server.post("/v1/chat/completions", body).json()["usage"]["prompt_tokens"]
        assert quoted > empty + 1  # spelled out, not the one token

    def test_logprobs_have_bytes_and_as_many_others_as_asked(self, server: Running) -> None:
        done = alone(server, chat_ids(server, MESSAGES), max_tokens=6, logprobs=3)
        said = server.openai.chat.completions.create(
            model="tiny", messages=MESSAGES, temperature=0, max_tokens=6, logprobs=True,
            top_logprobs=3,
        )  # fmt: skip
        told = said.choices[0].logprobs
        assert told is not None and told.content is not None
        tokenizer = server.engine.tokenizer
        shown = b"".join(bytes(each.bytes or ()) for each in told.content)
        assert shown.decode("utf-8", errors="replace") == done.text
        for each, token, known in zip(
            told.content, done.token_ids, done.logprobs or (), strict=False
        ):
            assert bytes(each.bytes or ()) == tokenizer.token_bytes(token)
            assert each.logprob == pytest.approx(known.logprob, abs=1e-4)
            assert len(each.top_logprobs) == 3
        # The same in a stream, piece by piece.
        pieces = server.openai.chat.completions.create(
            model="tiny", messages=MESSAGES, temperature=0, max_tokens=6, logprobs=True,
            top_logprobs=3, stream=True,
        )  # fmt: skip
        streamed = [
            each
            for piece in pieces
            if piece.choices[0].logprobs
            for each in piece.choices[0].logprobs.content or ()
        ]
        assert streamed == told.content

    def test_the_answer_is_json_if_that_is_asked(self, server: Running) -> None:
        schema = {
            "type": "object",
            "properties": {"city": {"enum": ["Rome", "Oslo"]}, "size": {"type": "boolean"}},
            "required": ["city", "size"],
            "additionalProperties": False,
        }
        form: Any = {"type": "json_schema", "json_schema": {"name": "c", "schema": schema}}
        said = server.openai.chat.completions.create(
            model="tiny", messages=MESSAGES, response_format=form, seed=1
        )
        value = json.loads(said.choices[0].message.content or "")
        assert value["city"] in ("Rome", "Oslo") and isinstance(value["size"], bool)
        sent = captured(
            server, "/v1/chat/completions",
            {"messages": MESSAGES, "max_tokens": 2, "response_format": {"type": "json_object"}},
        )  # fmt: skip
        assert json.loads(sent.json_schema) == {"type": "object"}
        sent = captured(
            server, "/v1/chat/completions",
            {"messages": MESSAGES, "max_tokens": 2, "response_format": {"type": "text"}},
        )  # fmt: skip
        assert sent.json_schema is None

    def test_a_regex_is_an_extension(self, server: Running) -> None:
        said = server.openai.chat.completions.create(
            model="tiny", messages=MESSAGES, extra_body={"regex": "(red|blue) sky"}
        )
        assert said.choices[0].message.content in ("red sky", "blue sky")
        assert said.choices[0].finish_reason == "stop"

    def test_of_two_limits_the_smaller_counts(self, server: Running) -> None:
        for more, most in (({}, 5), ({"max_completion_tokens": 3}, 3)):
            sent = captured(
                server, "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 5, **more}
            )
            assert sent.max_tokens == most


def test_models(server: Running) -> None:
    client = server.openai
    assert [model.id for model in client.models.list()] == ["tiny", "also-tiny"]
    assert client.models.retrieve("also-tiny").id == "also-tiny"
    with pytest.raises(openai.NotFoundError, match="gpt-4"):
        client.models.retrieve("gpt-4")
    with pytest.raises(openai.NotFoundError, match="there is tiny, also-tiny"):
        client.completions.create(model="gpt-4", prompt="a")
    assert client.completions.create(model="default", prompt="a", max_tokens=1).model == "tiny"


# ---------------------------------------------------------------------- every field has an effect


def captured(server: Running, path: str, body: dict[str, Any]) -> SamplingParams:
    """The settings with which the engine was asked."""
    asked: list[SamplingParams] = []
    submit = server.engine.submit_all

    def watch(prompts: Any, params: Any) -> Any:
        asked.extend(params)
        return submit(prompts, params)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server.engine, "submit_all", watch)
        answer = server.post(path, body)
    assert answer.status_code == 200, answer.text
    return asked[0]


SAME = {  # a field of both bodies: its value, and what it becomes in `SamplingParams`
    "n": (2, {"n": 2}),
    "temperature": (0.5, {"temperature": 0.5}),
    "top_p": (0.5, {"top_p": 0.5}),
    "stop": ("END", {"stop": ("END",)}),
    "seed": (3, {"seed": 3}),
    "presence_penalty": (0.5, {"presence_penalty": 0.5}),
    "frequency_penalty": (0.5, {"frequency_penalty": 0.5}),
    "logit_bias": ({"7": -5}, {"logit_bias": ((7, -5.0),)}),
    "top_k": (4, {"top_k": 4}),
    "min_p": (0.1, {"min_p": 0.1}),
    "min_tokens": (1, {"min_tokens": 1}),
    "repetition_penalty": (1.2, {"repetition_penalty": 1.2}),
    "stop_regex": ("a+", {"stop_regex": ("a+",)}),
    "stop_token_ids": ([9], {"stop_token_ids": (9,)}),
    "ignore_eos": (True, {"ignore_eos": True}),
    "skip_special_tokens": (False, {"skip_special_tokens": False}),
    "no_stop_trim": (True, {"no_stop_trim": True}),
    "regex": ("a+", {"regex": "a+"}),
    "json_schema": ({"type": "null"}, {"json_schema": '{"type": "null"}'}),
    "json_space": (2, {"json_space": 2}),
    "namespace": ("me", {"namespace": "me"}),
}
OWN_TESTS = {"model", "stream", "stream_options", "user", "prompt", "echo", "best_of", "messages"}
OWN_TESTS |= {"response_format", "tools", "tool_choice", "parallel_tool_calls", "top_logprobs"}
OWN_TESTS |= {"add_generation_prompt", "continue_final_message"}
COMPLETIONS: dict[str, Any] = {
    **SAME,
    "max_tokens": (2, {"max_tokens": 2}),
    "logprobs": (3, {"logprobs": 3}),
}
CHAT: dict[str, Any] = {
    **SAME,
    "max_tokens": (2, {"max_tokens": 2}),
    "max_completion_tokens": (2, {"max_tokens": 2}),
    "logprobs": (True, {"logprobs": 0}),
}


@pytest.mark.parametrize(
    ("path", "base", "table", "kind"),
    [
        ("/v1/completions", {"prompt": "Once"}, COMPLETIONS, CompletionRequest),
        ("/v1/chat/completions", {"messages": MESSAGES}, CHAT, ChatRequest),
    ],
    ids=["completions", "chat"],
)
def test_every_field_reaches_the_engine(
    server: Running, path: str, base: dict[str, Any], table: dict[str, Any], kind: Any
) -> None:
    assert set(kind.model_fields) - OWN_TESTS == set(table), "a field without a test"
    base = {**base, "max_tokens": 2}
    plain = captured(server, path, base)
    for name, (value, wanted) in table.items():
        sent = captured(server, path, {**base, name: value})
        changed = {
            field: getattr(sent, field)
            for field in vars(sent)
            if getattr(sent, field) != getattr(plain, field) or field in wanted
        }
        assert changed == wanted, name
    assert captured(server, path, {**base, **dict.fromkeys(SAME)}) == plain  # null: the default


def test_numbers_that_json_has_not_and_halves_of_characters() -> None:
    class Bytes:
        def token_bytes(self, token: int) -> bytes:
            return [b"a", "🌶".encode()[:2], "🌶".encode()[2:]][token]

    told = TokenLogprob(1, -math.inf, ((1, -math.inf), (2, -1.0)))
    found = completion_logprobs([(0, None), (1, told), (2, told)], Bytes(), [3, 4, 4])  # type: ignore[arg-type]
    assert found["tokens"] == ["a", "bytes:\\xf0\\x9f", "bytes:\\x8c\\xb6"]
    assert found["top_logprobs"][1] == {"bytes:\\xf0\\x9f": -9999.0, "bytes:\\x8c\\xb6": -1.0}
    assert found["token_logprobs"] == [None, -9999.0, -9999.0]
    assert found["text_offset"] == [3, 4, 4]
    entry = chat_logprobs([told], Bytes())["content"][0]  # type: ignore[arg-type]
    assert (entry["bytes"], entry["logprob"]) == ([0xF0, 0x9F], -9999.0)


def test_tokens_of_one_text_hide_none_of_each_other(tmp_path: Path) -> None:
    """In a SentencePiece vocabulary a letter is a piece, and a byte of its own as well."""
    tokenizer = Tokenizer(sentencepiece(tmp_path))
    (piece,) = tokenizer.encode_continuation("!")
    byte = next(i for i in range(piece) if tokenizer.token_bytes(i) == b"!")
    likely = ((piece, -0.5), (byte, -2.0), (tokenizer.encode_continuation("e")[0], -3.0))
    for top in (likely, likely[::-1]):
        told = TokenLogprob(piece, -0.5, top)
        found = completion_logprobs([(piece, told)], tokenizer, [0])
        assert found["tokens"] == ["!"]
        first, other = (piece, byte) if top is likely else (byte, piece)
        values = dict(top)
        assert found["top_logprobs"] == [
            {"!": values[first], f"token_id:{other}": values[other], "e": -3.0}
        ]
        entries = chat_logprobs([told], tokenizer)["content"][0]["top_logprobs"]
        assert [entry["logprob"] for entry in entries] == [value for _, value in top]

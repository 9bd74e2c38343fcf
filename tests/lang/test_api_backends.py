"""Programs on models behind APIs: the makers' own clients against a server on a loopback socket
that speaks their protocols, and what can go wrong there."""

from __future__ import annotations

import asyncio
import base64
import dataclasses
import json
import logging
import re
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import minisgl.lang as sgl
from minisgl.chat_template import ChatTemplate
from minisgl.lang.backends.api import chosen
from minisgl.lang.chat_format import ChatFormat
from minisgl.sampling import SamplingParams
from scripts.bench import api_speculation
from tests.lang.fake import CHATML, config_of
from tests.lang.fake_api import Asked, FakeApi, Fault, tokens

KEY = "sk-very-secret-1234"
QUICK = sgl.Retries(most=2, first=0.001)
PNG = b"\x89PNG\r\n\x1a\n" + b"0" * 8

Make = Callable[..., sgl.Backend]


def chat(api: FakeApi, model: str = "gpt-4o", **others: Any) -> sgl.OpenAI:
    settings = {"base_url": api.url + "/v1", "api_key": KEY, "retries": QUICK, **others}
    return sgl.OpenAI(model, **settings)


def completion(api: FakeApi, **others: Any) -> sgl.OpenAI:
    return chat(api, "davinci-002", is_chat=False, **others)


def claude(api: FakeApi, **others: Any) -> sgl.Anthropic:
    settings = {"base_url": api.url, "api_key": KEY, "retries": QUICK, "prefill": True, **others}
    return sgl.Anthropic("claude-test", **settings)


def endpoint(api: FakeApi, **others: Any) -> sgl.RuntimeEndpoint:
    settings = {"chat_template": CHATML, "api_key": KEY, "retries": QUICK, **others}
    return sgl.RuntimeEndpoint(api.url, **settings)


CHATS = [chat, claude, endpoint]
ALL = [*CHATS, completion]


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with FakeApi(lambda asked: " Paris.\nNot Rome.") as api:
        yield api


@sgl.function
def qa(s, question="Where?"):
    s += sgl.system("Be brief.") + sgl.user(question)
    s += sgl.assistant(sgl.gen("answer"))


@sgl.function
def go_on(s, question="Where?"):
    s += question + sgl.gen("answer")


def ask(program: sgl.Function[..., Any], *args: Any, **settings: Any) -> sgl.ProgramState:
    """Run it, up to the end of a line if nothing else is said."""
    return program.run(*args, **{"stop": "\n", **settings})


def program_of(make: Make) -> sgl.Function[..., Any]:
    return go_on if make is completion else qa


# ---------------------------------------------------------------------- what goes well


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("make", ALL)
def test_an_answer_its_meta_data_and_what_it_took(api: FakeApi, make: Make, stream: bool) -> None:
    state = ask(program_of(make), backend=make(api), stream=stream, temperature=0.5)
    assert "".join(state.text_iter("answer")) == state["answer"] == " Paris."
    meta = state.get_meta_info("answer")
    assert meta["prompt_tokens"] == len(tokens(api.asked[-1].text))
    assert meta["completion_tokens"] == len(
        tokens(" Paris.\nNot Rome." if make is claude else " Paris.\n")
    )
    assert meta["finish_reason"]["type"] == "stop"
    usage = state.usage()
    assert usage.spent.calls == len(api.asked) == 1 and usage.saved_calls == 0
    assert usage.spent.prompt_tokens == meta["prompt_tokens"]
    sent = json.dumps(api.asked[-1].body)
    assert '"temperature": 0.5' in sent and ("Be brief." in sent) == (make is not completion)


@pytest.mark.parametrize("make", ALL)
def test_length_is_told(api: FakeApi, make: Make) -> None:
    state = ask(program_of(make), backend=make(api), max_tokens=1)
    assert state["answer"] == " Paris"
    assert state.get_meta_info("answer")["finish_reason"] == {"type": "length", "length": 1}


@pytest.mark.parametrize("make", ALL)
def test_several_answers(api: FakeApi, make: Make) -> None:
    api.says = lambda asked: f" {len(api.asked)}\n" if make is claude else " one\n"
    state = ask(program_of(make), backend=make(api), n=3)
    assert len(state["answer"]) == 3 == len(state.get_meta_info("answer"))
    assert all(answer.strip() for answer in state["answer"])
    calls = 3 if make is claude else 1
    assert len(api.asked) == calls
    total = state.usage().spent
    per_answer = len(tokens(" 1\n"))
    assert total.completion_tokens == 3 * per_answer


@pytest.mark.parametrize("make", [chat, completion, endpoint])
def test_log_probabilities_have_one_form(api: FakeApi, make: Make) -> None:
    for stream in (False, True):
        state = ask(program_of(make), backend=make(api), return_logprob=True, stream=stream)
        told = state.get_meta_info("answer")["output_token_logprobs"]
        assert "".join(token[2] for token in told) == " Paris.\n"
        assert all(token[0] < 0 for token in told)


@pytest.mark.parametrize("make", CHATS)
def test_branches_and_a_batch_share_a_client(api: FakeApi, make: Make) -> None:
    @sgl.function
    def forked(s, i):
        s += sgl.user(f"{i}")
        branches = s.fork(3)
        branches += sgl.assistant(sgl.gen("x", stop="\n"))
        branches.join()

    backend = make(api)
    states = forked.run_batch([(i,) for i in range(10)], backend=backend)
    assert [state["x"] for state in states] == [[" Paris."] * 3] * 10
    assert sum(asked.body.get("max_tokens", 1) != 0 for asked in api.asked) >= 30


@pytest.mark.parametrize("make", CHATS)
def test_e8_any_loop_and_any_thread(api: FakeApi, make: Make) -> None:
    backend = make(api)
    assert ask(qa, backend=backend)["answer"] == " Paris."

    async def both() -> list[str]:
        states = await asyncio.gather(
            qa.arun(backend=backend, stop="\n"), qa.arun(backend=backend, stop="\n")
        )
        return [state["answer"] for state in states]

    assert asyncio.run(both()) == asyncio.run(both()) == [" Paris."] * 2
    with ThreadPoolExecutor(4) as pool:
        found = pool.map(lambda _: ask(qa, backend=backend)["answer"], range(4))
    assert list(found) == [" Paris."] * 4


def test_one_program_on_three_backends(api: FakeApi) -> None:
    assert {ask(qa, backend=make(api))["answer"] for make in CHATS} == {" Paris."}


# ---------------------------------------------------------------------- what goes wrong


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("make", ALL)
def test_what_passes_is_not_seen(api: FakeApi, make: Make, stream: bool) -> None:
    backend = make(api)
    for faults in (
        [Fault(429, {"retry-after": "0"}), Fault(503)],
        [Fault(cut=0), Fault(body="{no json")],
        [Fault(500), Fault(body="<html>busy</html>")],
    ):
        api.faults = list(faults)
        api.asked.clear()
        state = ask(program_of(make), backend=backend, stream=stream)
        assert state["answer"] == " Paris." and len(api.asked) == 3


@pytest.mark.parametrize("make", ALL)
def test_what_stays_reaches_the_program(api: FakeApi, make: Make) -> None:
    backend = make(api)
    api.faults = [Fault(503, message="overloaded")] * 3
    with pytest.raises(sgl.ApiError, match="overloaded"):
        ask(program_of(make), backend=backend)
    assert len(api.asked) == 3
    api.faults = [Fault(400, message="no such thing")]
    with pytest.raises(sgl.ApiError, match="no such thing") as caught:
        ask(program_of(make), backend=backend)
    assert caught.value.status == 400 and len(api.asked) == 4


@pytest.mark.parametrize("clean", [False, True])
@pytest.mark.parametrize("make", ALL)
def test_a_stream_that_breaks_is_an_error_after_what_has_come(
    api: FakeApi, make: Make, clean: bool
) -> None:
    api.says = lambda _: " one two three four"
    # Anthropic's first three events have no text.
    api.faults = [Fault(cut=5 if make is claude else 3, clean_cut=clean)]
    state = ask(program_of(make), backend=make(api), stream=True)
    seen = []
    with pytest.raises(sgl.ApiError):
        for piece in state.text_iter("answer"):
            seen.append(piece)
    assert " one two three four".startswith("".join(seen)) and seen
    assert len(api.asked) == 1  # nobody would want it twice


@pytest.mark.parametrize("make", ALL)
def test_a_server_that_hangs(api: FakeApi, make: Make) -> None:
    backend = make(api, timeout=1.0, retries=sgl.Retries(most=0))
    api.faults = [Fault(hangs=True)]
    with pytest.raises(sgl.ApiError, match=r"(?i)timed out|within 1.0 s"):
        ask(program_of(make), backend=backend)


@pytest.mark.parametrize("make", ALL)
def test_a_program_that_is_cancelled_waits_for_no_server(api: FakeApi, make: Make) -> None:
    backend = make(api)
    api.faults = [Fault(hangs=True)]
    state = ask(program_of(make), backend=backend, stream=True)
    while not api.asked:
        time.sleep(0.001)
    state.cancel()
    with pytest.raises(sgl.ProgramCancelledError):
        state.text()


@pytest.mark.parametrize("make", [chat, completion, claude])
def test_no_server_at_all(make: Make) -> None:
    with FakeApi(lambda _: "") as gone:
        backend = make(gone)
    with pytest.raises(sgl.ApiError, match=r"(?i)connection"):
        ask(program_of(make), backend=backend)


def test_no_native_server_at_all() -> None:
    with FakeApi(lambda _: "") as gone:
        pass
    with pytest.raises(sgl.ApiError, match=rf"connection to {gone.url}/get_model_info failed"):
        endpoint(gone)


def test_money_that_is_spent_is_not_waited_for(api: FakeApi) -> None:
    api.faults = [Fault(429, message="quota", code="insufficient_quota")]
    with pytest.raises(sgl.ApiError, match="quota"):
        ask(qa, backend=chat(api))
    assert len(api.asked) == 1


# ---------------------------------------------------------------------- keys


@pytest.mark.parametrize("make", ALL)
def test_a_key_is_sent_and_never_shown(
    api: FakeApi, make: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    backend = make(api)
    ask(program_of(make), backend=backend)
    assert KEY in "".join(api.asked[-1].headers.values())
    shown = [repr(backend), str(backend), backend.name]
    for fault in (Fault(401, message=f"the key {KEY} is wrong"), Fault(body=f"<{KEY}>")):
        api.faults = [fault] * 3
        with pytest.raises(sgl.ApiError) as caught:
            ask(program_of(make), backend=backend)
        shown += [*traceback.format_exception(caught.value), repr(caught.value)]
    logged = [f"{r.getMessage()} {r.args}" for r in caplog.records if r.name.startswith("minisgl")]
    assert KEY not in "\n".join(shown + logged)


def test_a_key_of_the_environment(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "ANTHROPIC_API_KEY", "MINISGL_API_KEY"):
        monkeypatch.setenv(name, "from-" + name.lower())
    for make, name in (
        (chat, "openai_api_key"),
        (claude, "anthropic_api_key"),
        (endpoint, "minisgl_api_key"),
    ):
        ask(qa, backend=make(api, api_key=None))
        assert f"from-{name}" in "".join(api.asked[-1].headers.values())


def test_no_key(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(ValueError, match=r"no key for gpt-4o: give api_key=..., or set OPENAI_API"):
        sgl.OpenAI("gpt-4o")
    with pytest.raises(ValueError, match=r"set ANTHROPIC_API_KEY"):
        sgl.Anthropic("claude")
    ask(qa, backend=chat(api, api_key=None))  # another server may need none
    ask(qa, backend=endpoint(api, api_key=None))


# ---------------------------------------------------------------------- what an API can't do


@pytest.mark.parametrize("make", [chat, completion, claude])
@pytest.mark.parametrize(
    "setting",
    [{"regex": "[0-9]+"}, {"top_k": 5}, {"min_p": 0.1}, {"min_tokens": 3}, {"ignore_eos": True}],
)
def test_e10_what_an_api_lacks_is_an_error_that_names_it(
    api: FakeApi, make: Make, setting: dict[str, Any]
) -> None:
    if make is claude and "top_k" in setting:
        return  # it has that
    (name,) = setting

    @sgl.function
    def number(s):
        count = sgl.gen("n", dtype=int)
        s += "How many? " + count if make is completion else sgl.user("?") + sgl.assistant(count)

    with pytest.raises(ValueError, match=rf"{name}=.*has no such setting behind its API"):
        ask(program_of(make), backend=make(api), **setting)
    with pytest.raises(ValueError, match="regex="):
        number.run(backend=make(api))
    assert api.asked == []


def test_a_server_with_extensions_takes_them(api: FakeApi) -> None:
    backend = chat(api, extensions=True)
    ask(qa, backend=backend, regex="[0-9]+", top_k=5, min_tokens=0, ignore_eos=True)
    body = api.asked[-1].body
    assert (body["regex"], body["top_k"], body["ignore_eos"]) == ("[0-9]+", 5, True)
    assert "min_tokens" not in body

    @sgl.function
    def begun(s):
        s += sgl.user("Where?") + sgl.assistant("It is" + sgl.gen("a", stop="\n"))

    begun.run(backend=chat(api, prefill=True))
    body = api.asked[-1].body
    assert body["continue_final_message"] is True
    assert body["messages"][-1] == {"role": "assistant", "content": "It is"}
    schema = {"type": "object"}
    ask(go_on, backend=completion(api, extensions=True), json_schema=schema)
    assert json.loads(api.asked[-1].body["json_schema"]) == schema


@pytest.mark.parametrize("make", [chat, claude])
def test_e11_a_conversation_needs_roles(api: FakeApi, make: Make) -> None:
    with pytest.raises(ValueError, match=r"outside of any role.*user\(\.\.\.\)"):
        ask(go_on, backend=make(api))

    @sgl.function
    def as_user(s):
        s += sgl.user("Where is" + sgl.gen("x"))

    with pytest.raises(ValueError, match="speaks as the assistant only"):
        as_user.run(backend=make(api))

    @sgl.function
    def nobody(s):
        s += sgl.assistant(sgl.gen("x"))

    with pytest.raises(ValueError, match=r"nothing has been said.*begin with user"):
        nobody.run(backend=make(api))
    assert api.asked == []


def test_words_of_the_assistant_can_t_be_gone_on_with(api: FakeApi) -> None:
    @sgl.function
    def begun(s):
        s += sgl.user("Where?") + sgl.assistant("It is" + sgl.gen("a"))

    for backend in (chat(api), claude(api, prefill=False)):
        with pytest.raises(ValueError, match=r"after the assistant's words 'It is'.*num_api_spec"):
            begun.run(backend=backend)


@pytest.mark.parametrize("make", [completion, endpoint])
def test_e15_a_layout_is_never_guessed(api: FakeApi, make: Make) -> None:
    backend = completion(api) if make is completion else endpoint(api, chat_template=None)
    with pytest.raises(ValueError, match=r"(give|use no).*(chat=|chat_template=)"):
        ask(qa, backend=backend)
    assert ask(go_on, backend=backend)["answer"] == " Paris."
    assert "<|im" not in api.asked[-1].text


def test_e15_the_server_s_own_template_or_the_one_that_is_given(api: FakeApi) -> None:
    api.info["chat_template"] = CHATML
    ask(qa, backend=endpoint(api, chat_template=None))
    assert api.asked[-1].text.endswith("<|im_start|>assistant\n")
    other = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}[assistant]"
    ask(qa, backend=endpoint(api, chat_template=other.replace("[assistant]", "")))
    assert api.asked[-1].text.startswith("[system]Be brief.[user]Where?")
    form = ChatFormat(ChatTemplate(config_of(CHATML)))
    state = ask(qa, backend=completion(api, chat=form))
    assert state["answer"] == " Paris." and "<|im_end|>" not in state["answer"]
    with pytest.raises(ValueError, match="for is_chat=False only"):
        chat(api, chat=form)


def test_e16_one_bos(api: FakeApi) -> None:
    """A server puts BOS before the text, so the template's own is not sent."""
    with_bos = config_of("{{ bos_token }}" + CHATML)
    state = ask(qa, backend=endpoint(api, chat_template=with_bos))
    assert state.text().startswith("<s><|im_start|>")
    assert api.asked[-1].body["text"].startswith("<|im_start|>")


def test_e17_a_template_without_a_system_role(api: FakeApi) -> None:
    """Mistral's: the template's own words, with the roles it was given."""
    mistral = (
        "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('Only user and "
        "assistant roles are supported!') }}{% endif %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    )
    with pytest.raises(ValueError, match=r"roles: system\): Only user and assistant roles"):
        ask(qa, backend=endpoint(api, chat_template=mistral))


# ---------------------------------------------------------------------- OpenAI


@pytest.mark.parametrize("stream", [False, True])
def test_e14_a_fifth_stop_string_is_cut_on_our_side(api: FakeApi, stream: bool) -> None:
    api.says = lambda _: "one two END three | four"
    stops = ["A", "B", "C", "|", "END"]
    for make in (chat, completion):
        state = ask(program_of(make), backend=make(api), stop=stops, stream=stream)
        assert "".join(state.text_iter("answer")) == state["answer"] == "one two "
        assert api.asked[-1].body["stop"] == stops[:4]
        reason = state.get_meta_info("answer")["finish_reason"]
        assert reason == {"type": "stop", "matched": "END"}


def test_e14_reasoning_models(api: FakeApi) -> None:
    for model, thinks in (("o3-mini", True), ("gpt-5", True), ("gpt-5-chat-latest", False)):
        ask(qa, backend=chat(api, model))
        body = api.asked[-1].body
        if thinks:
            assert body["max_completion_tokens"] == 128
            assert not {"max_tokens", "temperature", "top_p", "stop"} & set(body)
        else:
            assert body["max_tokens"] == 128 and body["temperature"] == 1.0
    assert ask(qa, backend=chat(api, "o3-mini"))["answer"] == " Paris."  # cut on our side
    api.says = lambda _: "Apple"
    assert pick.run(backend=chat(api, "o3-mini"))["fruit"] == "apple"
    with pytest.raises(ValueError, match=r"temperature=0: o3-mini .*thinks before it answers"):
        ask(qa, backend=chat(api, "o3-mini"), temperature=0)
    usage = {"prompt_tokens": 1, "completion_tokens": 9, "total_tokens": 10}
    usage["completion_tokens_details"] = {"reasoning_tokens": 9}
    choice = {"index": 0, "message": {"role": "assistant", "content": ""}}
    reply = {"id": "1", "choices": [{**choice, "finish_reason": "length"}], "usage": usage}
    api.faults = [Fault(body=json.dumps(reply))]
    with pytest.raises(sgl.ApiError, match=r"has thought for 9 tokens.*give more"):
        ask(qa, backend=chat(api, "o3-mini"))


def test_e14_the_name_of_the_limit(api: FakeApi, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = chat(api)
    api.refuses = {"max_tokens": "max_completion_tokens"}
    assert ask(qa, backend=backend)["answer"] == " Paris."
    assert [sorted(set(a.body) & {"max_tokens", "max_completion_tokens"}) for a in api.asked] == [
        ["max_tokens"], ["max_completion_tokens"],
    ]  # fmt: skip
    ask(qa, backend=backend)
    assert len(api.asked) == 3  # it has learnt which
    monkeypatch.setenv("OPENAI_BASE_URL", api.url + "/v1")
    ask(qa, backend=chat(api, base_url=None))
    assert api.asked[-1].body["max_completion_tokens"] == 128


def test_json_by_a_schema(api: FakeApi) -> None:
    @dataclasses.dataclass
    class City:
        name: str

    @sgl.function
    def city(s):
        s += sgl.user("Where?") + sgl.assistant(sgl.gen("answer", dtype=City))

    api.says = lambda _: '{"name": "Paris"}'
    for make in (chat, claude):
        state = city.run(backend=make(api))
        assert state["answer"] == City("Paris")
    form = api.asked[0].body["response_format"]["json_schema"]
    assert form["strict"] is True and form["schema"]["required"] == ["name"]
    assert api.asked[1].body["output_config"]["format"]["schema"]["required"] == ["name"]
    ask(qa, backend=chat(api), json_schema=True, stop=None)
    assert api.asked[-1].body["response_format"] == {"type": "json_object"}
    with pytest.raises(ValueError, match="json_schema="):
        ask(go_on, backend=completion(api), json_schema={"type": "object"})


def test_settings_go_where_the_api_has_them(api: FakeApi) -> None:
    ask(
        qa, backend=chat(api), seed=7, frequency_penalty=0.5, presence_penalty=-0.5, top_p=0.9,
        logit_bias={5: float("-inf"), 6: 2.0}, logprobs=3,
    )  # fmt: skip
    body = api.asked[-1].body
    assert (body["seed"], body["frequency_penalty"], body["presence_penalty"]) == (7, 0.5, -0.5)
    assert body["logit_bias"] == {"5": -100.0, "6": 2.0}
    assert (body["logprobs"], body["top_logprobs"], body["top_p"]) == (True, 3, 0.9)
    ask(qa, backend=claude(api), top_p=0.9, top_k=7)
    body = api.asked[-1].body
    assert (body["top_p"], body["top_k"]) == (0.9, 7) and "temperature" not in body
    with pytest.raises(ValueError, match=r"temperature=1.5: .* takes at most 1"):
        ask(qa, backend=claude(api), temperature=1.5)
    with pytest.raises(ValueError, match="max_tokens=None: give davinci-002 a number"):
        ask(go_on, backend=completion(api), max_tokens=None)
    with pytest.raises(ValueError, match=r"max_tokens=None: claude.* above 0"):
        ask(qa, backend=claude(api), max_tokens=None)
    ask(qa, backend=chat(api), max_tokens=None)
    assert not {"max_tokens", "max_completion_tokens"} & set(api.asked[-1].body)
    with pytest.raises(ValueError, match="max_tokens=0"):
        ask(qa, backend=chat(api), max_tokens=0)


EVERY: dict[str, Any] = {  # another value than the default, of each setting
    "n": 2, "max_tokens": 9, "min_tokens": 3, "temperature": 0.5, "top_k": 4, "top_p": 0.9,
    "min_p": 0.1, "repetition_penalty": 1.2, "frequency_penalty": 0.5, "presence_penalty": 0.5,
    "logit_bias": {5: 1.0}, "seed": 7, "stop": ("END",), "stop_regex": ("x+",),
    "stop_token_ids": (3,), "ignore_eos": True, "skip_special_tokens": False, "no_stop_trim": True,
    "regex": "[a-z .\n]+", "json_schema": {"type": "object"}, "json_space": 0, "logprobs": 2,
    "prompt_logprobs_from": 1, "namespace": "tenant",
}  # fmt: skip


def of_ours(api: FakeApi, **others: Any) -> sgl.RuntimeEndpoint:
    api.info["server"] = "minisgl"
    return endpoint(api, **others)


def extended(api: FakeApi, **others: Any) -> sgl.OpenAI:
    return chat(api, extensions=True, **others)


def extended_completion(api: FakeApi, **others: Any) -> sgl.OpenAI:
    return completion(api, extensions=True, **others)


@pytest.mark.parametrize("make", [*ALL, extended, extended_completion, of_ours])
def test_every_setting_is_sent_or_refused_by_its_name(api: FakeApi, make: Make) -> None:
    """None is taken and then ignored."""
    assert set(EVERY) == {field.name for field in dataclasses.fields(SamplingParams)}
    program, backend = program_of(completion if make is extended_completion else make), make(api)

    def sent(**settings: Any) -> list[Any]:
        api.asked.clear()
        program.run(backend=backend, **{"max_tokens": 8, **settings})
        return [asked.body for asked in api.asked]

    plain = sent()
    for name, value in EVERY.items():
        try:
            found = sent(**{name: value})
        except ValueError as error:
            assert f"{name}=" in str(error) and api.asked == []
        else:
            assert found != plain, name
    assert sent() == plain


def test_a_refusal_is_an_error(api: FakeApi) -> None:
    message = {"role": "assistant", "content": None, "refusal": "I will not."}
    reply = {"id": "1", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    api.faults = [Fault(body=json.dumps(reply))]
    with pytest.raises(sgl.ApiError, match="refuses: I will not"):
        ask(qa, backend=chat(api))


# ---------------------------------------------------------------------- Anthropic


def test_e13_the_system_stands_apart_and_turns_alternate(api: FakeApi) -> None:
    @sgl.function
    def turns(s):
        s += sgl.system("Be brief.") + sgl.system("Be kind.")
        s += sgl.user("One.") + sgl.user("Two.") + sgl.user("")
        s += sgl.assistant("Three.") + sgl.user("Four.") + sgl.assistant(sgl.gen("x", stop="\n"))

    assert turns.run(backend=claude(api))["x"] == " Paris."
    body = api.asked[-1].body
    assert [block["text"] for block in body["system"]] == ["Be brief.", "Be kind."]
    shown = [(m["role"], [block["text"] for block in m["content"]]) for m in body["messages"]]
    assert shown == [
        ("user", ["One.", "Two."]), ("assistant", ["Three."]), ("user", ["Four."]),
    ]  # fmt: skip


@pytest.mark.parametrize("stream", [False, True])
def test_e13_a_beginning_that_ends_in_a_blank(api: FakeApi, stream: bool) -> None:
    @sgl.function
    def begun(s):
        s += sgl.user("Where?") + sgl.assistant("It is " + sgl.gen("a", stop=["\n", "END"]))

    state = begun.run(backend=claude(api), stream=stream)
    assert "".join(state.text_iter("a")) == state["a"] == "Paris."
    body = api.asked[-1].body
    assert body["messages"][-1]["content"] == [{"type": "text", "text": "It is"}]
    assert body["stop_sequences"] == ["END"]  # it refuses blank ones
    assert state.text().endswith("It is Paris.\n")
    api.says = lambda _: "in France.\n"
    assert begun.run(backend=claude(api), stream=stream).text().endswith("It is in France.\n")


def test_e13_conversations_that_this_api_does_not_have(api: FakeApi) -> None:
    @sgl.function
    def said(s, roles):
        for role in roles:
            s += sgl.role(role, "Hello")
        s += sgl.assistant(sgl.gen("x"))

    for roles, match in (
        (["assistant", "user"], "the user has to speak first"),
        (["user", "system"], "the system speaks before"),
        (["user", "tool"], r"knows system, user and assistant; not \['tool'\]"),
        (["system"], "the user has to speak first"),
        (["user", "assistant"], "the user has to speak between two answers"),
    ):
        with pytest.raises(ValueError, match=match):
            said.run(roles, backend=claude(api))
    assert api.asked == []


# ---------------------------------------------------------------------- images


@pytest.mark.parametrize("make", [chat, claude])
def test_pictures_go_as_the_api_has_them(api: FakeApi, make: Make) -> None:
    @sgl.function
    def look(s):
        s += sgl.user(sgl.image(PNG) + "and" + sgl.image("https://example.org/a.png") + "What?")
        s += sgl.assistant(sgl.gen("x", stop="\n"))

    assert look.run(backend=make(api))["x"] == " Paris."
    parts = api.asked[-1].body["messages"][0]["content"]
    data = base64.b64encode(PNG).decode()
    shown = [part for part in parts if part["type"] != "text"]
    if make is claude:
        assert shown[0]["source"] == {"type": "base64", "media_type": "image/png", "data": data}
        assert shown[1]["source"] == {"type": "url", "url": "https://example.org/a.png"}
    else:
        assert shown[0]["image_url"]["url"] == f"data:image/png;base64,{data}"
        assert shown[1]["image_url"]["url"] == "https://example.org/a.png"


def test_pictures_on_a_native_server(api: FakeApi) -> None:
    @sgl.function
    def look(s):
        s += sgl.image(PNG) + "a" + sgl.gen("x", stop="\n") + sgl.select("y", ["b", "c"])

    look.run(backend=endpoint(api))
    data = "data:image/png;base64," + base64.b64encode(PNG).decode()
    first, prefill, scored = (asked.body["image_data"] for asked in api.asked)
    assert first == prefill == [data] and scored == [[data]] * 3  # of each text of a batch
    api.info["has_image_understanding"] = False
    with pytest.raises(ValueError, match="can't see"):
        look.run(backend=endpoint(api))


def test_a_completion_model_sees_nothing(api: FakeApi) -> None:
    @sgl.function
    def look(s):
        s += sgl.image(PNG) + sgl.gen("x")

    with pytest.raises(ValueError, match="can't see"):
        look.run(backend=completion(api))


# ---------------------------------------------------------------------- select


@sgl.function
def pick(s, **settings):
    s += sgl.user("Which?")
    s += sgl.assistant("The " + sgl.select("fruit", ["zebra", "apple"], **settings) + "!")


@pytest.mark.parametrize("make", [chat, claude])
def test_select_asks_where_it_can_t_compare(api: FakeApi, make: Make) -> None:
    api.says = lambda _: "Apple."
    state = pick.run(backend=make(api))
    assert state["fruit"] == "apple" and state.text().endswith("The apple!\n")
    asked = api.asked[-1].text
    assert "- zebra\n- apple" in asked and "Your answer begins with 'The '" in asked
    assert state.get_meta_info("fruit")["reply"] == "Apple."
    assert state.usage().spent.calls == 1 and state.usage().spent.completion_tokens > 0
    assert [m["content"] for m in state.messages()] == ["Which?", "The apple!"]  # not the question
    api.says = lambda _: "Neither."
    with pytest.raises(ValueError, match=r"asked for one of .* and answered 'Neither\.'"):
        pick.run(backend=make(api))
    with pytest.raises(ValueError, match=r"GreedyTokenSelection.*does not tell how likely"):
        pick.run(backend=make(api), choices_method=sgl.greedy_token_selection)


def test_a_reply_means_the_longest_choice_it_begins_with() -> None:
    assert chosen("Parisian", ["Paris"]) is None
    assert chosen("**Rome**, of course", ["Paris", "Rome"]) == "Rome"
    assert chosen("paris", ["Paris", "Rome"]) == "Paris"
    assert chosen("no, never", ["no", "no, never", "yes"]) == "no, never"
    assert chosen("-1", ["1", "-1"]) == "-1"


def test_select_compares_where_texts_can_be_scored(api: FakeApi) -> None:
    @sgl.function
    def plain(s, **settings):
        s += "The fruit is" + sgl.select("fruit", [" zebra", " apple pie", " apple"], **settings)

    state = plain.run(backend=completion(api))
    assert state["fruit"] == " apple"
    assert api.asked[-1].body["prompt"] == [
        f"The fruit is{c}" for c in (" zebra", " apple pie", " apple")
    ]
    told = state.get_meta_info("fruit")["input_token_logprobs"]
    assert [[t[2] for t in choice] for choice in told] == [
        [" zebra"],
        [" apple", " pie"],
        [" apple"],
    ]
    assert state.usage().spent.prompt_tokens == sum(
        map(len, map(tokens, api.asked[-1].body["prompt"]))
    )
    with pytest.raises(ValueError, match="without their context"):
        method = sgl.unconditional_likelihood_normalized
        plain.run(backend=completion(api), choices_method=method)

    for method, best in (
        (sgl.token_length_normalized, " apple"),
        (sgl.greedy_token_selection, " apple"),  # it is likelier than "pie" is
        (sgl.unconditional_likelihood_normalized, " apple pie"),  # "pie" is as likely alone
    ):
        assert plain.run(backend=endpoint(api), choices_method=method)["fruit"] == best
    state = plain.run(backend=endpoint(api))
    told = state.get_meta_info("fruit")["input_token_logprobs"]
    assert [[t[2] for t in choice] for choice in told] == [
        [" zebra"],
        [" apple", " pie"],
        [" apple"],
    ]


def test_a_choice_that_grows_the_last_token(api: FakeApi) -> None:
    """ "Par" and "is" are one token, so it counts from there, where the server's list begins."""

    @sgl.function
    def plain(s):
        s += "The city is Par" + sgl.select("end", ["is", "ma", "!"])

    state = plain.run(backend=endpoint(api))
    told = state.get_meta_info("end")["input_token_logprobs"]
    assert [[t[2] for t in choice] for choice in told] == [[" Paris"], [" Parma"], [" Par", "!"]]


# ---------------------------------------------------------------------- the native server


def test_what_a_server_tells_and_does(api: FakeApi) -> None:
    backend = endpoint(api)
    assert sgl.get_server_info(backend)["version"] == "fake"
    assert sgl.flush_cache(backend) is True
    api.info["is_generation"] = False
    with pytest.raises(ValueError, match="does not generate text"):
        endpoint(api)
    for wrong in ("localhost:30000", "", 3):
        with pytest.raises(ValueError, match="give http://host:port"):
            sgl.RuntimeEndpoint(wrong)  # type: ignore[arg-type]
    for wrong in (0, -1, None, "3", True):
        for make in ALL:
            with pytest.raises(ValueError, match="timeout="):
                make(api, timeout=wrong)
    with pytest.raises(ValueError, match="retries=3: give Retries"):
        endpoint(api, retries=3)
    with pytest.raises(ValueError, match="printable ASCII; what is given is not") as caught:
        endpoint(api, api_key="sk-1\r\nhost: elsewhere")
    assert "sk-1" not in str(caught.value)


def test_settings_by_the_server_s_names(api: FakeApi) -> None:
    ask(
        go_on, backend=endpoint(api), regex="[0-9]", stop_token_ids=[3], seed=5, namespace="tenant",
        min_tokens=0, logit_bias={1: 2.0}, n=2,
    )  # fmt: skip
    body = api.asked[-1].body
    assert body["extra_key"] == "tenant"
    assert body["sampling_params"] == {
        "max_new_tokens": 128, "temperature": 1.0, "n": 2, "sampling_seed": 5, "regex": "[0-9]",
        "stop": ["\n"], "stop_token_ids": [3], "logit_bias": {"1": 2.0},
    }  # fmt: skip
    with pytest.raises(ValueError, match="json_space=0: SGLang's server has no such setting"):
        ask(go_on, backend=endpoint(api), json_space=0)
    api.info["server"] = "minisgl"
    ask(go_on, backend=endpoint(api), seed=5, namespace="tenant", json_space=0)
    assert "extra_key" not in api.asked[-1].body
    sent = api.asked[-1].body["sampling_params"]
    assert (sent["seed"], sent["namespace"], sent["json_space"]) == (5, "tenant", 0)


def test_prompt_log_probabilities_begin_where_asked(api: FakeApi) -> None:
    for first, expected in ((0, ["b", " c", " d"]), (1, ["b", " c", " d"]), (2, [" c", " d"])):
        state = ask(go_on, "a b c d", backend=endpoint(api), prompt_logprobs_from=first)
        told = state.get_meta_info("answer")["input_token_logprobs"]
        assert [t[2].strip() for t in told] == [e.strip() for e in expected]


def test_a_hint_is_sent_to_a_server(api: FakeApi) -> None:
    @sgl.function
    def forked(s):
        s += "Begin."
        branches = s.fork(2)
        branches += sgl.gen("x", stop="\n")
        branches.join()

    assert forked.run(backend=endpoint(api))["x"] == [" Paris."] * 2
    limits = [asked.body["sampling_params"]["max_new_tokens"] for asked in api.asked]
    assert sorted(limits) in ([0, 128, 128], [128, 128])  # it may be cancelled by the end


def test_a_server_that_aborts(api: FakeApi) -> None:
    meta = {"finish_reason": {"type": "abort", "message": "out of memory"}}
    api.faults = [Fault(body=json.dumps({"text": "", "meta_info": meta}))]
    with pytest.raises(sgl.ApiError, match="out of memory"):
        ask(go_on, backend=endpoint(api))


# ---------------------------------------------------------------------- speculation


def fields(asked: Asked) -> str:
    """A model that knows the form, and goes on wherever it is."""
    reply = "Name: Ada\nBirthday: December 10\nJob: mathematician\n"
    last = re.split(r"\n", asked.text)[-1]
    if "messages" in asked.body and asked.body["messages"][-1]["role"] == "user":
        return reply
    return reply[reply.index(last) + len(last) :] if last and last in reply else reply


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("make", ALL)
def test_e12_one_call_for_three_fields(api: FakeApi, make: Make, stream: bool) -> None:
    def extract(s):
        if make is completion:
            s += "Who?\nName:" + sgl.gen("name", stop="\n") + "\nBirthday:"
            s += sgl.gen("day", stop="\n") + "\nJob:" + sgl.gen("job", stop="\n")
        else:
            s += sgl.user("Who?")
            with s.assistant():
                s += "Name:" + sgl.gen("name", stop="\n") + "\nBirthday:"
                s += sgl.gen("day", stop="\n") + "\nJob:" + sgl.gen("job", stop="\n")

    api.says = fields
    backend = make(api)
    state = sgl.function(num_api_spec_tokens=64)(extract).run(
        backend=backend, temperature=0, stream=stream
    )
    found = [state[name] for name in ("name", "day", "job")]
    assert found == [" Ada", " December 10", " mathematician"]
    assert len(api.asked) == 1 and state.usage().saved_calls == 2
    if make is chat:
        return  # without speculation it can't go on with words of its own
    api.asked.clear()
    state = sgl.function(extract).run(backend=backend, temperature=0, stream=stream)
    assert [state[name] for name in ("name", "day", "job")] == found
    assert len(api.asked) == 3


def test_e12_a_reply_that_goes_otherwise_is_asked_again(api: FakeApi) -> None:
    @sgl.function(num_api_spec_tokens=64)
    def extract(s):
        s += sgl.user("Who?")
        s += sgl.assistant(
            "Name:" + sgl.gen("name", stop="\n") + "\nJob:" + sgl.gen("job", stop="\n")
        )

    replies = iter(["Sure! Name: Ada", "Name: Ada\nJob: mathematician"])
    api.says = lambda _: next(replies)
    assert extract.run(backend=chat(api))["job"] == " mathematician"
    assert len(api.asked) == 2


@pytest.mark.parametrize(("misses", "calls"), [(0.0, 1 / 3), (0.34, 5 / 9)])
def test_the_wikipedia_fields_of_the_paper(misses: float, calls: float) -> None:
    """Two of three pages, or all, take one call in place of three, and all fields are right."""
    ratios = api_speculation.main(["--misses", str(misses)])
    assert ratios["calls per page"] == pytest.approx(calls)
    assert ratios["prompt tokens"] == pytest.approx(calls, abs=0.02)


# ---------------------------------------------------------------------- the README


def test_the_readme_s_program_on_three_backends(
    api: FakeApi,
    default_model_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python notest\n(.*?)^```", readme, re.DOTALL | re.MULTILINE)
    (source,) = (block for block in blocks if "RuntimeEndpoint(" in block)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_BASE_URL", api.url + "/v1")
    api.info |= {"model_path": "served", "chat_template": config_of(CHATML)}
    names: dict[str, Any] = {}
    exec(source.replace("http://localhost:30000", api.url), names)
    assert [asked.path for asked in api.asked] == ["/generate", "/v1/chat/completions"]
    printed = capsys.readouterr().out
    assert printed.startswith("the embedded model The capital of France is Paris. Tally(calls=1,")
    assert "served  Paris." in printed and "gpt-4o  Paris." in printed

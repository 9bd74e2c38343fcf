"""What the crowd asks, and how each answer is judged: by what a quiet engine, asked one thing after
the other, said before.

A question is the bytes of a request and the status that it has to get.  Where greedy answers are
compared, none of the quiet engine's tokens was nearly another one: sums in another order round
otherwise, and must not decide.
"""

from __future__ import annotations

import base64
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import PIL.Image
import pytest

from minisgl import Completion, Engine, Prompt, SamplingParams
from tests.serve.common import events

GENERATE, COMPLETIONS, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"
NEW = 12  # tokens of most answers
LONG_ANSWER = 120  # and of those that are read slowly
NEAR = 1e-3  # a token this much likelier than the next is chosen whatever the rounding
TEXTS = [
    "Once", "What is the capital of France?", "Two requests that begin alike", "A radix tree",
    "Two requests that begin alike share", "user: hello", "1 2 3 4 5", "Zebra",
]  # fmt: skip
SEEING = "USER: <image>\nWhat is it? ASSISTANT:"
PATTERNS = ["(yes|no|perhaps), [a-z]{3}", "[A-Z][a-z]{1,8}[.!?]", "[0-9]{1,3}(ä|ö|ü)+x"]
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "grün"]}, "sure": {"type": "boolean"}},
    "required": ["colour", "sure"],
    "additionalProperties": False,
}
CHAT_TEMPLATE = (
    "{% for m in messages %}{{ m.role | upper + ': ' }}"
    "{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}{{ '<image>\n' if part.type == 'image' else part.text }}"
    "{% endfor %}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


class Lost(Exception):
    """A stream that told, at its end, that its worker was lost."""


@dataclass(frozen=True)
class Told:
    """What came back."""

    status: int
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """Of a stream.

        Raises:
            Lost: that is how it ended.
        """
        found = events(self.body.decode())
        error = found[-1].get("error", {}).get("message", "")
        if " was lost" in error:
            raise Lost(error)
        return found


@dataclass(frozen=True)
class Question:
    """A request.

    kind: what the run's report counts it as.
    judge: what else has to be so of an answer that has the `status`.
    """

    kind: str
    path: str
    body: bytes
    judge: Callable[[Told], None]
    status: int = 200
    method: str = "POST"
    has_key: bool = True

    def check(self, told: Told) -> None:
        said = f"{self.kind}: {self.method} {self.path} {self.body[:300]!r}: {told.body[:600]!r}"
        assert told.status == self.status, f"status {told.status}, not {self.status}; {said}"
        try:
            self.judge(told)
        except AssertionError as error:
            raise AssertionError(f"{said}: {error}") from error


def ask(kind: str, path: str, judge: Callable[[Told], None], **body: Any) -> Question:
    return Question(kind, path, json.dumps(body).encode(), judge)


def picture(seed: int) -> PIL.Image.Image:
    """Noise; another seed is another picture."""
    pixels = np.random.default_rng(seed).integers(0, 256, (30, 40, 3))
    return PIL.Image.fromarray(pixels.astype(np.uint8))


def url_of(seed: int) -> str:
    """A picture, as chats have it."""
    file = io.BytesIO()
    picture(seed).save(file, "PNG")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


# ---------------------------------------------------------------------- what is answered


def good_questions(engine: Engine) -> list[Question]:
    """With the answers of `engine`, which nobody else asks."""
    found: list[Question] = []
    for text in TEXTS:
        done = _alone(engine, text)
        if done is not None:
            found += [*_native(text, done), *_completions(text, done)]
    assert len(found) >= 24, "too many near ties: choose other texts"
    for text, pattern in zip(TEXTS, PATTERNS, strict=False):
        found += _constrained(engine, text, pattern)
    found += _sampled(engine)
    for seed in (1, 2, 3):
        found += _seeing(engine, seed)
    return found


def long_questions(engine: Engine) -> list[Question]:
    """Answers that are long enough to be read slowly, or left in the middle."""
    answers = [(text, _alone(engine, text, LONG_ANSWER)) for text in TEXTS[:4]]
    found = [_native_stream(text, done, LONG_ANSWER) for text, done in answers if done is not None]
    assert found, "all have near ties: choose other texts"
    return found


def _greedy(new: int = NEW, **more: Any) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True, **more)


def _alone(engine: Engine, prompt: Any, new: int = NEW) -> Completion | None:
    """The greedy answer; None: it has a near tie."""
    done = engine.generate(prompt, _greedy(new, logprobs=2))
    assert isinstance(done, Completion) and done.logprobs is not None
    gaps = [told.top[0][1] - told.top[1][1] for told in done.logprobs]
    return done if min(gaps) > NEAR else None


def _settings(new: int = NEW, **more: Any) -> dict[str, Any]:
    return {"temperature": 0, "max_new_tokens": new, "ignore_eos": True, **more}


def _native(text: str, done: Completion) -> Iterator[Question]:
    def whole(told: Told) -> None:
        reply = told.json
        assert reply["text"] == done.text
        assert reply["meta_info"]["completion_tokens"] == NEW
        assert reply["meta_info"]["prompt_tokens"] == done.prompt_tokens

    def both(told: Told) -> None:
        assert [reply["text"] for reply in told.json] == [done.text] * 2

    def scored(told: Told) -> None:
        meta = told.json["meta_info"]
        _same_logprobs([t[:2] for t in meta["output_token_logprobs"]], done)
        assert len(meta["input_token_logprobs"]) == done.prompt_tokens
        assert meta["input_token_logprobs"][0][0] is None

    yield ask("native", GENERATE, whole, text=text, sampling_params=_settings())
    yield _native_stream(text, done, NEW)
    yield ask("native batch", GENERATE, both, text=[text, text], sampling_params=_settings())
    more = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}
    yield ask("native logprobs", GENERATE, scored, text=text, sampling_params=_settings(), **more)


def _native_stream(text: str, done: Completion, new: int) -> Question:
    def stream(told: Told) -> None:
        texts = [event["text"] for event in told.events]
        assert texts[-1] == done.text
        assert all(b.startswith(a) for a, b in pairwise(texts))

    return ask(
        "native stream", GENERATE, stream, text=text, sampling_params=_settings(new), stream=True
    )


def _completions(text: str, done: Completion) -> Iterator[Question]:
    def whole(told: Told) -> None:
        choices = told.json["choices"]
        assert [choice["text"] for choice in choices] == [done.text] * 3
        assert told.json["usage"]["completion_tokens"] == 3 * NEW
        for choice in choices:
            logprobs = choice["logprobs"]["token_logprobs"]
            _same_logprobs([[lp, None] for lp in logprobs], done)

    def stream(told: Told) -> None:
        *pieces, last = told.events
        assert last["choices"] == [] and last["usage"]["completion_tokens"] == 2 * NEW
        for i in range(2):
            mine = [p["choices"][0] for p in pieces if p["choices"][0]["index"] == i]
            assert "".join(piece["text"] for piece in mine) == done.text
            assert [piece["finish_reason"] for piece in mine][-1] == "length"

    body = {"prompt": text, "max_tokens": NEW, "temperature": 0, "ignore_eos": True}
    yield ask("completions n=3 logprobs", COMPLETIONS, whole, **body, n=3, logprobs=1)
    usage = {"include_usage": True}
    yield ask(
        "completions stream n=2", COMPLETIONS, stream, **body, n=2, stream=True,
        stream_options=usage,
    )  # fmt: skip


def _same_logprobs(told: Sequence[Sequence[Any]], done: Completion) -> None:
    """Of [log-probability, id, or None where the id is not told]."""
    assert done.logprobs is not None
    for (logprob, token), right in zip(told, done.logprobs, strict=True):
        assert token in (None, right.token_id)
        assert logprob == pytest.approx(right.logprob, abs=1e-3)


def _constrained(engine: Engine, text: str, pattern: str) -> Iterator[Question]:
    messages = [{"role": "user", "content": text}]
    prompt = engine.chat_template.encode(messages, engine.door.encoder)
    answer = engine.generate(prompt, SamplingParams(temperature=0.0, regex=pattern, max_tokens=60))
    shaped = engine.generate(
        prompt,
        SamplingParams(temperature=0.0, json_schema=SCHEMA, json_space=0, max_tokens=80),
    )
    assert isinstance(answer, Completion) and isinstance(shaped, Completion)

    def follows(told: Told) -> None:
        (choice,) = told.json["choices"]
        assert choice["message"]["content"] == answer.text
        if choice["finish_reason"] == "stop":
            assert re.fullmatch(pattern, answer.text)

    def stream(told: Told) -> None:
        deltas = [event["choices"][0]["delta"] for event in told.events]
        assert "".join(delta["content"] for delta in deltas) == answer.text

    def is_json(told: Told) -> None:
        content = told.json["choices"][0]["message"]["content"]
        assert content == shaped.text and set(json.loads(content)) == {"colour", "sure"}

    body = {"messages": messages, "temperature": 0}
    yield ask("chat regex", CHAT, follows, **body, regex=pattern, max_tokens=60)
    yield ask("chat regex stream", CHAT, stream, **body, regex=pattern, max_tokens=60, stream=True)
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA}}
    yield ask(
        "chat schema", CHAT, is_json, **body, response_format=form, json_space=0, max_tokens=80
    )


def _sampled(engine: Engine) -> Iterator[Question]:
    """n answers by chance, which a seed makes repeatable; a stop string; a prompt that is only
    computed; one that fills the context."""
    text = TEXTS[1]
    params = SamplingParams(n=2, seed=7, max_tokens=NEW, ignore_eos=True)
    answers = [done.text for done in engine.generate([text], params)]

    def sampled(told: Told) -> None:
        assert [reply["text"] for reply in told.json] == answers

    whole = engine.generate(text, _greedy())
    assert isinstance(whole, Completion)
    stop = whole.text[3:5]

    def stopped(told: Told) -> None:
        reply = told.json
        assert reply["text"] == whole.text.partition(stop)[0]
        assert reply["meta_info"]["finish_reason"] == {"type": "stop", "matched": stop}

    def computed(told: Told) -> None:
        assert told.json["text"] == "" and told.json["meta_info"]["completion_tokens"] == 0

    settings = {"max_new_tokens": NEW, "ignore_eos": True}
    yield ask("sampled n=2", GENERATE, sampled, text=text,
              sampling_params={**settings, "n": 2, "seed": 7, "temperature": 1})  # fmt: skip
    yield ask("stop", GENERATE, stopped, text=text, sampling_params=_settings(stop=stop))
    pattern = re.escape(stop[0]) + "(?s:.)"

    def matched(told: Told) -> None:
        place = re.search(pattern, whole.text)
        assert place is not None and told.events[-1]["text"] == whole.text[: place.start()]

    yield ask(
        "stop_regex stream", GENERATE, matched, text=text, stream=True,
        sampling_params=_settings(stop_regex=[pattern]),
    )  # fmt: skip
    yield ask("prefill", GENERATE, computed, text=text, sampling_params={"max_new_tokens": 0})


def _seeing(engine: Engine, seed: int) -> Iterator[Question]:
    done = _alone(engine, Prompt(SEEING, picture(seed)))
    if done is not None:

        def native(told: Told) -> None:
            assert told.json["text"] == done.text
            assert told.json["meta_info"]["prompt_tokens"] == done.prompt_tokens

        def stream(told: Told) -> None:
            assert told.events[-1]["text"] == done.text

        same = {"text": SEEING, "image_data": url_of(seed), "sampling_params": _settings()}
        yield ask("image", GENERATE, native, **same)
        yield ask("image stream", GENERATE, stream, **same, stream=True)

    ids = engine.door.encode("USER: <image>\nHm?\nASSISTANT:")
    chat = _alone(engine, Prompt(ids, picture(seed)))
    if chat is not None:

        def said(told: Told) -> None:
            assert told.json["choices"][0]["message"]["content"] == chat.text

        parts = [
            {"type": "image_url", "image_url": {"url": url_of(seed)}},
            {"type": "text", "text": "Hm?"},
        ]
        yield ask(
            "chat image", CHAT, said, messages=[{"role": "user", "content": parts}],
            max_tokens=NEW, temperature=0, ignore_eos=True,
        )  # fmt: skip


# ---------------------------------------------------------------------- what is refused


def _error(told: Told) -> None:
    assert told.json["error"]["message"]


def bad_questions() -> list[Question]:
    """Each is one client's mistake."""
    once = {"text": "Once"}
    bodies: list[tuple[str, str, bytes]] = [
        ("not JSON", GENERATE, b"{"),
        ("not JSON", CHAT, b'{"messages": [}'),
        ("not an object", COMPLETIONS, b"[]"),
        ("deep", COMPLETIONS, b"[" * 50_000),
        ("not UTF-8", GENERATE, b'{"text": "\xff"}'),
        ("surrogate", COMPLETIONS, b'{"prompt": "\\ud800"}'),
        ("empty", GENERATE, b'{"text": ""}'),
        ("empty", GENERATE, b'{"input_ids": []}'),
        ("empty", CHAT, b"{}"),
        ("NaN", COMPLETIONS, b'{"prompt": "a", "temperature": NaN}'),
    ]

    def add(kind: str, path: str, **body: Any) -> None:
        bodies.append((kind, path, json.dumps(body).encode()))

    add("unknown field", GENERATE, **once, wings=2)
    add("regex", GENERATE, **once, sampling_params={"regex": "(["})
    add("regex", CHAT, messages=[{"role": "user", "content": "a"}], regex="a{3,1}")
    add("regex", COMPLETIONS, prompt="a", regex="(" * 9000)
    add("schema", COMPLETIONS, prompt="a", json_schema={"type": "nothing"})
    add("setting", COMPLETIONS, prompt="a", stop_token_ids=[4096], min_tokens=2, max_tokens=4)
    add("setting", COMPLETIONS, prompt="a", logit_bias={"999999": 5})
    add("setting", GENERATE, **once, sampling_params={"top_p": 7})
    add("setting", COMPLETIONS, prompt="a", n=0)
    add("stream", COMPLETIONS, prompt="a", n=0, stream=True)
    add("stream", GENERATE, **once, sampling_params={"stop_regex": ["a*"]}, stream=True)
    add("too long", GENERATE, text="word " * 2000)
    add("not a token", COMPLETIONS, prompt=[5, 10**9])
    broken = base64.b64encode(base64.b64decode(url_of(1).partition(",")[2])[:200]).decode()
    for image in ("AAAA", broken, "/etc/passwd", "http://127.0.0.1:9/cat.png", "video:AAAA"):
        add("image", GENERATE, text=SEEING, image_data=image)
        part = {"type": "image_url", "image_url": {"url": image}}
        add("image", CHAT, messages=[{"role": "user", "content": [part]}])
    add("image", GENERATE, text=SEEING)
    add("image", GENERATE, text="none", image_data=url_of(1))
    found = [Question(f"bad: {kind}", path, body, _error, 400) for kind, path, body in bodies]
    body = json.dumps({"prompt": "a", "model": "another"}).encode()
    return [
        *found,
        Question("bad: model", COMPLETIONS, body, _error, 404),
        Question("bad: route", "/nothing", b"{}", _error, 404),
        Question("bad: method", GENERATE, b"", _error, 405, method="GET"),
        Question("bad: no key", COMPLETIONS, b'{"prompt": "a"}', _error, 401, has_key=False),
    ]


def looks() -> list[Question]:
    """Those that look in."""
    paths = ("/health", "/metrics", "/v1/models", "/get_server_info", "/get_model_info")
    return [Question("look", path, b"", lambda told: None, method="GET") for path in paths]

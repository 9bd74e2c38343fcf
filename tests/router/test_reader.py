"""Prompts with images, and what answers tell of their usage."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from minisgl.router.balancer import Balancer
from minisgl.router.policy import Policy
from minisgl.router.reader import Reader
from minisgl.router.usage import usage_of
from tests.models.tiny_llava import make_tiny_llava

CAT, DOG = "data:image/png;base64,Y2F0", "data:image/png;base64,ZG9n"


def test_an_image_is_one_token_made_of_where_it_is(tmp_path: Path) -> None:
    reader = Reader(make_tiny_llava(tmp_path / "llava"))

    def read(text: str, image: object) -> list[int]:
        body = json.dumps({"text": text, "image_data": image}).encode()
        (prompt,) = reader.read("/generate", body).prompts
        return list(prompt)

    cat, again, dog = (read("<image> A", image) for image in (CAT, [CAT], DOG))
    assert cat == again and cat[1:] == dog[1:] and cat[0] != dog[0]
    assert min(cat[0], dog[0]) < 0 < min(cat[1:])
    assert read("<image><image> A", [CAT, DOG]) == [cat[0], dog[0], *cat[1:]]
    body = {"text": ["<image> A", "B"], "image_data": [CAT, None]}
    first, second = reader.read("/generate", json.dumps(body).encode()).prompts
    assert first == cat and min(second) >= 0

    parts = [
        {"type": "image_url", "image_url": {"url": CAT}},
        {"type": "text", "text": "What is it?"},
    ]
    body = {"messages": [{"role": "user", "content": parts}], "max_tokens": 3}
    (prompt,) = reader.read("/v1/chat/completions", json.dumps(body).encode()).prompts
    assert cat[0] in prompt


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", b"no json"),
        ("/generate", b'{"text": "a", "unknown": 1}'),
        ("/generate", b'{"text": ["a", "b"], "sampling_params": [{}]}'),
        ("/v1/completions", b"{}"),
        ("/v1/chat/completions", b'{"messages": [{"role": "king", "content": 3}]}'),
    ],
)
def test_what_a_worker_would_refuse_can_not_be_read(
    tiny_model_dir: Path, path: str, body: bytes
) -> None:
    with pytest.raises(ValueError, match=r"."):
        Reader(tiny_model_dir).read(path, body)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/generate", {"text": "a", "sampling_params": {"max_new_tokens": -9}}),
        ("/generate", {"text": ["a", "b"], "sampling_params": {"n": -9}}),
        ("/v1/completions", {"prompt": "a", "n": -9}),
        ("/v1/completions", {"prompt": "a", "max_tokens": -9}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}], "n": -9}),
    ],
)
def test_no_request_promises_less_than_nothing(
    tiny_model_dir: Path, path: str, body: dict[str, object]
) -> None:
    """A worker refuses it, and its load is then what it was before."""
    question = Reader(tiny_model_dir).read(path, json.dumps(body).encode())
    balancer = Balancer(Policy())
    balancer.join(0)
    ticket = balancer.send(question)
    assert ticket is not None and ticket.seat.load >= question.length
    with ticket:
        pass
    assert ticket.seat.load == 0


def test_usage_is_read_from_every_kind_of_answer() -> None:
    def of(*answers: object, stream: bool = False) -> tuple[int, int] | None:
        if not stream:
            return usage_of("application/json", json.dumps(answers[0]).encode())
        events = [f"data: {json.dumps(each)}\n\n" for each in answers]
        return usage_of("text/event-stream", "".join([*events, "data: [DONE]\n\n"]).encode())

    details = {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}
    native = {"meta_info": {"prompt_tokens": 5, "cached_tokens": 2}}
    assert of({"usage": details}) == (9, 4)
    assert of(native) == (5, 2)
    assert of([native, native]) == (10, 4)
    assert of({"data": []}) is None and of([1]) is None and usage_of("text/html", b"<p>") is None
    assert of({"usage": None}, {"usage": details}, stream=True) == (9, 4)
    assert of({"usage": None}, {"choices": []}, stream=True) is None
    assert of(native, {"meta_info": {"prompt_tokens": 5, "cached_tokens": 3}}, stream=True) == (
        5,
        3,
    )

"""Images over HTTP, from the bytes of a request to the answer: by OpenAI's chat, by the native API
and by a program; at the server itself, and through the router.  The answers are the engine's."""

from __future__ import annotations

import base64
import http.server
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import httpx
import openai
import PIL.Image
import pytest

import minisgl.lang as sgl
from minisgl import Engine, Prompt, SamplingParams
from minisgl.lang.backends.engine import EngineBackend
from minisgl.media import Limits, Video
from tests.engine.pictures import picture
from tests.models.tiny_llava import make_tiny_llava
from tests.serve.common import LONG, Running, events, serving
from tests.serve.places import PLACES, url_of

TEMPLATE = (
    "{% for m in messages %}{{ m.role | upper + ': ' }}"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content %}"
    "{{ part.text if part.type == 'text' else '<' + part.type + '>\n' }}"
    "{% endfor %}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)
ASKED = "USER: <image>\nWhat is it? ASSISTANT:"
PARAMS = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True)
NATIVE = {"temperature": 0, "max_new_tokens": 8, "ignore_eos": True}
CHAT = {"temperature": 0, "max_tokens": 8, "extra_body": {"ignore_eos": True}}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_tiny_llava(
        tmp_path_factory.mktemp("llava") / "next",
        architecture="LlavaNextVideoForConditionalGeneration",
    )
    config = path / "tokenizer_config.json"
    told = json.loads(config.read_text(encoding="utf-8")) | {"chat_template": TEMPLATE}
    config.write_text(json.dumps(told), encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[Running]:
    with Engine(str(path), dtype="float32", kv_tokens=8192) as engine, serving(engine) as server:
        yield server


@pytest.fixture(scope="module", params=PLACES)
def url(request: pytest.FixtureRequest, server: Running) -> Iterator[str]:
    with url_of(request.param, server) as url:
        yield url


def encoded(image: PIL.Image.Image, kind: str = "PNG") -> str:
    file = io.BytesIO()
    image.save(file, kind)
    return base64.b64encode(file.getvalue()).decode()


def data_url(image: PIL.Image.Image) -> str:
    return f"data:image/png;base64,{encoded(image)}"


def generate(url: str, **body: Any) -> Any:
    answer = httpx.post(f"{url}/generate", json=body, timeout=LONG, verify=False)
    assert answer.status_code == 200, answer.text
    return answer


def alone(server: Running, prompt: Any) -> str:
    return server.engine.generate(prompt, PARAMS).text


def test_the_native_api(server: Running, url: str) -> None:
    cat, dog = picture(1), picture(2, 20, 64)
    about_cat, about_dog = (alone(server, Prompt(ASKED, [image])) for image in (cat, dog))
    assert about_cat != about_dog
    for given in (encoded(cat), [encoded(cat)], data_url(cat)):
        reply = generate(url, text=ASKED, image_data=given, sampling_params=NATIVE).json()
        assert reply["text"] == about_cat
    assert reply["meta_info"]["cached_tokens"] == reply["meta_info"]["prompt_tokens"] - 1
    both = {"text": [ASKED, "Once", ASKED], "image_data": [encoded(cat), None, [encoded(dog)]]}
    replies = generate(url, **both, sampling_params=NATIVE).json()
    assert [reply["text"] for reply in replies] == [about_cat, alone(server, "Once"), about_dog]
    stream = generate(url, text=ASKED, image_data=encoded(dog), sampling_params=NATIVE, stream=True)
    assert events(stream.text)[-1]["text"] == about_dog
    two = "<image> and <image>: alike?"
    replies = generate(
        url, text=two, image_data=[encoded(dog), encoded(cat)], sampling_params=NATIVE
    )
    assert replies.json()["text"] == alone(server, Prompt(two, [dog, cat]))


def test_a_video_of_sglang_s_client(server: Running, url: str) -> None:
    frames = [picture(i, 32, 32) for i in range(3)]
    whole = b"".join(base64.b64decode(encoded(frame)) for frame in frames)
    text = "USER: <video>\nWhat happens? ASSISTANT:"
    reply = generate(
        url,
        text=text,
        image_data="video:" + base64.b64encode(whole).decode(),
        sampling_params=NATIVE,
    ).json()
    assert reply["text"] == alone(server, Prompt(text, [Video(frames)]))


@pytest.mark.parametrize("stream", [False, True])
def test_openai_s_chat(server: Running, url: str, stream: bool) -> None:
    cat, dog = picture(3), picture(4, 64, 20)
    content = [
        {"type": "text", "text": "Which of "},
        {"type": "image_url", "image_url": {"url": data_url(cat)}},
        {"type": "image_url", "image_url": {"url": data_url(dog), "detail": "auto"}},
    ]
    prompt = "USER: Which of <image>\n<image>\n\nASSISTANT:"
    expected = alone(server, Prompt(prompt, [cat, dog]))
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", timeout=LONG, max_retries=0)
    with client:
        messages: Any = [{"role": "user", "content": content}]
        said = client.chat.completions.create(
            model="default", messages=messages, stream=stream, **CHAT
        )
        if stream:
            pieces = [piece.choices[0].delta.content or "" for piece in said]
            assert "".join(pieces) == expected
        else:
            assert said.choices[0].message.content == expected


def test_where_log_probabilities_begin_counts_an_image_s_tokens(server: Running, url: str) -> None:
    image = {"image_data": encoded(picture(1)), "sampling_params": {"max_new_tokens": 0}}
    asked = {"text": "A <image> of it", **image, "return_logprob": True}

    def told(start: int) -> list[int]:
        reply = generate(url, **asked, logprob_start_len=start).json()
        return [token for _, token, _ in reply["meta_info"]["input_token_logprobs"]]

    ids = server.engine.door.encode("A <image> of it")
    at = next(
        i for i, each in enumerate(ids) if server.engine.door.image_reader.is_placeholder(each)
    )
    behind = len(ids) - at - 1
    length = generate(url, text="A <image> of it", **image).json()["meta_info"]["prompt_tokens"]
    assert told(length - behind - 1) == told(at + 2) == ids[at + 1 :]
    assert told(length - 2) == ids[-1:] and told(length - 1) == []
    body = asked | {"logprob_start_len": length}
    answer = httpx.post(f"{url}/generate", json=body, timeout=LONG, verify=False)
    assert answer.status_code == 400 and f"has {length} tokens" in answer.text


@sgl.function
def look(s: Any, cat: Any, dog: Any) -> None:
    s += sgl.user(sgl.image(cat) + "What is it?") + sgl.assistant(sgl.gen("first"))
    branches = s.fork(2)
    branches += sgl.user(sgl.image(dog) + "And this?")
    branches += sgl.assistant(sgl.select("second", ["tree", "token", "engine"]))
    branches.join()


@pytest.mark.parametrize("stream", [False, True])
def test_a_program(server: Running, url: str, stream: bool, tmp_path: Path) -> None:
    cat, dog = picture(5), tmp_path / "dog.png"
    picture(6, 20, 64).save(dog)
    settings = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
    expected = look.run(cat, dog, backend=EngineBackend(server.engine), **settings)
    backend = sgl.RuntimeEndpoint(url, retries=sgl.Retries(most=0))
    found = look.run(cat, dog, backend=backend, stream=stream, **settings)
    for one in ("first", "second"):
        assert found[one] == expected[one]
    assert found.text() == expected.text()
    tokens = [s.get_meta_info("first")["prompt_tokens"] for s in (found, expected)]
    assert tokens[0] == tokens[1] > 60  # those of the image


BROKEN = base64.b64decode(encoded(picture(1)))[:200]


@pytest.mark.parametrize(
    ("text", "image", "why"),
    [
        (ASKED, "AAAA", "image"),
        (ASKED, base64.b64encode(BROKEN).decode(), "image"),
        (ASKED, "/etc/passwd", "image"),
        (ASKED, "http://127.0.0.1:9/cat.png", "image"),
        (ASKED, None, "image"),
        ("nothing to see", encoded(picture(1)), "image"),
        (ASKED, [encoded(picture(1))] * 2, "2"),
    ],
)
def test_one_that_can_not_be_used(
    server: Running, url: str, text: str, image: Any, why: str
) -> None:
    body = {"text": text, "image_data": image, "sampling_params": NATIVE}
    for more in ({}, {"stream": True}):
        answer = httpx.post(f"{url}/generate", json=body | more, timeout=LONG, verify=False)
        assert answer.status_code == 400 and why in answer.json()["error"]["message"]
    good = generate(url, text=ASKED, image_data=encoded(picture(1)), sampling_params=NATIVE)
    assert good.json()["text"] == alone(server, Prompt(ASKED, picture(1)))


class Site(http.server.BaseHTTPRequestHandler):
    """Shows one picture, and counts who looked."""

    looked: ClassVar[list[str]] = []

    def do_GET(self) -> None:
        self.looked.append(self.path)
        file = io.BytesIO()
        picture(1).save(file, "PNG")
        self.send_response(200)
        self.end_headers()
        self.wfile.write(file.getvalue())

    def log_message(self, *_: object) -> None: ...


@pytest.fixture
def site() -> Iterator[str]:
    Site.looked.clear()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/cat.png"
    server.shutdown()
    server.server_close()
    thread.join()


class TestWhatMayBeRead:
    """A client gives bytes.  What is a path or an address of the server's own is its owner's to
    allow: a picture in a file of somebody else's, or behind a firewall, would be answered about."""

    def refused(self, server: Running, image: str) -> str:
        chat = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": image}}]}]
        native = {"text": ASKED, "image_data": image, "sampling_params": NATIVE}
        said = []
        for path, body in (("/generate", native), ("/v1/chat/completions", {"messages": chat})):
            answer = server.post(path, body)
            assert answer.status_code == 400, answer.text
            said.append(str(answer.json()["error"]["message"]))
        assert said[0].split(": ")[-1] == said[1].split(": ")[-1]
        return said[0]

    def test_without_options_neither_files_nor_addresses(
        self, server: Running, site: str, tmp_path: Path
    ) -> None:
        file = tmp_path / "cat.png"
        picture(1).save(file)
        for image in (str(file), file.as_uri()):
            said = self.refused(server, image)
            assert "nor base64" in said and "no such file" not in said
        assert "URLs is not allowed" in self.refused(server, site)
        assert Site.looked == []

    def test_a_file_where_files_are_allowed(self, server: Running, tmp_path: Path) -> None:
        file = tmp_path / "cat.png"
        picture(1).save(file)
        with serving(server.engine, image_files=True) as allowing:
            told = {"text": ASKED, "image_data": str(file), "sampling_params": NATIVE}
            answer = generate(allowing.url, **told)
            assert answer.json()["text"] == alone(server, Prompt(ASKED, picture(1)))
            assert "no such file" in self.refused(allowing, str(file) + "s")

    def test_an_address_where_its_host_is_allowed_and_public(
        self, server: Running, site: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with serving(server.engine, image_hosts=("127.0.0.1",)) as allowing:
            assert "not allowed" in self.refused(allowing, site.replace("127.0.0.1", "localhost"))
            assert "public" in self.refused(allowing, site)
            assert Site.looked == []
            monkeypatch.setattr(Limits, "needs_public_address", False)
            answer = generate(allowing.url, text=ASKED, image_data=site, sampling_params=NATIVE)
            assert answer.json()["text"] == alone(server, Prompt(ASKED, picture(1)))
            assert Site.looked == ["/cat.png"]

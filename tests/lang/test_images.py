"""Programs that show pictures and videos: on an engine, in branches, and as messages."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image as Pillow

import minisgl.lang as sgl
from minisgl import Engine, Prompt, SamplingParams, media
from minisgl.lang.backends.engine import EngineBackend
from minisgl.lang.context import Context
from tests.engine.common import assert_all_free, fp32
from tests.engine.pictures import LLAVA, NEXT_VIDEO, picture
from tests.lang.fake import FakeBackend
from tests.models.tiny_llava import make_tiny_llava

GREEDY: dict[str, Any] = {"temperature": 0, "ignore_eos": True, "max_tokens": 6}
A, B = picture(1), picture(2, 20, 64)
# As llava-hf's: all images of a message, a line each, before its words.
TEMPLATE = (
    "{% for m in messages %}{{ m.role.upper() }}: "
    "{% for part in m.content | selectattr('type', 'equalto', 'image') %}<image>\n{% endfor %}"
    "{% for part in m.content | selectattr('type', 'equalto', 'text') %}{{ part.text }} "
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}ASSISTANT: {% endif %}"
)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A LLaVA-1.5: an image is 16 tokens."""
    path = make_tiny_llava(tmp_path_factory.mktemp("llava"), architecture=LLAVA)
    (path / "chat_template.jinja").write_text(TEMPLATE)
    with fp32(str(path), kv_tokens=2048) as engine:
        yield engine


@pytest.fixture(autouse=True)
def clean(engine: Engine) -> Iterator[None]:
    assert engine.flush_cache()
    yield
    assert_all_free(engine)


def answer(engine: Engine, text: str, *images: Any) -> str:
    return engine.generate(Prompt(text, list(images)), SamplingParams(**GREEDY)).text


@sgl.function
def ask(s: sgl.ProgramState, source: Any, question: str = "What is it?") -> None:
    s += sgl.user(sgl.image(source) + question)
    s += sgl.assistant(sgl.gen("answer", **GREEDY))


class TestOnAnEngine:
    def test_the_prompt_is_the_templates(self, engine: Engine) -> None:
        state = ask.run(A, backend=engine)
        assert state.text() == f"USER: <image>\nWhat is it? ASSISTANT: {state['answer']} "
        parts = [{"type": "image"}, {"type": "text", "text": "What is it?"}]
        template, tokenizer = engine.chat_template, engine.tokenizer
        ids = template.encode([{"role": "user", "content": parts}], tokenizer)
        done = engine.generate(Prompt(ids, A), SamplingParams(**GREEDY))
        assert state["answer"] == done.text
        assert state.get_meta_info("answer")["prompt_tokens"] == len(ids) + 15

    def test_several_pictures_of_several_shapes_each_where_it_was_shown(
        self, engine: Engine
    ) -> None:
        @sgl.function
        def f(s: sgl.ProgramState, first: Any, second: Any) -> None:
            s += "One " + sgl.image(first) + " and " + sgl.image(second) + ":"
            s += sgl.gen("x", **GREEDY)
            s += ". Again " + sgl.image(first) + sgl.gen("y", **GREEDY)

        one, other = f.run(A, B, backend=engine), f.run(B, A, backend=engine)
        text = "One <image> and <image>:"
        assert one["x"] == answer(engine, text, A, B) != other["x"] == answer(engine, text, B, A)
        again = f"{text}{one['x']}. Again <image>"
        assert one["y"] == answer(engine, again, A, B, A)

    def test_every_form_is_the_same_picture(self, engine: Engine, tmp_path: Path) -> None:
        file = BytesIO()
        A.save(file, "PNG")
        png, path = file.getvalue(), tmp_path / "a.png"
        path.write_bytes(png)
        text = base64.b64encode(png).decode()
        forms: list[Any] = [np.asarray(A), png, path, str(path), text, f"data:;base64,{text}"]
        expected = ask.run(A, backend=engine)["answer"]
        for form in forms:
            state = ask.run(form, backend=engine)
            meta = state.get_meta_info("answer")
            assert state["answer"] == expected
            assert meta["cached_tokens"] == meta["prompt_tokens"] - 1
        assert ask.run(B, backend=engine).get_meta_info("answer")["cached_tokens"] < 16

    def test_one_picture_need_not_be_in_a_list(self, engine: Engine, tmp_path: Path) -> None:
        A.save(tmp_path / "cat.png")
        for alone in (A, tmp_path / "cat.png", str(tmp_path / "cat.png")):
            done = engine.generate(Prompt("<image> Hi", alone), SamplingParams(**GREEDY))
            assert done.text == answer(engine, "<image> Hi", A)

    def test_branches_see_what_was_shown_before(self, engine: Engine) -> None:
        questions = ["Where?", "Who?", "When?"]

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += sgl.user_begin() + sgl.image(A)
            forks = s.fork(3)
            forks += lambda i: (
                sgl.image(B) + questions[i] + sgl.user_end() + sgl.assistant(sgl.gen("x", **GREEDY))
            )
            forks.join()

        answers = f.run(backend=engine)["x"]
        for question, said in zip(questions, answers, strict=True):
            prompt = f"USER: <image>\n<image>\n{question} ASSISTANT: "
            assert said == answer(engine, prompt, A, B)

        @sgl.function
        def joined(s: sgl.ProgramState) -> None:
            s += sgl.image(A)
            forks = s.fork(2)
            forks += [" left " + sgl.image(B), " right " + sgl.image(A)]
            forks.join("concate_and_append")
            s += " so" + sgl.gen("x", **GREEDY)

        expected = answer(engine, "<image> left <image> right <image> so", A, B, A)
        assert joined.run(backend=engine)["x"] == expected

    @pytest.mark.parametrize(
        "method", [sgl.token_length_normalized, sgl.unconditional_likelihood_normalized]
    )
    def test_choices_are_scored_after_the_picture(self, engine: Engine, method: Any) -> None:
        choices = [" a cat", " a tree", " nothing"]

        @sgl.function
        def f(s: sgl.ProgramState, source: Any) -> None:
            s += sgl.image(source) + "This is" + sgl.select("x", choices, choices_method=method)

        for source in (A, B):
            told = f.run(source, backend=engine).get_meta_info("x")["input_token_logprobs"]
            scores = engine.score(Prompt("<image>This is", source), choices)
            for tokens, score in zip(told, scores, strict=True):
                assert [t[0] for t in tokens] == pytest.approx(list(score.logprobs), abs=1e-4)

    def test_pieces_join(self, engine: Engine) -> None:
        state = ask.run(A, backend=engine, stream=True)
        assert "".join(state.text_iter("answer")) == ask.run(A, backend=engine)["answer"]
        assert state.get_meta_info("answer")["prompt_tokens"] > 16

    def test_a_picture_is_read_once(
        self, engine: Engine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = tmp_path / "a.png"
        A.save(path)
        read: list[Any] = []
        monkeypatch.setattr(media, "load_image", lambda x: (read.append(x), media.load(x))[1])

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += sgl.user(sgl.image(path) + "What is it?")
            s += sgl.assistant(sgl.gen("x", **GREEDY) + sgl.select("y", [" a", " b"]))
            forks = s.fork(2)
            forks += sgl.user("Sure?") + sgl.assistant(sgl.gen("z", **GREEDY))
            forks.join()
            assert "image_url" in s.messages()[0]["content"][0]

        f.run(backend=engine)
        assert read == [path]

    def test_a_bad_picture_then_a_good_one(self, engine: Engine, tmp_path: Path) -> None:
        (tmp_path / "bad.png").write_bytes(b"\x89PNG\r\n\x1a\n")
        for source in (tmp_path / "bad.png", "none.png", b"", 3):
            with pytest.raises(ValueError, match=r"^image ") as failure:
                ask.run(source, backend=engine)
            assert any("ask" in note for note in failure.value.__notes__)
        assert ask.run(A, backend=engine)["answer"]

    def test_who_types_a_placeholder_shows_nothing(self, engine: Engine) -> None:
        state = ask.run(A, question="What does <image> mean?", backend=engine)
        assert state.get_meta_info("answer")["prompt_tokens"] > 16
        with pytest.raises(ValueError, match="2 placeholders of images and 1 images"):

            @sgl.function
            def f(s: sgl.ProgramState) -> None:
                s += "<image>" + sgl.image(A) + sgl.gen("x", **GREEDY)

            f.run(backend=engine)

    def test_a_batch_of_pictures(self, engine: Engine) -> None:
        sources = [A, B, picture(3, 64, 20), A]
        states = ask.run_batch([{"source": source} for source in sources], backend=engine)
        texts = [answer(engine, "USER: <image>\nWhat is it? ASSISTANT: ", s) for s in sources]
        assert [state["answer"] for state in states] == texts

    def test_a_model_that_can_not_see_says_so_at_that_line(self, tiny_model_dir: Path) -> None:
        with fp32(str(tiny_model_dir)) as blind:
            with pytest.raises(ValueError, match=r"this model can't see: .*tiny-llama"):
                ask.run(A, backend=blind)
            assert_all_free(blind)

    def test_no_video_for_a_model_without(self, engine: Engine) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += sgl.video([A, B]) + sgl.gen("x", **GREEDY)

        with pytest.raises(ValueError, match="reads images, and no videos"):
            f.run(backend=engine)


class TestVideos:
    @pytest.fixture(scope="class")
    @classmethod
    def watcher(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
        path = make_tiny_llava(tmp_path_factory.mktemp("video"), architecture=NEXT_VIDEO)
        with fp32(str(path), kv_tokens=2048) as engine:
            yield engine

    def test_the_chosen_frames_are_seen(self, watcher: Engine) -> None:
        frames = [picture(i) for i in range(6)]

        @sgl.function
        def f(s: sgl.ProgramState, shown: Any) -> None:
            s += sgl.image(A) + " then " + shown + " so" + sgl.gen("x", **GREEDY)

        text = "<image> then <video> so"
        for shown, chosen in (
            (sgl.video(frames), frames),
            (sgl.video(frames, 3), frames[::2]),
            (sgl.video(frames, num_frames=2), frames[::3]),
            (sgl.video(frames, indices=[5, 0]), [frames[5], frames[0]]),
        ):
            expected = answer(watcher, text, A, media.Video(chosen))
            assert f.run(shown, backend=watcher)["x"] == expected
        with pytest.raises(ValueError, match=r"video \(6 frames\): num_frames=7: .* only 6"):
            f.run(sgl.video(frames, 7), backend=watcher)
        assert_all_free(watcher)

    @pytest.mark.parametrize(
        ("choice", "words"),
        [
            ({"num_frames": 0}, "num_frames=0"),
            ({"num_frames": True}, "num_frames=True"),
            ({"num_frames": 2, "fps": 1}, "give one of them"),
        ],
    )
    def test_a_bad_choice_is_refused_at_that_line(self, choice: Any, words: str) -> None:
        with pytest.raises(ValueError, match=words):
            sgl.video("a.mp4", **choice)


class TestTheAuthorsLayout:
    """There "<image>" is no token of the vocabulary."""

    def test_placeholders_are_what_was_shown(self, tmp_path: Path) -> None:
        path = make_tiny_llava(tmp_path, architecture=LLAVA, layout="authors")
        with fp32(str(path), kv_tokens=2048) as engine:
            backend = EngineBackend(engine)
            context = Context().begin_role("user", backend.chat).say("What does <image> mean ")
            context = context.show(sgl.image(A)).say("<image>?").show(sgl.image(B))
            context = context.end_role(backend.chat)
            ids = backend._encode(context)
            assert ids.count(engine.door.image_reader.image_id) == 2  # type: ignore[union-attr]
            said = ask.run(A, backend=engine)
            prompt = said.text().removesuffix("<|im_end|>\n").removesuffix(said["answer"])
            assert said["answer"] == answer(engine, prompt, A)
            assert_all_free(engine)


class TestMessages:
    def test_pictures_and_words_in_order(self) -> None:
        array, frames = np.full((2, 3, 3), 7, np.uint8), [A, picture(5)]

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += sgl.user(" Is " + sgl.image(array) + sgl.image(A) + " like " + sgl.video(frames))
            s += sgl.user(sgl.video(b"bytes"))

        first, second = f.run(backend=FakeBackend(can_see=True)).messages()
        texts = [part.get("text", part["type"]) for part in first["content"]]
        assert texts == ["Is ", "image_url", "image_url", " like ", "video_url"]
        urls = [part[part["type"]]["url"] for part in first["content"] if part["type"] != "text"]
        assert media.load(urls[0]) == media.load(array)
        assert media.load(urls[1]) == media.load(A)
        assert media.load_video(urls[2]) == media.load_video(frames)
        assert second["content"][0]["video_url"]["url"] == "data:video/mp4;base64,Ynl0ZXM="

    def test_frames_of_several_sizes_are_none(self) -> None:
        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += sgl.user(sgl.video([A, B]))

        with pytest.raises(ValueError, match="several sizes"):
            f.run(backend=FakeBackend(can_see=True)).messages()

    def test_a_template_that_knows_texts_only(self) -> None:
        """The placeholder, in a line of its own."""

        @sgl.function
        def f(s: sgl.ProgramState) -> None:
            s += sgl.user(sgl.image(Pillow.new("RGB", (1, 1))) + "What?")

        assert "<image>\nWhat?" in f.run(backend=FakeBackend(can_see=True)).text()

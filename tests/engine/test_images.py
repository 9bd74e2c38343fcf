"""Answers about images: the tokens are those of transformers, whatever is in the batch, in whatever
order, chunked or not, cached or not; and a prompt that can't be used is refused in words.

How often the tower ran, and what was found in the radix tree, is test_image_reuse.py's.
"""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import log_softmax

from minisgl import Engine, Prompt, SamplingParams
from minisgl.engine.images import NARROW
from minisgl.engine.output import EngineError
from minisgl.media import load_image
from tests.engine.common import assert_all_free, fp32, greedy
from tests.engine.pictures import LLAVA, NEXT, NEXT_VIDEO, Judge, picture, video
from tests.models.tiny_llava import make_tiny_llava

NEW = 8

A, B = picture(1), picture(2, 20, 64)


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("llava")
    return {
        name: make_tiny_llava(folder / name, architecture=name)
        for name in (LLAVA, NEXT, NEXT_VIDEO)
    }


@pytest.fixture(scope="module")
def engine(paths: dict[str, Path]) -> Iterator[Engine]:
    """A LLaVA-1.5: an image is 16 tokens."""
    with fp32(str(paths[LLAVA]), kv_tokens=2048) as engine:
        yield engine


def prompts(name: str) -> list[Prompt | str]:
    """Of each kind that the model takes: shapes, several in one prompt, the same one twice."""
    asked: list[Prompt | str] = [
        Prompt("USER: <image>\nWhat is it? ASSISTANT:", A),
        Prompt("USER: <image>\nWhat is it? ASSISTANT:", B),
        Prompt("USER: <image>\nIs the token fast? ASSISTANT:", A),
        "USER: What is the capital of France? ASSISTANT:",
        Prompt("<image> and <image>, then <image>", [B, A, picture(3, 64, 20)]),
        Prompt("<image><image> twice the same", [A, A]),
        Prompt("the last token is of an image: <image>", picture(4, 1, 1)),
    ]
    if name == NEXT_VIDEO:
        asked += [
            Prompt("<video>\nWhat happens?", video(1)),
            Prompt("<video> beside <image>", [video(2, frames=3), A]),
        ]
    return asked


@pytest.mark.parametrize("name", [LLAVA, NEXT, NEXT_VIDEO])
def test_the_tokens_are_those_of_transformers(paths: dict[str, Path], name: str) -> None:
    asked = prompts(name)
    params = greedy(NEW)
    with fp32(str(paths[name]), kv_tokens=4096) as engine:
        judge = Judge(paths[name], engine)
        expected = [judge.answer(prompt, NEW) for prompt in asked]
        assert expected[0] != expected[1]  # the same words about two images
        together = engine.generate(asked, params)
        assert [c.token_ids for c in together] == expected
        cached = engine.generate(asked[::-1], params)
        assert [c.token_ids for c in cached[::-1]] == expected
        assert all(c.cached_tokens == c.prompt_tokens - 1 for c in cached)
        assert_all_free(engine)
        for prompt, answer in zip(asked, expected, strict=True):
            assert engine.generate(prompt, params).token_ids == answer
        assert_all_free(engine)
    # In chunks that cut images into pieces of every kind, with nothing kept that need not be.
    for budget in (5, 7):
        with fp32(
            str(paths[name]), kv_tokens=4096, prefill_budget=budget, vision_cache_mib=0
        ) as engine:
            assert [c.token_ids for c in engine.generate(asked, params)] == expected
            assert_all_free(engine)


def test_what_a_prompt_counts(engine: Engine) -> None:
    prompt = Prompt("USER: <image>\nHi", A)
    done = engine.generate(prompt, greedy(1))
    ids = engine.tokenizer.encode("USER: <image>\nHi")
    assert done.prompt_tokens == len(ids) - 1 + 16
    reading = engine.door.read(prompt)
    (span,) = reading.images
    assert reading.ids == ids and len(reading.tokens) == done.prompt_tokens
    assert reading.tokens[span.start : span.stop] == [load_image(A).key] * 16
    assert load_image(A).key >= NARROW
    assert [reading.tokens[reading.place(i)] for i in range(len(ids))] == [
        load_image(A).key if i == engine.door.image_reader.image_id else i  # type: ignore[union-attr]
        for i in ids
    ]


def test_every_way_in_takes_a_prompt(engine: Engine) -> None:
    prompt, params = Prompt("<image> What is it?", A), greedy(NEW)
    expected = engine.generate(prompt, params)
    assert engine.generate([prompt], params)[0].token_ids == expected.token_ids
    assert engine.submit(prompt, params).result().token_ids == expected.token_ids
    pieces = list(engine.stream(prompt, params))
    assert "".join(piece.text for piece in pieces) == expected.text
    ids = engine.tokenizer.encode("<image> What is it?")
    assert engine.generate(Prompt(ids, A), params).token_ids == expected.token_ids

    async def ask() -> tuple[Any, str]:
        text = [piece.text async for piece in engine.astream(prompt, params)]
        return await engine.agenerate(prompt, params), "".join(text)

    done, text = asyncio.run(ask())
    assert done.token_ids == expected.token_ids and text == expected.text
    several = engine.generate([prompt, "What is it?"], [greedy(3, n=2), greedy(3)])
    assert [c.index for c in several] == [0, 1, 0]
    assert [c.token_ids for c in several[:2]] == [expected.token_ids[:3]] * 2


def test_an_image_in_any_form(engine: Engine, tmp_path: Path) -> None:
    A.save(tmp_path / "a.png")
    data = (tmp_path / "a.png").read_bytes()
    forms: list[Any] = [
        A,
        [A],
        str(tmp_path / "a.png"),  # a str is one image, not many of one letter
        tmp_path / "a.png",
        data,
        np.asarray(A),
        load_image(data),
    ]
    engine.flush_cache()
    encoded = engine.stats().encoded_images
    answers = engine.generate([Prompt("<image> Hi", form) for form in forms], greedy(4))
    assert len({tuple(c.token_ids) for c in answers}) == 1
    assert engine.stats().encoded_images == encoded + 1


def test_the_authors_layout_has_no_image_token(paths: dict[str, Path], tmp_path: Path) -> None:
    """There the text is cut at "<image>", and ids have -200, which no vocabulary has."""
    path = make_tiny_llava(tmp_path / "authors", layout="authors", aspect_ratio="square")
    with fp32(str(path), kv_tokens=512) as engine:
        done = engine.generate(Prompt("USER: <image>\nWhat?", A), greedy(4))
        encode = engine.tokenizer.encode
        ids = [*encode("USER: "), -200, *encode("\nWhat?", add_special_tokens=False)]
        same = engine.generate(Prompt(ids, A), greedy(4, repetition_penalty=1.0))
        assert same.token_ids == done.token_ids and same.cached_tokens == same.prompt_tokens - 1
        assert done.prompt_tokens == len(ids) - 1 + 16
        penalised = greedy(4, repetition_penalty=1.3)
        assert len(engine.generate(Prompt(ids, A), penalised).token_ids) == 4
        adjustments = engine.door.make(Prompt(ids, A), penalised).adjustments
        assert adjustments is not None and set(adjustments.ids) == set(ids) - {-200}
        assert engine.score(Prompt("<image> Hi", A), [" you"])[0].sum < 0
        with pytest.raises(ValueError, match="0 placeholders of images and 1 images"):
            engine.generate(Prompt("no image", A))
        assert_all_free(engine)


class TestSettings:
    """What reads a prompt's tokens takes the images' content keys for what they are: no ids."""

    PROMPT = Prompt("USER: <image>\nWhat is the token? ASSISTANT:", A)

    def test_penalties_count_the_words_and_the_placeholder(
        self, paths: dict[str, Path], engine: Engine
    ) -> None:
        params = greedy(24, repetition_penalty=1.3)
        expected = Judge(paths[LLAVA], engine).answer(self.PROMPT, 24, repetition_penalty=1.3)
        assert engine.generate(self.PROMPT, params).token_ids == expected
        assert engine.generate(self.PROMPT, greedy(24)).token_ids != expected
        req = engine.door.make(self.PROMPT, params)
        assert req.adjustments is not None
        assert set(req.adjustments.ids) == set(engine.tokenizer.encode(str(self.PROMPT.text)))

    @pytest.mark.parametrize("budget", [6, 2048])
    def test_log_probabilities_are_those_of_transformers(
        self, paths: dict[str, Path], budget: int
    ) -> None:
        text = "Hi <image>\nWhat? <image> you"
        prompt = Prompt(text, [A, B])
        with fp32(str(paths[LLAVA]), kv_tokens=512, prefill_budget=budget) as engine:
            ids = engine.tokenizer.encode(text)
            image_id = engine.door.image_reader.image_id  # type: ignore[union-attr]
            model = Judge(paths[LLAVA], engine)
            reading = engine.door.read(prompt)
            x = torch.tensor([[i if i < NARROW else image_id for i in reading.tokens]])
            with torch.inference_mode():
                logits = model.model(
                    input_ids=x, **model._pixels([s.pixels for s in reading.images])
                ).logits[0]
            told = log_softmax(logits.float(), dim=-1)
            for first in (0, 2, ids.index(image_id), ids.index(image_id) + 1, len(ids) - 1):
                params = SamplingParams(max_tokens=0, prompt_logprobs_from=first)
                done = engine.generate(prompt, params)
                assert done.prompt_logprobs is not None
                assert len(done.prompt_logprobs) == len(ids) - first
                for i, each in enumerate(done.prompt_logprobs, first):
                    if i == 0 or ids[i] == image_id:
                        assert each is None  # nobody predicts an image
                    else:
                        assert each is not None and each.token_id == ids[i]
                        at = reading.place(i)
                        assert each.logprob == pytest.approx(float(told[at - 1, ids[i]]), abs=1e-4)
            with pytest.raises(ValueError, match=f"has {len(ids)} tokens, so give at most"):
                engine.generate(prompt, SamplingParams(max_tokens=0, prompt_logprobs_from=len(ids)))
            assert_all_free(engine)

    def test_continuations_of_an_image_are_scored(self, engine: Engine) -> None:
        words = [" you", " the token", "."]
        for prompt in (self.PROMPT, Prompt(engine.tokenizer.encode(str(self.PROMPT.text)), A)):
            added: list[Any] = words
            if not isinstance(prompt.text, str):
                added = [engine.tokenizer.encode_continuation(word) for word in words]
            scores = engine.score(prompt, added)
            assert scores == asyncio.run(engine.ascore(prompt, added))
            assert scores == engine.score([prompt] * 3, added)
            for word, score in zip(words, scores, strict=True):
                whole = Prompt(f"{self.PROMPT.text}{word}", A)
                start = len(engine.tokenizer.encode(str(self.PROMPT.text)))
                params = SamplingParams(max_tokens=0, prompt_logprobs_from=start)
                told = engine.generate(whole, params).prompt_logprobs
                assert told is not None
                assert [t.token_id for t in told if t] == list(score.token_ids)
        other = engine.score(Prompt(self.PROMPT.text, B), words)
        assert [s.token_ids for s in other] == [s.token_ids for s in scores]
        assert other != scores

    @pytest.mark.parametrize("jumps", [True, False])
    def test_a_pattern(self, paths: dict[str, Path], jumps: bool) -> None:
        """Forced text is tokenized together with the answer only, never with the image."""
        with fp32(str(paths[LLAVA]), kv_tokens=512, jump_forward=jumps) as engine:
            params = SamplingParams(temperature=0, max_tokens=40, regex=r"It is a (cat|dog), sir\.")
            done = engine.generate([self.PROMPT, Prompt("<image>", B)], params)
            assert {c.text for c in done} <= {"It is a cat, sir.", "It is a dog, sir."}
            assert all((c.forward_passes < len(c.token_ids)) == jumps for c in done)
            assert_all_free(engine)

    def test_a_token_of_the_answer_that_looks_like_an_image_is_none(self, engine: Engine) -> None:
        """The placeholder's id, sampled: an ordinary token, with an embedding of its own."""
        reader = engine.door.image_reader
        assert reader is not None
        forced = greedy(5, logit_bias={reader.image_id: 100.0})
        done = engine.generate(self.PROMPT, forced)
        assert done.token_ids == [reader.image_id] * 5
        assert "<image>" not in done.text  # a special token
        said = engine.generate(self.PROMPT, greedy(5, stop="<image>"))
        assert said.finish_reason == "length"
        stopped = engine.generate(
            self.PROMPT, greedy(5, logit_bias={reader.image_id: 100.0}, stop="<image>")
        )
        assert (stopped.finish_reason, stopped.token_ids) == ("stop", [reader.image_id])

    def test_the_tree_shows_images_by_name(self, engine: Engine) -> None:
        engine.flush_cache()
        engine.generate(Prompt("Hi <image>", A), greedy(1))
        assert f"Hi <image {load_image(A).key & 0xFFFFFFF:07x}>" in engine.tree()

    def test_a_trace(self, paths: dict[str, Path], tmp_path: Path) -> None:
        file = tmp_path / "trace.json"
        with fp32(str(paths[LLAVA]), kv_tokens=512, trace=file) as engine:
            done = engine.generate(self.PROMPT, greedy(2))
        (args,) = (e["args"] for e in json.loads(file.read_text()) if "prompt_tokens" in str(e))
        assert args["prompt_tokens"] == done.prompt_tokens


class TestRefusals:
    """F10, F14, F15, F16: in words, at the door, and the next one is served."""

    def refused(self, engine: Engine, prompt: Any, match: str) -> None:
        requests = engine.stats().requests
        with pytest.raises(ValueError, match=match):
            engine.generate(prompt, greedy(1))
        with pytest.raises(ValueError, match=match):
            engine.submit(prompt, greedy(1))
        assert engine.stats().requests == requests  # the engine thread never saw it
        assert len(engine.generate(Prompt("<image> Hi", A), greedy(2)).token_ids) == 2
        assert_all_free(engine)

    @pytest.mark.parametrize(
        ("text", "images", "counts"),
        [
            ("no image", [A], "0 placeholders of images and 1 images"),
            ("<image>", [A, B], "1 placeholders of images and 2 images"),
            ("<image><image>", A, "2 placeholders of images and 1 images"),
            ("<image>", [], "1 placeholders of images and 0 images"),
        ],
    )
    def test_as_many_images_as_placeholders(
        self, engine: Engine, text: str, images: Any, counts: str
    ) -> None:
        self.refused(engine, Prompt(text, images), counts)
        self.refused(engine, Prompt(engine.tokenizer.encode(text), images), counts)

    def test_a_bare_text_or_ids_with_a_placeholder(self, engine: Engine) -> None:
        self.refused(engine, "What is <image>?", "1 placeholders of images and 0 images")
        ids = engine.tokenizer.encode("What is <image>?")
        self.refused(engine, ids, "1 placeholders of images and 0 images")

    def test_images_that_cannot_be_used(self, engine: Engine, tmp_path: Path) -> None:
        (tmp_path / "bad.png").write_bytes(b"no image at all")
        for bad in (tmp_path / "bad.png", tmp_path / "missing.png", b"", 7, None):
            self.refused(engine, Prompt("<image>", [bad]), "image")
        with pytest.raises(ValueError, match="image 7"):
            engine.generate([Prompt("<image>", A), Prompt("<image>", [7])], greedy(1))
        with pytest.raises(ValueError, match="give a text, its token ids, or a Prompt"):
            engine.submit([Prompt("<image>", A)])  # type: ignore[list-item]

    def test_a_content_key_is_no_id_that_a_caller_may_give(self, engine: Engine) -> None:
        self.refused(engine, [5, load_image(A).key], "not in the vocabulary")
        self.refused(engine, Prompt([5, load_image(A).key], A), "not in the vocabulary")

    def test_a_video_for_a_model_of_images(self, engine: Engine) -> None:
        self.refused(engine, Prompt("<image>", video(1)), "reads images, and no videos")

    def test_videos_and_images_have_placeholders_of_their_own(self, paths: dict[str, Path]) -> None:
        with fp32(str(paths[NEXT_VIDEO]), kv_tokens=512) as engine:
            self.refused(engine, Prompt("<image>", video(1)), "has the placeholder of an image")
            self.refused(engine, Prompt("<video>", A), "has the placeholder of a video")

    def test_too_many_frames_or_images_for_the_context(self, paths: dict[str, Path]) -> None:
        with fp32(str(paths[NEXT_VIDEO]), kv_tokens=2048, context_length=100) as engine:
            ten = Prompt("<video> Hi", video(1, frames=10))
            assert engine.generate(ten, greedy(2)).prompt_tokens > 40  # all ten frames, 4 each
            asked = Prompt("<video> Hi", video(1, frames=32))
            self.refused(
                engine, asked, r"a video of 32 frames x 4 tokens\), but the context .* 100"
            )
            asked = Prompt("<image><image>", [A, A])
            self.refused(engine, asked, r"an image of \d+ tokens, an image of \d+ tokens\).* 100")
        with (
            fp32(str(paths[NEXT_VIDEO]), kv_tokens=50) as engine,
            pytest.raises(ValueError, match=r"16 frames x 4 tokens\), but the KV pool.* 50"),
        ):
            engine.generate(Prompt("<video>", video(1, frames=16)), greedy(1))

    def test_a_batch_of_ten_videos_finishes(self, paths: dict[str, Path]) -> None:
        with fp32(str(paths[NEXT_VIDEO]), kv_tokens=120) as engine:
            asked = [Prompt(f"<video> {i}", video(i, frames=10)) for i in range(10)]
            done = engine.generate(asked, greedy(3))
            assert all(c.completion_tokens == 3 for c in done)
            assert_all_free(engine)

    def test_odd_shapes(self, paths: dict[str, Path]) -> None:
        for name in (LLAVA, NEXT):
            with fp32(str(paths[name]), kv_tokens=2048) as engine:
                for width, height in ((1, 1), (500, 19), (19, 500), (1, 200)):
                    asked = Prompt("<image> Hi", picture(1, width, height))
                    assert len(engine.generate(asked, greedy(2)).token_ids) == 2
                assert_all_free(engine)

    def test_a_model_of_text(self, tiny_model_dir: Path) -> None:
        with fp32(str(tiny_model_dir), kv_tokens=256) as engine:
            with pytest.raises(ValueError, match="1 images are given, and this model reads text"):
                engine.generate(Prompt("<image>", A))
            plain = engine.generate(Prompt("What is <image>?"), greedy(4))
            assert plain.token_ids == engine.generate("What is <image>?", greedy(4)).token_ids

    def test_what_is_no_image_processor_is_refused_at_load(self, tmp_path: Path) -> None:
        path = make_tiny_llava(tmp_path / "llava")
        (path / "preprocessor_config.json").unlink()
        (path / "processor_config.json").unlink()
        with pytest.raises(ValueError, match=r"preprocessor_config\.json"):
            Engine(str(path))


def test_an_image_whose_features_are_nan_fails_alone(engine: Engine) -> None:
    """And is not remembered: it is encoded anew when it comes again."""
    vision = engine.loop.runner.vision
    assert vision is not None
    bad, encode = load_image(picture(77)), vision._encode
    reading = engine.door.read(Prompt("<image>", bad))
    assert reading.images[0].key == bad.key

    def spoil(pixels: Any) -> list[torch.Tensor]:
        same = [torch.equal(p.values, reading.images[0].pixels.values) for p in pixels]
        return [x * float("nan") if s else x for x, s in zip(encode(pixels), same, strict=True)]

    asked = Prompt("<image> Hi", bad)
    expected = engine.generate(asked, greedy(4)).token_ids
    engine.flush_cache()
    vision._encode = spoil
    try:
        handles = [engine.submit(Prompt("<image> Hi", image), greedy(4)) for image in (bad, B)]
        with pytest.raises(EngineError, match="NaN"):
            handles[0].result()
        assert len(handles[1].result().token_ids) == 4
        with pytest.raises(EngineError, match="NaN"):
            engine.generate(asked, greedy(4))
    finally:
        vision._encode = encode
    assert engine.generate(asked, greedy(4)).token_ids == expected
    assert_all_free(engine)


def test_pixels_are_let_go_with_the_request(engine: Engine) -> None:
    handle = engine.submit(Prompt("<image>", picture(5)), greedy(2))
    handle.result()
    reader = engine.door.image_reader
    assert reader is not None and load_image(picture(5)).key not in reader._known


def test_prompts_look_after_their_images() -> None:
    assert Prompt("x", "cat.jpg").images == ("cat.jpg",)
    assert Prompt("x", ["a", "b"]).images == ("a", "b")
    assert Prompt("x", ("a",)).images == ("a",)
    assert Prompt("x").images == () and Prompt([1, 2]).text == [1, 2]
    data = io.BytesIO()
    A.save(data, "PNG")
    assert Prompt("x", data.getvalue()).images == (data.getvalue(),)
    assert len({Prompt("x", np.zeros((2, 2, 3))), Prompt("x")}) == 2

"""What is computed of images, counted: the tower runs once for an image, its tokens are prefilled
once, for whoever may share them and for nobody else; and it stays so while memory is short.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from minisgl import Completion, Engine, Prompt, SamplingParams
from minisgl.config import EngineConfig
from minisgl.engine import memory
from minisgl.engine.images import ImageSpan, show
from minisgl.engine.req import Req
from minisgl.engine.vision_cache import VisionCache
from minisgl.models.llava_config import LlavaConfig
from minisgl.models.pixels import Pixels
from minisgl.models.registry import load_config
from tests.engine.common import LONG, assert_all_free, fp32, greedy, in_thread
from tests.engine.pictures import picture
from tests.models.tiny_llava import make_tiny_llava
from tests.reference.prefix_model import distinct_prefixes, make_req

N = 16  # tokens of an image
A, B, C = picture(1), picture(2), picture(3, 25, 60)
QUESTIONS = ["What is it?", "Is the token fast?", "Who reads the tree?", "What is it called?"]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_llava(tmp_path_factory.mktemp("llava") / "llava")


@pytest.fixture
def engine(path: Path) -> Iterator[Engine]:
    with fp32(str(path), kv_tokens=1024) as engine:
        yield engine
        assert_all_free(engine)


def ask(question: str, before: str = "USER: ") -> str:
    return f"{before}<image>\n{question}"


def head(engine: Engine, before: str = "USER: ") -> int:
    """Tokens up to the end of the image."""
    return len(engine.tokenizer.encode(before)) + N


def one(answer: Completion | list[Completion]) -> Completion:
    assert isinstance(answer, Completion)
    return answer


# ---------------------------------------------------------------------- in the radix tree


def test_questions_about_one_image_one_after_the_other(engine: Engine) -> None:
    done = [engine.generate(Prompt(ask(q), A), greedy(3)) for q in QUESTIONS]
    assert done[0].cached_tokens == 0
    assert all(c.cached_tokens >= head(engine) for c in done[1:])
    stats = engine.stats()
    assert (stats.images, stats.encoded_images) == (1, 1)


def test_questions_about_one_image_that_arrive_together(engine: Engine) -> None:
    asked = [Prompt(ask(q), A) for q in QUESTIONS]
    done = engine.generate(asked, greedy(3))
    assert engine.stats().encoded_images == 1
    tokens = [engine.door.read(prompt).tokens for prompt in asked]
    computed = sum(c.prompt_tokens - c.cached_tokens for c in done)
    assert computed == distinct_prefixes(tokens)


def test_another_image_with_the_same_text_never_hits(engine: Engine) -> None:
    first = engine.generate(Prompt(ask("What?"), A), greedy(6))
    other = engine.generate(Prompt(ask("What?"), B), greedy(6))
    assert other.cached_tokens == len(engine.tokenizer.encode("USER: "))
    assert other.token_ids != first.token_ids
    turned = engine.generate(Prompt(ask("What?"), A.rotate(180)), greedy(6))
    assert turned.cached_tokens == other.cached_tokens
    assert engine.stats().encoded_images == 3
    swapped = engine.generate([Prompt("<image><image>", p) for p in ([A, B], [B, A])], greedy(6))
    assert [c.cached_tokens for c in swapped] == [0, 0]


def test_answers_to_one_prompt_share_it(engine: Engine) -> None:
    params = SamplingParams(temperature=1.0, seed=3, n=4, max_tokens=5, ignore_eos=True)
    done = engine.generate(Prompt(ask("What?"), A), params)
    assert isinstance(done, list) and len({tuple(c.token_ids) for c in done}) > 1
    assert engine.stats().encoded_images == 1
    length = done[0].prompt_tokens
    assert [c.cached_tokens for c in done] == [0] + [length - 1] * 3


def test_a_conversation_goes_on_where_it_was(engine: Engine) -> None:
    prompt = Prompt(engine.tokenizer.encode(ask("What?")), A)
    first = engine.generate(prompt, greedy(5))
    more = [*prompt.text, *first.token_ids, 40, 41]
    second = engine.generate(Prompt(more, [A]), greedy(5))
    assert second.cached_tokens == first.prompt_tokens + 4  # the answer's last token has no K and V
    third = engine.generate(Prompt([*more, *engine.tokenizer.encode("<image>")], [A, B]), greedy(5))
    assert third.cached_tokens >= second.prompt_tokens - 1
    assert engine.stats().encoded_images == 2


# ---------------------------------------------------------------------- in the vision cache


def test_other_words_before_the_image(engine: Engine) -> None:
    """Its keys and values are others then, and its features the same."""
    for before, hits in (("USER: ", 0), ("See: ", 1), ("Once upon ", 2)):
        done = engine.generate(Prompt(ask("What?", before), A), greedy(3))
        assert done.cached_tokens == 0
        stats = engine.stats()
        assert (stats.images - stats.encoded_images, stats.encoded_images) == (hits, 1)
    together = [Prompt(ask("What?", f"{i}: "), image) for i in range(3) for image in (B, C, B)]
    engine.generate(together, greedy(3))
    assert engine.stats().encoded_images == 3


def test_a_namespace_shares_neither(engine: Engine) -> None:
    done = {}
    for namespace in (None, "a", "b", "a"):
        params = replace(greedy(4), namespace=namespace)
        done[namespace] = engine.generate(Prompt(ask("What?"), A), params)
    assert len({tuple(c.token_ids) for c in done.values()}) == 1
    assert [done[name].cached_tokens > 0 for name in (None, "a", "b")] == [False, True, False]
    assert engine.stats().encoded_images == 3


def test_what_is_flushed_is_encoded_again(engine: Engine) -> None:
    for _ in range(2):
        engine.generate(Prompt(ask("What?"), A), greedy(2))
        assert engine.stats().vision_bytes > 0
        assert engine.flush_cache()
        assert engine.stats().vision_bytes == 0
    assert engine.stats().encoded_images == 2
    assert "2 of them through the vision tower" in str(engine.stats())


@pytest.mark.parametrize("budget", [3, 10, 2048])
def test_without_a_cache_an_image_is_encoded_once_for_a_prompt(path: Path, budget: int) -> None:
    """Though the prompt is computed in chunks, and two images are under way."""
    settings = {"vision_cache_mib": 0, "prefix_cache": "none", "prefill_budget": budget}
    with fp32(str(path), kv_tokens=512, **settings) as engine:
        for times in (1, 2):
            engine.generate([Prompt(ask("What?"), image) for image in (A, B)], greedy(3))
            assert engine.stats().encoded_images == 2 * times
            assert engine.stats().vision_bytes == 0
        assert_all_free(engine)


def test_a_cached_prefix_may_end_within_an_image(path: Path) -> None:
    """Chunks are nodes of the tree, and its leaves leave first."""
    prompt = Prompt("<image> Hi", A)
    with fp32(str(path), kv_tokens=24, prefill_budget=5, vision_cache_mib=0) as engine:
        whole = engine.generate(prompt, greedy(4))
        cached = set()
        for length in range(2, 22):
            engine.generate(list(range(100, 100 + length)), greedy(1))
            again = engine.generate(prompt, greedy(4))
            assert again.token_ids == whole.token_ids
            cached.add(again.cached_tokens)
            engine.check()
        assert any(0 < n < N for n in cached)
        assert_all_free(engine)


def test_the_tower_sees_the_images_of_a_step_together(engine: Engine) -> None:
    vision = engine.loop.runner.vision
    assert vision is not None
    encode, seen = vision._encode, []

    def count(pixels: Sequence[Pixels]) -> list[torch.Tensor]:
        seen.append(len(pixels))
        return encode(pixels)

    vision._encode = count
    engine.generate([Prompt("<image> a", A), Prompt("b <image><image>", [C, B])], greedy(1))
    assert seen == [3]


def test_room_for_features_is_taken_from_the_pool(path: Path) -> None:
    config = load_config(path)
    assert isinstance(config, LlavaConfig)
    with fp32(str(path), vision_cache_mib=3, kv_tokens=64) as engine:
        assert engine.memory.vision == 3 * 2**20
        vision = engine.loop.runner.vision
        assert vision is not None and vision.max_bytes == 3 * 2**20

    def slots(free: int, vision: int) -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(memory, "free_memory", lambda _: free)
            plan = memory.plan_memory(
                EngineConfig(kv_memory_fraction=0.5, max_running=2**20),
                config.text,
                weights=0,
                context_length=1024,
                dtype=torch.float32,
                device=torch.device("cpu"),
                vision=vision,
            )
        assert ("MiB of it for images" in str(plan)) == (vision > 0)
        return plan.slots

    assert slots(100 * 2**20, 20 * 2**20) == slots(80 * 2**20, 0)
    with pytest.raises(ValueError, match=r"10 MiB free, 20 MiB of it for images.*Lower vision_c"):
        slots(10 * 2**20, 20 * 2**20)


class TestTheCacheAlone:
    """Without a model: features are numbers, and requests are moved by hand."""

    def span(self, key: int, start: int = 0, length: int = 4) -> ImageSpan:
        pixels = Pixels(torch.full((1, 3, 2, 2), float(key)), length, None, (2, 2))
        return ImageSpan(start, start + length, pixels, 2**64 + key)

    def cache(self, max_images: int) -> VisionCache:
        """Each image has 4 features of 2 float32: 32 bytes.  All of a batch in one tensor."""

        def encode(pixels: Sequence[Pixels]) -> list[torch.Tensor]:
            values = torch.cat([p.values[0, 0, 0, :1].expand(4, 2) for p in pixels])
            return list(values.split(4))

        return VisionCache(encode, 32 * max_images)

    def reading(self, start: int = 0, namespace: str | None = None) -> Req:
        req = make_req([1], namespace=namespace)
        req.row, req.kv_len = 0, start
        return req

    def test_least_recently_used_goes_first(self) -> None:
        cache, done = self.cache(2), self.reading(start=4)
        for key, misses in ((1, 1), (2, 2), (1, 2), (3, 3), (1, 3), (2, 4), (1, 4), (3, 5)):
            (features,) = cache.features([(done, self.span(key))])
            assert torch.equal(features, torch.full((4, 2), float(key)))
            cache.trim()
            cache.check()
            assert cache.misses == misses
            assert cache.bytes == 32 * min(2, misses)

    def test_nothing_is_forgotten_that_somebody_is_inside_of(self) -> None:
        cache, a, b = self.cache(0), self.reading(), self.reading()
        cache.features([(a, self.span(1)), (b, self.span(1)), (b, self.span(2, start=4))])
        assert (cache.lookups, cache.misses, cache.bytes) == (3, 2, 64)
        for step, (a.kv_len, b.kv_len) in enumerate([(1, 1), (3, 3), (4, 3), (4, 4), (4, 8)]):
            cache.trim()
            cache.check()
            assert cache.bytes == [64, 64, 64, 32, 0][step]
            if cache.bytes == 64:
                cache.features([(b, self.span(1)), (b, self.span(2, start=4))])
        assert (cache.lookups, cache.misses) == (3, 2)  # later chunks are no lookups

    @pytest.mark.parametrize("how", ["aborted", "retracted"])
    def test_who_leaves_holds_nothing(self, how: str) -> None:
        cache, req = self.cache(0), self.reading()
        cache.features([(req, self.span(1))])
        cache.trim()
        assert cache.bytes == 32
        req.row = None
        cache.trim()
        assert cache.bytes == 0
        if how == "retracted":
            req.row, req.kv_len = 3, 2
            cache.features([(req, self.span(1))])
            assert (cache.lookups, cache.misses, cache.bytes) == (2, 2, 32)
        cache.check()

    def test_a_part_of_a_batch_does_not_keep_the_batch(self) -> None:
        cache, req = self.cache(9), self.reading()
        kept = cache.features([(req, self.span(key)) for key in range(5)])
        assert all(x.untyped_storage().nbytes() == 32 for x in kept)

    def test_namespaces(self) -> None:
        cache = self.cache(9)
        reqs = [self.reading(4, namespace) for namespace in (None, "a", "a")]
        cache.features([(req, self.span(1)) for req in reqs])
        assert (cache.lookups, cache.misses) == (3, 2)
        reqs[1].images = (self.span(1),)
        cache.drop(reqs[1])
        assert cache.bytes == 32
        cache.check()
        cache.flush()
        assert cache.bytes == 0

    def test_a_tower_that_gives_another_number_of_features(self) -> None:
        cache = VisionCache(lambda pixels: [torch.zeros(3, 2) for _ in pixels], 0)
        with pytest.raises(AssertionError, match="a token for each feature"):
            cache.features([(self.reading(), self.span(1))])


def test_tokens_as_text() -> None:
    a, b = 2**64 + 0xABCDEF0, 2**128 + 1
    assert show([], repr) == ""
    assert show([a, a, b, 1, 2, b], repr) == ("<image abcdef0><image 0000001>[1, 2]<image 0000001>")


# ---------------------------------------------------------------------- while memory is short


def mixture(engine: Engine, rng: random.Random) -> tuple[Prompt, SamplingParams]:
    """A prompt with up to two images, and settings of any kind."""
    before = rng.choice(["", "USER: ", "Two "])
    images = rng.choice([[], [A], [A], [B], [A, B], [B, A], [C, C]])
    text = before + " and ".join("<image>" for _ in images) + f" {rng.choice(QUESTIONS)}"
    params = greedy(rng.randrange(1, 24), namespace=rng.choice([None, None, "a"]))
    reader = engine.door.image_reader
    assert reader is not None
    match rng.randrange(6):
        case 0:
            regex = r"[a-z ]{1,4}(, the token is (fast|slow)\.){1,2}"
            params = replace(params, regex=regex, max_tokens=24)
        case 1:  # now and then a token that looks like an image
            params = replace(params, logit_bias={reader.image_id: 6.0})
        case 2:
            params = replace(params, repetition_penalty=1.2)
    return Prompt(text, images), params


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 9))]
)
def test_a_crowd_in_a_small_pool(path: Path, seed: int) -> None:
    """Evictions, retractions, aborts, chunks and jumps: every answer is the one that its prompt
    gets alone, and in the end nothing is held."""
    rng = random.Random(seed)
    with (
        fp32(str(path), kv_tokens=512, prefix_cache="none", vision_cache_mib=0) as alone,
        fp32(
            str(path), kv_tokens=150, prefill_budget=11, max_running=9, vision_cache_mib=0
        ) as crowded,
    ):
        # Nobody keeps room for the next tokens, so that requests have to give way all the time.
        crowded.call(lambda: setattr(crowded.loop.scheduler, "look_ahead", 0))
        asked = [mixture(alone, rng) for _ in range(24)]
        expected = [one(alone.generate(prompt, params)) for prompt, params in asked]
        handles = []
        for i, (prompt, params) in enumerate(asked):
            handles.append(crowded.submit(prompt, params))
            if rng.random() < 0.3:
                handles.append(crowded.submit(prompt, params))
                handles.pop().abort()
            if i % 8 == 7:
                crowded.check()
        for handle, whole in zip(handles, expected, strict=True):
            done = handle.result(LONG)
            assert done.finish_reason == whole.finish_reason
            assert done.token_ids == whole.token_ids
        stats = crowded.stats()
        assert stats.retractions > 0 and stats.cached_tokens > 0
        assert_all_free(crowded)
        assert crowded.stats().vision_bytes == 0


def test_threads_ask_about_images(path: Path) -> None:
    """Bad ones among them; pixels are shared between requests that are under way."""
    with fp32(str(path), kv_tokens=200) as engine:
        expected = {q: one(engine.generate(Prompt(ask(q), A), greedy(4))).text for q in QUESTIONS}

        def client(seed: int) -> None:
            rng = random.Random(seed)
            for _ in range(6):
                q = rng.choice(QUESTIONS)
                assert one(engine.generate(Prompt(ask(q), A), greedy(4))).text == expected[q]
                with pytest.raises(ValueError, match="image"):
                    engine.generate(Prompt(ask(q), b"broken"), greedy(4))

        with (
            in_thread(lambda: client(0)),
            in_thread(lambda: client(1)),
            in_thread(lambda: client(2)),
        ):
            pass
        assert_all_free(engine)

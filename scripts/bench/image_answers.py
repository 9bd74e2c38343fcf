"""Who answers questions about images and videos in the paper's table 2.

    Ours            all questions at once
    Transformers    one question after the other, as the code of LLaVA's authors does

Both answer greedily with so many tokens, from empty caches, and from the files' bytes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from minisgl import Engine, Prompt, SamplingParams
from minisgl.models.llava_config import LlavaConfig
from minisgl.models.registry import load_config
from scripts.bench.questions import Question
from scripts.bench.random_models import Model

Ids = list[list[int]]


class Ours:
    """The engine.

    Attributes:
        hit_rate: of the last call: cached over all prompt tokens.
        encoded: images and videos that the vision tower ran for in it.
    """

    def __init__(self, model: Model, new: int, **settings: Any) -> None:
        self.engine = Engine(str(model.path), **model.settings, **settings)
        self.params = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True)

    def __call__(self, questions: Sequence[Question]) -> Ids:
        self.engine.flush_cache()
        before = self.engine.stats().encoded_images
        prompts = [Prompt(question.prompt, question.load()) for question in questions]
        answers = self.engine.generate(prompts, self.params)
        self.encoded = self.engine.stats().encoded_images - before
        tokens = sum(answer.prompt_tokens for answer in answers)
        self.hit_rate = sum(answer.cached_tokens for answer in answers) / tokens
        return [answer.token_ids for answer in answers]

    def close(self) -> None:
        """Give up the model."""
        self.engine.close()
        del self.engine


class Transformers:
    """`generate`, after the steps of its processors: a tag becomes as many tokens as there are
    features."""

    hit_rate = 0.0

    def __init__(self, model: Model, new: int) -> None:
        from transformers import CLIPImageProcessor, PreTrainedTokenizerFast

        config = load_config(model.path)
        assert isinstance(config, LlavaConfig)
        self.config, self.new, self.encoded = config, new, 0
        self.device = model.device
        self.model = their_model(model).eval()
        self.processor = CLIPImageProcessor.from_pretrained(model.path)
        self.tokenizer = PreTrainedTokenizerFast.from_pretrained(model.path)

    def __call__(self, questions: Sequence[Question]) -> Ids:
        self.encoded = len(questions)
        return [self.answer(question) for question in questions]

    def answer(self, question: Question) -> list[int]:
        """The new tokens."""
        image, c = question.load(), self.config
        pixels = self.processor(list(image.frames), return_tensors="pt")["pixel_values"]
        if question.frames:
            tag, features = c.video_token_id, c.num_video_tokens(len(pixels))
            given = {"pixel_values_videos": pixels[None]}
        else:
            tag, features = c.image_token_id, c.num_image_tokens(image.frames[0].size)
            given = {"pixel_values": pixels}
        ids: list[int] = []
        for token in self.tokenizer.encode(question.prompt):
            ids += [token] * (features if token == tag else 1)
        x = torch.tensor([ids], device=self.device)
        with torch.inference_mode():
            out = self.model.generate(
                input_ids=x,
                attention_mask=torch.ones_like(x),
                max_new_tokens=self.new,
                min_new_tokens=self.new,
                do_sample=False,
                pad_token_id=0,
                **{name: v.to(self.device, self.model.dtype) for name, v in given.items()},
            )
        answer: list[int] = out[0, len(ids) :].tolist()
        return answer

    def close(self) -> None:
        """Give up the model."""
        del self.model


def their_model(model: Model) -> Any:
    """The model in transformers; a random one without weights gets some of its own."""
    from transformers import AutoConfig, AutoModelForImageTextToText

    how = {"dtype": getattr(torch, model.settings["dtype"]), "attn_implementation": "sdpa"}
    if not model.is_dummy:
        return AutoModelForImageTextToText.from_pretrained(model.path, **how).to(model.device)
    torch.manual_seed(0)
    with torch.device(model.device):
        return AutoModelForImageTextToText.from_config(
            AutoConfig.from_pretrained(model.path), **how
        )


def with_weights(model: Model) -> Model:
    """The same random model for everybody: transformers' weights, in files."""
    their_model(model).save_pretrained(model.path)
    return model.with_files()

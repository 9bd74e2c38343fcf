"""Questions about images (the paper's table 2): ours, ours without caches, and transformers.

    python -m scripts.bench.llava                                  # images made up here
    python -m scripts.bench.llava --images DIR --questions FILE --rounds 3

FILE has one question on each line, as JSON: {"image": "cat.png", "text": "What is this?"}.

The model is a LLaVA-1.5 with random weights: CLIP-L/14's 24 x 24 features of a 336 x 336 image, the
projector, LLaVA's vocabulary, and a Llama small enough for a CPU; of the work of a prompt the tower
has the same share as in LLaVA-1.5-7B.  All answers have the same number of tokens, greedy.

    cached        all questions at once, from an empty cache: an image is encoded and prefilled once
    uncached      the same with prefix_cache="none", vision_cache_mib=0
    transformers  processor and `generate`, one question after the other, as its users write it

"images/s" are answers per second, each with its image, all steps from the file's bytes on included.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import PIL.Image
import torch

from minisgl import Completion, Engine, Prompt, SamplingParams
from scripts.bench.common import interleave, median_ratio, report, seconds
from scripts.bench.results import Table
from scripts.make_tiny_model import make_tiny_model

GOAL = 6.0  # cached / transformers
QUESTIONS = (
    "What is shown in this picture?",
    "Describe this photo in detail.",
    "What colors dominate the image?",
    "Is there a person in the image?",
    "What might happen next?",
)
SIZES = ((512, 512), (640, 427), (300, 451), (336, 336), (800, 600), (427, 640))  # width, height
SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")

Ids = list[list[int]]
Question = tuple[Path, str]  # an image's file, and the prompt


def make_llava(path: Path, vocab_size: int = 32064, hidden_size: int = 512) -> Path:
    """Write a LLaVA-1.5 in llava-hf's layout into `path`, with its processor; see the module."""
    from transformers import (
        CLIPImageProcessor,
        CLIPVisionConfig,
        LlamaConfig,
        LlavaConfig,
        LlavaForConditionalGeneration,
    )

    make_tiny_model(path, num_layers=1)  # for its tokenizer
    file = path / "tokenizer.json"
    tokenizer = json.loads(file.read_text(encoding="utf-8"))
    vocab = tokenizer["model"]["vocab"]
    vocab |= {f"<{i}>": i for i in range(len(vocab), vocab_size)}  # the head is as wide as LLaVA's
    image = {**tokenizer["added_tokens"][0], "id": vocab_size - 1, "content": "<image>"}
    vocab["<image>"] = vocab.pop(f"<{vocab_size - 1}>")
    tokenizer["added_tokens"].append(image)
    file.write_text(json.dumps(tokenizer), encoding="utf-8")

    text = LlamaConfig(
        vocab_size=vocab_size,
        hidden_size=hidden_size,
        intermediate_size=hidden_size * 8 // 3,
        num_hidden_layers=8,
        num_attention_heads=hidden_size // 64,
        num_key_value_heads=hidden_size // 64,
        max_position_embeddings=4096,
        initializer_range=0.04,
    )
    vision = CLIPVisionConfig(
        hidden_size=hidden_size // 2,
        intermediate_size=hidden_size * 2,
        num_hidden_layers=3,
        num_attention_heads=hidden_size // 128,
        image_size=336,
        patch_size=14,
    )
    torch.manual_seed(0)
    config = LlavaConfig(vision_config=vision, text_config=text, image_token_index=vocab_size - 1)
    LlavaForConditionalGeneration(config).eval().save_pretrained(path)
    CLIPImageProcessor(
        size={"shortest_edge": 336}, crop_size={"height": 336, "width": 336}
    ).save_pretrained(path)
    return path


def make_images(path: Path) -> list[Path]:
    """Pictures of coloured waves, of usual sizes; PNG files in `path`."""
    files = []
    for i, (width, height) in enumerate(SIZES):
        y, x = np.mgrid[0:height, 0:width]
        waves = [np.sin(x / (9 + 7 * i + 5 * c) + y / (31 - 4 * i + 3 * c)) for c in range(3)]
        pixels = (127.5 + 127.5 * np.stack(waves, axis=-1)).astype(np.uint8)
        files.append(path / f"waves-{i}.png")
        PIL.Image.fromarray(pixels).save(files[-1])
    return files


def find_images(path: Path) -> list[Path]:
    """The pictures in a directory."""
    return sorted(file for file in path.iterdir() if file.suffix.lower() in SUFFIXES)


def prompt(question: str) -> str:
    """As LLaVA-1.5 was trained."""
    return f"USER: <image>\n{question} ASSISTANT:"


class Ours:
    """All questions together, from an empty cache."""

    def __init__(self, model: Path, new: int, **settings: Any) -> None:
        self.engine = Engine(str(model), dtype="float32", kv_tokens=32768, **settings)
        self.params = SamplingParams(temperature=0.0, max_tokens=new, ignore_eos=True)
        self.answers: list[Completion] = []

    def __call__(self, questions: Sequence[Question]) -> Ids:
        self.engine.flush_cache()
        prompts = [Prompt(text, image) for image, text in questions]
        self.answers = self.engine.generate(prompts, self.params)
        return [answer.token_ids for answer in self.answers]

    @property
    def hit_rate(self) -> float:
        """Of the last run: cached over all prompt tokens."""
        cached = sum(answer.cached_tokens for answer in self.answers)
        return cached / sum(answer.prompt_tokens for answer in self.answers)


class Transformers:
    """One question after the other."""

    def __init__(self, model: Path, new: int) -> None:
        from transformers import (
            CLIPImageProcessor,
            LlavaForConditionalGeneration,
            LlavaProcessor,
            PreTrainedTokenizerFast,
        )

        self.new = new
        self.model = LlavaForConditionalGeneration.from_pretrained(
            model, dtype=torch.float32, attn_implementation="sdpa"
        ).eval()
        self.processor = LlavaProcessor(
            CLIPImageProcessor.from_pretrained(model),
            PreTrainedTokenizerFast.from_pretrained(model),
            patch_size=14,
            vision_feature_select_strategy="default",
            num_additional_image_tokens=1,
        )

    def __call__(self, questions: Sequence[Question]) -> Ids:
        return [self.answer(*question) for question in questions]

    def answer(self, image: Path, text: str) -> list[int]:
        """The new tokens."""
        with PIL.Image.open(image) as picture:
            given = self.processor(images=picture.convert("RGB"), text=text, return_tensors="pt")
        with torch.inference_mode():
            out = self.model.generate(
                **given, max_new_tokens=self.new, min_new_tokens=self.new, do_sample=False
            )
        ids: list[int] = out[0, given["input_ids"].shape[1] :].tolist()
        return ids


def read_questions(file: Path | None, images: Sequence[Path]) -> list[Question]:
    """Those of `file`, about images of its directory or of `images`; else the ones above."""
    if file is None:
        return [(image, prompt(text)) for image in images for text in QUESTIONS]
    known = {image.name: image for image in images}
    lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return [(known[line["image"]], prompt(line["text"])) for line in lines]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--images", type=Path, help="a directory of pictures")
    parser.add_argument("--questions", type=Path, help="about them; JSON, one on each line")
    parser.add_argument("--new", type=int, default=64, help="tokens of each answer")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    if args.rounds < 1 or args.new < 1:
        parser.error("--rounds and --new must be at least 1")
    if args.questions and not args.images:
        parser.error("--questions are about --images DIR")
    with tempfile.TemporaryDirectory() as scratch:
        run(Path(scratch), args)


def run(scratch: Path, args: argparse.Namespace) -> None:
    """Let the three take turns, and print what they took."""
    images = find_images(args.images) if args.images else make_images(scratch)
    questions = read_questions(args.questions, images)
    model = make_llava(scratch / "llava")
    contestants: dict[str, Callable[[Sequence[Question]], Ids]] = {
        "cached": Ours(model, args.new),
        "uncached": Ours(model, args.new, prefix_cache="none", vision_cache_mib=0),
        "transformers": Transformers(model, args.new),
    }
    answers: dict[str, Ids] = {}
    cpu: dict[str, list[float]] = {name: [] for name in contestants}

    def measure(name: str) -> float:
        start = time.process_time()
        wall = seconds(lambda: answers.update({name: contestants[name](questions)}))
        cpu[name].append(time.process_time() - start)
        return wall

    for each in contestants.values():
        each(questions[:2])  # the first call of anything is slower
    clocks = {name: partial(measure, name) for name in contestants}
    wall = interleave(clocks, args.rounds, warmups=0)
    rows = []
    for name, contestant in contestants.items():
        same = sum(a == b for a, b in zip(answers[name], answers["transformers"], strict=True))
        ours = isinstance(contestant, Ours)
        rows.append(
            {
                "": name,
                "images/s": len(questions) / statistics.median(wall[name]),
                "to transformers": median_ratio(wall["transformers"], wall[name]),
                "the same in processor time": median_ratio(cpu["transformers"], cpu[name]),
                "hit rate": f"{contestant.hit_rate:.0%}" if ours else "-",
                "equal answers": f"{same} of {len(questions)}",
            }
        )
    pictures = len({image for image, _ in questions})
    title = f"{len(questions)} questions about {pictures} images, {args.new} tokens each"
    ratio = median_ratio(wall["transformers"], wall["cached"])
    said = "met" if ratio >= GOAL else "MISSED"
    goal = f"cached / transformers: {ratio:.2f}; goal at least {GOAL}: {said}"
    report(Table.of(rows, title), out=args.json, notes=[goal])


if __name__ == "__main__":
    main()

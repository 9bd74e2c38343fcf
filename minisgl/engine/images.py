"""From a prompt's images and placeholders to tokens and spans.

    ids      USER :  <image>             What  is      <image> stands once for each image
    tokens   USER :  key key ... key     What  is      key: the image's content, a very wide integer
                     '--- span ----'

In the radix tree an image's tokens are its content key, as often as the model makes features of it.
So two prompts share what they share: the same image at the same place is the same tokens, another
image is not.  Why one key for all of an image's tokens: docs/decisions.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from minisgl.engine.prompt import AnyPrompt, Prompt, images_of, text_of
from minisgl.models.pixels import Pixels
from minisgl.tokenizer import Tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from minisgl.media import Image
    from minisgl.models.image_processor import ImageProcessor
    from minisgl.models.llava_config import LlavaConfig

NARROW = 2**64  # content keys are never less, token ids always are
PLACEHOLDER = "<image>"


@dataclass(frozen=True)
class ImageSpan:
    """Positions [start, stop) of a prompt are one image's tokens."""

    start: int
    stop: int
    pixels: Pixels
    key: int  # of the content, at least NARROW

    def __len__(self) -> int:
        return self.stop - self.start

    def __str__(self) -> str:
        if not self.pixels.is_video:
            return f"an image of {len(self)} tokens"
        frames = len(self.pixels.values)
        return f"a video of {frames} frames x {len(self) // frames} tokens"


@dataclass(frozen=True)
class Reading:
    """A prompt as the engine computes it, and as its caller counts it.

    ids: an image is its placeholder, one token.
    tokens: an image is as many as it has features.
    """

    ids: list[int]
    tokens: list[int]
    images: tuple[ImageSpan, ...] = ()

    def place(self, i: int) -> int:
        """Where `ids[i]` stands in `tokens`.

        >>> span = ImageSpan(1, 4, pixels=None, key=NARROW)
        >>> reading = Reading([7, 32, 8], [7, NARROW, NARROW, NARROW, 8], (span,))
        >>> [reading.place(i) for i in range(3)]
        [0, 1, 4]
        """
        for span in self.images:
            if i <= span.start:
                break
            i += len(span) - 1
        return i

    def index(self, place: int) -> int:
        """The first of `ids` that stands at `tokens[place]` or after it.

        >>> span = ImageSpan(1, 4, pixels=None, key=NARROW)
        >>> reading = Reading([7, 32, 8], [7, NARROW, NARROW, NARROW, 8], (span,))
        >>> [reading.index(place) for place in range(5)]
        [0, 1, 2, 2, 2]
        """
        more = 0  # tokens than ids, before `place`
        for span in self.images:
            if place <= span.start:
                break
            place = max(place, span.stop)
            more += len(span) - 1
        return place - more


@dataclass(frozen=True)
class ImageReader:
    """How a model's prompts take images.

    image_id: the placeholder's token id; negative where the model's tokenizer has no such token,
        and `PLACEHOLDER` in a text is looked for before it is tokenized.
    video_id: the same for videos; None: the model reads none.
    """

    tokenizer: Tokenizer
    processor: ImageProcessor
    image_id: int
    video_id: int | None
    # subtle: shared by the requests that are under way, and gone with the last of them
    _known: WeakValueDictionary[int, Pixels] = field(default_factory=WeakValueDictionary)

    @staticmethod
    def of(path: Path, config: LlavaConfig, tokenizer: Tokenizer) -> ImageReader:
        """That of the model in `path`.

        Raises:
            ValueError: its image processor is missing, or not one that we have; in words.
        """
        from minisgl.models.image_processor import ImageProcessor  # needs Pillow, as _load does

        processor = ImageProcessor.from_dir(path, config)
        return ImageReader(tokenizer, processor, config.image_token_id, config.video_token_id)

    @property
    def special_tokens(self) -> Mapping[str, int]:
        """What is no ordinary text: the tokenizer's special tokens, and the placeholder."""
        return {**self.tokenizer.special_tokens, PLACEHOLDER: self.image_id}

    @property
    def bos_token_id(self) -> int | None:
        """The tokenizer's."""
        return self.tokenizer.bos_token_id

    @property
    def adds_bos(self) -> bool:
        """The tokenizer's."""
        return self.tokenizer.adds_bos

    def encode(
        self,
        text: str,
        *,
        add_special_tokens: bool = True,
        as_text: Sequence[tuple[int, int]] = (),
    ) -> list[int]:
        """The ids of `text`, its placeholders among them; as `Tokenizer.encode`."""
        ids: list[int] = []
        start = 0
        for stop in [*self._placeholders(text, as_text), len(text)]:
            if start:
                ids.append(self.image_id)
            ids += self.tokenizer.encode(
                text[start:stop],
                add_special_tokens=add_special_tokens and not start,
                as_text=[(a - start, b - start) for a, b in as_text],
            )
            start = stop + len(PLACEHOLDER)
        return ids

    def _placeholders(self, text: str, as_text: Sequence[tuple[int, int]]) -> list[int]:
        """Where they begin that the tokenizer doesn't know."""
        if self.image_id >= 0:
            return []
        found = [match.start() for match in re.finditer(PLACEHOLDER, text)]
        return [at for at in found if not any(a <= at < b for a, b in as_text)]

    def is_placeholder(self, token: int) -> bool:
        """Whether an image or a video stands there."""
        return token in (self.image_id, self.video_id)

    def read(self, ids: list[int], images: Sequence[Any]) -> Reading:
        """`ids`, with each placeholder expanded to its image's tokens.

        Raises:
            ValueError: not as many images as placeholders, a video where an image belongs or the
                reverse, or an image that can't be used; in words.
        """
        places = [at for at, i in enumerate(ids) if self.is_placeholder(i)]
        if len(places) != len(images):
            raise ValueError(
                f"the prompt has {len(places)} placeholders of images and {len(images)} images: "
                "give one image for each placeholder"
            )
        tokens: list[int] = []
        spans: list[ImageSpan] = []
        done = 0
        for at, given in zip(places, images, strict=True):
            image = _load(given)
            self._check_kind(ids[at], image)
            pixels = self._pixels(image)
            tokens += ids[done:at]
            spans.append(ImageSpan(len(tokens), len(tokens) + pixels.num_tokens, pixels, image.key))
            tokens += [image.key] * pixels.num_tokens
            done = at + 1
        return Reading(ids, tokens + ids[done:], tuple(spans))

    def _check_kind(self, placeholder: int, image: Image) -> None:
        if image.is_video and self.video_id is None:
            raise ValueError("this model reads images, and no videos")
        if image.is_video != (placeholder == self.video_id):
            was, wanted = ("a video", "an image") if image.is_video else ("an image", "a video")
            raise ValueError(f"{was} is given where the prompt has the placeholder of {wanted}")

    def _pixels(self, image: Image) -> Pixels:
        pixels = self._known.get(image.key)
        if pixels is None:
            pixels = self._known[image.key] = self.processor(image.frames, image.is_video)
        return pixels


def load_images(prompt: AnyPrompt) -> AnyPrompt:
    """`prompt` with its images read from wherever they are, to be asked about several times.

    Raises:
        ValueError: an image that can't be read; in words.
    """
    images = images_of(prompt)
    return Prompt(text_of(prompt), [_load(image) for image in images]) if images else prompt


def _load(image: Any) -> Image:
    from minisgl import media  # not at the top: text needs no Pillow

    return media.load(image)


def show(tokens: Iterable[int], decode: Callable[[Sequence[int]], str]) -> str:
    """The text of `tokens`, in which an image is a short name of its content.

    >>> show([72, 105, 2**64 + 3, 2**64 + 3, 33], lambda ids: "".join(map(chr, ids)))
    'Hi<image 0000003>!'
    """
    parts: list[int | list[int]] = []  # content keys, and runs of ids between them
    for token in tokens:
        if token >= NARROW:
            if parts[-1:] != [token]:
                parts.append(token)
        elif parts and isinstance(parts[-1], list):
            parts[-1].append(token)
        else:
            parts.append([token])
    return "".join(
        decode(part) if isinstance(part, list) else f"<image {part & 0xFFFFFFF:07x}>"
        for part in parts
    )

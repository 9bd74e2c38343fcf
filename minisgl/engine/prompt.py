"""`Prompt`: what a caller asks about, where that is more than text.

    Prompt("USER: <image>\\nWhat is this? ASSISTANT:", images=["cat.jpg"])

Each image stands where its placeholder stands in the text, in order: "<image>", or whatever token
the model's own tokenizer has for it.  Wherever the engine takes a text or its token ids, it takes a
`Prompt` too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)  # pictures may be arrays, which have no plain ==
class Prompt:
    """A text, or its token ids, with images and videos.

    Args:
        text: with one placeholder for each image; among token ids that is the image token's id.
        images: in the order of their placeholders, each anything that `minisgl.media.load` takes: a
            path, a URL, bytes, a PIL image, a numpy array, a `Video`, ...  What is no list or tuple
            is one image.
    """

    text: str | Sequence[int]
    images: Any = ()

    def __post_init__(self) -> None:
        given = self.images
        images = tuple(given) if isinstance(given, (list, tuple)) else (given,)
        object.__setattr__(self, "images", images)


AnyPrompt = str | Sequence[int] | Prompt


def is_single(prompt: AnyPrompt | Sequence[AnyPrompt]) -> bool:
    """Whether this is one prompt and not a list of them."""
    if isinstance(prompt, (str, Prompt)):
        return True
    return len(prompt) > 0 and isinstance(prompt[0], int)


def as_list(prompts: AnyPrompt | Sequence[AnyPrompt]) -> list[AnyPrompt]:
    """One prompt, or a list of them, as a list.

    >>> as_list("a b"), as_list([7, 8]), as_list(["a", [7, 8]])
    (['a b'], [[7, 8]], ['a', [7, 8]])
    """
    each: Any = [prompts] if is_single(prompts) else list(prompts)  # type: ignore[arg-type]
    return each  # type: ignore[no-any-return]


def text_of(prompt: AnyPrompt) -> str | Sequence[int]:
    """The prompt without its images."""
    return prompt.text if isinstance(prompt, Prompt) else prompt


def images_of(prompt: AnyPrompt) -> tuple[Any, ...]:
    """The images of the prompt; most have none."""
    images: tuple[Any, ...] = prompt.images if isinstance(prompt, Prompt) else ()
    return images

"""`Reader`: from the body of a request to the tokens of its prompts, as the worker will read them.

It need not be exact: a prompt that is read otherwise than by the worker, or not at all, is sent to
a worker that has less of it cached than we think.  So what a worker adds at the very end (how a
forced tool call begins) is left out here, and an image is one token, made of where it comes from
and not of what is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from minisgl.chat_template import ChatTemplate
from minisgl.engine.images import ImageReader
from minisgl.engine.prompt import as_list
from minisgl.models.llava_config import LlavaConfig
from minisgl.models.registry import load_config
from minisgl.router.balancer import Question, in_namespace, stand_in
from minisgl.serve.chat_prompt import plain_message, plain_tools
from minisgl.serve.native_types import GenerateRequest, NativeParams
from minisgl.serve.openai_types import ChatRequest, CompletionRequest
from minisgl.tokenizer import Tokenizer

GUESS = 128  # tokens of an answer that may go on until the context is full
MOST = 512  # tokens of an answer that we reckon with: most end before their limit


class Reader:
    """Reads prompts with the model's own tokenizer and chat template.

    Args:
        path: the model's directory.
        chat_template: one to use in place of the model's own.

    Raises:
        ValueError: there is no tokenizer, in words.
    """

    def __init__(self, path: Path, chat_template: str | None = None) -> None:
        tokenizer = Tokenizer(path)
        config = load_config(path)
        self._images = None
        if isinstance(config, LlavaConfig):
            self._images = ImageReader.of(path, config, tokenizer)
        self._encoder: ImageReader | Tokenizer = self._images or tokenizer
        self._path, self._source = path, chat_template
        self._template: ChatTemplate | None = None

    def read(self, path: str, body: bytes) -> Question:
        """The question in a POST to `path`.

        Raises:
            ValueError: a body that a worker would refuse, too.
        """
        match path:
            case "/generate":
                return self._generate(GenerateRequest.model_validate_json(body))
            case "/v1/completions":
                return self._completions(CompletionRequest.model_validate_json(body))
            case "/v1/chat/completions":
                return self._chat(ChatRequest.model_validate_json(body))
        return Question()

    def _generate(self, body: GenerateRequest) -> Question:
        prompts = as_list((body.text if body.text is not None else body.input_ids) or [])
        images = body.image_data or []
        if isinstance(images, str):
            images = [images] * len(prompts)
        elif isinstance(body.text, str) or len(images) != len(prompts):
            images = [[image for image in images if isinstance(image, str)]]
        given = body.sampling_params or NativeParams()
        settings = given if isinstance(given, list) else [given] * len(prompts)
        read, output = [], 0
        for i, (prompt, params) in enumerate(zip(prompts, settings, strict=True)):
            its = images[i] if i < len(images) else None
            sources = [its] if isinstance(its, str) else its or []
            read.append(self._place(params.namespace, self._encode(prompt), sources))
            output += _expected(params.max_new_tokens, params.n)
        return Question(read, output)

    def _completions(self, body: CompletionRequest) -> Question:
        prompts = as_list(body.prompt)
        output = _expected(body.max_tokens, body.best_of or body.n) * len(prompts)
        return Question(
            [self._place(body.namespace, self._encode(prompt)) for prompt in prompts], output
        )

    def _chat(self, body: ChatRequest) -> Question:
        if self._template is None:
            self._template = ChatTemplate(self._path, self._source)
        sources: list[str] = []
        messages = [
            plain_message(m, lambda _, source: sources.append(source)) for m in body.messages
        ]
        tools = plain_tools(body.tools or ()) if body.tool_choice != "none" else None
        ids = self._template.encode(messages, self._encoder, tools=tools, **body.ending)
        prompt = self._place(body.namespace, ids, sources)
        return Question([prompt], _expected(body.most_tokens, body.n))

    def _encode(self, prompt: object) -> Sequence[int]:
        return self._encoder.encode(prompt) if isinstance(prompt, str) else prompt  # type: ignore

    def _place(
        self, namespace: str | None, ids: Iterable[int], sources: Iterable[str] = ()
    ) -> list[int]:
        """The prompt's tokens in the meta tree."""
        left = iter(sources)
        if self._images is not None:
            is_placeholder = self._images.is_placeholder
            ids = [stand_in("image", next(left, "")) if is_placeholder(i) else i for i in ids]
        return in_namespace(namespace, list(ids))


def _expected(most: int | None, answers: int | None) -> int:
    """Tokens of the answers to a prompt; none where the numbers are below what a worker takes."""
    return max(0, GUESS if most is None else min(most, MOST)) * max(0, answers or 1)

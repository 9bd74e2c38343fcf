"""`EngineBackend`: programs on an engine in the same process, without a server between them.

The language is about text and the engine about tokens, and here text becomes tokens: the whole text
of a stream anew for each call.  What the engine has computed it finds again by the tokens, in its
radix tree; so a text is always read as the model would read it whole, and a `gen` or a `select` is
exact where a token goes across the border between the program's words and the model's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import asdict
from functools import lru_cache
from itertools import pairwise
from typing import Any

from minisgl import media
from minisgl.engine.engine import Engine
from minisgl.engine.output import Completion, TokenLogprob
from minisgl.engine.prompt import Prompt
from minisgl.engine.scoring import join
from minisgl.lang import ir
from minisgl.lang.backends.base import Answer, Backend
from minisgl.lang.chat_format import ChatFormat
from minisgl.lang.choices import Tokens
from minisgl.lang.context import Context, Shown
from minisgl.sampling import SamplingParams

__all__ = ["Engine", "EngineBackend", "Runtime"]

_chat_format = lru_cache(maxsize=8)(ChatFormat)  # of an engine's one template


class EngineBackend(Backend):
    """Programs run on `engine`.

    Raises:
        ValueError: it is no engine.
    """

    def __init__(self, engine: Engine) -> None:
        if not isinstance(engine, Engine):
            raise ValueError(f"backend={engine!r}: give an Engine, a Runtime or another Backend")
        self.engine = engine
        self.can_see = engine.door.image_reader is not None

    tells_tokens = True

    @property
    def name(self) -> str:
        """As it was given, or "the embedded model"."""
        return self.engine.config.model or "the embedded model"

    @property
    def chat(self) -> ChatFormat:
        """The layout of the model's own template; ValueError if it has none."""
        return _chat_format(self.engine.chat_template)

    async def generate(self, context: Context, params: SamplingParams) -> list[Answer]:
        """See `Backend`."""
        prompt = await asyncio.to_thread(self._prompt, context)
        done = await self.engine.agenerate(prompt, params)
        return [self._answer(c) for c in (done if isinstance(done, list) else [done])]

    async def generate_all(
        self, contexts: Sequence[Context], params: Sequence[SamplingParams]
    ) -> list[list[Answer]]:
        """See `Backend`; one submission, so what they have in common is computed once."""
        prompts = await asyncio.to_thread(lambda: [self._prompt(each) for each in contexts])
        done = await self.engine.agenerate(prompts, list(params))
        assert isinstance(done, list)
        answers = map(self._answer, done)
        return [[next(answers) for _ in range(each.n)] for each in params]

    async def stream(self, context: Context, params: SamplingParams) -> AsyncIterator[Answer]:
        """See `Backend`."""
        prompt = await asyncio.to_thread(self._prompt, context)
        tokens = 0
        async for chunk in self.engine.astream(prompt, params):
            tokens += len(chunk.token_ids)
            if chunk.completion is not None:
                yield self._answer(chunk.completion, chunk.text)
            else:
                meta: dict[str, Any] = {"completion_tokens": tokens, "finish_reason": None}
                if not isinstance(prompt, Prompt):  # what images take is known at the end
                    meta["prompt_tokens"] = len(prompt)
                yield Answer(chunk.text, meta)

    async def score(
        self, context: Context, choices: Sequence[str], *, unconditional: bool
    ) -> tuple[list[Tokens], list[Tokens] | None]:
        """See `Backend`."""
        joined = await asyncio.to_thread(self._join, context, choices)
        start = joined[0][1]  # the same for all choices of one context
        images = await asyncio.to_thread(self._images, context)
        inside = await self._score([ids for ids, _ in joined], start, context.namespace, images)
        alone = [ids[start:] for ids, _ in joined]
        if not unconditional:
            return inside, None
        return inside, await self._score(alone, 0, context.namespace)

    async def cache_prefix(self, context: Context) -> None:
        """See `Backend`.  Without the last token of a text, which is another one as often as not
        once something follows: two line breaks are one token, and two before a word."""
        prompt = await asyncio.to_thread(self._prompt, context)
        if not isinstance(prompt, Prompt):
            prompt = prompt[:-1] or prompt
        params = SamplingParams(max_tokens=0, namespace=context.namespace)
        await self.engine.agenerate(prompt, params)

    def flush_cache(self) -> bool:
        """See `Backend`."""
        return self.engine.flush_cache()

    def info(self) -> dict[str, Any]:
        """See `Backend`."""
        return {"model": self.name, **asdict(self.engine.config), **asdict(self.engine.stats())}

    # ------------------------------------------------------------------ text and tokens

    def _prompt(self, context: Context) -> list[int] | Prompt:
        ids, images = self._encode(context), self._images(context)
        return Prompt(ids, images) if images else ids

    def _encode(self, context: Context) -> list[int]:
        ids = self._ids(context.text, context.quoted)
        if not ids:
            raise ValueError(f"nothing has been said for {self.name} to go on from: add some text")
        return ids

    def _ids(self, text: str, quoted: Sequence[tuple[int, int]]) -> list[int]:
        tokenizer = self.engine.tokenizer
        ids = self.engine.door.encoder.encode(text, add_special_tokens=False, as_text=quoted)
        bos = tokenizer.bos_token_id
        if bos is not None and tokenizer.adds_bos and ids[:1] != [bos]:
            ids.insert(0, bos)  # unless the chat template has printed it
        return ids

    def _images(self, context: Context) -> list[media.Image]:
        """The pictures and videos of a context, each read once, however many calls it is in."""
        reader = self.engine.door.image_reader
        has_video = any(isinstance(medium, ir.Video) for medium in context.media)
        if has_video and (reader is None or reader.video_id is None):
            raise ValueError(f"{self.name} reads images, and no videos")
        return [_image(each) for each in context.shown]

    def _join(self, context: Context, choices: Sequence[str]) -> list[tuple[list[int], int]]:
        """(ids of context and choice, where the scored ones begin) of each."""
        size = len(context.text)

        def encode(text: str) -> list[int]:
            said = context.quoted
            if context.role is not None and len(text) > size:
                said = (*said, (size, len(text)))
            return self._ids(text, said)

        return join(encode, context.text, choices)

    async def _score(
        self,
        texts: Sequence[list[int]],
        start: int,
        namespace: str | None,
        images: Sequence[media.Image] = (),
    ) -> list[Tokens]:
        """The tokens of each text from `start` on, with their log-probabilities.

        A tree of tokens, written as its sorted paths: each asks only for what it does not share
        with the one before it.  All are one submission, so one step sees them all, and everything
        that they share is computed once.

            The answer is | Par | is        asks for "Par", "is"
            The answer is | Par | ma        asks for "ma"
            The answer is | Rome            asks for "Rome"
        """
        paths = sorted({tuple(ids) for ids in texts})
        shared = [start, *(max(start, _common(a, b)) for a, b in pairwise(paths))]
        params = [
            SamplingParams(max_tokens=0, prompt_logprobs_from=n, namespace=namespace)
            for n in shared
        ]
        prompts = [Prompt(path, images) if images else path for path in paths]
        done = await self.engine.agenerate(prompts, params)
        assert isinstance(done, list)
        tokens_of: dict[tuple[int, ...], list[list[Any]]] = {}
        tokens: list[list[Any]] = []
        for path, n, completion in zip(paths, shared, done, strict=True):
            tokens = tokens[: n - start] + self._tokens(completion.prompt_logprobs)
            if start == n == 0:  # nothing comes before the first token, so nothing is known of it
                tokens.insert(0, self._token(path[0], None))
            tokens_of[path] = tokens
        return [tokens_of[tuple(ids)] for ids in texts]

    # ------------------------------------------------------------------ what is told of an answer

    def _answer(self, completion: Completion, text: str | None = None) -> Answer:
        """With the same meta data as in the server's replies."""
        c = completion
        meta: dict[str, Any] = {
            "id": c.request_id,
            "prompt_tokens": c.prompt_tokens,
            "cached_tokens": c.cached_tokens,
            "completion_tokens": c.completion_tokens,
            "completion_tokens_wo_jump_forward": c.forward_passes,
            "finish_reason": _finish_reason(c),
        }
        if c.prompt_logprobs is not None:
            meta["input_token_logprobs"] = self._tokens(c.prompt_logprobs)
            meta["input_top_logprobs"] = self._top(c.prompt_logprobs)
        if c.logprobs is not None:
            meta["output_token_logprobs"] = self._tokens(c.logprobs)
            meta["output_top_logprobs"] = self._top(c.logprobs)
        return Answer(c.text if text is None else text, meta)

    def _tokens(self, told: Sequence[TokenLogprob | None] | None) -> list[list[Any]]:
        return [self._token(t.token_id, t.logprob) for t in told or () if t is not None]

    def _top(self, told: Sequence[TokenLogprob | None]) -> list[list[list[Any]]]:
        return [[self._token(i, lp) for i, lp in t.top] for t in told if t is not None]

    def _token(self, token_id: int, logprob: float | None) -> list[Any]:
        text = self.engine.tokenizer.token_bytes(token_id).decode("utf-8", errors="replace")
        return [logprob, token_id, text]


class Runtime(EngineBackend):
    """An engine of its own, for programs: `set_default_backend(Runtime(model_path="..."))`.

    Args:
        model_path: as for `Engine`; None: the embedded model.
        **settings: the fields of `EngineConfig`.
    """

    def __init__(self, model_path: str | None = None, **settings: Any) -> None:
        super().__init__(Engine(model_path, **settings))

    def shutdown(self) -> None:
        """Close the engine; programs that still run end with an `EngineError`."""
        self.engine.close()

    def __enter__(self) -> Runtime:
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()


def _common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens both begin with; `a` sorts before `b`."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))


def _image(shown: Shown) -> media.Image:
    if "image" not in shown.read:
        match shown.medium:
            case ir.Image(source):
                shown.read["image"] = media.load_image(source)
            case ir.Video(source, num_frames, fps, indices):
                shown.read["image"] = media.load_video(
                    source, num_frames=num_frames, fps=fps, indices=indices
                )
    image: media.Image = shown.read["image"]
    return image


def _finish_reason(completion: Completion) -> dict[str, Any]:
    match completion.finish_reason:
        case "stop":
            return {"type": "stop", "matched": completion.stop_match}
        case "length":
            return {"type": "length", "length": completion.completion_tokens}
        case "abort":
            return {"type": "abort", "message": "the request was aborted"}

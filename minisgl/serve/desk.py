"""`Desk`: where requests are handed to the engine, and answers picked up.

    with await desk.ask(...) as asked:          one HTTP request
        asked.all() / asked.pieces()            n answers to each of its prompts

Whoever stops reading aborts: a client that left, an error in one of several answers, the end of the
server.  So an answer that nobody reads loses its slots at the engine's next step.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from typing import Any, TypeVar

from starlette.concurrency import run_in_threadpool
from starlette.types import Receive

from minisgl.chat_template import ChatTemplate
from minisgl.engine.engine import Engine
from minisgl.engine.handle import Handle
from minisgl.engine.output import Chunk, Completion
from minisgl.engine.prompt import AnyPrompt
from minisgl.media import Limits
from minisgl.sampling import SamplingParams
from minisgl.serve.config import ServeConfig
from minisgl.serve.errors import ApiError, ClientLeft, refusing, unavailable

T = TypeVar("T")
Questions = list[tuple[AnyPrompt, SamplingParams]]


class Desk:
    """What all routes share.

    Args:
        engine: one that runs.
        config: the server's settings.
        chat_template: one to use in place of the model's own.

    Attributes:
        names: what clients may call the model; the first is what answers call it.
        media: what images may be read from.
        closing: whether the server was told to stop; it takes no new questions then.
    """

    def __init__(
        self, engine: Engine, config: ServeConfig, chat_template: ChatTemplate | None = None
    ) -> None:
        self.engine = engine
        self.config = config
        self.model_path = config.served_path or engine.config.model or "SmolLM2-135M-Instruct"
        self.names = config.served_names or (self.model_path,)
        self.media = Limits(
            allow_files=config.image_files,
            allow_http=bool(config.image_hosts),
            allowed_hosts=config.image_hosts or None,
        )
        self.closing = False
        self._chat_template = chat_template
        self._asked: set[Asked] = set()

    @property
    def chat_template(self) -> ChatTemplate:
        """ValueError if there is none."""
        return self._chat_template or self.engine.chat_template

    def check_model(self, name: str | None) -> None:
        """ApiError 404 if this is another model's name."""
        if name is not None and name not in (*self.names, "default"):
            known = ", ".join(self.names)
            raise ApiError(
                404,
                f"there is no model {name!r} here; there is {known}",
                param="model",
                code="model_not_found",
            )

    async def ask(self, make: Callable[[], Questions]) -> Asked:
        """Hand the engine what `make` makes, in a thread: reading prompts takes time.

        Raises:
            ApiError: what `make` or the engine's door refuses (400), or the server ends (503).
        """

        def work() -> list[Handle]:
            with refusing():
                questions = make()
                answers = sum(params.n for _, params in questions)
                if not 1 <= answers <= self.config.max_answers:
                    raise ValueError(
                        f"{answers} answers (prompts times n): from 1 to "
                        f"{self.config.max_answers} are allowed in one request"
                    )
                prompts, params = zip(*questions, strict=True)
                return self.engine.submit_all(list(prompts), list(params))

        asked = Asked(self, await run_in_threadpool(work))
        if self.closing:
            asked.close()
            raise unavailable("the server is shutting down")
        return asked

    def abort_all(self) -> None:
        """Every answer under way ends; its client is told that the server does."""
        for asked in list(self._asked):
            asked.abort()

    def add(self, asked: Asked) -> None:
        """`asked` is under way."""
        self._asked.add(asked)

    def remove(self, asked: Asked) -> None:
        """It is no more."""
        self._asked.discard(asked)


class Asked:
    """The answers that one HTTP request waits for; a context manager that aborts at its end."""

    def __init__(self, desk: Desk, handles: Sequence[Handle]) -> None:
        self.handles = handles
        self._desk = desk
        desk.add(self)

    async def all(self) -> list[Completion]:
        """Every answer, once all are there."""
        return [_whole(await handle) for handle in self.handles]

    async def pieces(self) -> AsyncIterator[tuple[int, Chunk]]:
        """(which answer, a piece of it), as they come; the last of each has its completion."""
        # One place only: a reader that is slow finds the pieces joined in the handles.
        news: asyncio.Queue[tuple[int, Chunk | Exception]] = asyncio.Queue(1)
        readers = [
            asyncio.create_task(_read(i, handle, news)) for i, handle in enumerate(self.handles)
        ]
        try:
            unfinished = len(readers)
            while unfinished:
                i, piece = await news.get()
                if isinstance(piece, Exception):
                    raise piece
                if piece.completion is not None:
                    _whole(piece.completion)
                    unfinished -= 1
                yield i, piece
        finally:
            await _end(readers)

    def abort(self) -> None:
        """End what is unfinished."""
        for handle in self.handles:
            handle.abort()

    def close(self) -> None:
        """Nobody reads any more."""
        self.abort()
        self._desk.remove(self)

    def __enter__(self) -> Asked:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


async def _read(i: int, handle: Handle, news: asyncio.Queue[tuple[int, Chunk | Exception]]) -> None:
    try:
        async for chunk in handle:
            await news.put((i, chunk))
    except Exception as error:
        await news.put((i, error))


def _whole(completion: Completion) -> Completion:
    """An answer that was aborted while somebody reads it: by the server, which ends."""
    if completion.finish_reason == "abort":
        raise unavailable("the server is shutting down; the answer was cut off")
    return completion


async def unless_left(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What `work` returns; it is cancelled, and ClientLeft raised, if the client leaves before."""
    answer = asyncio.create_task(work)
    left = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait((answer, left), return_when=asyncio.FIRST_COMPLETED)
        if answer.done():
            return answer.result()
        raise ClientLeft
    finally:
        await _end([answer, left])


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(tasks: Sequence[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)

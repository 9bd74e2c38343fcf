"""A backend whose answers are a pure function of the text, at whatever speed and with whatever
faults a test wants."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from minisgl.chat_template import ChatTemplate
from minisgl.lang.backends.base import Answer, Backend
from minisgl.lang.chat_format import ChatFormat
from minisgl.lang.choices import Tokens
from minisgl.lang.context import Context
from minisgl.sampling import SamplingParams

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def config_of(template: str) -> dict[str, str]:
    """What a model's tokenizer_config.json says about it."""
    return {"chat_template": template, "bos_token": "<s>", "eos_token": "</s>"}


class Boom(Exception):
    """What a fake backend fails with."""


def words(text: str, n: int, salt: int = 0) -> str:
    """`n` words that depend on every character of `text`."""
    digest = hashlib.sha256(f"{salt}:{text}".encode()).hexdigest() * (1 + n // 16)
    return "".join(f" {digest[4 * i : 4 * i + 4]}" for i in range(n))


class FakeBackend(Backend):
    """Attributes:
    delay: seconds that the call for a text takes.
    fails: whether the call for a text fails.
    calls: (kind, text, params) of each call, in the order of arrival.
    gate: calls wait until it is set.
    """

    name = "fake"

    def __init__(
        self,
        *,
        delay: Callable[[str], float] = lambda _: 0.0,
        fails: Callable[[str], bool] = lambda _: False,
        template: str = CHATML,
        needs_roles: bool = False,
        can_see: bool = False,
    ) -> None:
        self.delay, self.fails = delay, fails
        self.needs_roles, self.can_see = needs_roles, can_see
        self.calls: list[tuple[str, str, Any]] = []
        self.aborted = 0
        self.running = self.most_running = 0
        self.gate = threading.Event()
        self.gate.set()
        self._chat = ChatFormat(ChatTemplate(config_of(template)))

    @property
    def chat(self) -> ChatFormat:
        return self._chat

    def asked(self, kind: str) -> list[str]:
        """The texts of the calls of one kind."""
        return [text for k, text, _ in self.calls if k == kind]

    async def generate(self, context: Context, params: SamplingParams) -> list[Answer]:
        await self._work("generate", context, params)
        return [
            Answer(self.answer(context.text, params, i), {"prompt": context.text, "index": i})
            for i in range(params.n)
        ]

    async def stream(self, context: Context, params: SamplingParams) -> AsyncIterator[Answer]:
        await self._work("stream", context, params)
        text, sent = self.answer(context.text, params), 0
        for size in (1, 2, 3) * (1 + len(text)):
            if sent < len(text):
                piece = text[sent : sent + size]
                sent += len(piece)
                yield Answer(piece, {"sent": sent})
                await asyncio.sleep(0)

    async def score(
        self, context: Context, choices: Sequence[str], *, unconditional: bool
    ) -> tuple[list[Tokens], list[Tokens] | None]:
        await self._work("score", context, tuple(choices))
        inside = [self._tokens(context.text, choice) for choice in choices]
        alone = [self._tokens("", choice) for choice in choices]
        return inside, alone if unconditional else None

    async def cache_prefix(self, context: Context) -> None:
        await self._work("cache_prefix", context, None)

    def flush_cache(self) -> bool:
        self.calls.append(("flush", "", None))
        return True

    @staticmethod
    def answer(text: str, params: SamplingParams, index: int = 0) -> str:
        answer = words(text, min(params.max_tokens or 8, 8), index)
        for stop in params.stop:
            answer = answer.partition(stop)[0]
        return answer

    @staticmethod
    def _tokens(text: str, choice: str) -> list[list[Any]]:
        return [
            [-1 - int(words(text + choice[:i], 1), 16) / 2**14, ord(c), c]
            for i, c in enumerate(choice)
        ]

    async def _work(self, kind: str, context: Context, params: Any) -> None:
        self.calls.append((kind, context.text, params))
        self.running += 1
        self.most_running = max(self.running, self.most_running)
        try:
            while not self.gate.is_set():
                await asyncio.sleep(0.001)
            if seconds := self.delay(context.text):
                await asyncio.sleep(seconds)
            if self.fails(context.text):
                raise Boom(f"no answer to {context.text[-20:]!r}")
        except asyncio.CancelledError:
            self.aborted += 1
            raise
        finally:
            self.running -= 1


def language_threads() -> list[str]:
    """The threads of programs that are alive; an engine's, of another test, is none."""
    names = [thread.name for thread in threading.enumerate()]
    return [n for n in names if n.startswith(("minisgl-l", "minisgl-p", "asyncio_"))]


@contextmanager
def no_thread_stays(seconds: float = 1.0) -> Iterator[None]:
    """The block leaves no thread of a program behind; it may take a moment to end."""
    before = set(threading.enumerate())
    yield
    end = time.monotonic() + seconds
    while left := [t for t in threading.enumerate() if t not in before and "engine" not in t.name]:
        assert time.monotonic() < end, f"still alive: {left}"
        time.sleep(0.002)

"""`PeerBackend`: programs on another system, which gets all requests that wait at once.

    program -- generate -->  queue  -- wave -->  the peer's process
    program -- generate -->         <- answers --

When the peer is free, a thread takes the first request, waits until none has come for `linger`
seconds, or `most` are there, and sends them together.  So programs that go in step are batched, as
a user of the peer would write it by hand; one program alone should run with `linger` 0.
"""

from __future__ import annotations

import asyncio
import queue
import sys
import threading
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from minisgl.chat_template import ChatTemplate
from minisgl.lang.backends.base import Answer, Backend
from minisgl.lang.chat_format import ChatFormat
from minisgl.lang.choices import ChoicesDecision, Tokens
from minisgl.lang.context import Context
from minisgl.lang.ir import Select
from minisgl.lang.stops import cut
from minisgl.models.hub import resolve_model
from minisgl.sampling import SamplingParams
from scripts.bench.peers import SYSTEMS
from scripts.bench.peers.gguf_file import gguf_file
from scripts.bench.peers.process import PeerError, Process

READ_GGUF = ("llama.cpp", "guidance")
# What a request tells a peer; of all other settings only the defaults are allowed.
_KNOWN = ("max_tokens", "temperature", "stop", "ignore_eos", "regex", "no_stop_trim")


@dataclass
class _Request:
    kind: str  # as in child.py
    body: dict[str, Any]
    done: Future[Any] = field(default_factory=Future)


class PeerBackend(Backend):
    """See the module; arguments and errors as for `open_peer`.

    Attributes:
        linger: seconds without a new request after which those that wait are sent.
        most: requests in one wave.
        free_tokens: a peer without patterns answers a `gen` with one by so many tokens of free
            text, which takes as long; None: it refuses.
        waves: how many requests each wave had.
        version: of the system.
        features: of "regex", "score", "choose", what it can do besides generating.
    """

    def __init__(
        self,
        name: str,
        model: str | Path | None = None,
        python: str = sys.executable,
        dtype: str = "auto",
        device: str = "auto",
    ) -> None:
        if name not in SYSTEMS:
            raise ValueError(f"peer {name!r}: there are {', '.join(SYSTEMS)}")
        if dtype not in ("auto", "float32", "bfloat16", "float16"):
            raise ValueError(f"dtype={dtype!r}: give auto, float32, bfloat16 or float16")
        if device not in ("auto", "cpu", "cuda"):
            raise ValueError(f"device={device!r}: give auto, cpu or cuda")
        self._name = name
        self._directory = resolve_model(model)
        self.linger = 0.02
        self.most = 64
        self.free_tokens: int | None = None
        self.waves: list[int] = []
        files = gguf_file(model, dtype) if name in READ_GGUF else self._directory
        self._process = Process(python, [name, str(files), "--dtype", dtype, "--device", device])
        self.version: str = self._process.hello["version"]
        self.features: list[str] = self._process.hello["features"]
        self._queue: queue.SimpleQueue[_Request | None] = queue.SimpleQueue()
        self._lock = threading.Lock()  # nothing is put into the queue after its end
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name=f"peer-{name}", daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        """The system's."""
        return self._name

    @cached_property
    def chat(self) -> ChatFormat:
        """The layout of the model's own template, as our engine's; ValueError if it has none."""
        return ChatFormat(ChatTemplate(self._directory))

    async def generate(self, context: Context, params: SamplingParams) -> list[Answer]:
        """See `Backend`."""
        (answers,) = await self.generate_all([context], [params])
        return answers

    async def generate_all(
        self, contexts: Sequence[Context], params: Sequence[SamplingParams]
    ) -> list[list[Answer]]:
        """See `Backend`; one wave, if `most` allows it."""
        told = await self._ask(*map(self._generation, contexts, params))
        return [[_answer(one, p)] for one, p in zip(told, params, strict=True)]

    async def stream(self, context: Context, params: SamplingParams) -> AsyncIterator[Answer]:
        """See `Backend`; in one piece, at the end."""
        for answer in await self.generate(context, params):
            yield answer

    async def score(
        self, context: Context, choices: Sequence[str], *, unconditional: bool
    ) -> tuple[list[Tokens], list[Tokens] | None]:
        """See `Backend`."""
        if "score" not in self.features:
            return await super().score(context, choices, unconditional=unconditional)
        body = {"choices": list(choices), "unconditional": unconditional}
        (told,) = await self._ask(self._request("score", context, body))
        return told["inside"], told["alone"]

    async def select(self, context: Context, node: Select) -> ChoicesDecision:
        """See `Backend`; a system with a `select` of its own decides its own way."""
        if "choose" not in self.features or len(node.choices) == 1:
            return await super().select(context, node)
        body = {"choices": list(node.choices)}
        (index,) = await self._ask(self._request("choose", context, body))
        return ChoicesDecision(node.choices[index])

    def flush_cache(self) -> bool:
        """See `Backend`; after the wave that is running."""
        request = _Request("flush", {})
        self._send([request])
        return bool(request.done.result())

    def info(self) -> dict[str, Any]:
        """See `Backend`."""
        return {"model": str(self._directory), "system": self._name, "version": self.version}

    def close(self) -> None:
        """End the peer's process, after the wave that is running; what waits fails."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._queue.put(None)
        self._thread.join()
        self._process.close()

    def __enter__(self) -> PeerBackend:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # ------------------------------------------------------------------ requests

    def _generation(self, context: Context, params: SamplingParams) -> _Request:
        """
        Raises:
            ValueError: a setting that this peer has not.
        """
        for f in fields(params):
            value = getattr(params, f.name)
            if f.name not in (*_KNOWN, "namespace") and value != f.default:
                raise ValueError(f"{f.name}={value!r}: a peer is only asked for {_KNOWN}")
        if params.temperature != 0:
            raise ValueError(f"temperature={params.temperature}: peers decode greedily; give 0")
        if not params.max_tokens:
            raise ValueError(f"max_tokens={params.max_tokens}: tell a peer a number above 0")
        body = {
            "max_tokens": params.max_tokens,
            "stop": params.stop,
            "ignore_eos": params.ignore_eos,
            "regex": params.regex,
        }
        if params.regex is not None and "regex" not in self.features:
            if self.free_tokens is None:
                raise ValueError(
                    f"regex={params.regex!r}: {self.name} has no patterns; set free_tokens to let "
                    "it write as many tokens of free text"
                )
            body |= {"max_tokens": self.free_tokens, "ignore_eos": True, "regex": None}
        return self._request("generate", context, body)

    def _request(self, kind: str, context: Context, body: dict[str, Any]) -> _Request:
        if context.shown:
            raise ValueError(f"{self.name} is asked about texts here, not about pictures")
        if not context.text:
            raise ValueError(f"nothing has been said for {self.name} to go on from: add some text")
        return _Request(kind, {"prompt": context.text, **body})

    async def _ask(self, *requests: _Request) -> list[Any]:
        """The answers; what nobody waits for any more is not sent."""
        self._send(requests)
        return await asyncio.gather(*(asyncio.wrap_future(each.done) for each in requests))

    def _send(self, requests: Sequence[_Request]) -> None:
        with self._lock:
            if self._is_closed:
                raise PeerError(f"{self.name} is closed")
            for request in requests:
                self._queue.put(request)

    # ------------------------------------------------------------------ the thread

    def _serve(self) -> None:
        while (first := self._queue.get()) is not None:
            wave, is_last = self._gather(first)
            for kind in dict.fromkeys(request.kind for request in wave):
                self._forward(kind, [request for request in wave if request.kind == kind])
            if is_last:
                break
        while not self._queue.empty():
            if (request := self._queue.get()) is not None:
                request.done.set_exception(PeerError(f"{self.name} is closed"))

    def _gather(self, first: _Request) -> tuple[list[_Request], bool]:
        """The requests that go together, and whether the end has come."""
        wave = [first]
        while len(wave) < self.most:
            try:
                request = self._queue.get(timeout=self.linger)
            except queue.Empty:
                break
            if request is None:
                return wave, True
            wave.append(request)
        return wave, False

    def _forward(self, kind: str, requests: list[_Request]) -> None:
        wanted = [each for each in requests if each.done.set_running_or_notify_cancel()]
        if not wanted:
            return
        try:
            if kind == "flush":
                answers = [self._process.ask(kind="flush")] * len(wanted)
            else:
                self.waves.append(len(wanted))
                answers = self._process.ask(kind=kind, wave=[each.body for each in wanted])
            for request, answer in zip(wanted, answers, strict=True):
                request.done.set_result(answer)
        except Exception as error:  # the programs that asked raise it
            for request in wanted:
                request.done.set_exception(error)


def _answer(told: dict[str, Any], params: SamplingParams) -> Answer:
    """A peer's answer, with what comes after a stop string cut off."""
    text, matched = cut(told["text"], params.stop)
    if matched is not None and params.no_stop_trim:
        text += matched
    reason: dict[str, Any] = {"type": "stop", "matched": matched}
    if matched is None and told["finish_reason"] == "length":
        reason = {"type": "length", "length": told["completion_tokens"]}
    meta = {name: told[name] for name in ("prompt_tokens", "completion_tokens")}
    return Answer(text, {**meta, "finish_reason": reason})

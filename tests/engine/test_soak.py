"""Everything at once for a while: threads, loops, aborts, stops, faults, a pool that is too small.

At the end every slot is free, every request that was submitted has ended exactly once, and every
greedy answer, whole or cut, is the one that the prompt gets alone.
"""

from __future__ import annotations

import asyncio
import gc
import random
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from minisgl import Completion, Engine, SamplingParams
from minisgl.engine.engine import EngineError
from minisgl.engine.handle import Mailbox
from minisgl.engine.req import Req
from tests.engine.common import LONG, assert_all_free, fp32, greedy, in_thread

MOST = 24  # tokens of an answer
POISON = 300  # the token whose embedding is NaN; first in its prompts, so nobody shares them
BAD: list[tuple[Any, dict[str, Any]]] = [
    ("", {}),
    ([], {}),
    ([10**6], {}),
    ([5] * 600, {}),
    ([5], {"stop_token_ids": (4096,)}),
    ([5], {"n": 0}),
    ([5], {"top_p": 1.5}),
]


def prompts(rng: random.Random) -> list[list[int]]:
    """Three dozen that fork from one another, 2 to 60 tokens long."""
    trunk = [rng.randrange(3, 200) for _ in range(40)]
    return [
        trunk[: rng.randrange(1, 41)] + [rng.randrange(3, 200) for _ in range(rng.randrange(1, 21))]
        for _ in range(36)
    ]


class Client:
    """One caller, who does one thing after the other, and judges what comes back."""

    def __init__(self, engine: Engine, alone: dict[tuple[int, ...], Completion], seed: int) -> None:
        self.engine = engine
        self.alone = alone
        self.prompts = [list(p) for p in alone]
        self.rng = random.Random(seed)
        self.did: Counter[str] = Counter()
        self.deck: list[str] = []
        self.decks = 0

    def next_of(self, acts: Sequence[str]) -> Any:
        """All of `acts` in some order, then all of them again in another."""
        if not self.deck:
            self.deck = self.rng.sample(acts, len(acts))
            self.decks += 1
        return getattr(self, self.deck.pop())

    # ------------------------------------------------------------------ what it asks and expects

    def prompt(self) -> list[int]:
        return self.rng.choice(self.prompts)

    def params(self, prompt: Sequence[int]) -> SamplingParams:
        """Greedy; at times with a stop string that the whole answer has."""
        text = self.alone[tuple(prompt)].text.replace("\ufffd", "")
        at = self.rng.randrange(max(1, len(text) - 1))
        stop = text[at : at + 2]
        uses_stop = self.rng.random() < 0.3 and len(stop) == 2
        return greedy(
            self.rng.randrange(MOST + 1),
            stop=(stop,) if uses_stop else (),
            namespace=self.rng.choice([None, None, "a", "b"]),
        )

    def judge(
        self,
        prompt: Sequence[int],
        params: SamplingParams,
        got: Completion,
        may_abort: bool = False,
    ) -> None:
        """Its tokens are the whole answer's first ones, and it ended for the reason it says."""
        whole = self.alone[tuple(prompt)]
        assert got.token_ids == whole.token_ids[: got.completion_tokens]
        assert got.prompt_tokens == len(prompt)
        match got.finish_reason:
            case "length":
                assert got.completion_tokens == params.max_tokens
            case "stop":
                assert got.stop_match == params.stop[0]
                assert got.text == whole.text[: whole.text.index(params.stop[0])]
            case "abort":
                assert may_abort
        self.did[got.finish_reason] += 1

    # ------------------------------------------------------------------ for a thread

    def generates(self) -> None:
        asked = [self.prompt() for _ in range(self.rng.randrange(1, 4))]
        params = [self.params(p) for p in asked]
        answers = self.engine.generate(asked, params)
        for p, s, answer in zip(asked, params, answers, strict=True):
            self.judge(p, s, answer)

    def samples_two(self) -> None:
        params = SamplingParams(n=2, max_tokens=5, seed=self.rng.randrange(9), ignore_eos=True)
        answers = self.engine.generate([self.prompt()], params)
        assert [(a.index, a.completion_tokens) for a in answers] == [(0, 5), (1, 5)]

    def waits_for_a_result(self) -> None:
        p = self.prompt()
        s = self.params(p)
        handle = self.engine.submit(p, s)
        try:
            handle.result(self.rng.random() * 0.01)
        except TimeoutError:
            self.did["timeout"] += 1
        self.judge(p, s, handle.result(LONG))

    def streams(self) -> None:
        p = self.prompt()
        s = self.params(p)
        pieces = list(self.engine.stream(p, s))
        (end,) = [c.completion for c in pieces if c.completion]
        assert "".join(c.text for c in pieces) == end.text
        assert [i for c in pieces for i in c.token_ids] == end.token_ids
        self.judge(p, s, end)

    def aborts(self) -> None:
        p = self.prompt()
        s = self.params(p)
        handle = self.engine.submit(p, s)
        time.sleep(self.rng.choice([0, 0, 0.001, 0.01]))
        for _ in range(self.rng.randrange(1, 3)):
            handle.abort()
        self.judge(p, s, handle.result(LONG), may_abort=True)

    def leaves(self) -> None:
        stream = self.engine.stream(self.prompt(), greedy(MOST))
        for _ in range(self.rng.randrange(3)):
            next(stream, None)
        self.did["left"] += 1

    def makes_a_mistake(self) -> None:
        prompt, settings = self.rng.choice(BAD)
        with pytest.raises(ValueError, match=r"empty|vocabulary|600|n=0|top_p"):
            self.engine.submit(prompt, SamplingParams(**settings))
        self.did["refused"] += 1

    def asks_for_nan(self) -> None:
        p = self.prompt()
        with pytest.raises(EngineError, match="NaN"):
            self.engine.generate([POISON, *p], greedy(3))
        self.did["nan"] += 1

    def looks(self) -> None:
        self.engine.check()
        stats = self.engine.stats()
        assert stats.free_slots + stats.tree_slots + stats.request_slots == stats.pool_slots
        assert self.engine.tree()
        self.engine.flush_cache()

    # ------------------------------------------------------------------ for a coroutine

    async def agenerates(self) -> None:
        asked = [self.prompt() for _ in range(self.rng.randrange(1, 4))]
        params = [self.params(p) for p in asked]
        answers = await self.engine.agenerate(asked, params)
        assert isinstance(answers, list)
        for p, s, answer in zip(asked, params, answers, strict=True):
            self.judge(p, s, answer)

    async def is_cancelled(self) -> None:
        p = self.prompt()
        task = asyncio.ensure_future(self.engine.agenerate([p, self.prompt()], greedy(MOST)))
        await asyncio.sleep(self.rng.choice([0, 0.001, 0.01]))
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        self.did["cancelled"] += task.cancelled()

    async def astreams(self) -> None:
        p = self.prompt()
        s = self.params(p)
        pieces = [chunk async for chunk in self.engine.astream(p, s)]
        (end,) = [c.completion for c in pieces if c.completion]
        assert "".join(c.text for c in pieces) == end.text
        self.judge(p, s, end)

    async def aleaves(self) -> None:
        async for _ in self.engine.astream(self.prompt(), greedy(MOST)):
            break
        self.did["left"] += 1

    async def awaits_handles(self) -> None:
        asked = [self.prompt() for _ in range(3)]
        params = [self.params(p) for p in asked]
        handles = [self.engine.submit(p, s) for p, s in zip(asked, params, strict=True)]
        handles[1].abort()
        for p, s, end in zip(asked, params, await asyncio.gather(*handles), strict=True):
            self.judge(p, s, end, may_abort=True)

    async def asks_for_nan_too(self) -> None:
        with pytest.raises(EngineError, match="NaN"):
            await self.engine.submit([POISON, *self.prompt()[:3]], greedy(3))
        self.did["nan"] += 1


SYNC = [
    "generates", "samples_two", "waits_for_a_result", "streams", "aborts", "aborts", "leaves",
    "makes_a_mistake", "asks_for_nan", "looks",
]  # fmt: skip
ASYNC = [
    "agenerates", "is_cancelled", "is_cancelled", "astreams", "aleaves", "awaits_handles",
    "asks_for_nan_too",
]  # fmt: skip


@pytest.mark.parametrize("requests", [300, pytest.param(2000, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "settings",
    [
        {"kv_tokens": 150, "max_running": 6, "prefill_budget": 20},
        {"kv_tokens": 400, "max_running": 16, "prefix_cache": "none", "decode_workspace": False},
    ],
    ids=["small pool", "no cache"],
)
def test_soak(
    tiny_model_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
    settings: dict[str, Any],
    requests: int,
) -> None:
    path = str(tiny_model_dir)
    with fp32(path) as roomy:
        asked = prompts(random.Random(0))
        alone = {tuple(p): roomy.generate(p, greedy(MOST)) for p in asked}
    submitted: list[Req] = []
    ends: Counter[int] = Counter()
    real_end = Mailbox.end

    def end(box: Mailbox, outcome: Any, *last: Any) -> bool:
        ends[id(box)] += 1
        return real_end(box, outcome, *last)

    monkeypatch.setattr(Mailbox, "end", end)
    with fp32(path, **settings) as engine:
        embed = engine.loop.runner.model.model.embed.weight
        engine.call(lambda: embed[POISON].fill_(float("nan")))
        submit = engine.loop.submit

        def record(reqs: Sequence[Req]) -> None:
            submit(reqs)
            submitted.extend(reqs)

        monkeypatch.setattr(engine.loop, "submit", record)
        clients = [Client(engine, alone, seed) for seed in range(13)]

        def thread(me: Client) -> None:
            while len(submitted) < requests or me.decks < 2:
                me.next_of(SYNC)()

        async def coroutine(me: Client) -> None:
            while len(submitted) < requests or me.decks < 2:
                await me.next_of(ASYNC)()

        async def loop(mine: list[Client]) -> None:
            await asyncio.gather(*map(coroutine, mine))

        def loop_thread(mine: list[Client]) -> None:
            asyncio.run(loop(mine))

        with ExitStack() as threads:
            for me in clients[:3]:
                threads.enter_context(in_thread(partial(thread, me), 10 * LONG))
            for us in (clients[3:8], clients[8:]):
                threads.enter_context(in_thread(partial(loop_thread, us), 10 * LONG))
        gc.collect()
        assert_all_free(engine)
        did = sum((c.did for c in clients), Counter())
        stats = engine.stats()
    assert len(submitted) == stats.requests >= requests
    assert [ends[id(req.mailbox)] for req in submitted] == [1] * len(submitted)
    # All of it happened, not only the easy part.
    for what in ("length", "stop", "abort", "left", "refused", "nan", "cancelled"):
        assert did[what] > 0, f"no {what} in {did}"
    print(f"{len(submitted)} requests: {dict(did)}; {stats}")

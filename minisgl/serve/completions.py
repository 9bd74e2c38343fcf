"""POST /v1/completions: text goes on, as OpenAI's API has it.

choices, whole or in chunks, in the order  prompt 0 answer 0, prompt 0 answer 1, prompt 1 answer 0
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from minisgl.engine.engine import Engine
from minisgl.engine.output import Completion, TokenLogprob
from minisgl.serve.access_log import note
from minisgl.serve.desk import Asked, Desk, Questions, unless_left
from minisgl.serve.errors import JSON
from minisgl.serve.openai_reply import (
    Offsets,
    completion_logprobs,
    head,
    last_visible,
    usage,
    visible,
)
from minisgl.serve.openai_types import CompletionRequest
from minisgl.serve.sse import Events, EventStream
from minisgl.tokenizer import Tokenizer

router = APIRouter()


@dataclass
class Plan:
    """A body, read: what is asked of the engine, and what an answer has to repeat."""

    body: CompletionRequest
    n: int = 1
    prompts: list[list[int]] = field(default_factory=list)
    echoes: list[str] = field(default_factory=list)  # "" each, if nothing is to be repeated

    def read(self, engine: Engine) -> Questions:
        """Encode the prompts; ValueError for what is not allowed."""
        body = self.body
        self.n = 1 if body.n is None else body.n
        best_of = self.n if body.best_of is None else body.best_of
        if best_of < self.n:
            raise ValueError(f"best_of={best_of}: give at least n={self.n}")
        if body.stream and best_of > self.n:
            raise ValueError("best_of: a stream can't take back its first tokens; leave one out")
        if body.stream and body.echo and body.logprobs is not None:
            raise ValueError("echo and logprobs: not in a stream; leave one of the three out")
        params = body.sampling(max_tokens=body.max_tokens, logprobs=body.logprobs)
        if best_of > self.n:
            params = replace(params, n=best_of, logprobs=params.logprobs or 0)
        if body.echo and body.logprobs is not None:
            params = replace(params, prompt_logprobs_from=0)
        for prompt in _as_list(body.prompt):
            ids = engine.door.encode(prompt) if isinstance(prompt, str) else prompt
            self.prompts.append(ids)
            echo = ""
            if body.echo:
                echo = prompt if isinstance(prompt, str) else engine.tokenizer.decode(ids)
            self.echoes.append(echo)
        return [(ids, params) for ids in self.prompts]

    def offsets(self, place: int, tokenizer: Tokenizer) -> list[int]:
        """Where the tokens of a prompt begin in its echo."""
        ids, added, hidden = self.prompts[place], 0, tokenizer.special_ids
        if isinstance(_as_list(self.body.prompt)[place], str):
            # Special tokens that were written show; BOS, which was not, does not.
            added, hidden = int(tokenizer.adds_bos), frozenset()
        offsets = Offsets(tokenizer, hidden, is_start=True)
        return [0] * added + [offsets.of(i) for i in ids[added:]]

    def chosen(self, done: list[Completion]) -> list[Completion]:
        """The n best answers to each prompt, by the mean log-probability of their tokens."""
        most = len(done) // len(self.prompts)
        if most == self.n:
            return done
        groups = [done[i : i + most] for i in range(0, len(done), most)]
        return [one for group in groups for one in sorted(group, key=_mean)[-self.n :][::-1]]


@router.post("/v1/completions")
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Text that goes on from each prompt."""
    desk: Desk = request.app.state.desk
    desk.check_model(body.model)
    request.state.user = body.user
    plan = Plan(body)
    asked = await desk.ask(lambda: plan.read(desk.engine))
    told = head("text_completion", desk.names[0])
    if body.stream:
        return EventStream(asked, _events(asked, plan, told, desk.engine, request))
    with asked:
        done = await unless_left(request.receive, asked.all())
    note(request.state, done)
    choices = [_choice(i, plan, one, desk.engine) for i, one in enumerate(plan.chosen(done))]
    return JSON({**told, "choices": choices, "usage": usage(done)})


def _choice(i: int, plan: Plan, done: Completion, engine: Engine) -> dict[str, Any]:
    echo, logprobs = plan.echoes[i // plan.n], None
    if plan.body.logprobs is not None:
        tokenizer = engine.tokenizer
        answer = visible(done, Offsets.of_answer(tokenizer, plan.body))
        told: list[tuple[int, TokenLogprob | None]] = [(each.token_id, each) for each in answer]
        place = Offsets.of_answer(tokenizer, plan.body, begin=len(echo))
        offsets = [place.of(each.token_id) for each in answer]
        if plan.body.echo:
            prompt = zip(plan.prompts[i // plan.n], done.prompt_logprobs or (), strict=True)
            told = [*prompt, *told]
            offsets = [*plan.offsets(i // plan.n, tokenizer), *offsets]
        logprobs = completion_logprobs(told, tokenizer, offsets)
    return _shown(i, echo + done.text, logprobs, done.finish_reason)


def _shown(i: int, text: str, logprobs: Any, finish_reason: str | None) -> dict[str, Any]:
    return {"index": i, "text": text, "logprobs": logprobs, "finish_reason": finish_reason}


async def _events(
    asked: Asked, plan: Plan, told: dict[str, Any], engine: Engine, request: Request
) -> Events:
    body, tokenizer = plan.body, engine.tokenizer
    same = {**told, "usage": None} if body.includes_usage else told
    places = [Offsets.of_answer(tokenizer, body) for _ in asked.handles]
    done: dict[int, Completion] = {}
    for i, echo in enumerate(e for e in plan.echoes for _ in range(plan.n)):
        if echo:
            yield {**same, "choices": [_shown(i, echo, None, None)]}
    async for i, chunk in asked.pieces():
        logprobs = None
        if chunk.logprobs is not None:
            tokens = chunk.logprobs
            if chunk.completion is not None:
                tokens = last_visible(tokens, chunk.completion, Offsets.of_answer(tokenizer, body))
            pairs = [(each.token_id, each) for each in tokens]
            offsets = [places[i].of(each.token_id) for each in tokens]
            logprobs = completion_logprobs(pairs, tokenizer, offsets)
        if chunk.completion is not None:
            done[i] = chunk.completion
        yield {**same, "choices": [_shown(i, chunk.text, logprobs, chunk.finish_reason)]}
    note(request.state, done.values())
    if body.includes_usage:
        yield {**told, "choices": [], "usage": usage(list(done.values()))}


def _mean(done: Completion) -> float:
    told = done.logprobs or ()
    return statistics.fmean(each.logprob for each in told) if told else 0.0


def _as_list(prompt: str | list[str] | list[int] | list[list[int]]) -> list[str | list[int]]:
    """One prompt, or several, as several.

    >>> _as_list("a"), _as_list([7, 8]), _as_list([[7], [8]])
    (['a'], [[7, 8]], [[7], [8]])
    """
    if isinstance(prompt, str) or all(isinstance(i, int) for i in prompt):
        return [prompt]  # type: ignore[list-item]
    return list(prompt)  # type: ignore[arg-type]

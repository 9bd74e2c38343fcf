"""Figure 9: what programs share: few-shot questions, samples, chats, a tree of thought.

The paper draws four kinds of programs with the parts of their prompts that can be shared.  Here
four small programs run on the engine, and each request is drawn as a row, one token beside the
other: its prompt, and its answer.  What another request has too, from the start, is blue: light
where this request found it in the cache, dark where it was the one that computed it.  Green is
nobody else's, yellow is the answer; dark yellow is an answer that another request has, too: the
next turn of a chat, or a sample that begins alike.

How to read it: light blue is what the radix tree saves.  `shared` counts what rows have in common,
`found in the cache` is the engine's own count; the difference is what had to be computed once, and
the last token of each prompt that was cached to its end, which is computed for its logits.

Nothing is timed and no data is read, so `--quick`, `--rounds` and `--data` change nothing.  Samples
and thoughts are drawn at a temperature, so their texts differ from run to run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from unittest.mock import patch

import minisgl.lang as sgl
from minisgl import svg
from minisgl.cache.tree_node import common_prefix_len
from minisgl.engine.req import Req
from scripts.bench.figures import Options
from scripts.bench.results import Result, Table
from scripts.examples import multi_turn_chat, self_consistency, tree_of_thought

TITLE = "Figure 9: which parts of their prompts programs share"

EXAMPLES = """Say it in one word.
not warm and not hot: cold
a small river: brook
the first meal of the day: breakfast
"""
QUESTIONS = ("a very young dog:", "the day after today:", "not asleep:")
# What a part of a request is -> (fill, stroke, in words)
KINDS = {
    "found": ("#cfe4ff", "#3a7bd5", "shared, found in the cache"),
    "computed": ("#6aa3e8", "#2b5fa8", "shared, computed here"),
    "own": ("#c8f0cd", "#2da44e", "nobody else's"),
    "history": ("#e8b93c", "#9a7400", "answer, shared"),
    "answer": ("#fdf0c2", "#c9a227", "answer"),
}
LEFT, WIDTH, ROW = 12, 940, 20
SLOTS = 8192  # more than all of them need: nothing is evicted


@sgl.function
def few_shot(s: sgl.ProgramState, question: str) -> None:
    """A question after worked examples."""
    s += EXAMPLES + question + sgl.gen("answer", stop="\n", max_tokens=6)


def programs() -> dict[str, Callable[[sgl.Runtime], object]]:
    """What runs, by the names that the paper has for it."""
    greedy: dict[str, Any] = {"temperature": 0.0, "max_tokens": 16}
    drawn = {"temperature": 0.8, "max_tokens": 16}
    question = {"question": tree_of_thought.PROBLEMS[0]["question"]}
    chats = [{"turns": turns} for turns in multi_turn_chat.CHATS]
    asked = [{"question": question} for question in QUESTIONS]
    return {
        "few-shot learning": lambda runtime: few_shot.run_batch(asked, backend=runtime, **greedy),
        "self-consistency": lambda runtime: self_consistency.self_consistency.run(
            n=4, backend=runtime, **question, **drawn
        ),
        "multi-turn chat": lambda runtime: multi_turn_chat.chat.run_batch(
            chats, backend=runtime, **greedy
        ),
        "tree of thought": lambda runtime: tree_of_thought.tree_of_thought.run(
            branches=2, backend=runtime, **question, **drawn
        ),
    }


@dataclass(frozen=True)
class Request:
    """As it was when it ended.

    found: so many tokens of the prompt were cached.
    """

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    found: int

    @property
    def tokens(self) -> tuple[int, ...]:
        """Prompt and answer."""
        return self.prompt + self.answer


class Part(NamedTuple):
    """Tokens [start, stop) of a request, and what they are."""

    kind: str
    start: int
    stop: int


def parts_of(request: Request, shared: int) -> list[Part]:
    """The request from its start to its end; the first `shared` tokens are others' as well.

    >>> [tuple(part) for part in parts_of(Request((1, 2, 3, 4), (5, 6), found=1), shared=3)]
    [('found', 0, 1), ('computed', 1, 3), ('own', 3, 4), ('answer', 4, 6)]
    """
    prompt, end = len(request.prompt), len(request.tokens)
    bounds = {
        "found": request.found,
        "computed": min(shared, prompt),
        "own": prompt,
        "history": shared,
        "answer": end,
    }
    parts, start = [], 0
    for kind, stop in bounds.items():
        if stop > start:
            parts.append(Part(kind, start, stop))
            start = stop
    return parts


def shared_by(requests: Sequence[Request]) -> list[int]:
    """Of each, how many tokens from the start another one has as well."""
    return [
        max(
            (
                common_prefix_len(request.tokens, other.tokens)
                for other in requests
                if other is not request
            ),
            default=0,
        )
        for request in requests
    ]


def watch(runtime: sgl.Runtime, program: Callable[[sgl.Runtime], object]) -> list[Request]:
    """The requests that a program makes, with an empty cache; what is shared stands together.

    It looks over the engine's shoulder, so nobody else may be asking.
    """
    answers, seen = runtime.engine.loop.answers, []
    finish = answers.finish

    def watched_finish(req: Req, *args: Any) -> None:
        seen.append(Request(tuple(req.prompt_ids), tuple(req.output_ids), req.cached_tokens))
        finish(req, *args)

    runtime.flush_cache()
    # Without the hints of batches and forks, which are requests that nobody wants an answer to.
    hints = {"enable_fork_hint": False, "enable_precache_with_tracing": False}
    with (
        patch.multiple(sgl.global_config, **hints),
        patch.object(answers, "finish", watched_finish),
    ):
        program(runtime)
    return sorted(seen, key=lambda request: request.tokens)


def run(options: Options) -> Result:
    """Every program once, drawn and counted."""
    with sgl.Runtime(options.model, device=options.device, kv_tokens=SLOTS) as runtime:
        runs = {name: watch(runtime, program) for name, program in programs().items()}
        tokenizer = runtime.engine.tokenizer

    def decode(ids: Sequence[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=False)

    rows = [row(name, requests) for name, requests in runs.items()]
    prompts, found = (sum(int(r[c]) for r in rows) for c in ("prompt tokens", "found in the cache"))
    return Result(
        tables=[Table.of(rows)],
        notes=[
            f"{found} of {prompts} prompt tokens were found in the cache, {found / prompts:.0%}"
        ],
        pictures={"requests": draw(runs, decode)},
        raw={
            name: [
                {
                    "prompt": " ".join(map(str, r.prompt)),  # in one line of the JSON
                    "answer": " ".join(map(str, r.answer)),
                    "found": r.found,
                    "shared": shared,
                }
                for r, shared in zip(requests, shared_by(requests), strict=True)
            ]
            for name, requests in runs.items()
        },
    )


def row(name: str, requests: Sequence[Request]) -> dict[str, str | int]:
    """Of the table."""
    tokens = dict.fromkeys(KINDS, 0)
    for request, shared in zip(requests, shared_by(requests), strict=True):
        for part in parts_of(request, shared):
            tokens[part.kind] += part.stop - part.start
    prompts = sum(len(request.prompt) for request in requests)
    return {
        "program": name,
        "requests": len(requests),
        "prompt tokens": prompts,
        "shared": tokens["found"] + tokens["computed"],
        "found in the cache": tokens["found"],
        "found, %": 100 * tokens["found"] / prompts,
        "computed": prompts - tokens["found"],
        "answer tokens": tokens["history"] + tokens["answer"],
        "of them shared": tokens["history"],
    }


# ---------------------------------------------------------------------- drawing


def draw(runs: Mapping[str, Sequence[Request]], decode: Callable[[Sequence[int]], str]) -> str:
    """A block of rows for each program, as an SVG file."""
    parts = [svg.text(LEFT, 24, "What requests share, token by token", size=14, bold=True)]
    parts += svg.legend(LEFT, 46, KINDS.values())
    top = 66.0
    for name, requests in runs.items():
        longest = max(len(request.tokens) for request in requests)
        head = f"{name}: {len(requests)} requests, the longest of {longest} tokens"
        parts.append(svg.text(LEFT, top + 14, head, bold=True))
        top += 24
        rows = []
        for request, shared in zip(requests, shared_by(requests), strict=True):
            rows.append(_row(request, shared, decode, WIDTH / longest, top))
            top += ROW
        parts.append(svg.group("program", rows))
        top += 14
    return svg.document(2 * LEFT + WIDTH, top, parts, TITLE)


def _row(
    request: Request, shared: int, decode: Callable[[Sequence[int]], str], scale: float, y: float
) -> str:
    drawn = []
    for part in parts_of(request, shared):
        fill, stroke, what = KINDS[part.kind]
        width = scale * (part.stop - part.start)
        text = decode(request.tokens[part.start : part.stop])
        x = round(LEFT + scale * part.start, 1)
        box = svg.rect(x, y, round(width, 1), ROW - 4, fill, stroke=stroke, radius=2)
        most = int((width - 6) / 6)
        words = [svg.text(x + 3, y + 12, svg.printable(text, most), size=10)] if most > 1 else []
        tip = f"{part.stop - part.start} tokens, {what}: {svg.printable(text, 400)}"
        drawn.append(svg.group(f"part {part.kind}", [box, *words], tip))
    return svg.group("request", drawn)

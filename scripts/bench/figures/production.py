"""A day of a chat service in small: what the cache finds, and what that does for the first token.

The paper (section 6.2) reports two deployments in Chatbot Arena: a hit rate of 52.4 % for
LLaVA-NeXT-34B (images that come again) and of 74.1 % for Vicuna-33B (system prompts, histories),
whose first token came 1.7 times sooner.  Its traces are not public; these are made here.

    chat     a conversation begins with one of five system prompts, some far more popular than
             others (Zipf); each further turn brings the whole history back
    images   one with a picture, half of them with a picture that others ask about too (Zipf)

Conversations arrive at random (Poisson), at `traces.LOAD` times the rate at which one request after
another could be computed without a cache; a person answers after a pause.  Each trace is replayed
at the same moments on an engine with its caches and on one without, of pictures' features neither.
Hit rate: cached over all prompt tokens; it is a property of the trace.  What is measured is what it
buys: the time to the first token, waiting included.

`chat` runs on the model that is asked for, with the turns of MT-Bench (`--data`) or of made-up
towns; `images` on a LLaVA-1.5 with random weights (table 2's), about the pictures of `--data` or
made-up ones.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from minisgl import Engine
from scripts.bench.common import median_ratio
from scripts.bench.figures import Options
from scripts.bench.results import Chart, Result, Table
from scripts.bench.traces import Reply, Trace, chats, sights

TITLE = "A production-like trace: hit rate and time to the first token"
CACHED, UNCACHED = "with caches", "without"
SHARE = 0.25  # of the memory that is free, for an engine's keys and values: there are two


@dataclass
class Measured:
    """Of one trace; replies of each round, by way."""

    trace: Trace
    unit: float
    rounds: dict[str, list[list[Reply]]]

    def first_tokens(self, way: str) -> list[float]:
        """Mean seconds of each round."""
        return [
            statistics.mean(reply.first_token for reply in replies) for replies in self.rounds[way]
        ]

    def hit_rate(self, way: str) -> float:
        """Cached over all prompt tokens, of all rounds."""
        done = [reply.completion for replies in self.rounds[way] for reply in replies]
        return sum(d.cached_tokens for d in done) / sum(d.prompt_tokens for d in done)

    def sooner(self) -> float:
        """How many times sooner the first token comes with caches."""
        return median_ratio(self.first_tokens(UNCACHED), self.first_tokens(CACHED))

    def equal(self) -> int:
        """Answers of the last round that are the same both ways."""
        pairs = zip(*(self.rounds[way][-1] for way in (CACHED, UNCACHED)), strict=True)
        return sum(a.completion.text == b.completion.text for a, b in pairs)

    def rows(self) -> list[dict[str, Any]]:
        """One for each way."""
        rows = []
        for way, rounds in self.rounds.items():
            waits = sorted(reply.first_token for replies in rounds for reply in replies)
            prompts = [reply.completion.prompt_tokens for reply in rounds[0]]
            rows.append(
                {
                    "trace": self.trace.name,
                    "engine": way,
                    "conversations": len(self.trace.talks),
                    "requests": len(prompts),
                    "tokens of a prompt": statistics.mean(prompts),
                    "hit rate": f"{self.hit_rate(way):.1%}",
                    "first token, mean s": statistics.median(self.first_tokens(way)),
                    "median s": statistics.median(waits),
                    "90 % within s": waits[int(0.9 * (len(waits) - 1))],
                    "times sooner": median_ratio(
                        self.first_tokens(UNCACHED), self.first_tokens(way)
                    ),
                }
            )
        return rows


def measure(trace: Trace, options: Options) -> Measured:
    """Both ways in turn."""
    settings = {**trace.settings, "kv_memory_fraction": SHARE}
    without = {**settings, "prefix_cache": "none", "vision_cache_mib": 0}
    with Engine(**settings) as cached, Engine(**without) as uncached:
        trace.unit(cached)  # warm up
        unit = trace.unit(uncached)
        rounds: dict[str, list[list[Reply]]] = {CACHED: [], UNCACHED: []}
        for _ in range(options.rounds):
            for way, engine in ((CACHED, cached), (UNCACHED, uncached)):
                rounds[way].append(trace.replay(engine, unit))
    return Measured(trace, unit, rounds)


def run(options: Options) -> Result:
    """Both traces."""
    with tempfile.TemporaryDirectory() as scratch:
        found = [measure(t, options) for t in (chats(options), sights(options, Path(scratch)))]
    names = [each.trace.name for each in found]
    return Result(
        tables=[Table.of([row for each in found for row in each.rows()], "Two traces")],
        charts=[
            Chart(
                "bars", "Mean time to the first token", "", "seconds", names,
                {
                    way: [statistics.median(each.first_tokens(way)) for each in found]
                    for way in (CACHED, UNCACHED)
                },
            ),
        ],
        notes=[
            f"{each.trace.name}: hit rate {each.hit_rate(CACHED):.1%}, first token "
            f"{each.sooner():.2f} times sooner; {each.equal()} of {len(each.rounds[CACHED][-1])} "
            f"answers equal; one request alone took {each.unit:.2f} s without a cache"
            for each in found
        ],
        raw={each.trace.name: raw(each) for each in found},
    )  # fmt: skip


def raw(measured: Measured) -> dict[str, Any]:
    """Every value of a trace: one for each request, by way and round."""

    def by_way(value: Callable[[Reply], float]) -> dict[str, list[list[float]]]:
        return {
            way: [[value(reply) for reply in replies] for replies in rounds]
            for way, rounds in measured.rounds.items()
        }

    return {
        "unit seconds": measured.unit,
        "arrivals": [talk.at for talk in measured.trace.talks],
        "first token seconds": by_way(lambda reply: reply.first_token),
        "cached tokens": by_way(lambda reply: reply.completion.cached_tokens),
        "prompt tokens": by_way(lambda reply: reply.completion.prompt_tokens),
    }

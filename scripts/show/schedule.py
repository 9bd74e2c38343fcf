"""Watch the scheduler at work, without a model: what a step would compute is taken as done.

    python -m scripts.show.schedule mixed docs/pictures/schedule.svg
    python -m scripts.show.schedule tight docs/pictures/retract.svg

Two stories.  `mixed`: a long prompt in chunks beside an answer that goes on, two requests that
arrive together and compute what they share once, and a prompt that is known already.  `tight`: two
requests in a pool that can't hold both, so that the later one steps back and comes again.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from minisgl import SamplingParams
from minisgl.cache.kv_pool import KVPool
from minisgl.cache.req_to_token import ReqToToken
from minisgl.engine.req import Req
from minisgl.engine.scheduler import Scheduler
from minisgl.engine.step import Step
from minisgl.engine.trace import Times, Trace
from scripts.show.trace import draw, load


def make_request(i: int, prompt: Sequence[int], max_tokens: int) -> Req:
    """Request number `i`; it ends after `max_tokens`.  Numbers rise with arrival."""
    text = None  # nobody reads the answer
    return Req(list(prompt), SamplingParams(), max_tokens, frozenset(), 0, detokenizer=text, id=i)


def make_scheduler(slots: int, *, max_running: int = 8, **settings: Any) -> Scheduler:
    """A scheduler whose pool has `slots` of the smallest possible size."""
    pool = KVPool(slots, 1, num_kv_heads=1, head_dim=1, dtype=torch.float32, device="cpu")
    return Scheduler(pool, ReqToToken(max_running, slots + 1, "cpu"), **settings)


def simulate(
    scheduler: Scheduler, arrivals: Mapping[int, Sequence[Req]], trace: Trace | None = None
) -> list[Step]:
    """Run until everything that arrives (step number -> requests) is answered; the steps."""
    steps: list[Step] = []

    def finish(req: Req) -> None:
        scheduler.finish(req)
        if trace is not None:
            trace.end(req, "length")

    while not scheduler.is_idle or len(steps) < max(arrivals):
        start = time.perf_counter()
        for req in arrivals.get(len(steps) + 1, ()):
            req.submitted_at = start
            scheduler.submit(req)
        step = scheduler.next_step()
        for req in scheduler.stuck:  # alone, and larger than the pool
            finish(req)
        steps.append(step)
        asked = step.decodes + [extend.req for extend in step.extends if extend.is_last]
        scheduler.after_step(step)
        for req in asked:
            req.output_ids.append(-1 - req.id)  # nobody else says that
            if len(req.output_ids) == req.max_tokens:
                finish(req)
        scheduler.check()
        if step and trace is not None:
            now = time.perf_counter()
            trace.step(step, Times(start, now, now, now, now), scheduler)
    return steps


def mixed() -> tuple[Scheduler, dict[int, list[Req]]]:
    """A scheduler, and what arrives before which step."""
    examples, question = list(range(100, 112)), range(28)
    return make_scheduler(160, prefill_budget=8, max_running=3), {
        1: [make_request(1, range(50, 56), 16)],
        3: [make_request(2, question, 5)],
        9: [make_request(3, [*examples, 1, 2], 8), make_request(4, [*examples, 3, 4], 6)],
        14: [make_request(5, question, 4)],
    }


def tight() -> tuple[Scheduler, dict[int, list[Req]]]:
    """Two requests of 16 prompt tokens, each of which will write 60, in a pool of 100."""
    first, second = make_request(1, range(16), 60), make_request(2, range(20, 36), 60)
    return make_scheduler(100), {1: [first, second]}


STORIES = {"mixed": mixed, "tight": tight}


def picture(story: str) -> str:
    """A story as an SVG file."""
    scheduler, arrivals = STORIES[story]()
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "trace.json"
        trace = Trace(file)
        simulate(scheduler, arrivals, trace)
        trace.close()
        return draw(load(file), by="step")


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("story", choices=sorted(STORIES))
    parser.add_argument("file", type=Path, help="the SVG file to write")
    args = parser.parse_args(argv)
    args.file.write_text(picture(args.story), encoding="utf-8")
    print(f"written: {args.file}")


if __name__ == "__main__":
    main()

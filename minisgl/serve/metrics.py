"""GET /metrics: what Prometheus reads, in its text format, version 0.0.4.

All numbers are the engine's own (`Stats`); this file names them.
https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterator

from minisgl.engine.stats import Histogram, Stats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

COUNTERS = {
    "requests": "Requests submitted to the engine.",
    "prompt_tokens": "Prompt tokens of requests that have ended.",
    "cached_tokens": "Of the prompt tokens, those found in the radix cache.",
    "output_tokens": "Tokens of answers.",
    "steps": "Steps of the engine.",
    "retractions": "Times that a running request gave its memory back and waited again.",
    "busy_seconds": "Seconds of work.",
    "images": "Images of prompts that were not in the radix cache.",
    "encoded_images": "Of the images, those that the vision tower ran for.",
}
GAUGES = {
    "waiting": "Requests in the queue.",
    "running": "Requests that prefill or decode.",
    "hit_rate": "Cached over all prompt tokens, since the start.",
    "pool_slots": "Slots of the KV pool, one for each token it can hold.",
    "free_slots": "Of the slots, those that hold nothing.",
    "tree_slots": "Of the slots, those of the radix tree.",
    "locked_slots": "Of the tree's slots, those that running requests read.",
    "request_slots": "Of the slots, those that running requests computed.",
    "vision_bytes": "Bytes of image features that are kept.",
}
HISTOGRAMS = {
    "first_token": "Seconds from submission to the first token.",
    "inter_token": "Seconds between two forward passes that gave a request tokens.",
}


def render(stats: Stats) -> str:
    """`stats` as Prometheus reads them."""
    lines: list[str] = []
    for kind, names, suffix in (("counter", COUNTERS, "_total"), ("gauge", GAUGES, "")):
        for name, what in names.items():
            full = f"minisgl_{name}{suffix}"
            lines += [f"# HELP {full} {what}", f"# TYPE {full} {kind}"]
            lines.append(f"{full} {getattr(stats, name)}")
    for name, what in HISTOGRAMS.items():
        full = f"minisgl_{name}_seconds"
        lines += [f"# HELP {full} {what}", f"# TYPE {full} histogram"]
        lines += _histogram(full, getattr(stats, name))
    return "\n".join(lines) + "\n"


def _histogram(name: str, histogram: Histogram) -> Iterator[str]:
    """Buckets are cumulative there.

    >>> print(*_histogram("t", Histogram((0.1, 1.0), (2, 0, 1), 5.15)), sep="\\n")
    t_bucket{le="0.1"} 2
    t_bucket{le="1.0"} 2
    t_bucket{le="+Inf"} 3
    t_sum 5.15
    t_count 3
    """
    below = 0
    for bound, count in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
        below += count
        yield f'{name}_bucket{{le="{bound}"}} {below}'
    yield f"{name}_sum {histogram.sum}"
    yield f"{name}_count {below}"

"""GET /metrics: what the router counts, as Prometheus reads it.  The workers have their own."""

from __future__ import annotations

from minisgl.router.fleet import Fleet

COUNTERS = {
    "requests": "Requests sent to the worker.",
    "retries": "Requests that the worker could not answer: it was full, or lost.",
    "lost": "Times that a connection to the worker was refused or cut.",
    "prompt_tokens": "Tokens of prompts that the worker answered, as the router reads them.",
    "believed_tokens": "Of these, those that the router believed the worker to have cached.",
    "told_prompt_tokens": "Tokens of prompts, from answers that tell of their usage.",
    "told_cached_tokens": "Of these, those that the worker had cached.",
}


def render(fleet: Fleet) -> str:
    """All of it."""
    lines: list[str] = []

    def add(name: str, kind: str, what: str, values: dict[int, float]) -> None:
        lines.extend([f"# HELP {name} {what}", f"# TYPE {name} {kind}"])
        lines.extend(f'{name}{{worker="{w}"}} {value:g}' for w, value in values.items())

    numbers = [worker.number for worker in fleet.workers]
    for name, what in COUNTERS.items():
        counted = {w: float(fleet.counts[name, w]) for w in numbers}
        add(f"minisgl_router_{name}_total", "counter", what, counted)
    seats, sizes = fleet.balancer.seats, fleet.balancer.tree.sizes
    up = {w: float(w in seats) for w in numbers}
    add("minisgl_router_up", "gauge", "Whether the worker can be asked.", up)
    load = {w: seats[w].load if w in seats else 0.0 for w in numbers}
    add("minisgl_router_load_tokens", "gauge", "Tokens that it has to compute.", load)
    believed = {w: float(sizes.get(w, 0)) for w in numbers}
    add("minisgl_router_tree_tokens", "gauge", "Tokens it is believed to have cached.", believed)
    prompt = sum(fleet.counts["told_prompt_tokens", w] for w in numbers)
    cached = sum(fleet.counts["told_cached_tokens", w] for w in numbers)
    for name, value, what in (
        ("hit_rate", cached / prompt if prompt else 0.0, "Cached over all prompt tokens, as told."),
        ("imbalance", fleet.imbalance, "The greatest load over the mean one."),
    ):
        full = f"minisgl_router_{name}"
        lines += [f"# HELP {full} {what}", f"# TYPE {full} gauge", f"{full} {value:g}"]
    return "\n".join(lines) + "\n"

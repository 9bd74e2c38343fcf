"""What the page at /ui draws: the radix tree, the queue and the batch, between two steps.

On the engine thread, so that the picture is one of one moment; bounded, so that it costs little.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from minisgl.cache.tree_node import TreeNode
from minisgl.engine.engine import Engine
from minisgl.engine.images import show
from minisgl.engine.req import Req

MOST_NODES = 400
MOST_REQS = 64
PREVIEW_TOKENS = 32


def picture(engine: Engine) -> dict[str, Any]:
    """The state of `engine` now, as JSON."""
    return engine.call(lambda: _draw(engine))


def _draw(engine: Engine) -> dict[str, Any]:
    scheduler, tokenizer = engine.loop.scheduler, engine.tokenizer

    def decode(ids: Sequence[int]) -> str:
        return tokenizer.decode(ids, skip_special_tokens=False)

    def preview(tokens: Sequence[int]) -> str:
        return show(tokens[:PREVIEW_TOKENS], decode)

    nodes: list[dict[str, Any]] = []
    number: dict[TreeNode, int] = {}
    for node in scheduler.tree.root.below():
        if len(nodes) == MOST_NODES:
            break
        number[node] = len(nodes)
        nodes.append(
            {
                "parent": number.get(node.parent, -1) if node.parent else -1,
                "text": preview(node.key),
                "tokens": len(node.key),
                "ref_count": node.ref_count,
                "last_used": node.last_used,
            }
        )

    def shown(req: Req) -> dict[str, Any]:
        return {
            "id": req.id,
            "prompt": preview(req.prompt_ids[-PREVIEW_TOKENS:]),
            "answer": req.detokenizer.text[-80:],
            "prompt_tokens": len(req.prompt_ids),
            "cached_tokens": req.cached_tokens,
            "computed": req.kv_len,
            "output_tokens": len(req.output_ids),
            "overtakes": req.overtakes,
        }

    stats = engine.loop.stats()
    waiting = [req for req, _ in zip(scheduler.waiting, range(MOST_REQS), strict=False)]
    return {
        "nodes": nodes,
        "more_nodes": sum(1 for _ in scheduler.tree.root.below()) - len(nodes),
        "waiting": [shown(req) for req in waiting],
        "prefilling": [shown(req) for req in scheduler.prefilling][:MOST_REQS],
        "running": [shown(req) for req in scheduler.running][:MOST_REQS],
        "stats": {
            "requests": stats.requests,
            "waiting": stats.waiting,
            "running": stats.running,
            "hit_rate": stats.hit_rate,
            "tokens_per_second": stats.tokens_per_second,
            "steps": stats.steps,
            "pool_slots": stats.pool_slots,
            "free_slots": stats.free_slots,
            "tree_slots": stats.tree_slots,
            "locked_slots": stats.locked_slots,
            "request_slots": stats.request_slots,
        },
    }

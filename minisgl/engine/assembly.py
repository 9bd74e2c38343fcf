"""From a loaded share of a model to the runner of it: which of the ways to compute fits here."""

from __future__ import annotations

import sys

from minisgl.config import EngineConfig
from minisgl.engine.cuda_graph import CudaGraphRunner
from minisgl.engine.decode_workspace import DecodeWorkspace
from minisgl.engine.model_runner import ModelRunner
from minisgl.engine.ranks import ParallelGraphs, ParallelModel, Ranks
from minisgl.engine.req import Req
from minisgl.engine.scheduler import Scheduler
from minisgl.engine.segments import tokens_worth_sharing
from minisgl.engine.share import Share
from minisgl.engine.tp_channel import Channel
from minisgl.engine.vision_cache import VisionCache
from minisgl.kernels.dispatch import use_triton
from minisgl.models.llava import LlavaForConditionalGeneration


def make_runner(
    config: EngineConfig, share: Share, ranks: Ranks, vocab_size: int, *, progress: bool = False
) -> ModelRunner:
    """The runner of rank 0, with its scheduler.

    Args:
        vocab_size: tokens that exist; the model's vocabulary may be padded.
    """
    net, pool, window = share.net, share.pool, share.config.sliding_window
    scheduler = Scheduler(
        pool,
        share.req_to_token,
        policy=config.policy,
        max_overtakes=config.max_overtakes,
        prefill_budget=config.prefill_budget,
        prefix_cache=config.prefix_cache,
        max_hit_rate=config.max_hit_rate,
        max_cached_tokens=config.max_cached_tokens,
    )
    workspace: DecodeWorkspace[Req] | None = None
    # Triton reads scattered slots at full speed; and all ranks run the same ForwardBatch.
    if (
        config.decode_workspace
        and not use_triton(pool.layers[0])
        and not window
        and config.tp_size == 1
    ):
        dtype = share.placement.dtype
        # As many bytes as the pool, whose numbers may be narrower.
        budget = pool.num_slots * pool.layers[0].itemsize // dtype.itemsize
        group = share.config.num_heads // share.config.num_kv_heads
        workspace = DecodeWorkspace(pool.layers, budget, dtype, group)
    graphs = None
    if config.cuda_graphs and share.placement.device.type == "cuda":
        graphs = CudaGraphRunner(net, pool, share.req_to_token.table, config.max_running)
        if progress:
            print(graphs, file=sys.stderr)  # noqa: T201  # asked for
    vision = None
    if isinstance(net, LlavaForConditionalGeneration):
        vision = VisionCache(net.encode_images, share.memory.vision)
    min_saved = None
    if config.shared_decode and not window:
        min_saved = tokens_worth_sharing(pool.layers[0])
    if config.tp_size == 1:
        return ModelRunner(net, scheduler, workspace, graphs, vocab_size, min_saved, vision)
    channel = Channel(ranks.parallel, share)
    ranks.attach(channel)
    return ModelRunner(
        ParallelModel(net, channel, ranks),
        scheduler,
        workspace,
        None if graphs is None else ParallelGraphs(graphs, channel, ranks),
        vocab_size,
        min_saved,
        vision,
    )

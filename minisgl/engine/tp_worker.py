"""A tensor-parallel rank other than 0: it computes what rank 0 computes, with its own heads.

It has no scheduler, no tree and no door: rank 0 sends each `ForwardBatch` (tp_channel.py), and the
collectives inside of the model do the rest.  Rank 0 starts it (ranks.py), or `torchrun` does:

    torchrun --nproc-per-node 4 -m minisgl.serve --model DIR --tp-size 4
"""

from __future__ import annotations

import json
import os
import sys
import threading
import traceback
from pathlib import Path

import torch
import torch.distributed as dist

from minisgl.config import EngineConfig
from minisgl.engine.cuda_graph import CudaGraphRunner
from minisgl.engine.ranks import CLOSED, is_collective, join, join_torchrun, open_store
from minisgl.engine.share import load_share
from minisgl.engine.tp_channel import Channel, Replay
from minisgl.models.hub import resolve_model
from minisgl.parallel import Parallel


def main() -> None:
    """As rank 0 of the same host wants it: its orders are the first line of standard input."""
    orders = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_rank_0, daemon=True).start()
    store = open_store(orders["port"])
    rank, config = orders["rank"], EngineConfig(**orders["config"])
    try:
        store.set(f"here/{rank}", "")
        work(config, Path(orders["path"]), join(store, rank, config), rank)
    except BaseException as error:
        if is_collective(error):  # somebody else has ended, and rank 0 says who
            sys.exit(0 if store.check([CLOSED]) else 1)
        store.set(f"fault/{rank}", "".join(traceback.format_exception_only(error)).strip())
        raise


def work_under_torchrun(config: EngineConfig) -> None:
    """What a process of `torchrun` that is not rank 0 does until rank 0 is closed."""
    parallel, local_rank = join_torchrun(config)
    path = resolve_model(config.model, weights=not config.is_dummy)
    work(config, path, parallel, local_rank)
    dist.destroy_process_group()


@torch.inference_mode()
def work(config: EngineConfig, path: Path, parallel: Parallel, local_rank: int) -> None:
    """Load this rank's share, then compute whatever rank 0 sends until it says stop."""
    share = load_share(config, path, parallel, local_rank=local_rank)
    graphs = None
    if config.cuda_graphs and share.placement.device.type == "cuda":
        table = share.req_to_token.table
        graphs = CudaGraphRunner(share.net, share.pool, table, config.max_running)
    channel = Channel(parallel, share)
    while (step := channel.receive()) is not None:
        if isinstance(step, Replay):
            assert graphs is not None
            graphs.decode(step.ids, step.positions, step.rows)
        else:
            share.net(step)


def _end_with_rank_0() -> None:
    """Rank 0 holds the other end of standard input, which ends when rank 0 is closed or gone.
    subtle: a buffered read would hold a lock that the interpreter, when it ends, aborts without."""
    while os.read(sys.stdin.fileno(), 4096):
        pass
    os._exit(0)  # from wherever it waits


if __name__ == "__main__":
    main()

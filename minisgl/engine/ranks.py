"""Tensor parallelism, seen from rank 0: the other ranks, how they start, and how they end.

    rank 0    Engine: door, scheduler, tree --> ParallelModel ==Channel==> ranks 1 .. N-1
                                                  |                        tp_worker.py: the same
                                                  '--> logits              ForwardBatch, other heads

On one host rank 0 starts the others as processes of its own; under `torchrun`, which may span
hosts, they are there already.  A rank that ends takes the engine with it, and says why; ranks whose
engine ends, however it ends, end too.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from minisgl.config import EngineConfig
from minisgl.engine.cuda_graph import CudaGraphRunner
from minisgl.engine.output import EngineError
from minisgl.engine.tp_channel import Channel
from minisgl.models.forward_batch import ForwardBatch
from minisgl.parallel import Parallel

PATIENCE = 5.0  # seconds in which a process that has nothing more to do has ended
CLOSED = "closed"  # what the store says once rank 0 ends the others
_FOREVER = timedelta(days=365)  # an idle engine's ranks wait for its next step
_HOST = "127.0.0.1"


class Ranks:
    """The ranks of one engine; of most engines only rank 0, and then all of this is nothing.

    Raises:
        ValueError: another engine of this process has ranks already, `torchrun` started another
            number of processes than `tp_size`, or this one is not its rank 0.
        EngineError: a rank ended instead of starting, and why.
    """

    def __init__(self, config: EngineConfig, path: Path) -> None:
        self.parallel = Parallel()
        self.local_rank = 0
        self._processes: list[subprocess.Popen[str]] = []
        self._channel: Channel | None = None
        self._store: Any = None  # what a rank has said before it could talk otherwise
        self._is_broken = False  # nobody can be sure what the others wait for
        self._ended: list[int] = []  # ranks, in the order of their ends
        size = config.tp_size
        if size == 1:
            return
        if dist.is_initialized():
            raise ValueError(f"tp_size={size}: one engine of a process at a time can have ranks")
        if is_helper():
            raise ValueError(
                f"this is rank {os.environ['RANK']} of torchrun's, and only rank 0 has an engine: "
                "call minisgl.engine.tp_worker.work_under_torchrun(config) in the others"
            )
        if under_torchrun():
            self.parallel, self.local_rank = join_torchrun(config)
            return
        self._store = open_store()
        try:
            for rank in range(1, size):
                process = _start(rank, config, path, self._store.port)
                self._processes.append(process)
                threading.Thread(target=self._watch, args=(rank, process), daemon=True).start()
            self._await(f"here/{rank}" for rank in range(1, size))
            self.parallel = join(self._store, 0, config)
        except BaseException:
            self.close()
            raise

    def attach(self, channel: Channel) -> None:
        """What this rank computes from now on, the others are told through `channel`."""
        self._channel = channel

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """A block that all ranks compute.  If a rank is lost in it, that is the error: which one
        ended first, and why."""
        try:
            yield
        except BaseException as error:
            self._is_broken = True
            if is_collective(error):
                raise self._reason(error) from error
            raise

    def _reason(self, error: BaseException) -> EngineError:
        deadline = time.monotonic() + PATIENCE
        while self._processes and time.monotonic() < deadline:
            if self._ended:
                return EngineError(self._obituary())
            time.sleep(0.01)
        return EngineError(f"the tensor-parallel ranks lost each other: {error}")

    def close(self) -> None:
        """End the other ranks, and wait for that."""
        if self.parallel.size == 1 and not self._processes:
            return
        if self._channel is not None and not self._processes and not self._is_broken:
            with contextlib.suppress(RuntimeError):  # they have ended already
                self._channel.send_stop()
        if self._processes:
            self._store.set(CLOSED, "")  # a rank may see others end before it reads that it is to
        for process in self._processes:
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()  # which ends it, whatever it is doing
        deadline = time.monotonic() + PATIENCE
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes = []
        if self.parallel.size > 1:
            dist.destroy_process_group()
            self.parallel = Parallel()
        self._store = None

    def _await(self, keys: Iterable[str]) -> None:
        """Until all of `keys` are written; a rank may end instead."""
        for key in keys:
            while not self._store.check([key]):
                if self._ended:
                    raise EngineError(self._obituary())
                time.sleep(0.01)

    def _watch(self, rank: int, process: subprocess.Popen[str]) -> None:
        process.wait()
        self._ended.append(rank)  # those that miss it end later

    def _obituary(self) -> str:
        rank = self._ended[0]
        key, code = f"fault/{rank}", self._processes[rank - 1].returncode
        how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        said = ""
        if self._store is not None and self._store.check([key]):
            said = f": {self._store.get(key).decode()}"
        return f"tensor-parallel rank {rank} {how}{said}"


class ParallelModel:
    """Rank 0's share of a model; whatever it computes, the other ranks compute with it."""

    def __init__(self, net: nn.Module, channel: Channel, ranks: Ranks) -> None:
        self.net = net
        self.channel = channel
        self.ranks = ranks

    def __call__(self, batch: ForwardBatch) -> torch.Tensor:
        """`batch` -> logits [L, V], the same on every rank."""
        with self.ranks.together():
            self.channel.send_batch(batch)
            logits: torch.Tensor = self.net(batch)
            return logits


class ParallelGraphs:
    """The recorded decode steps of all ranks."""

    def __init__(self, graphs: CudaGraphRunner, channel: Channel, ranks: Ranks) -> None:
        self.graphs = graphs
        self.channel = channel
        self.ranks = ranks

    def decode(
        self, ids: Sequence[int], positions: Sequence[int], rows: Sequence[int | None]
    ) -> torch.Tensor:
        """See `CudaGraphRunner.decode`."""
        with self.ranks.together():
            self.channel.send_replay(ids, positions, rows)
            return self.graphs.decode(ids, positions, rows)


def open_store(port: int = 0) -> Any:
    """The `TCPStore` of this host's ranks: a new one, or the one at `port`."""
    is_new = port == 0
    store: Any = dist.TCPStore(  # type: ignore[attr-defined]
        _HOST, port, is_master=is_new, wait_for_workers=False
    )
    return store


def is_collective(error: BaseException) -> bool:
    """Whether ranks that talk have failed, and not what one of them computes."""
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith("torch.distributed")


def under_torchrun() -> bool:
    """Whether `torchrun` started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def is_helper() -> bool:
    """Whether it started this process as another than rank 0."""
    return under_torchrun() and os.environ["RANK"] != "0"


def join_torchrun(config: EngineConfig) -> tuple[Parallel, int]:
    """This process's place among those that `torchrun` started, and its number on this host."""
    world = int(os.environ["WORLD_SIZE"])
    if world != config.tp_size:
        raise ValueError(
            f"tp_size={config.tp_size}, but torchrun started {world} processes: give one for each"
        )
    from torch.distributed.rendezvous import rendezvous  # a PyTorch may be built without it

    store, rank, _ = next(rendezvous("env://"))
    return join(store, rank, config), int(os.environ.get("LOCAL_RANK", rank))


def join(store: Any, rank: int, config: EngineConfig) -> Parallel:
    """Meet the other ranks."""
    on_gpus = config.device != "cpu" and torch.cuda.is_available()
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_gpus else "gloo",
        store=store,
        rank=rank,
        world_size=config.tp_size,
    )
    control = dist.new_group(backend="gloo", timeout=_FOREVER)
    return Parallel(rank, config.tp_size, dist.group.WORLD, control)


def _start(rank: int, config: EngineConfig, path: Path, port: int) -> subprocess.Popen[str]:
    """Start a rank.  Its standard input says what it is to do, and ends when we end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "minisgl.engine.tp_worker"],
        stdin=subprocess.PIPE,
        text=True,
        start_new_session=True,  # Ctrl-C is for us, who will end it
    )
    assert process.stdin is not None
    orders = {
        "rank": rank,
        "port": port,
        "path": str(path),
        "config": {**asdict(config), "trace": None},
    }
    with contextlib.suppress(OSError):  # it has ended already, which `_await` will see
        process.stdin.write(json.dumps(orders) + "\n")
        process.stdin.flush()
    return process

"""Decode steps as CUDA graphs: hundreds of kernel launches become one.

A decode step of a small batch is over sooner on the GPU than Python can launch its kernels.  A CUDA
graph is the launches of one step, recorded once and replayed by a single call: the same kernels, on
the same addresses, with the same grids.  What changes from step to step must therefore lie in
buffers that stay where they are, and lengths are read by the kernels, never by the host.

    graph of size 4      inputs [4, 4]                      3 requests decode, 1 row is padding
        ids              917   30   11    0
        positions         41    7  902    0
        rows               2    0    5    0
        seq_lens          42    8  903    0   <- 0: attends to nothing, writes the padding slot

One graph for each of the batch sizes 1, 2, 4, 8, 16, 24, ...; a step takes the next larger one.
All graphs share one memory pool, since only one of them runs at a time; the largest is recorded
first, so that the others fit into what it took.  Steps with prompt tokens or with shared segments
run without a graph.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from minisgl.cache.kv_pool import KVPool
from minisgl.engine.transfer import on_host
from minisgl.models.forward_batch import ForwardBatch

Capture = Callable[[Callable[[], None]], Callable[[], None]]
"""Records what a function launches, and returns the function that launches it again."""


def batch_sizes(most: int) -> list[int]:
    """The batch sizes to record, so that less than half of the rows, or at most 7, are padding.

    >>> batch_sizes(20), batch_sizes(1)
    ([1, 2, 4, 8, 16, 20], [1])
    """
    return [size for size in (1, 2, 4, *range(8, most, 8)) if size < most] + [most]


@dataclass(frozen=True)
class DecodeGraph:
    """One recorded step.  inputs [4, size]: ids, positions, rows, seq_lens of the requests."""

    inputs: torch.Tensor
    replay: Callable[[], None]


class CudaGraphRunner:
    """Records the decode step of `model` at every batch size up to `most`, and replays it.

    Args:
        pool, table: where keys and values are, and the slot of every position ([R, C] int32).
        capture: how a step is recorded; None: with CUDA graphs.
    """

    def __init__(
        self,
        model: nn.Module,
        pool: KVPool,
        table: torch.Tensor,
        most: int,
        capture: Capture | None = None,
    ) -> None:
        self.model = model
        self.pool = pool
        self.table = table
        self.device = table.device
        self.sizes = batch_sizes(most)
        start, free = time.perf_counter(), _free_memory(self.device)
        self._record_all(capture or _cuda_capture())
        self.seconds = time.perf_counter() - start
        self.bytes = free - _free_memory(self.device)

    def __str__(self) -> str:
        return (
            f"recorded the decode step at {len(self.sizes)} batch sizes up to {self.sizes[-1]}: "
            f"{self.seconds:.1f} s, {self.bytes / 2**20:,.0f} MiB"
        )

    def decode(
        self, ids: Sequence[int], positions: Sequence[int], rows: Sequence[int | None]
    ) -> torch.Tensor:
        """Logits [B, V] of the next token of B <= `most` requests.

        `rows` are those of the slot table, in which `positions` have a slot already.  The result is
        overwritten by the next call.
        """
        n = len(ids)
        graph = self.graphs[bisect_left(self.sizes, n)]
        padding = [0] * (graph.inputs.shape[1] - n)
        columns = (ids, positions, rows, [p + 1 for p in positions])
        host = on_host([[*column, *padding] for column in columns], torch.int64, self.device)
        graph.inputs.copy_(host, non_blocking=True)
        graph.replay()
        return self.logits[:n]

    @torch.inference_mode()
    def _record_all(self, capture: Capture) -> None:
        # Not a part of any graph: the next one may overwrite whatever lies in the shared memory.
        most = self.sizes[-1]
        like = self.forward(self._inputs(most)[:, :most])
        self.logits = torch.empty_like(like, memory_format=torch.contiguous_format)  # [most, V]
        recorded = [self._record(size, capture) for size in reversed(self.sizes)]
        self.graphs = recorded[::-1]

    def _record(self, size: int, capture: Capture) -> DecodeGraph:
        inputs = self._inputs(size)

        def step() -> None:
            self.logits[:size].copy_(self.forward(inputs[:, :size]))

        return DecodeGraph(inputs, capture(step))

    def _inputs(self, size: int) -> torch.Tensor:
        # An even width: every row starts at a multiple of 16 bytes (see transfer.py).
        return torch.zeros((4, size + size % 2), dtype=torch.int64, device=self.device)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """The step that is recorded: inputs [4, B] (ids, positions, rows, seq_lens), all on the
        device -> logits [B, V].  A request of length 0 is padding."""
        ids, positions, rows, seq_lens = inputs
        slots = self.table[rows, positions].to(torch.int64)
        slots.masked_fill_(seq_lens == 0, self.pool.padding_slot)
        logits: torch.Tensor = self.model(
            ForwardBatch(
                input_ids=ids,
                positions=positions,
                out_slots=slots,
                logit_rows=None,
                pool=self.pool.layers,
                req_to_token=self.table,
                num_paged=len(ids),
                decode_rows=rows,
                decode_seq_lens=seq_lens,
            )
        )
        return logits


def _cuda_capture() -> Capture:
    """Records into CUDA graphs that share one memory pool."""
    memory, stream = torch.cuda.graph_pool_handle(), torch.cuda.Stream()

    def capture(step: Callable[[], None]) -> Callable[[], None]:
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            step()  # compiles and loads the kernels, which must not happen while recording
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        # thread_local: another engine of this process may allocate memory meanwhile
        with torch.cuda.graph(graph, memory, stream, capture_error_mode="thread_local"):
            step()
        return graph.replay

    return capture


def _free_memory(device: torch.device) -> int:
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else 0

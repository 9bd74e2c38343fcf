"""How rank 0 hands a step to the other tensor-parallel ranks.

    header    control group   int64, fixed size   kind, lengths of everything that follows
    writes    control group   [3, W]              rows, positions, slots: news of `ReqToToken`
    numbers   model's group   [sum of lengths]    the step's integer tensors, one after the other
    features  model's group   [M, hidden]         of images, if there are any

The control group is Gloo's, on the host, and waits for as long as an engine is idle; the model's
group is NCCL's on GPUs, so that what is on the device stays there.  Nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
import torch.distributed as dist

from minisgl.engine.share import Share
from minisgl.engine.transfer import ALIGNMENT
from minisgl.kernels.cascade_attention import Segments
from minisgl.models.forward_batch import ForwardBatch
from minisgl.parallel import Parallel

STOP, BATCH, REPLAY = range(3)
_TENSORS = (
    "input_ids", "positions", "out_slots", "logit_rows", "decode_rows", "decode_seq_lens",
    "extend_rows", "prefix_lens", "cu_seqlens", "image_rows",
)  # fmt: skip
_COUNTS = ("num_paged", "max_extend_len")
_SEGMENT_TENSORS = tuple(f.name for f in fields(Segments) if f.type == "torch.Tensor")
_SEGMENT_COUNTS = ("num_depths", "max_members")
_REPLAY = ("ids", "positions", "rows")
_ABSENT = -1
_UNIT = ALIGNMENT // 8  # int64s


@dataclass(frozen=True)
class Replay:
    """A decode step that is recorded as a CUDA graph: see `CudaGraphRunner.decode`."""

    ids: list[int]
    positions: list[int]
    rows: list[int]


class Channel:
    """One end of the way; rank 0 sends, the others receive, in the same order."""

    def __init__(self, parallel: Parallel, share: Share) -> None:
        assert parallel.control is not None and parallel.group is not None
        self.control, self.group = parallel.control, parallel.group
        self.traffic = parallel.traffic
        self.device, self.dtype = share.placement.device, share.placement.dtype
        self.slots, self.pool = share.req_to_token, share.pool.layers
        if parallel.rank == 0:
            self.slots.keep_journal()

    # ------------------------------------------------------------------ rank 0

    def send_batch(self, batch: ForwardBatch) -> None:
        """Every rank gets `batch`, but for what each has of its own."""
        given = [getattr(batch, name) for name in _TENSORS]
        counts = [getattr(batch, name) for name in _COUNTS]
        segments = batch.decode_segments
        given += [getattr(segments, name, None) for name in _SEGMENT_TENSORS]
        counts += [getattr(segments, name, _ABSENT) for name in _SEGMENT_COUNTS]
        features = batch.image_features
        size = [0, 0] if features is None else list(features.shape)
        self._send_header(BATCH, _lengths(given), counts, size)
        numbers = [_padded(x.to(torch.int64)) for x in given if x is not None]
        dist.broadcast(torch.cat(numbers), 0, self.group)
        if features is not None:
            self.traffic.broadcast += features.nbytes
            dist.broadcast(features.contiguous(), 0, self.group)

    def send_replay(
        self, ids: Sequence[int], positions: Sequence[int], rows: Sequence[int | None]
    ) -> None:
        """Every rank replays the graph of this decode step."""
        given = [torch.tensor(x, dtype=torch.int64) for x in (ids, positions, rows)]
        self._send_header(REPLAY, _lengths(given), [], [0, 0])
        dist.broadcast(torch.cat(given), 0, self.control)

    def send_stop(self) -> None:
        """The other ranks end."""
        self._send_header(STOP, [], [], [0, 0])

    def _send_header(
        self, kind: int, lengths: list[int], counts: list[int], features: list[int]
    ) -> None:
        writes = self.slots.take_journal()
        header = [kind, len(writes), *features]
        header += lengths + [_ABSENT] * (len(_TENSORS + _SEGMENT_TENSORS) - len(lengths))
        header += counts + [_ABSENT] * (len(_COUNTS + _SEGMENT_COUNTS) - len(counts))
        dist.broadcast(torch.tensor(header), 0, self.control)
        if writes:
            triples = [(row, position, slot) for (row, position), slot in writes.items()]
            dist.broadcast(torch.tensor(triples), 0, self.control)

    # ------------------------------------------------------------------ the others

    def receive(self) -> ForwardBatch | Replay | None:
        """What rank 0 sent next; None: stop.  Waits for it, and keeps `slots` up to date."""
        header = torch.empty(_HEADER_SIZE, dtype=torch.int64)
        dist.broadcast(header, 0, self.control)
        kind, num_writes, M, hidden, *rest = header.tolist()
        lengths, counts = rest[:_NUM_TENSORS], rest[_NUM_TENSORS:]
        if num_writes:
            triples = torch.empty((num_writes, 3), dtype=torch.int64)
            dist.broadcast(triples, 0, self.control)
            rows, positions, slots = triples.to(self.device).unbind(1)
            self.slots.table[rows, positions] = slots.to(torch.int32)
        if kind == STOP:
            return None
        if kind == REPLAY:
            return self._receive_replay(lengths)
        return self._receive_batch(lengths, counts, M, hidden)

    def _receive_batch(
        self, lengths: list[int], counts: list[int], M: int, hidden: int
    ) -> ForwardBatch:
        sizes = [_padded_length(n) for n in lengths if n != _ABSENT]
        numbers = torch.empty(sum(sizes), dtype=torch.int64, device=self.device)
        dist.broadcast(numbers, 0, self.group)
        pieces = iter(numbers.split(sizes))
        names = _TENSORS + _SEGMENT_TENSORS
        found = {
            name: next(pieces)[:n] for name, n in zip(names, lengths, strict=True) if n != _ABSENT
        }
        count = dict(zip(_COUNTS + _SEGMENT_COUNTS, counts, strict=True))
        segments = None
        if count["num_depths"] != _ABSENT:
            tensors = {name: found.pop(name).to(torch.int32) for name in _SEGMENT_TENSORS}
            segments = Segments(**tensors, **{name: count[name] for name in _SEGMENT_COUNTS})  # type: ignore[arg-type]
        features = None
        if M:
            features = torch.empty((M, hidden), dtype=self.dtype, device=self.device)
            dist.broadcast(features, 0, self.group)
        given: dict[str, Any] = {"logit_rows": None, **found}
        return ForwardBatch(
            **given,
            **{name: count[name] for name in _COUNTS},  # type: ignore[arg-type]
            decode_segments=segments,
            image_features=features,
            pool=self.pool,
            req_to_token=self.slots.table,
        )

    def _receive_replay(self, lengths: list[int]) -> Replay:
        sizes = lengths[: len(_REPLAY)]
        numbers = torch.empty(sum(sizes), dtype=torch.int64)
        dist.broadcast(numbers, 0, self.control)
        return Replay(*(piece.tolist() for piece in numbers.split(sizes)))


_NUM_TENSORS = len(_TENSORS + _SEGMENT_TENSORS)
_HEADER_SIZE = 4 + _NUM_TENSORS + len(_COUNTS + _SEGMENT_COUNTS)


def _lengths(tensors: Sequence[torch.Tensor | None]) -> list[int]:
    return [_ABSENT if x is None else len(x) for x in tensors]


def _padded_length(n: int) -> int:
    """So that the next tensor is aligned as the one that `transfer.send` makes."""
    return -(-n // _UNIT) * _UNIT


def _padded(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(x, (0, _padded_length(len(x)) - len(x)))

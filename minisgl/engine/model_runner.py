"""From a `Step` to logits: build the `ForwardBatch`, keep the workspace, run the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Protocol

import torch

from minisgl.engine.decode_workspace import DecodeWorkspace
from minisgl.engine.req import Req
from minisgl.engine.scheduler import Scheduler
from minisgl.engine.segments import Segment, find_segments, pack
from minisgl.engine.step import Extend, Step
from minisgl.engine.transfer import send
from minisgl.engine.vision_cache import VisionCache
from minisgl.kernels.cascade_attention import Segments
from minisgl.models.forward_batch import ForwardBatch


class DecodeGraphs(Protocol):
    """Recorded decode steps; see cuda_graph.py."""

    def decode(
        self, ids: Sequence[int], positions: Sequence[int], rows: Sequence[int | None]
    ) -> torch.Tensor:
        """Logits [B, V] of the next tokens."""


class ModelRunner:
    """One model on one device."""

    def __init__(
        self,
        model: Callable[[ForwardBatch], torch.Tensor],
        scheduler: Scheduler,
        workspace: DecodeWorkspace[Req] | None,
        graphs: DecodeGraphs | None = None,
        vocab_size: int | None = None,
        min_saved: int | None = None,
        vision: VisionCache | None = None,
    ) -> None:
        self.model = model
        self.scheduler = scheduler
        self.workspace = workspace  # on a CPU
        self.graphs = graphs  # on a GPU
        self.vocab_size = vocab_size  # tokens that exist: a model's vocabulary may be padded
        self.min_saved = min_saved  # see `find_segments`; None: nothing is shared in decode
        self.vision = vision  # None: a model that reads text only
        self.device = scheduler.pool.layers[0].device
        self._present: list[Req] = []  # decoded in the last step, or kept a row; what they share:
        self._segments: list[Segment[Req]] = []
        self._packed: Segments | None = None  # for the kernel, where there is no workspace

    @torch.inference_mode()
    def forward(self, step: Step) -> tuple[list[Req], torch.Tensor, torch.Tensor]:
        """The requests whose next token can be sampled, and their logits [B, V], row for row; and
        those [M, V] of the prompts' positions that are wanted (`Extend.prompt_rows`)."""
        seated = self._seat(step)
        if self.vision is not None:
            self.vision.trim()
        if self.graphs is not None and not step.extends and not self._segments:
            reqs = step.decodes
            logits = self.graphs.decode(
                ids=[req.output_ids[-1] for req in reqs],
                positions=[req.kv_len for req in reqs],
                rows=[req.row for req in reqs],
            )
        else:
            runs, paged = _in_order(step, seated)
            reqs = [run.req for run in runs if run.is_last]
            logits = self.model(self._batch(runs, len(seated), paged))
        logits = logits[:, : self.vocab_size]
        return reqs, logits[: len(reqs)], logits[len(reqs) :]

    @torch.inference_mode()
    def scrub(self, req: Req) -> None:
        """`req` failed with NaN: what it computed must not be read again, not even as padding."""
        if self.workspace is not None:
            self.workspace.scrub(req)
        if self.vision is not None:
            self.vision.drop(req)

    @torch.inference_mode()
    def rest(self) -> None:
        """Nobody runs: give back what was kept for those who did."""
        self._seat(Step([], []))
        if self.vision is not None:
            self.vision.trim()

    def flush(self) -> None:
        """Forget what is kept of images."""
        if self.vision is not None:
            self.vision.flush()

    def check(self) -> None:
        """Verify the decode workspace and the vision cache, where there are such."""
        if self.workspace is not None:
            self.workspace.check()
        if self.vision is not None:
            self.vision.check()

    def _seat(self, step: Step) -> list[Req]:
        """Those of the step whose tokens attend in the workspace, in its order."""
        left, self.scheduler.left = self.scheduler.left, []
        present = step.decodes
        if self.workspace is not None:
            for req in left:
                self.workspace.leave(req)
            for e in step.extends:
                self.workspace.cut(e.req, e.start)
            # Who jumps is prefilled again, and keeps its row.
            present = present + [req for req in self.scheduler.prefilling if req in self.workspace]
        if present != self._present:
            self._regroup(present)
        if self.workspace is None:
            return []
        return self.workspace.plan(set(step.decodes), {e.req: len(e) for e in step.extends})

    def _regroup(self, present: list[Req]) -> None:
        """Requests started or stopped decoding: what do they share now?"""
        nodes = {req: req.node for req in present if req.node is not None}
        rows = {req: req.row for req in present if req.row is not None}
        had = {segment.node for segment in self._segments}
        self._present = present
        self._segments = []
        if present and self.min_saved is not None:
            self._segments = find_segments(nodes, self.min_saved, had)
        self._packed = None
        if self.workspace is not None:
            table = self.scheduler.req_to_token.table
            slots = {req: table[row, : req.kv_len] for req, row in rows.items()}
            self.workspace.arrange(slots, self._segments)
        elif self._segments:
            self._packed = pack(self._segments, present, list(rows.values()), self.device)

    def _batch(self, runs: Sequence[Extend], seated: int, paged: int) -> ForwardBatch:
        """Of the `runs`, the first `seated` are in the workspace, and the next `paged` decode."""
        ids: list[int] = []
        positions: list[int] = []
        rows: list[int | None] = []
        logit_rows: list[int] = []
        prompt_rows: list[int] = []
        for run in runs:
            prompt_rows += [len(ids) - run.start + p for p in run.prompt_rows]
            ids += run.req.tokens_between(run.start, run.stop)
            positions += range(run.start, run.stop)
            rows += [run.req.row] * len(run)
            if run.is_last:
                logit_rows.append(len(ids) - 1)
        wanted = logit_rows + prompt_rows
        num_seated = sum(map(len, runs[:seated]))
        decodes, extends = runs[seated : seated + paged], runs[seated + paged :]
        image_rows, image_features = self._images(extends, num_seated + paged)
        for i in image_rows:
            ids[i] = 0  # any token: the image's feature takes the place of its embedding
        (
            input_ids,
            position,
            row,
            logit_row,
            decode_rows,
            decode_seq_lens,
            extend_rows,
            prefix_lens,
            cu_extends,
            image_row,
        ) = send(
            self.device,
            torch.int64,
            ids,
            positions,
            rows,
            wanted,
            [run.req.row for run in decodes],
            [run.stop for run in decodes],
            [run.req.row for run in extends],
            [run.start for run in extends],
            list(accumulate(map(len, extends), initial=0)),
            image_rows,
        )
        table = self.scheduler.req_to_token.table
        return ForwardBatch(
            input_ids=input_ids,
            positions=position,
            out_slots=table[row, position].to(torch.int64),
            logit_rows=None if wanted == list(range(len(ids))) else logit_row,
            pool=self.scheduler.pool.layers,
            req_to_token=table,
            num_seated=num_seated,
            num_paged=paged,
            decode_rows=decode_rows,
            decode_seq_lens=decode_seq_lens,
            decode_segments=self._packed,
            workspace=self.workspace,
            extend_rows=extend_rows,
            prefix_lens=prefix_lens,
            cu_seqlens=cu_extends,
            max_extend_len=max(map(len, extends), default=0),
            image_rows=image_row if image_rows else None,
            image_features=image_features,
        )

    def _images(
        self, extends: Sequence[Extend], first: int
    ) -> tuple[list[int], torch.Tensor | None]:
        """The rows of the step that are images' tokens, and their features [M, hidden].

        A chunk may begin or end within an image, and so may a cached prefix.  `first`: the row with
        which the first extend begins.
        """
        rows: list[int] = []
        wanted, parts = [], []
        for e in extends:
            for span in e.req.images:
                start, stop = max(span.start, e.start), min(span.stop, e.stop)
                if start < stop:
                    rows += range(first + start - e.start, first + stop - e.start)
                    wanted.append((e.req, span))
                    parts.append(slice(start - span.start, stop - span.start))
            first += len(e)
        if not wanted:
            return rows, None
        assert self.vision is not None, "the door lets no image through to a model without eyes"
        features = self.vision.features(wanted)
        return rows, torch.cat([x[part] for x, part in zip(features, parts, strict=True)])


def _in_order(step: Step, seated: Sequence[Req]) -> tuple[list[Extend], int]:
    """The step's tokens as a `ForwardBatch` has them: the `seated` requests', decodes that read the
    pool, extends that do; and how many of the second there are."""
    # Of the requests seated, no logits of their prompts are wanted any more, so that those wanted
    # come in the order of `step.extends`.
    extends = {e.req: e for e in step.extends}
    is_seated = set(seated)
    runs = [extends.get(req) or Extend.next_token(req) for req in seated]
    decodes = [Extend.next_token(req) for req in step.decodes if req not in is_seated]
    runs += decodes
    runs += [e for e in step.extends if e.req not in is_seated]
    return runs, len(decodes)

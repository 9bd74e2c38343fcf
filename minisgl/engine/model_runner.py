"""From a `Step` to logits: build the `ForwardBatch`, keep the workspace, run the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from minisgl.engine.decode_workspace import DecodeWorkspace
from minisgl.engine.req import Req
from minisgl.engine.scheduler import Extend, Scheduler, Step
from minisgl.engine.segments import Segment, find_segments, pack
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
        self._decodes: list[Req] = []  # of the last step, and what they share
        self._segments: list[Segment[Req]] = []
        self._packed: Segments | None = None  # for the kernel, where there is no workspace

    @torch.inference_mode()
    def forward(self, step: Step) -> tuple[list[Req], torch.Tensor, torch.Tensor]:
        """The requests whose next token can be sampled, and their logits [B, V], row for row; and
        those [M, V] of the prompts' positions that are wanted (`Extend.prompt_rows`)."""
        decodes = self._order(step.decodes)
        if self.vision is not None:
            self.vision.trim()
        reqs = decodes + [e.req for e in step.extends if e.is_last]
        if self.graphs is not None and not step.extends and not self._segments:
            logits = self.graphs.decode(
                ids=[req.output_ids[-1] for req in decodes],
                positions=[req.kv_len for req in decodes],
                rows=[req.row for req in decodes],
            )
        else:
            logits = self.model(self._batch(decodes, step))
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
        self._order([])
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

    def _order(self, decodes: list[Req]) -> list[Req]:
        """Those in the workspace first, in its order; then the rest."""
        left, self.scheduler.left = self.scheduler.left, []
        if self.workspace is not None:
            for req in left:
                self.workspace.leave(req)
        if decodes != self._decodes:
            self._regroup(decodes)
        if self.workspace is None:
            return decodes
        return self.workspace.plan(decodes) + [req for req in decodes if req not in self.workspace]

    def _regroup(self, decodes: list[Req]) -> None:
        """Requests started or stopped decoding: what do they share now?"""
        nodes = {req: req.node for req in decodes if req.node is not None}
        rows = {req: req.row for req in decodes if req.row is not None}
        present = {segment.node for segment in self._segments}
        self._decodes = decodes
        self._segments = []
        if decodes and self.min_saved is not None:
            self._segments = find_segments(nodes, self.min_saved, present)
        self._packed = None
        if self.workspace is not None:
            table = self.scheduler.req_to_token.table
            slots = {req: table[row, : req.kv_len] for req, row in rows.items()}
            self.workspace.arrange(slots, self._segments)
        elif self._segments:
            self._packed = pack(self._segments, decodes, list(rows.values()), self.device)

    def _batch(self, decodes: list[Req], step: Step) -> ForwardBatch:
        ids = [req.output_ids[-1] for req in decodes]
        positions = [req.kv_len for req in decodes]
        rows = [req.row for req in decodes]
        logit_rows = list(range(len(decodes)))
        prompt_rows: list[int] = []
        cu_seqlens = [0]
        image_rows, image_features = self._images(step.extends, len(decodes))
        for e in step.extends:
            prompt_rows += [len(ids) - e.start + p for p in e.prompt_rows]
            ids += e.req.tokens[e.start : e.stop]
            positions += range(e.start, e.stop)
            rows += [e.req.row] * (e.stop - e.start)
            cu_seqlens.append(cu_seqlens[-1] + e.stop - e.start)
            if e.is_last:
                logit_rows.append(len(ids) - 1)
        for i in image_rows:
            ids[i] = 0  # any token: the image's feature takes the place of its embedding

        seated = 0
        if self.workspace is not None:
            seated = sum(req in self.workspace for req in decodes)
        paged = decodes[seated:]
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
            logit_rows + prompt_rows,
            [r.row for r in paged],
            [r.kv_len + 1 for r in paged],
            [e.req.row for e in step.extends],
            [e.start for e in step.extends],
            cu_seqlens,
            image_rows,
        )
        table = self.scheduler.req_to_token.table
        return ForwardBatch(
            input_ids=input_ids,
            positions=position,
            out_slots=table[row, position].to(torch.int64),
            logit_rows=logit_row if step.extends else None,
            pool=self.scheduler.pool.layers,
            req_to_token=table,
            num_decode=len(decodes),
            num_paged=len(paged),
            decode_rows=decode_rows,
            decode_seq_lens=decode_seq_lens,
            decode_segments=self._packed,
            workspace=self.workspace,
            extend_rows=extend_rows,
            prefix_lens=prefix_lens,
            cu_seqlens=cu_extends,
            max_extend_len=max((e.stop - e.start for e in step.extends), default=0),
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
            first += e.stop - e.start
        if not wanted:
            return rows, None
        assert self.vision is not None, "the door lets no image through to a model without eyes"
        features = self.vision.features(wanted)
        return rows, torch.cat([x[part] for x, part in zip(features, parts, strict=True)])

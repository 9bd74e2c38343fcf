"""From a `Step` to logits: build the `ForwardBatch`, keep the workspace, run the model."""

from __future__ import annotations

import torch
from torch import nn

from minisgl.engine.cuda_graph import CudaGraphRunner
from minisgl.engine.decode_workspace import DecodeWorkspace
from minisgl.engine.req import Req
from minisgl.engine.scheduler import Scheduler, Step
from minisgl.engine.segments import Segment, find_segments, pack
from minisgl.engine.transfer import send
from minisgl.kernels.cascade_attention import Segments
from minisgl.models.forward_batch import ForwardBatch


class ModelRunner:
    """One model on one device."""

    def __init__(
        self,
        model: nn.Module,
        scheduler: Scheduler,
        workspace: DecodeWorkspace[Req] | None,
        graphs: CudaGraphRunner | None = None,
        vocab_size: int | None = None,
        min_saved: int | None = None,
    ) -> None:
        self.model = model
        self.scheduler = scheduler
        self.workspace = workspace  # on a CPU
        self.graphs = graphs  # on a GPU
        self.vocab_size = vocab_size  # tokens that exist: a model's vocabulary may be padded
        self.min_saved = min_saved  # see `find_segments`; None: nothing is shared in decode
        self.device = scheduler.pool.layers[0].device
        self._decodes: list[Req] = []  # of the last step, and what they share
        self._segments: list[Segment[Req]] = []
        self._packed: Segments | None = None  # for the kernel, where there is no workspace

    @torch.inference_mode()
    def forward(self, step: Step) -> tuple[list[Req], torch.Tensor, torch.Tensor]:
        """The requests whose next token can be sampled, and their logits [B, V], row for row; and
        those [M, V] of the prompts' positions that are wanted (`Extend.prompt_rows`)."""
        decodes = self._order(step.decodes)
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

    @torch.inference_mode()
    def rest(self) -> None:
        """Nobody runs: give back what was kept for those who did."""
        self._order([])

    def check(self) -> None:
        """Verify the decode workspace, if there is one."""
        if self.workspace is not None:
            self.workspace.check()

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
        for e in step.extends:
            prompt_rows += [len(ids) - e.start + p for p in e.prompt_rows]
            ids += e.req.tokens[e.start : e.stop]
            positions += range(e.start, e.stop)
            rows += [e.req.row] * (e.stop - e.start)
            cu_seqlens.append(cu_seqlens[-1] + e.stop - e.start)
            if e.is_last:
                logit_rows.append(len(ids) - 1)

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
        )

"""Recorded decode steps on interpreted Triton kernels: the bits of steps that ran eagerly."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

pytest.importorskip("triton")

from minisgl import Engine
from minisgl.engine import cuda_graph
from minisgl.kernels.dispatch import INTERPRETED
from scripts.make_tiny_model import make_tiny_model
from tests.engine.recorded_graph import RecordedGraphs
from tests.kernels.strict_interpreter import relaxed

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="needs TRITON_INTERPRET=1")


def test_a_padded_replay_gives_the_bits_of_an_eager_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One graph of size 4 serves batches of 3 and of 1, and lengths from 1 to the whole context."""
    monkeypatch.setattr(cuda_graph, "batch_sizes", lambda most: [most])
    path = make_tiny_model(
        tmp_path / "m",
        dtype=torch.bfloat16,
        num_layers=1,
        vocab_size=300,
        hidden_size=32,
        intermediate_size=32,
    )
    with Engine(str(path), dtype="bfloat16", context_length=16, kv_tokens=64) as engine:
        runner, scheduler = engine.loop.runner, engine.loop.scheduler
        table = scheduler.req_to_token.table
        table[:4] = torch.arange(64).view(4, 16).int()
        # The rows of padding write one slot, and nobody reads it: a race that does no harm.
        with relaxed(races=False), torch.inference_mode():
            graphs = cuda_graph.CudaGraphRunner(
                runner.model, scheduler.pool, table, 4, RecordedGraphs()
            )
            for layer in scheduler.pool.layers:
                layer.normal_()
                layer[scheduler.pool.padding_slot] = float("nan")
            for rows, positions in [([3, 0, 1], [0, 15, 7]), ([2], [9])]:
                ids = [11 + position for position in positions]
                inputs = torch.tensor([ids, positions, rows, [p + 1 for p in positions]])
                eager = graphs.forward(inputs)
                replayed = graphs.decode(ids, positions, rows)
                assert torch.isfinite(replayed).all()
                assert torch.equal(replayed, eager)

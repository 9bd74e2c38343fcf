"""Decode steps under graphs: the tokens of the eager engine, whatever the batch and its padding.

There is no GPU here, so the steps are recorded by tests/engine/recorded_graph.py; the interpreted
kernels have their turn in tests/kernels/test_graph_decode.py, and CUDA in scripts/gpu_check.py.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from minisgl import Engine, SamplingParams
from minisgl.engine import cuda_graph
from minisgl.engine.cuda_graph import CudaGraphRunner, batch_sizes
from minisgl.engine.model_runner import ModelRunner
from minisgl.engine.step import Step
from minisgl.kernels import decode_attention
from minisgl.kernels.dispatch import INTERPRETED
from tests.engine.recorded_graph import RecordedGraphs

pytestmark = pytest.mark.skipif(INTERPRETED, reason="the reference, recorded")

MOST = 9
CONTEXT = 64


def attend_without_host(
    q: torch.Tensor,
    pool: torch.Tensor,
    req_to_token: torch.Tensor,
    rows: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    window: int = 0,
) -> torch.Tensor:
    """Decode attention that reads no length on the host, as the kernel: over all of the table."""
    B, H, D = q.shape
    KV = pool.shape[2]
    visible = torch.arange(req_to_token.shape[1]) < seq_lens[:, None]  # [B, C]
    slots = req_to_token[rows].long()
    k, v = pool[torch.where(visible, slots, slots[:, :1])].permute(2, 0, 3, 1, 4)  # [B, KV, C, D]
    scores = q.view(B, KV, H // KV, D) @ k.transpose(2, 3) * scale
    scores = scores.masked_fill(~visible[:, None, None], float("-inf"))
    out = (scores.softmax(-1) @ v).reshape(B, H, D)
    return out.masked_fill((seq_lens == 0)[:, None, None], 0.0)


@pytest.fixture(autouse=True)
def _graph_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decode_attention, "decode_attention_ref", attend_without_host)


@pytest.fixture
def engine(tiny_model_dir: Path) -> Iterator[Engine]:
    settings = {"max_running": MOST, "context_length": CONTEXT, "kv_tokens": 600}
    with Engine(str(tiny_model_dir), dtype="float32", decode_workspace=False, **settings) as engine:
        yield engine


def record(runner: ModelRunner) -> tuple[CudaGraphRunner, RecordedGraphs]:
    scheduler, recorded = runner.scheduler, RecordedGraphs()
    table = scheduler.req_to_token.table
    return CudaGraphRunner(runner.model, scheduler.pool, table, MOST, recorded), recorded


def test_a_cpu_has_no_graphs(engine: Engine) -> None:
    assert engine.config.cuda_graphs
    assert engine.loop.runner.graphs is None


@given(st.integers(1, 300))
def test_few_rows_are_padding(most: int) -> None:
    sizes = batch_sizes(most)
    assert sizes == sorted(set(sizes))
    assert sizes[-1] == most
    for n in range(1, most + 1):
        size = next(size for size in sizes if size >= n)
        assert size < 2 * n or size - n < 8


def test_tokens_are_those_of_the_eager_engine_in_every_batch_size(engine: Engine) -> None:
    """Batches shrink from n to 1 as their requests end, and every request's length changes."""
    runner = engine.loop.runner
    graphs, recorded = record(runner)
    for n in range(1, MOST + 1):
        prompts = [[5 + i, 17, 33 + 2 * i, *range(40, 40 + 4 * i)] for i in range(n)]
        params = [
            SamplingParams(temperature=0.0, max_tokens=3 + 2 * i, ignore_eos=True) for i in range(n)
        ]
        answers = []
        for runner.graphs in (None, graphs):
            engine.flush_cache()
            before, steps = recorded.replays, engine.stats().steps
            answers.append([c.token_ids for c in engine.generate(prompts, params)])
            steps = engine.stats().steps - steps
        assert answers[0] == answers[1]
        # One step for the prompts, the rest is decoding: every such step was replayed.
        assert recorded.replays - before == steps - 1 > 0
        engine.check()


def test_a_prompt_that_arrives_among_decodes_is_computed_without_a_graph(engine: Engine) -> None:
    runner = engine.loop.runner
    params = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    alone = [engine.generate(p, params).token_ids for p in ([7, 8, 9], [11, 12])]
    engine.flush_cache()
    runner.graphs, recorded = record(runner)
    mixed: list[int] = []
    forward = runner.forward

    def watch(step: Step) -> tuple[list, torch.Tensor]:
        if step.decodes and step.extends:
            mixed.append(recorded.replays)
        result = forward(step)
        if mixed and step.extends:
            assert recorded.replays == mixed[-1]
        return result

    runner.forward = watch  # type: ignore[method-assign]
    first = engine.submit([7, 8, 9], params)
    next(iter(first))
    second = engine.submit([11, 12], params)
    assert [first.result().token_ids, second.result().token_ids] == alone
    assert mixed, "the second prompt should have met a decode"


class Table:
    """A runner's pool and table with `lengths[i]` tokens in row i, filled with real keys."""

    def __init__(self, runner: ModelRunner, lengths: list[int]) -> None:
        s = runner.scheduler
        self.pool, self.table = s.pool, s.req_to_token.table
        generator = torch.Generator().manual_seed(3)
        for layer in self.pool.layers:
            layer.normal_(generator=generator)
        self.table.fill_(self.pool.padding_slot)  # what no request owns must not be read
        for row, length in enumerate(lengths):
            slots = torch.arange(length + 1) * MOST + row
            self.table[row, : length + 1] = slots.int()
        self.positions = lengths
        self.poison()

    def poison(self) -> None:
        for layer in self.pool.layers:
            layer[self.pool.padding_slot] = float("nan")

    def decode(self, graphs: CudaGraphRunner, rows: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            ids = [100 + row for row in rows]
            return graphs.decode(ids, [self.positions[r] for r in rows], rows).clone()


@pytest.mark.parametrize("rows", [[2], [4, 1, 0], [3, 1, 4, 0, 2, 7], [*range(MOST)]], ids=str)
def test_padding_is_harmless(engine: Engine, rows: list[int]) -> None:
    """Bitwise the same answers after other requests had the padded rows; no slot but their own and
    the padding slot changes, even where those hold NaN."""
    graphs, _ = record(engine.loop.runner)
    table = Table(engine.loop.runner, [5, 30, 11, 1, 17, 40, 2, 9, 23])
    before = [layer.clone() for layer in table.pool.layers]
    fresh = table.decode(graphs, rows)
    assert torch.isfinite(fresh).all()
    size = next(size for size in graphs.sizes if size >= len(rows))
    table.decode(graphs, [*range(size)])  # every row of this graph is in use
    for old, layer in zip(before, table.pool.layers, strict=True):
        layer.copy_(old)
    assert torch.equal(table.decode(graphs, rows), fresh)
    own = {int(table.table[row, table.positions[row]]) for row in rows}
    for old, layer in zip(before, table.pool.layers, strict=True):
        changed = (old != layer).flatten(1).any(dim=1).nonzero().flatten().tolist()
        assert own <= set(changed) <= own | {table.pool.padding_slot}


def test_one_graph_serves_every_length(engine: Engine) -> None:
    """From the first token to the end of the context, in shuffled order, against the eager step."""
    runner = engine.loop.runner
    graphs, _ = record(runner)
    for length in [*range(CONTEXT - 1, 0, -7), *range(1, CONTEXT, 5)]:
        other = (length * 5) % (CONTEXT - 1) + 1
        table = Table(runner, [length, other, 3])
        logits = table.decode(graphs, [0, 1, 2])
        inputs = torch.tensor([[100, 101, 102], [length, other, 3], [0, 1, 2], [0, 0, 0]])
        inputs[3] = inputs[1] + 1
        with torch.inference_mode():
            expected = graphs.forward(inputs)
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-5)


def test_a_step_that_reads_a_length_on_the_host_cannot_be_recorded(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read(*args: torch.Tensor, **kwargs: int) -> torch.Tensor:
        assert args[4].tolist() is not None
        return attend_without_host(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(decode_attention, "decode_attention_ref", read)
    with pytest.raises(RuntimeError, match="waits for the device"):
        record(engine.loop.runner)


def test_a_step_of_prompts_alone_runs_no_graph(engine: Engine) -> None:
    runner = engine.loop.runner
    runner.graphs, recorded = record(runner)
    done = engine.generate([3, 4, 5], SamplingParams(temperature=0.0, max_tokens=1))
    assert (len(done.token_ids), recorded.replays) == (1, 0)


def test_capture_warms_up_apart_and_shares_one_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The calls to torch.cuda, in order, on stand-ins that take the real signatures."""
    log: list[str] = []
    signature = inspect.signature(torch.cuda.graph.__init__)

    class Stream:
        def __init__(self, name: str = "side") -> None:
            self.name = name

        def wait_stream(self, other: Stream) -> None:
            log.append(f"{self.name} waits for {other.name}")

    class Graph:
        def replay(self) -> None:
            log.append("replay")

    @contextlib.contextmanager
    def stream(s: Stream) -> Iterator[None]:
        log.append(f"on {s.name}")
        yield
        log.append(f"off {s.name}")

    @contextlib.contextmanager
    def graph(*args: object, **kwargs: object) -> Iterator[None]:
        given = signature.bind(None, *args, **kwargs).arguments
        assert isinstance(given["cuda_graph"], Graph)
        log.append(f"record {given['pool']} on {given['stream'].name}")
        yield

    main = Stream("main")
    for name, value in {
        "graph_pool_handle": lambda: "memory",
        "Stream": Stream,
        "current_stream": lambda: main,
        "CUDAGraph": Graph,
        "stream": stream,
        "graph": graph,
    }.items():
        monkeypatch.setattr(torch.cuda, name, value)
    replay = cuda_graph._cuda_capture()(lambda: log.append("step"))
    assert log == [
        "side waits for main", "on side", "step", "off side", "main waits for side",
        "record memory on side", "step",
    ]  # fmt: skip
    replay()
    assert log[-1] == "replay"

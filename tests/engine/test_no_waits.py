"""On a GPU, a decode step waits for the device once: for the ids it sampled.

The device here is PyTorch's "meta": its tensors have no values, so whatever needs one on the host
(`item`, `tolist`, a branch on a tensor, a mask as an index) raises.  Kernels are recorded instead
of launched.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

pytest.importorskip("triton")

from minisgl.cache.kv_pool import KVPool
from minisgl.cache.req_to_token import ReqToToken
from minisgl.detokenizer import Detokenizer
from minisgl.engine.adjustments import Adjustments
from minisgl.engine.cuda_graph import CudaGraphRunner
from minisgl.engine.logprobs import output_logprobs
from minisgl.engine.model_runner import ModelRunner
from minisgl.engine.req import Req
from minisgl.engine.sampler import sample_rows
from minisgl.engine.scheduler import Scheduler
from minisgl.engine.step import Extend, Step
from minisgl.engine.transfer import ALIGNMENT, send
from minisgl.kernels import block_sizes
from minisgl.kernels.dispatch import INTERPRETED
from minisgl.models.config import ModelConfig
from minisgl.models.llama import LlamaForCausalLM
from minisgl.sampling import SamplingParams
from minisgl.tokenizer import Tokenizer
from scripts.compile_driver import _kernel_modules

pytestmark = pytest.mark.skipif(INTERPRETED, reason="kernels are recorded, not interpreted")

META = torch.device("meta")
B = 3


class Copies(TorchDispatchMode):
    """Counts copies from the host to the device; one that would make the host wait is an error."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        given = [t.device.type for t in tree_leaves((args, kwargs)) if _is_real(t)]
        made = [t.device.type for t in tree_leaves(result) if _is_real(t)]
        if "cpu" in given and ("meta" in given or "meta" in made):
            names = [a.name for a in func._schema.arguments]
            asked = dict(zip(names, args, strict=False)) | kwargs
            assert asked.get("non_blocking"), f"{func} makes the host wait for the device"
            self.count += 1
        return result


def _is_real(x: object) -> bool:
    return isinstance(x, torch.Tensor) and x.dim() > 0


@pytest.fixture
def launches(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    from triton.runtime.jit import JITFunction

    names: list[str] = []

    def note(self: Any, *args: Any, **kwargs: Any) -> None:
        names.append(self.fn.__name__)

    monkeypatch.setattr(JITFunction, "run", note)
    monkeypatch.setattr(block_sizes, "generation", lambda: 90)
    for module in _kernel_modules():
        monkeypatch.setattr(module, "use_triton", lambda x: True)
    tensor = torch.tensor

    def from_host(data: Any, **kwargs: Any) -> torch.Tensor:
        assert torch.device(kwargs.get("device") or "cpu").type == "cpu", "this copy waits: `send`"
        return tensor(data, **kwargs)

    monkeypatch.setattr(torch, "tensor", from_host)
    return names


@pytest.fixture
def runner(tiny_model_dir: Path) -> ModelRunner:
    config = ModelConfig.from_dir(tiny_model_dir)
    with META:
        model = LlamaForCausalLM(config, 64).to(torch.bfloat16)
    pool = KVPool(64, config.num_layers, config.num_kv_heads, config.head_dim, torch.bfloat16, META)
    return ModelRunner(model, Scheduler(pool, ReqToToken(8, 64, META)), None)


def running(runner: ModelRunner, directory: Path, **params: Any) -> list[Req]:
    """Requests in the midst of their answers."""
    tokenizer = Tokenizer(directory)
    settings = SamplingParams(**params)
    reqs = []
    for i in range(B):
        adjustments = Adjustments(settings, [5, 6, 7], []) if settings.logit_bias else None
        req = Req(
            prompt_ids=[5, 6, 7],
            params=settings,
            adjustments=adjustments,
            max_tokens=20,
            stop_ids=frozenset(),
            seed=i,
            detokenizer=Detokenizer(tokenizer),
            output_ids=[8, 9],
            row=runner.scheduler.req_to_token.alloc_row(),
            kv_len=4,
        )
        reqs.append(req)
    return reqs


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Reads of the device through `Tensor.tolist`, which answer zeros."""
    reads: list[str] = []
    tolist = torch.Tensor.tolist

    def read(x: torch.Tensor) -> Any:
        if x.device.type != "meta":
            return tolist(x)
        reads.append(str(tuple(x.shape)))
        return torch.zeros_like(x, device="cpu").tolist()

    monkeypatch.setattr(torch.Tensor, "tolist", read)
    return reads


SETTINGS = [
    {"temperature": 0.0},
    {"temperature": 0.7, "top_p": 0.9, "top_k": 20, "min_p": 0.01},
    {"temperature": 0.7, "presence_penalty": 0.5, "logit_bias": {3: -1.0}},
]


@pytest.mark.parametrize("params", SETTINGS, ids=str)
@pytest.mark.parametrize("graph", [False, True])
def test_a_decode_step_waits_for_the_sampled_ids_alone(
    tiny_model_dir: Path,
    runner: ModelRunner,
    launches: list[str],
    reads: list[str],
    graph: bool,
    params: dict[str, Any],
) -> None:
    reqs = running(runner, tiny_model_dir, **params)
    table = runner.scheduler.req_to_token
    if graph:
        replays: list[int] = []

        def capture(step: Any) -> Any:
            step()
            return lambda: replays.append(1)

        runner.graphs = CudaGraphRunner(
            runner.model, runner.scheduler.pool, table.table, 8, capture
        )
    launches.clear()
    with Copies() as copies:
        table.write_each([r.row for r in reqs if r.row is not None], [4] * B, [1, 2, 3])
        assert copies.count == 1
        asked, logits, prompt_logits = runner.forward(Step(reqs, []))
        assert prompt_logits.shape[0] == 0
        assert copies.count == 2, "one copy brings everything that the forward pass needs"
        assert (asked, reads) == (reqs, [])
        assert logits.shape[0] == B
        ids = sample_rows(logits, asked)
    assert copies.count <= (8 if reqs[0].adjustments else 4)
    assert len(ids) == B
    assert len(reads) == 1
    if graph:
        assert replays == [1]
        assert "_decode_attention_kernel" not in launches
    else:
        layers = len(runner.scheduler.pool.layers)
        assert launches.count("_decode_attention_kernel") == layers


def test_a_mixed_step_does_not_wait_either(
    tiny_model_dir: Path, runner: ModelRunner, launches: list[str], reads: list[str]
) -> None:
    *decodes, new = running(runner, tiny_model_dir)
    new.output_ids, new.kv_len = [], 0
    with Copies() as copies:
        asked, logits, _ = runner.forward(Step(decodes, [Extend.of(new, 0, 3)]))
    assert (copies.count, reads, len(asked), logits.shape[0]) == (1, [], B, B)
    assert "_extend_attention_kernel" in launches


@pytest.mark.parametrize("asked", [1, B])
def test_penalties_wait_for_nothing_more_and_logprobs_for_what_they_tell(
    tiny_model_dir: Path, runner: ModelRunner, launches: list[str], reads: list[str], asked: int
) -> None:
    reqs = running(runner, tiny_model_dir, logprobs=2, repetition_penalty=1.2)
    for req in reqs[:asked]:
        req.adjustments = Adjustments.of(req.params, req.prompt_ids, [2])
    logits = torch.zeros(B, 384, dtype=torch.bfloat16, device=META)
    with Copies():
        ids = sample_rows(logits, reqs)
        assert reads == [str((B,))]
        assert launches.count("_adjust_logits_kernel") == 1
        told = output_logprobs(logits, ids, reqs)
    assert len(told) == B
    assert reads[1:] == [str((B, 3))] * 2  # ids and values: the sampled token and two more
    assert launches[-3:] == ["_tile_tops_kernel", "_merge_tops_kernel", "_logprob_kernel"]


def test_a_step_that_shares_a_prefix_does_not_wait_either(
    tiny_model_dir: Path, runner: ModelRunner, launches: list[str], reads: list[str]
) -> None:
    reqs = running(runner, tiny_model_dir)
    tree = runner.scheduler.tree
    tree.insert(reqs[0].prompt_ids, [0, 1, 2])
    for req in reqs:
        req.node = tree.match_prefix(req.prompt_ids).node
        tree.lock(req.node)
    runner.min_saved = 1
    step = Step(reqs, [])
    for copies_expected in (2, 1):  # the grouping is sent when the batch changes
        with Copies() as copies:
            runner.forward(step)
        assert (copies.count, reads) == (copies_expected, [])
    assert launches.count("_cascade_attention_kernel") == 2 * len(runner.scheduler.pool.layers)


def test_the_test_sees_a_wait(runner: ModelRunner) -> None:
    x = torch.zeros(3, device=META)
    with pytest.raises(RuntimeError):
        x.sum().item()
    with pytest.raises(NotImplementedError):
        x[x > 0]
    with Copies(), pytest.raises(AssertionError, match="makes the host wait"):
        torch.tensor([1, 2]).to(META)
    with Copies(), pytest.raises(AssertionError, match="makes the host wait"):
        x.copy_(torch.ones(3))


COLUMNS = st.lists(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=9), max_size=6)


@given(COLUMNS, st.sampled_from([torch.int64, torch.int32]))
def test_columns_arrive_whole_and_aligned(columns: list[list[int]], dtype: torch.dtype) -> None:
    sent = send(torch.device("cpu"), dtype, *columns)
    assert [x.tolist() for x in sent] == columns
    assert all(x.dtype == dtype for x in sent)
    assert all(x.storage_offset() * dtype.itemsize % ALIGNMENT == 0 for x in sent if len(x))


@pytest.fixture(autouse=True)
def _inference() -> Iterator[None]:
    with torch.inference_mode():
        yield

"""A whole engine step compiled for GPUs that are not here: what the engine really passes.

The ledger of test_compile.py holds each launcher at the sizes of real models.  Here the engine
calls them: its own types and views, prompts and decodes in one step, shared prefixes, a recorded
step, penalties, a pattern and log-probabilities.  Tensors are "meta", so nothing is computed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("triton")
if sys.platform != "linux" or os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("compiles in the plain test run, on Linux", allow_module_level=True)

from minisgl.cache.kv_pool import KVPool
from minisgl.cache.req_to_token import ReqToToken
from minisgl.detokenizer import Detokenizer
from minisgl.engine.adjustments import Adjustments
from minisgl.engine.constrained import Constraint, MaskTable
from minisgl.engine.cuda_graph import CudaGraphRunner
from minisgl.engine.logprobs import output_logprobs
from minisgl.engine.model_runner import ModelRunner
from minisgl.engine.req import Req
from minisgl.engine.sampler import sample_rows
from minisgl.engine.scheduler import Scheduler
from minisgl.engine.step import Extend, Step
from minisgl.fsm import Guide, VocabIndex, compile_regex
from minisgl.models.config import ModelConfig, RopeConfig
from minisgl.models.llama import LlamaForCausalLM
from minisgl.models.mixtral import MixtralForCausalLM
from minisgl.sampling import SamplingParams
from minisgl.tokenizer import Tokenizer
from scripts.compile_driver import CompiledLaunch, compile_only, resources
from scripts.kernel_inputs import MODELS, Model
from scripts.kernel_report import broken_limits

META = torch.device("meta")
EXPERTS = ["route", "sort_by_expert", "moe_up", "moe_down", "moe_sum"]
SETTINGS = SamplingParams(temperature=0.7, top_p=0.9, presence_penalty=0.5, logprobs=3)


class Runner:
    """A one-layer model of real sizes, and requests in the midst of their answers."""

    def __init__(self, model: Model, tokenizer: Path, window: int = 0) -> None:
        config = ModelConfig(
            architecture="MixtralForCausalLM" if model.experts else "LlamaForCausalLM",
            vocab_size=model.vocab,
            hidden_size=model.hidden,
            intermediate_size=model.intermediate,
            num_layers=1,
            num_heads=model.heads,
            num_kv_heads=model.kv_heads,
            head_dim=model.head_dim,
            rms_norm_eps=1e-5,
            max_position=4096,
            tie_word_embeddings=True,
            rope=RopeConfig(theta=1e4),
            num_experts=model.experts,
            experts_per_token=model.experts_per_token,
            sliding_window=window,
        )
        with META:
            kind = MixtralForCausalLM if model.experts else LlamaForCausalLM
            net = kind(config).to(torch.bfloat16)
        pool = KVPool(9999, 1, model.kv_heads, model.head_dim, torch.bfloat16, META)
        self.scheduler = Scheduler(pool, ReqToToken(32, 4096, META))
        self.runner = ModelRunner(net, self.scheduler, None)
        self.tokenizer = Tokenizer(tokenizer)
        self.vocab = VocabIndex([str(i).encode() for i in range(model.vocab)], stop_ids=[0])
        self.masks = MaskTable(self.vocab, META)

    def req(self, output: int = 2, prompt: int = 3) -> Req:
        tokens = list(range(5, 5 + prompt))
        return Req(
            prompt_ids=tokens,
            params=SETTINGS,
            max_tokens=20,
            stop_ids=frozenset(),
            seed=1,
            detokenizer=Detokenizer(self.tokenizer),
            adjustments=Adjustments(SETTINGS, tokens, []),
            constraint=self.constraint(),
            output_ids=list(range(8, 8 + output)),
            row=self.scheduler.req_to_token.alloc_row(),
            kv_len=prompt + output - 1 if output else 0,
        )

    def constraint(self) -> Constraint:
        guide = Guide(compile_regex("[1-9]*"), self.vocab)
        return Constraint(guide, self.masks, lambda text: [], (), jumps=False)

    def mixed(self) -> None:
        """Three decodes, a whole prompt, and a chunk of a long one; sampling with everything on."""
        decodes, new, long = [self.req() for _ in range(3)], self.req(0, 7), self.req(0, 100)
        step = Step(decodes, [Extend.of(new, 0, 7), Extend.of(long, 0, 90)])
        reqs, logits, _ = self.runner.forward(step)
        assert len(sample_rows(logits, reqs)) == 4
        output_logprobs(logits, [1, 2, 3, 4], reqs)

    def shared(self) -> None:
        """Two of three decodes share a prefix."""
        decodes = [self.req(prompt=2000) for _ in range(3)]
        prefix = decodes[0].prompt_ids[:1000]
        self.scheduler.tree.insert(prefix, list(range(1000)))
        decodes[0].node = decodes[1].node = self.scheduler.tree.match_prefix(prefix).node
        self.runner.min_saved = 1
        self.runner.forward(Step(decodes, []))

    def recorded(self) -> None:
        """The step of every graph, as it is warmed up before it is recorded."""

        def capture(step: Callable[[], None]) -> Callable[[], None]:
            step()
            return step

        table = self.scheduler.req_to_token.table
        CudaGraphRunner(self.runner.model, self.scheduler.pool, table, 24, capture)


@pytest.fixture
def no_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sampled ids and the like are zeros."""
    tolist = torch.Tensor.tolist

    def read(x: torch.Tensor) -> Any:
        return tolist(torch.zeros_like(x, device="cpu"))

    monkeypatch.setattr(torch.Tensor, "tolist", read)


def names(launches: list[CompiledLaunch]) -> set[str]:
    return {launch.kernel.removeprefix("_").removesuffix("_kernel") for launch in launches}


@pytest.mark.slow
@pytest.mark.parametrize("model", sorted(MODELS))
@pytest.mark.parametrize("arch", [80, 86, 90])
@pytest.mark.usefixtures("no_values")
def test_every_launch_of_a_step_compiles_and_fits(
    arch: int, model: str, tiny_model_dir: Path
) -> None:
    with compile_only(arch) as launches, torch.inference_mode():
        runner = Runner(MODELS[model], tiny_model_dir)
        runner.mixed()
        assert names(launches) >= {
            "embedding", "rms_norm", "rotary", "kv_store", "extend_attention", "decode_attention",
            "merge_partials", "linear", "sample", "logprob", "adjust_logits",
            "tile_tops", "merge_tops", "vocab_mask",
            *(EXPERTS if MODELS[model].experts else ["silu_and_mul"]),
        }  # fmt: skip
        start = len(launches)
        runner.shared()
        assert "cascade_attention" in names(launches[start:])
        start = len(launches)
        runner.recorded()
        assert "decode_attention" in names(launches[start:])
        Runner(MODELS[model], tiny_model_dir, window=512).mixed()
        broken = {
            launch.kernel: found
            for launch in launches
            if (found := broken_limits(arch, launch.kernel, resources(launch)))
        }
    assert broken == {}

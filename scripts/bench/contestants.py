"""The engines that generate.py compares, each in a process of its own.

    PYTHON scripts/bench/contestants.py NAME MODEL [--dtype DTYPE]

Started by `Contestant`.  A request is one line of JSON on stdin, {"ids": [[...], ...], "new": n};
the answer is one line on stdout, {"seconds": s, "processor": s, "ids": [[...], ...], "decode":
{"tokens": n, "seconds": s, "processor": s}}.  "decode" is what comes after the moment when every
prompt has its first token, seen within the same call: a slow minute can't make it negative, as it
can the difference of two calls.  A process each, because they set up threads and memory in ways
that would change one another's speed, and because PYTHON may be another environment:
llama-cpp-python and vLLM need not live beside minisgl.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

ROOT = Path(__file__).resolve().parents[2]
Ids = list[list[int]]
Begun = Callable[[int], None]


class Generator(Protocol):
    """Greedy continuation of equally long prompts, nothing kept from one call to the next."""

    def generate(self, ids: Ids, new: int, begun: Begun) -> Ids:
        """`new` tokens after each prompt, ends of text ignored.

        `begun(n)` is called once, when every prompt has its first token: there are n tokens then,
        more than prompts where some went on while others waited.
        """


class Contestant:
    """The caller's end of one engine's process."""

    def __init__(self, name: str, model: Path, python: str = sys.executable, dtype: str = "auto"):
        self.process = subprocess.Popen(
            [python, __file__, name, str(model), "--dtype", dtype],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        """One request, and its answer."""
        assert self.process.stdin is not None and self.process.stdout is not None
        print(json.dumps(request), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.process.args} ended with {self.process.wait()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def seconds(self, ids: Ids, new: int, clock: str = "seconds") -> float:
        """How long `new` tokens after each of `ids` take; by the "processor" clock, all threads."""
        return float(self.ask(ids=ids, new=new)[clock])

    def decode_speed(self, ids: Ids, new: int, clock: str = "seconds") -> float:
        """Tokens per second over the whole batch, once every prompt has its first token."""
        decode = self.ask(ids=ids, new=new)["decode"]
        return float(decode["tokens"] / decode[clock])

    def close(self) -> None:
        """End of input is the end of the process."""
        self.process.communicate()


class Minisgl:
    """Our engine with its cache emptied before each call."""

    def __init__(self, model: str, dtype: str) -> None:
        from minisgl import Engine

        self.engine = Engine(model, dtype=dtype)

    def generate(self, ids: Ids, new: int, begun: Begun) -> Ids:
        from minisgl import SamplingParams

        self.engine.flush_cache()
        before = self.engine.stats().output_tokens
        params = SamplingParams(max_tokens=new, temperature=0.0, ignore_eos=True)
        handles = self.engine.submit_all(ids, params)
        for handle in handles:
            next(handle)
        begun(self.engine.stats().output_tokens - before)
        return [handle.result().token_ids for handle in handles]


class LinearLayers:
    """No engine: only the products with our packed weights, as often as `generate` needs them.

    What is left of our time when everything else is free, so the ceiling of our speed.
    """

    def __init__(self, model: str, dtype: str) -> None:
        from minisgl import Engine
        from minisgl.models.linear import Linear

        with Engine(model, dtype=dtype) as engine:
            net = engine.loop.runner.model
        self.layers = [m for m in net.modules() if isinstance(m, Linear)]
        self.dtype = next(net.parameters()).dtype

    def generate(self, ids: Ids, new: int, begun: Begun) -> Ids:
        import torch

        with torch.inference_mode():
            for step in range(new):
                tokens = len(ids) * (1 if step else len(ids[0]))
                x = {
                    m.in_features: torch.zeros(tokens, m.in_features, dtype=self.dtype)
                    for m in self.layers
                }
                for m in self.layers:
                    is_head = m is self.layers[-1]  # only the last token goes on to the LM head
                    m.multiply(x[m.in_features][: len(ids) if is_head else tokens])
                if step == 0:
                    begun(len(ids))
        return ids


class Transformers:
    """`generate` as its users write it: SDPA, KV cache, one batch, no padding (equal lengths)."""

    def __init__(self, model: str, dtype: str, **options: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(
            model, dtype=getattr(torch, dtype), attn_implementation="sdpa", **options
        ).eval()

    def generate(self, ids: Ids, new: int, begun: Begun) -> Ids:
        import torch

        x = torch.tensor(ids)
        going_on = torch.zeros(len(ids), dtype=torch.bool)

        def watch(tokens: torch.Tensor, scores: object, **_: object) -> torch.Tensor:
            """A criterion to stop by, which is asked after every token and never stops."""
            if tokens.shape[1] == x.shape[1] + 1:
                begun(len(ids))
            return going_on

        with torch.inference_mode():
            out = self.model.generate(
                x,
                attention_mask=torch.ones_like(x),
                max_new_tokens=new,
                min_new_tokens=new,
                do_sample=False,
                pad_token_id=0,
                stopping_criteria=[watch],
            )
        answers: Ids = out[:, x.shape[1] :].tolist()
        return answers


class TransformersEager(Transformers):
    """Its experts multiplied one by one, where a model has experts."""

    def __init__(self, model: str, dtype: str) -> None:
        super().__init__(model, dtype, experts_implementation="eager")


class LlamaCpp:
    """llama.cpp by its C interface, which batches; sequences of their own in one context."""

    def __init__(self, model: str, dtype: str) -> None:
        import llama_cpp as c

        self.c = c
        silent = c.llama_log_callback(lambda *_: None)
        self._keep = silent  # subtle: C holds no reference to it
        c.llama_log_set(silent, ctypes.c_void_p(0))
        c.llama_backend_init()
        self.model = c.llama_model_load_from_file(model.encode(), c.llama_model_default_params())
        self.vocab_size = c.llama_vocab_n_tokens(c.llama_model_get_vocab(self.model))

    def generate(self, ids: Ids, new: int, begun: Begun) -> Ids:
        import numpy as np

        c, B, length = self.c, len(ids), len(ids[0])
        p = c.llama_context_default_params()
        p.n_ctx = B * (-(-(length + new) // 256) * 256)
        p.n_seq_max, p.n_batch, p.n_ubatch = B, B * length, 512
        p.n_threads = p.n_threads_batch = os.cpu_count()
        p.kv_unified = False
        context = c.llama_init_from_model(self.model, p)
        batch = c.llama_batch_init(B * length, 0, 1)

        def run(tokens: Ids, start: int) -> list[int]:
            n = 0
            last = []
            for sequence, row in enumerate(tokens):
                for i, token in enumerate(row):
                    batch.token[n], batch.pos[n], batch.n_seq_id[n] = token, start + i, 1
                    batch.seq_id[n][0], batch.logits[n] = sequence, i == len(row) - 1
                    n += 1
                last.append(n - 1)
            batch.n_tokens = n
            if c.llama_decode(context, batch):
                raise RuntimeError("llama_decode failed")
            return [
                int(
                    np.ctypeslib.as_array(
                        c.llama_get_logits_ith(context, i), shape=(self.vocab_size,)
                    ).argmax()
                )
                for i in last
            ]

        step = run(ids, 0)
        begun(B)
        answers = [[t] for t in step]
        for i in range(new - 1):
            step = run([[t] for t in step], length + i)
            for answer, token in zip(answers, step, strict=True):
                answer.append(token)
        c.llama_batch_free(batch)
        c.llama_free(context)
        return answers


class Vllm:
    """vLLM's offline engine, in this process and without its prefix cache."""

    def __init__(self, model: str, dtype: str) -> None:
        # Before the import; see peers/vllm.py.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count()))
        from vllm import LLM

        self.engine = LLM(
            model, dtype=dtype, enable_prefix_caching=False, kv_cache_memory_bytes=4 << 30
        )

    def generate(self, ids: Ids, new: int, begun: Begun) -> Ids:
        from vllm import SamplingParams

        # What `LLM.generate` does, with a look at each step.
        engine = self.engine.llm_engine
        params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
        for i, row in enumerate(ids):
            engine.add_request(str(i), {"prompt_token_ids": row}, params)
        answers: Ids = [[] for _ in ids]
        waiting = True
        while engine.has_unfinished_requests():
            for output in engine.step():
                answers[int(output.request_id)] = list(output.outputs[0].token_ids)
            if waiting and all(answers):
                waiting = False
                begun(sum(map(len, answers)))
        return answers


KINDS: dict[str, type[Any]] = {
    "minisgl": Minisgl,
    "linear-layers": LinearLayers,
    "transformers": Transformers,
    "transformers-eager": TransformersEager,
    "llama.cpp": LlamaCpp,
    "vllm": Vllm,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=KINDS)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="auto")
    args = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")  # the libraries print too: they get stderr
    os.dup2(2, 1)
    engine: Generator = KINDS[args.name](args.model, args.dtype)
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(answer(engine, request["ids"], request["new"])), file=answers, flush=True)


def answer(engine: Generator, ids: Ids, new: int) -> dict[str, Any]:
    """The tokens, and how long they took: all of them, and those after every prompt's first."""
    moments: list[tuple[int, dict[str, float]]] = []

    def clocks() -> dict[str, float]:
        return {"seconds": time.perf_counter(), "processor": time.process_time()}

    start = clocks()
    answers = engine.generate(ids, new, lambda tokens: moments.append((tokens, clocks())))
    end = clocks()
    ((tokens, begun),) = moments
    return {
        **{clock: end[clock] - start[clock] for clock in end},
        "ids": answers,
        "decode": {
            "tokens": len(ids) * new - tokens,
            **{clock: end[clock] - begun[clock] for clock in end},
        },
    }


if __name__ == "__main__":
    main()

"""vLLM, offline, in this process: prefix caching on, patterns by its structured outputs.

A select asks for the log-probabilities of its prompts (`prompt_logprobs`), vLLM's way to score a
text.  They can't come from its cache, so every choice is read with its whole prompt.
"""

from __future__ import annotations

import os
from typing import Any

from scripts.bench.peers import threads

# Before vLLM is imported.  Its engine here and not in one more process, which would keep a core for
# itself while it waits; and all threads, where the system puts them, as for the others.
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
os.environ.setdefault("OMP_NUM_THREADS", str(threads()))

import torch
import vllm
from vllm import LLM, SamplingParams
from vllm.sampling_params import StructuredOutputsParams

from scripts.bench.peers.hf_text import Text, best_dtype

CPU_CACHE = 4 << 30  # bytes of KV cache


def version() -> str:
    """Of the package."""
    return vllm.__version__


class System:
    """See the module."""

    features: tuple[str, ...] = ("regex", "score")

    def __init__(self, model: str, dtype: str, device: str) -> None:
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.engine = LLM(
            model,
            dtype=best_dtype(dtype, device),
            enable_prefix_caching=True,
            kv_cache_memory_bytes=CPU_CACHE if device == "cpu" else None,
        )
        self.text = Text(self.engine.get_tokenizer(), model)

    def generate(self, wave: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """See `child.System`."""
        prompts = [self.text.encode(request["prompt"]) for request in wave]
        outputs = self._run(prompts, [_params(request) for request in wave])
        return [
            {
                "text": answer.text,
                "prompt_tokens": len(prompt),
                "completion_tokens": len(answer.token_ids),
                "finish_reason": "length" if answer.finish_reason == "length" else "stop",
            }
            for prompt, output in zip(prompts, outputs, strict=True)
            for answer in output.outputs
        ]

    def score(self, wave: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """See `child.System`."""
        joined = [self.text.join(request["prompt"], request["choices"]) for request in wave]
        texts = [(ids, start) for each, start in joined for ids in each]
        texts += [
            (ids[start:], 0)
            for request, (each, start) in zip(wave, joined, strict=True)
            if request["unconditional"]
            for ids in each
        ]
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        outputs = self._run([ids for ids, _ in texts], [params] * len(texts))
        told = iter(
            [
                _token(token, known)
                for token, known in zip(ids, output.prompt_logprobs, strict=True)
            ][start:]
            for (ids, start), output in zip(texts, outputs, strict=True)
        )
        inside = [[next(told) for _ in request["choices"]] for request in wave]
        return [
            {
                "inside": each,
                "alone": [next(told) for _ in each] if request["unconditional"] else None,
            }
            for request, each in zip(wave, inside, strict=True)
        ]

    def flush(self) -> bool:
        """See `child.System`."""
        return bool(self.engine.reset_prefix_cache())

    def _run(self, prompts: list[list[int]], params: list[SamplingParams]) -> list[Any]:
        given = [{"prompt_token_ids": ids} for ids in prompts]
        return self.engine.generate(given, params, use_tqdm=False)


def _params(request: dict[str, Any]) -> SamplingParams:
    pattern = request["regex"]
    return SamplingParams(
        temperature=0,
        max_tokens=request["max_tokens"],
        stop=list(request["stop"]),
        include_stop_str_in_output=True,  # the caller cuts it, and sees by it what has stopped
        ignore_eos=request["ignore_eos"] and pattern is None,
        structured_outputs=StructuredOutputsParams(regex=pattern) if pattern else None,
    )


def _token(token: int, known: Any) -> list[Any]:
    """[log-probability, id, text]; of a text's first token nothing is known."""
    if known is None:
        return [None, token, None]
    return [known[token].logprob, token, known[token].decoded_token]

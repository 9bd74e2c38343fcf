"""guidance on llama.cpp: grammars by llguidance, and forced text without a pass for each token.

The KV cache of the last text is kept, as far as the next one begins alike.  One request comes after
another, for guidance has no batches.  It takes back a prompt's last token where an answer may begin
within it, so after a space it may say something else than others.

`select` is its own: decoding along the choices, greedily; it scores none.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any

import llama_cpp
from guidance import gen, models, select, with_temperature
from guidance.models._engine._state import EngineState

from scripts.bench.peers import threads

BATCH = 512  # tokens of one forward pass


def version() -> str:
    """Of the package."""
    return metadata.version("guidance")


class System:
    """See the module."""

    features: tuple[str, ...] = ("regex", "choose")

    def __init__(self, model: str, dtype: str, device: str) -> None:
        lm = models.LlamaCpp(
            model,
            echo=False,  # or it computes probabilities to show
            enable_monitoring=False,
            n_ctx=0,  # the model's own
            n_batch=BATCH,
            n_threads=threads(),
            n_threads_batch=threads(),
            n_gpu_layers=0 if device == "cpu" else -1,
        )
        self._engine = lm._interpreter.engine
        vocab = llama_cpp.llama_model_get_vocab(self._engine.model_obj.model)
        self._adds_bos = bool(llama_cpp.llama_vocab_get_add_bos(vocab))

    def generate(self, wave: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """See `child.System`."""
        return [self._generate(request) for request in wave]

    def _generate(self, request: dict[str, Any]) -> dict[str, Any]:
        grammar = gen(
            "text",
            regex=request["regex"],
            stop=list(request["stop"]) or None,
            save_stop_text="stop" if request["stop"] else False,
            max_tokens=request["max_tokens"],
            temperature=0.0,
        )
        if request["ignore_eos"] and request["regex"] is None:
            grammar += "\n"  # no EOS where something has to follow
        captured, tokens = self._run(request["prompt"], grammar)
        stop = captured.get("stop", "")
        is_cut = tokens >= request["max_tokens"] and not stop
        return {
            "text": captured["text"] + stop,
            "prompt_tokens": len(self._engine.tokenizer.encode(request["prompt"].encode())),
            "completion_tokens": min(tokens, request["max_tokens"]),
            "finish_reason": "length" if is_cut else "stop",
        }

    def choose(self, wave: list[dict[str, Any]]) -> list[int]:
        """See `child.System`."""
        taken = []
        for request in wave:
            grammar = with_temperature(select(request["choices"], name="choice"), 0.0)
            captured, _ = self._run(request["prompt"], grammar)
            taken.append(request["choices"].index(captured["choice"]))
        return taken

    def flush(self) -> bool:
        """See `child.System`."""
        self._engine._cached_token_ids = []
        self._engine._cached_logits = None
        return True

    def _run(self, prompt: str, grammar: Any) -> tuple[dict[str, str], int]:
        """What was captured, and how many tokens were written.

        Not `lm + prompt + grammar`: that reads a special token in the prompt as plain text, and
        sends the prompt through the grammar, which takes longer.
        """
        state = EngineState()
        state.prompt = prompt
        steps = self._engine(state, grammar.ll_grammar(), ensure_bos_token=self._adds_bos)
        captured: dict[str, str] = {}
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                return captured, end.value.output_tokens
            captured |= {name: value.decode() for name, value in step.capture_groups.items()}

"""Plain Hugging Face `transformers`, used well: padded batches of like lengths, SDPA, a KV cache.

Nothing is kept from one wave to the next, and nothing is shared within one: prompts that begin
alike are computed each for itself, since `generate` has no other way.  Rows end each by their own
limit, stop string or EOS, and the batch ends with its last.

No StaticCache: uncompiled it reads its whole length at every step, and compiling takes longer than
a benchmark.  On processors without bfloat16 products "auto" is float32: a prompt in bfloat16 takes
many times as long there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, StoppingCriteria

from scripts.bench.peers.hf_text import Text, best_dtype

BATCH_TOKENS = 16_384  # of one batch, padding included: bounds its memory
SLACK = 8  # tokens before a stop string's own that are decoded with it

Row = list[int]


def version() -> str:
    """Of the package."""
    return transformers.__version__


class System:
    """See the module."""

    features: tuple[str, ...] = ("score",)

    def __init__(self, model: str, dtype: str, device: str) -> None:
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.device = device
        self.tokenizer = AutoTokenizer.from_pretrained(model)
        self.text = Text(self.tokenizer, model)
        self.model = AutoModelForCausalLM.from_pretrained(
            model, dtype=getattr(torch, best_dtype(dtype, device)), attn_implementation="sdpa"
        )
        self.model = self.model.eval().to(device)
        # Rows end by `Ends`; an EOS here would end those that shall go on after it.
        self.model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)

    @torch.inference_mode()
    def generate(self, wave: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """See `child.System`."""
        prompts = [self.text.encode(request["prompt"]) for request in wave]
        answers: dict[int, dict[str, Any]] = {}
        for batch in batches(prompts):
            told = self._generate([wave[i] for i in batch], [prompts[i] for i in batch])
            answers |= zip(batch, told, strict=True)
        return [answers[i] for i in range(len(wave))]

    def _generate(self, requests: list[dict[str, Any]], prompts: list[Row]) -> list[dict[str, Any]]:
        ids, mask = self._padded(prompts)  # [B, T]
        ends = Ends(self.tokenizer, self.text.eos_ids, requests, start=ids.shape[1])
        out = self.model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=max(request["max_tokens"] for request in requests),
            stopping_criteria=[ends],
            **self._constraints(requests),
        )
        answers = []
        for prompt, row, (length, reason) in zip(
            prompts, out[:, ids.shape[1] :].tolist(), ends.found(), strict=True
        ):
            answers.append(
                {
                    "text": self.tokenizer.decode(row[:length], skip_special_tokens=True),
                    "prompt_tokens": len(prompt),
                    "completion_tokens": length,
                    "finish_reason": reason,
                }
            )
        return answers

    def _constraints(self, requests: list[dict[str, Any]]) -> dict[str, Any]:
        """More arguments of `generate`; for outlines.py."""
        return {}

    @torch.inference_mode()
    def score(self, wave: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """See `child.System`; each choice after its whole prompt, all in padded batches."""
        joined = [self.text.join(request["prompt"], request["choices"]) for request in wave]
        rows = [(ids, start) for each, start in joined for ids in each]
        alone = [
            (ids[start:], 0)
            for request, (each, start) in zip(wave, joined, strict=True)
            if request["unconditional"]
            for ids in each
        ]
        told = iter(self._logprobs(rows + alone))
        inside = [[next(told) for _ in request["choices"]] for request in wave]
        return [
            {
                "inside": each,
                "alone": [next(told) for _ in each] if request["unconditional"] else None,
            }
            for request, each in zip(wave, inside, strict=True)
        ]

    def _logprobs(self, rows: list[tuple[Row, int]]) -> list[list[list[Any]]]:
        """Of each row the tokens from its start on; the first of a text has no log-probability."""
        told: dict[int, list[list[Any]]] = {}
        for batch in batches([ids for ids, _ in rows]):
            ids, mask = self._padded([rows[i][0] for i in batch])  # [B, T]
            kept = max(len(rows[i][0]) - rows[i][1] for i in batch) + 1
            logits = self.model(
                input_ids=ids,
                attention_mask=mask,
                position_ids=(mask.cumsum(-1) - 1).clamp(min=0),
                use_cache=False,
                logits_to_keep=kept,
            ).logits.float()  # [B, <=kept, V], of the last tokens: padding is on the left
            for i, row_logits in zip(batch, logits, strict=True):
                row, start = rows[i]
                first = max(start, 1)
                scores = row_logits[len(row_logits) - 1 - (len(row) - first) : -1].log_softmax(-1)
                picked = scores.gather(1, torch.tensor(row[first:], device=ids.device)[:, None])
                values = [None] * (first - start) + picked[:, 0].tolist()
                told[i] = [
                    [value, token, self.tokenizer.decode([token])]
                    for value, token in zip(values, row[start:], strict=True)
                ]
        return [told[i] for i in range(len(rows))]

    def flush(self) -> bool:
        """See `child.System`."""
        return True

    def _padded(self, rows: list[Row]) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and attention mask, [B, T] each, padded on the left."""
        longest = max(map(len, rows))
        ids = torch.tensor([[0] * (longest - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (longest - len(row)) + [1] * len(row) for row in rows])
        return ids.to(self.device), mask.to(self.device)


def batches(rows: Sequence[Row]) -> Iterator[list[int]]:
    """Indices of rows that go together: no row is padded to more than twice its length."""
    order = sorted(range(len(rows)), key=lambda i: -len(rows[i]))
    batch: list[int] = []
    for i in order:
        if batch:
            longest = len(rows[batch[0]])
            if 2 * len(rows[i]) < longest or longest * (len(batch) + 1) > BATCH_TOKENS:
                yield batch
                batch = []
        batch.append(i)
    if batch:
        yield batch


class Ends(StoppingCriteria):
    """Where each row of a batch ends, by its own request."""

    def __init__(
        self, tokenizer: Any, eos_ids: set[int], requests: list[dict[str, Any]], start: int
    ) -> None:
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids
        self._requests = requests
        self._start = start
        self._ends: list[tuple[int, str] | None] = [None] * len(requests)
        self._tails = [
            max((len(stop.encode()) for stop in request["stop"]), default=0) + SLACK
            for request in requests
        ]

    def __call__(self, input_ids: torch.Tensor, scores: Any, **_: Any) -> torch.Tensor:
        """[B] of bool: which rows have ended."""
        rows = input_ids[:, self._start :].tolist()
        for i, row in enumerate(rows):
            if self._ends[i] is None:
                self._ends[i] = self._end(row, self._requests[i], self._tails[i])
        return torch.tensor([end is not None for end in self._ends], device=input_ids.device)

    def _end(self, row: Row, request: dict[str, Any], tail: int) -> tuple[int, str] | None:
        if row[-1] in self._eos_ids and not request["ignore_eos"]:
            return len(row), "stop"
        if request["stop"]:
            text = self._tokenizer.decode(row[-tail:], skip_special_tokens=True)
            if any(stop in text for stop in request["stop"]):
                return len(row), "stop"
        if len(row) >= request["max_tokens"]:
            return len(row), "length"
        return None

    def found(self) -> list[tuple[int, str]]:
        """(tokens, why) of each row, when `generate` has returned."""
        assert all(self._ends)
        return self._ends  # type: ignore[return-value]

"""llama.cpp, by the C interface of llama-cpp-python, in slots as in its own server.

A slot is a sequence of the KV cache, and keeps what it has read until another request takes it.  A
request goes to the free slot that shares most of its beginning; if a slot in use shares more, that
part is copied.  All slots that run are one batch, prompts in pieces beside tokens.  One that has to
wait for a common beginning which another is just reading waits for it.

Patterns are grammars (gbnf.py): the likeliest token is asked about first, and only if the grammar
refuses it, all others, as llama.cpp's own programs do.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib import metadata
from typing import Any

import llama_cpp as c
import numpy as np

from scripts.bench.peers import threads
from scripts.bench.peers.gbnf import gbnf

SLOTS = 16
LENGTH = 2048  # tokens of a slot, at first
BATCH = 512  # tokens of one forward pass
WORTH_COPYING = 32  # tokens


def version() -> str:
    """Of the package."""
    return metadata.version("llama-cpp-python")


@dataclass
class Job:
    """A text that is read, and perhaps continued.

    ids: all its tokens.
    told_from: its tokens from here on are scored; None: none.
    read: how many of them the slot has read.
    """

    request: dict[str, Any]
    ids: list[int]
    told_from: int | None = None
    prompt_length: int = 0
    read: int = 0
    grammar: Any = None
    text: bytes = b""
    finish_reason: str = ""
    logprobs: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.prompt_length = len(self.ids)

    @property
    def unread(self) -> int:
        """How many tokens there are to read; after the last of a scored text nothing comes."""
        return len(self.ids) - (self.told_from is not None) - self.read


@dataclass
class Slot:
    """A sequence of the cache, and what it holds."""

    number: int
    held: list[int] = field(default_factory=list)
    job: Job | None = None


class System:
    """See the module."""

    features: tuple[str, ...] = ("regex", "score")

    def __init__(self, model: str, dtype: str, device: str) -> None:
        silent = c.llama_log_callback(lambda *_: None)
        self._keep = silent  # subtle: C holds no reference to it
        c.llama_log_set(silent, ctypes.c_void_p(0))
        c.llama_backend_init()
        settings = c.llama_model_default_params()
        settings.n_gpu_layers = 0 if device == "cpu" else 999
        self._model = c.llama_model_load_from_file(model.encode(), settings)
        if not self._model:
            raise ValueError(f"llama.cpp can't read {model}")
        self._vocab = c.llama_model_get_vocab(self._model)
        self._vocab_size = c.llama_vocab_n_tokens(self._vocab)
        self._batch = c.llama_batch_init(BATCH, 0, 1)
        self._context: Any = None
        self._open(LENGTH)

    def _open(self, length: int) -> None:
        """A cache with slots of `length` tokens; what was cached is gone."""
        if self._context is not None:
            c.llama_free(self._context)
        p = c.llama_context_default_params()
        p.n_ctx, p.n_seq_max = SLOTS * length, SLOTS
        p.n_batch = p.n_ubatch = BATCH
        p.n_threads = p.n_threads_batch = threads()
        p.kv_unified = False
        self._context = c.llama_init_from_model(self._model, p)
        if not self._context:
            raise MemoryError(f"llama.cpp has no room for {SLOTS} slots of {length} tokens")
        self._memory = c.llama_get_memory(self._context)
        self._length = length
        self._slots = [Slot(number) for number in range(SLOTS)]

    # ------------------------------------------------------------------ what is asked

    def generate(self, wave: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """See `child.System`."""
        jobs = [Job(request, self._encode(request["prompt"])) for request in wave]
        try:
            for job in jobs:
                if (pattern := job.request["regex"]) is not None:
                    job.grammar = self._grammar(pattern)
            self._run(jobs, max(len(job.ids) + job.request["max_tokens"] for job in jobs))
        finally:
            for job in jobs:
                if job.grammar:
                    c.llama_sampler_free(job.grammar)
        return [
            {
                "text": job.text.decode("utf-8", errors="replace"),
                "prompt_tokens": job.prompt_length,
                "completion_tokens": len(job.ids) - job.prompt_length,
                "finish_reason": job.finish_reason,
            }
            for job in jobs
        ]

    def score(self, wave: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """See `child.System`."""
        jobs: list[list[Job]] = []
        for request in wave:
            bare = self._encode(request["prompt"])
            each = [self._encode(request["prompt"] + choice) for choice in request["choices"]]
            start = min(common(bare, ids) for ids in each)
            jobs.append([Job(request, ids, start) for ids in each])
            if request["unconditional"]:
                jobs[-1] += [Job(request, ids[start:], 0) for ids in each]
        flat = [job for each in jobs for job in each]
        self._run(flat, max(len(job.ids) for job in flat))
        answers = []
        for request, each in zip(wave, jobs, strict=True):
            told = [self._told(job) for job in each]
            n = len(request["choices"])
            answers.append({"inside": told[:n], "alone": told[n:] or None})
        return answers

    def flush(self) -> bool:
        """See `child.System`."""
        c.llama_memory_clear(self._memory, False)
        self._slots = [Slot(number) for number in range(SLOTS)]
        return True

    # ------------------------------------------------------------------ slots

    def _run(self, jobs: Sequence[Job], longest: int) -> None:
        if longest > self._length:
            self._open(-(-longest // 256) * 256)
        waiting = [job for job in jobs if job.unread]
        try:
            while waiting or any(slot.job for slot in self._slots):
                waiting = [job for job in waiting if not self._place(job)]
                self._step([slot for slot in self._slots if slot.job])
        except Exception:
            self.flush()  # or the jobs that are left would go on with the next wave
            raise

    def _place(self, job: Job) -> bool:
        """Give the job a slot; False if it has to wait for one, or for what it shares."""
        free = [slot for slot in self._slots if slot.job is None]
        if not free:
            return False
        # The token before the first that is told, or is to come, has to be read for its logits.
        usable = max((job.prompt_length if job.told_from is None else job.told_from) - 1, 0)

        def shared(tokens: list[int]) -> int:
            return min(common(job.ids, tokens), usable)

        # Of equals the one that holds least, so that the least is lost.
        slot = max(free, key=lambda s: (shared(s.held), -len(s.held)))
        source = max(self._slots, key=lambda s: shared(s.held))
        gain = shared(source.held) - shared(slot.held)
        coming = max((shared(s.job.ids) for s in self._slots if s.job), default=0)
        if coming >= shared(source.held) + WORTH_COPYING:
            return False
        if gain >= WORTH_COPYING:
            c.llama_memory_seq_cp(self._memory, source.number, slot.number, -1, -1)
            slot.held = list(source.held)
        job.read = shared(slot.held)
        c.llama_memory_seq_rm(self._memory, slot.number, job.read, -1)
        slot.held = job.ids[: job.read]
        slot.job = job
        return True

    def _step(self, slots: Sequence[Slot]) -> None:
        """One forward pass: what each slot has not read yet, as far as there is room."""
        batch, size = self._batch, 0
        rows: list[tuple[Slot, int, int]] = []  # slot, position, row of the batch with logits
        for slot in sorted(slots, key=lambda s: s.job.unread):  # tokens come first
            job = slot.job
            first = job.read
            for at in range(first, first + min(job.unread, BATCH - size)):
                batch.token[size], batch.pos[size] = job.ids[at], at
                batch.n_seq_id[size], batch.seq_id[size][0] = 1, slot.number
                job.read = at + 1
                is_told = job.told_from is not None and job.read >= job.told_from
                batch.logits[size] = is_told or not job.unread
                if batch.logits[size]:
                    rows.append((slot, at, size))
                size += 1
        batch.n_tokens = size
        if c.llama_decode(self._context, batch):
            raise RuntimeError("llama_decode failed")
        for slot in slots:
            slot.held = slot.job.ids[: slot.job.read]
        for slot, at, row in rows:
            logits = np.ctypeslib.as_array(
                c.llama_get_logits_ith(self._context, row), shape=(self._vocab_size,)
            )
            if slot.job.told_from is None:
                self._continue(slot, logits)
            else:
                self._tell(slot, at, logits)

    def _continue(self, slot: Slot, logits: np.ndarray) -> None:
        """Append the next token, and end the job if that was its last."""
        job = slot.job
        request = job.request
        token = int(logits.argmax()) if job.grammar is None else self._fitting(job, logits)
        job.ids.append(token)
        is_end = c.llama_vocab_is_eog(self._vocab, token)
        job.text += b"" if is_end else self._piece(token)
        tail = job.text[-256:].decode("utf-8", errors="replace")
        if (is_end and not (request["ignore_eos"] and job.grammar is None)) or any(
            stop in tail for stop in request["stop"]
        ):
            job.finish_reason = "stop"
        elif len(job.ids) - job.prompt_length >= request["max_tokens"]:
            job.finish_reason = "length"
        if job.finish_reason:
            slot.job = None

    def _fitting(self, job: Job, logits: np.ndarray) -> int:
        """The likeliest token that the grammar allows."""
        best = self._allowed(job, [int(logits.argmax())], logits)
        if best is None:
            best = self._allowed(job, range(self._vocab_size), logits)
        if best is None:
            raise RuntimeError("the grammar allows no token")
        c.llama_sampler_accept(job.grammar, best)
        return best

    def _allowed(self, job: Job, tokens: Sequence[int], logits: np.ndarray) -> int | None:
        """The likeliest of `tokens` that the grammar allows."""
        data = np.zeros(
            len(tokens), dtype=[("id", np.int32), ("logit", np.float32), ("p", np.float32)]
        )
        data["id"] = tokens
        data["logit"] = logits[data["id"]]
        pointer = data.ctypes.data_as(ctypes.POINTER(c.llama_token_data))
        candidates = c.llama_token_data_array(pointer, len(tokens), -1, False)
        c.llama_sampler_apply(job.grammar, ctypes.byref(candidates))
        best = int(data["logit"].argmax())
        return None if data["logit"][best] == -np.inf else int(data["id"][best])

    def _tell(self, slot: Slot, at: int, logits: np.ndarray) -> None:
        """The log-probability of the token after `at`, and the end of the job if it is the last."""
        job = slot.job
        top = logits.max()
        total = top + np.log(np.exp(logits - top).sum())
        job.logprobs.append(float(logits[job.ids[at + 1]] - total))
        if not job.unread and at + 2 == len(job.ids):
            slot.job = None

    def _told(self, job: Job) -> list[list[Any]]:
        ids = job.ids[job.told_from :]
        values: list[float | None] = [None] * (len(ids) - len(job.logprobs)) + job.logprobs
        return [
            [value, token, self._piece(token).decode("utf-8", errors="replace")]
            for value, token in zip(values, ids, strict=True)
        ]

    # ------------------------------------------------------------------ text

    def _grammar(self, pattern: str) -> Any:
        grammar = gbnf(pattern).encode()
        sampler = c.llama_sampler_init_grammar(self._vocab, grammar, b"root")
        if not sampler:
            raise ValueError(f"llama.cpp does not understand {grammar.decode()}")
        return sampler

    def _encode(self, text: str) -> list[int]:
        data = text.encode()
        ids = (c.llama_token * (len(data) + 2))()
        n = c.llama_tokenize(self._vocab, data, len(data), ids, len(ids), True, True)
        bos = c.llama_vocab_bos(self._vocab)
        return list(ids[1:n] if n > 1 and ids[0] == ids[1] == bos else ids[:n])

    def _piece(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(256)
        size = c.llama_token_to_piece(self._vocab, token, buffer, 256, 0, False)
        return buffer.raw[: max(size, 0)]


def common(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens both begin with."""
    size = min(len(a), len(b))
    differ = np.nonzero(np.array(a[:size]) != np.array(b[:size]))[0]
    return int(differ[0]) if len(differ) else size

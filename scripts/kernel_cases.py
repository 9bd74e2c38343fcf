"""Every kernel at the shapes of real models, for the compile report and the GPU check.

A `Case` knows how to call a launcher, what it should return (its own reference in float32), and
how many bytes or operations the best kernel would need. Inputs are made by a `Maker`: real values
on a device, or uninitialised memory where only compiling is asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right

from minisgl.kernels import (
    activation,
    decode_attention,
    embedding,
    extend_attention,
    kv_store,
    linear,
    logprob,
    rms_norm,
    rotary,
    sample,
)

Tensors = tuple[torch.Tensor, ...]
Blocks = dict[str, int]


@dataclass(frozen=True)
class Model:
    """The sizes of a model that kernels see."""

    name: str
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int

    @property
    def qkv(self) -> int:
        """Width of the fused query, key and value projection."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim


MODELS = {
    model.name: model
    for model in (
        Model("smollm2-135m", 576, 1536, 9, 3, 64, 49152),
        Model("llama-2-7b", 4096, 11008, 32, 32, 128, 32000),
        Model("llama-3-8b", 4096, 14336, 32, 8, 128, 128256),
    )
}
TINY = Model("tiny", 64, 96, 4, 2, 16, 320)


@dataclass
class Maker:
    """Makes inputs. ``values=False``: shapes only, for a launcher that will launch nothing."""

    dtype: torch.dtype
    device: str = "cpu"
    values: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        self.generator = torch.Generator(self.device).manual_seed(self.seed)

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Standard normal values in the case's dtype."""
        x = torch.empty(shape, dtype=dtype or self.dtype, device=self.device)
        return x.normal_(generator=self.generator) if self.values else x

    def uniform(self, *shape: int) -> torch.Tensor:
        """float32 in [0, 1)."""
        x = torch.empty(shape, device=self.device)
        return x.uniform_(generator=self.generator) if self.values else x

    def integers(self, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        """Integers in [0, high)."""
        x = torch.empty(shape, dtype=dtype, device=self.device)
        return x.random_(0, high, generator=self.generator) if self.values else x

    def slots(self, pool: int, count: int) -> torch.Tensor:
        """`count` different slots of a pool in random order, int32."""
        if not self.values:
            return torch.empty(count, dtype=torch.int32, device=self.device)
        order = torch.randperm(pool, generator=self.generator, device=self.device)
        return order[:count].int()

    def constant(self, values: list[int] | list[float], dtype: torch.dtype) -> torch.Tensor:
        """A tensor of given numbers."""
        return torch.tensor(values, dtype=dtype, device=self.device)


@dataclass
class Case:
    """One call of one launcher.

    Args:
        kernel: the launcher's name.
        name: kernel and shape, unique within one model and dtype.
        run: the call itself; in-place kernels change their input again at each call.
        result: the outputs of one call on fresh copies of whatever it changes.
        reference: the same outputs from the reference in float32 (ids for `sample`).
        bytes: what must cross the memory bus at least once.
        flops: multiply-adds of the matmuls, times two.
        baseline: a vendor's kernel for the same work, where there is one.
        exact: outputs are indices or copies, so they must be equal.
        with_blocks: the call with other block sizes, where the launcher takes them.
    """

    kernel: str
    name: str
    run: Callable[[], object]
    result: Callable[[], Tensors]
    reference: Callable[[], Tensors]
    bytes: int
    flops: int = 0
    baseline: Callable[[], object] | None = None
    exact: bool = False
    with_blocks: Callable[[Blocks], Callable[[], object]] | None = None


def _size(*tensors: torch.Tensor | None) -> int:
    return sum(t.numel() * t.element_size() for t in tensors if t is not None)


def rms_norm_case(make: Maker, model: Model, tokens: int) -> Case:
    """x [T, D] -> [T, D]."""
    x, w = make.normal(tokens, model.hidden), make.normal(model.hidden)
    return Case(
        "rms_norm",
        f"rms_norm T={tokens}",
        run=lambda: rms_norm.rms_norm(x, w, 1e-5),
        result=lambda: (rms_norm.rms_norm(x, w, 1e-5),),
        reference=lambda: (rms_norm.rms_norm_ref(x.float(), w.float(), 1e-5),),
        bytes=2 * _size(x),
    )


def add_rms_norm_case(make: Maker, model: Model, tokens: int) -> Case:
    """x, residual [T, D] -> normed, new residual."""
    x, residual = make.normal(tokens, model.hidden), make.normal(tokens, model.hidden)
    w = make.normal(model.hidden)

    def reference() -> Tensors:
        summed = (x.float() + residual.float()).to(x.dtype)
        return rms_norm.rms_norm_ref(summed.float(), w.float(), 1e-5), summed.float()

    return Case(
        "add_rms_norm",
        f"add_rms_norm T={tokens}",
        run=lambda: rms_norm.add_rms_norm(x, residual, w, 1e-5),
        result=lambda: rms_norm.add_rms_norm(x, residual, w, 1e-5),
        reference=reference,
        bytes=4 * _size(x),
    )


def rotary_case(make: Maker, model: Model, tokens: int) -> Case:
    """The q and k heads of a fused qkv, rotated in place."""
    heads = model.heads + model.kv_heads
    fused = make.normal(tokens, model.heads + 2 * model.kv_heads, model.head_dim)
    angle = make.uniform(tokens, model.head_dim // 2) * (2 * math.pi)
    cos = torch.cat([angle.cos(), angle.cos()], dim=-1)
    sin = torch.cat([-angle.sin(), angle.sin()], dim=-1)

    def result() -> Tensors:
        copy = fused.clone()
        rotary.rotary_(copy[:, :heads], cos, sin)
        return (copy,)

    def reference() -> Tensors:
        copy = fused.float()
        rotary.rotary_ref(copy[:, :heads], cos, sin)
        return (copy,)

    return Case(
        "rotary_",
        f"rotary_ T={tokens}",
        run=lambda: rotary.rotary_(fused[:, :heads], cos, sin),
        result=result,
        reference=reference,
        bytes=2 * tokens * heads * model.head_dim * fused.element_size() + _size(cos, sin),
    )


def silu_and_mul_case(make: Maker, model: Model, tokens: int) -> Case:
    """gate | up [T, 2I] -> [T, I]."""
    x = make.normal(tokens, 2 * model.intermediate)
    return Case(
        "silu_and_mul",
        f"silu_and_mul T={tokens}",
        run=lambda: activation.silu_and_mul(x),
        result=lambda: (activation.silu_and_mul(x),),
        reference=lambda: (activation.silu_and_mul_ref(x.float()),),
        bytes=_size(x) * 3 // 2,
    )


def embedding_case(make: Maker, model: Model, tokens: int) -> Case:
    """Half of a vocabulary split in two: ids of the other half give zero rows."""
    ids = make.integers(model.vocab, tokens)
    w, first = make.normal(model.vocab // 2, model.hidden), model.vocab // 4
    return Case(
        "embedding",
        f"embedding T={tokens}",
        run=lambda: embedding.embedding(ids, w, first),
        result=lambda: (embedding.embedding(ids, w, first),),
        reference=lambda: (embedding.embedding_ref(ids, w, first).float(),),
        bytes=2 * tokens * model.hidden * w.element_size(),
        exact=True,
    )


def linear_case(make: Maker, name: str, tokens: int, n: int, k: int, *, bias: bool = False) -> Case:
    """x [T, K], w [N, K] -> [T, N]."""
    x, w = make.normal(tokens, k), make.normal(n, k)
    b = make.normal(n) if bias else None
    return Case(
        "linear",
        f"linear {name} T={tokens}",
        run=lambda: linear.linear(x, w, b),
        result=lambda: (linear.linear(x, w, b),),
        reference=lambda: (
            linear.linear_ref(x.float(), w.float(), None if b is None else b.float()),
        ),
        bytes=_size(x, w, b) + tokens * n * x.element_size(),
        flops=2 * tokens * n * k,
        baseline=lambda: F.linear(x, w, b),
        with_blocks=lambda blocks: lambda: linear.linear(x, w, b, blocks=blocks),
    )


def kv_store_case(make: Maker, model: Model, tokens: int, pool_slots: int) -> Case:
    """The k and v heads of a fused qkv, written to random slots."""
    fused = make.normal(tokens, model.heads + 2 * model.kv_heads, model.head_dim)
    kv = fused[:, model.heads :].unflatten(1, (2, model.kv_heads))
    pool = make.normal(pool_slots, 2, model.kv_heads, model.head_dim)
    slots = make.slots(pool_slots, tokens)

    def result() -> Tensors:
        copy = pool.clone()
        kv_store.kv_store(kv, copy, slots)
        return (copy,)

    def reference() -> Tensors:
        copy = pool.clone()
        kv_store.kv_store_ref(kv, copy, slots)
        return (copy,)

    return Case(
        "kv_store",
        f"kv_store T={tokens}",
        run=lambda: kv_store.kv_store(kv, pool, slots),
        result=result,
        reference=reference,
        bytes=2 * kv.numel() * kv.element_size(),
        exact=True,
    )


def _request_table(
    make: Maker, lengths: list[int], pool: torch.Tensor, columns: int = 0
) -> Tensors:
    """(req_to_token [B + 1, C], rows [B]): rows in reverse order, slots all over the pool.

    Slots that no request uses are filled with NaN: whoever reads one will show it.
    """
    columns = columns or max(16, *lengths)
    table = torch.zeros(len(lengths) + 1, columns, dtype=torch.int32, device=make.device)
    rows = make.constant(list(range(len(lengths), 0, -1)), torch.int64)
    slots = make.slots(pool.shape[0], sum(lengths))
    if make.values:
        unused = torch.ones(pool.shape[0], dtype=torch.bool, device=make.device)
        unused[slots.long()] = False
        pool[unused] = float("nan")
    for i, part in enumerate(slots.split(lengths)):
        table[len(lengths) - i, : lengths[i]] = part
    return table, rows


def extend_case(
    make: Maker,
    model: Model,
    name: str,
    extend: list[int],
    prefix: list[int],
    *,
    window: int = 0,
    causal: bool = True,
    pool_slots: int = 0,
) -> Case:
    """Prefill: `extend[b]` new tokens of each request over `prefix[b]` cached ones."""
    tokens, H, KV, D = sum(extend), model.heads, model.kv_heads, model.head_dim
    fused = make.normal(tokens, H + 2 * KV, D)
    q, kv = fused[:, :H], fused[:, H:].unflatten(1, (2, KV))
    pool = make.normal(pool_slots or sum(prefix) + 16, 2, KV, D)
    table, rows = _request_table(make, prefix, pool)
    prefix_lens = make.constant(prefix, torch.int32)
    cu_seqlens = make.constant([sum(extend[:i]) for i in range(len(extend) + 1)], torch.int32)
    scale = D**-0.5
    arguments = (table, rows, prefix_lens, cu_seqlens)

    def run(blocks: Blocks | None = None) -> torch.Tensor:
        return extend_attention.extend_attention(
            q, kv, pool, *arguments, max(extend), scale, causal, window, blocks=blocks
        )

    def reference() -> Tensors:
        return (
            extend_attention.extend_attention_ref(
                q.float(), kv.float(), pool.float(), *arguments, scale, causal, window
            ),
        )

    keys = [_visible(n, p, causal, window) for n, p in zip(extend, prefix, strict=True)]
    baseline = None
    if make.values and causal and not window and len({*extend}) == len({*prefix}) == 1:
        baseline = _flash_attention(make, model, len(extend), extend[0], prefix[0])

    return Case(
        "extend_attention",
        f"extend_attention {name}",
        run=run,
        result=lambda: (run(),),
        reference=reference,
        bytes=_size(fused) + 2 * sum(prefix) * KV * D * q.element_size() + _size(q),
        flops=4 * H * D * sum(keys),
        baseline=baseline,
        with_blocks=lambda blocks: lambda: run(blocks),
    )


def _flash_attention(
    make: Maker, model: Model, batch: int, new: int, prefix: int
) -> Callable[[], object]:
    """Torch's attention for the same work, on keys that lie in order in memory."""
    heads, D = model.heads, model.head_dim
    q = make.normal(batch, heads, new, D)
    k, v = (make.normal(batch, heads, prefix + new, D) for _ in range(2))
    if not prefix:
        return lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)
    mask = causal_lower_right(new, prefix + new)
    return lambda: F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _visible(new: int, prefix: int, causal: bool, window: int) -> int:
    """How many (query, key) pairs attention computes for one request."""
    if not causal:
        return new * (new + prefix)
    seen = range(prefix + 1, prefix + new + 1)
    return sum(min(n, window) for n in seen) if window else sum(seen)


def decode_case(
    make: Maker,
    model: Model,
    name: str,
    lengths: list[int],
    *,
    window: int = 0,
    pool_slots: int = 0,
    columns: int = 0,
) -> Case:
    """Decode: one query of each request over its `lengths[b]` slots; length 0 is a padding row.

    `columns`: width of the table of slots; 0: the longest request.
    """
    H, KV, D = model.heads, model.kv_heads, model.head_dim
    pool_slots = pool_slots or sum(lengths) + 16
    q = make.normal(len(lengths), H + 2 * KV, D)[:, :H]
    pool = make.normal(pool_slots, 2, KV, D)
    table, rows = _request_table(make, lengths, pool, columns)
    seq_lens = make.constant(lengths, torch.int32)
    scale = D**-0.5
    seen = sum(min(n, window) if window else n for n in lengths)

    def run(blocks: Blocks | None = None) -> torch.Tensor:
        return decode_attention.decode_attention(
            q, pool, table, rows, seq_lens, scale, window, blocks=blocks
        )

    def reference() -> Tensors:
        used = table.long().unique()  # only the slots in use: the pool may be most of the memory
        place = torch.zeros(pool_slots, dtype=torch.int32, device=make.device)
        place[used] = torch.arange(used.numel(), dtype=torch.int32, device=make.device)
        return (
            decode_attention.decode_attention_ref(
                q.float(), pool[used].float(), place[table.long()], rows, seq_lens, scale, window
            ),
        )

    return Case(
        "decode_attention",
        f"decode_attention {name}",
        run=run,
        result=lambda: (run(),),
        reference=reference,
        bytes=2 * seen * KV * D * q.element_size(),
        flops=4 * seen * H * D,
        with_blocks=lambda blocks: lambda: run(blocks),
    )


def sample_case(
    make: Maker, name: str, batch: int, vocab: int, *, filters: bool, spread: float = 1.0
) -> Case:
    """logits [B, V] -> ids [B]; the first row is greedy, and without filters every third is.

    `spread`: standard deviation of the logits.
    """
    logits = make.normal(batch, vocab) * spread
    greedy = [i % 3 == 0 if not filters else i == 0 for i in range(batch)]
    temperature = make.constant([0.0 if g else 0.8 for g in greedy], torch.float32)
    top_k = make.constant([50 if filters else 0] * batch, torch.int32)
    top_p = make.constant([0.9 if filters else 1.0] * batch, torch.float32)
    min_p = make.constant([0.02 if filters else 0.0] * batch, torch.float32)
    uniform = make.uniform(batch)
    arguments = (temperature, top_k, top_p, min_p, uniform)
    return Case(
        "sample",
        f"sample {name}",
        run=lambda: sample.sample(logits, *arguments),
        result=lambda: (sample.sample(logits, *arguments),),
        reference=lambda: (sample.sample_ref(logits.float(), *arguments),),
        bytes=_size(logits),
        exact=True,
    )


def logprob_case(make: Maker, batch: int, vocab: int, *, spread: float = 1.0) -> Case:
    """logits [B, V], ids [B] -> log-probabilities [B]."""
    logits, ids = make.normal(batch, vocab) * spread, make.integers(vocab, batch)
    return Case(
        "logprob",
        f"logprob B={batch}",
        run=lambda: logprob.logprob(logits, ids),
        result=lambda: (logprob.logprob(logits, ids),),
        reference=lambda: (logprob.logprob_ref(logits.float(), ids),),
        bytes=_size(logits),
    )


def model_cases(
    make: Maker, model: Model, *, prompt: int = 512, requests: int = 4, batch: int = 16
) -> Iterator[Case]:
    """Every kernel of one model: a prefill of `requests` prompts and a decode step of `batch`.

    Built one at a time, so that only one case's inputs are in memory.
    """
    prefill = prompt * requests
    for tokens in (prefill, batch):
        yield rms_norm_case(make, model, tokens)
        yield add_rms_norm_case(make, model, tokens)
        yield rotary_case(make, model, tokens)
        yield silu_and_mul_case(make, model, tokens)
        yield embedding_case(make, model, tokens)
        yield kv_store_case(make, model, tokens, pool_slots=2 * prefill)
        for name, n, k in (
            ("qkv", model.qkv, model.hidden),
            ("o", model.hidden, model.heads * model.head_dim),
            ("gate_up", 2 * model.intermediate, model.hidden),
            ("down", model.hidden, model.intermediate),
        ):
            yield linear_case(make, name, tokens, n, k, bias=name == "qkv")
    yield linear_case(make, "lm_head", batch, model.vocab, model.hidden)
    extend = [prompt] * requests
    yield extend_case(make, model, "no prefix", extend, [0] * requests)
    prefix = [prompt + 13 * i for i in range(requests)]
    yield extend_case(make, model, "prefix", [n - i for i, n in enumerate(extend)], prefix)
    yield extend_case(make, model, "window", extend, prefix, window=max(2, prompt // 2))
    lengths = [0, *(prompt * 2 + 7 * i for i in range(1, batch))]
    yield decode_case(make, model, "plain", lengths)
    yield decode_case(make, model, "window", lengths, window=max(2, prompt // 2))
    yield sample_case(make, "temperature", batch, model.vocab, filters=False)
    yield sample_case(make, "top-k top-p min-p", batch, model.vocab, filters=True)
    yield logprob_case(make, batch, model.vocab)


def edge_cases(
    make: Maker,
    *,
    tokens: int = 70_000,
    pool_elements: int = 2**31 + 2**24,
    vocab: int = 151_936,
    logits: int = 2**31 + 2**24,
) -> Iterator[Case]:
    """Sizes where an index of 32 bits or a grid of 16 bits ends, and values where exp does.

    Args:
        make: where the inputs come from.
        tokens: rows of each row-wise kernel: more than 65,535 programs.
        pool_elements: elements of the KV pool.
        vocab: a vocabulary that no block holds, and not a power of two.
        logits: elements of a table of logits.
    """
    small = MODELS["smollm2-135m"] if make.device != "cpu" else TINY
    for build in (rms_norm_case, add_rms_norm_case, rotary_case, silu_and_mul_case, embedding_case):
        yield build(make, small, tokens)
    yield linear_case(make, "o", tokens, small.hidden, small.hidden)
    wide = MODELS["llama-2-7b"] if make.device != "cpu" else TINY
    slots = pool_elements // (2 * wide.kv_heads * wide.head_dim)
    yield kv_store_case(make, wide, min(tokens, slots) // 2, pool_slots=slots)
    lengths = [0, 1, 17, slots // 16, slots // 8]
    yield decode_case(make, wide, "pool past 2**31 elements", lengths, pool_slots=slots)
    extend, prefix = [1, 33, 70], [slots // 8, 0, slots // 16]
    yield extend_case(make, wide, "pool past 2**31 elements", extend, prefix, pool_slots=slots)
    yield extend_case(make, small, "many tokens", [1, tokens // 8, 0, 3], [5, 0, 7, 0])
    yield decode_case(make, small, "only padding rows", [0, 0])
    yield sample_case(make, "large vocabulary", 64, vocab, filters=True)
    yield sample_case(make, "logits of 1e4", 64, vocab, filters=False, spread=1e4)
    yield logprob_case(make, 64, vocab, spread=1e4)
    yield logprob_case(make, logits // vocab, vocab)


def speed_cases(
    make: Maker, model: Model, *, tokens: int = 8192, length: int = 4096, batch: int = 32
) -> Iterator[Case]:
    """Large enough that a kernel's time is its work, and the small shapes of one decode step."""
    yield rms_norm_case(make, model, tokens)
    yield add_rms_norm_case(make, model, tokens)
    yield rotary_case(make, model, tokens)
    yield silu_and_mul_case(make, model, tokens)
    yield embedding_case(make, model, tokens)
    yield kv_store_case(make, model, tokens, pool_slots=2 * tokens)
    for n in (batch // 2, tokens // 2):
        yield linear_case(make, "qkv", n, model.qkv, model.hidden)
        yield linear_case(make, "gate_up", n, 2 * model.intermediate, model.hidden)
        yield linear_case(make, "down", n, model.hidden, model.intermediate)
    yield linear_case(make, "lm_head", batch // 2, model.vocab, model.hidden)
    yield extend_case(make, model, f"{tokens} tokens", [tokens], [0])
    yield extend_case(make, model, "prefix", [tokens // 8] * 2, [tokens // 2] * 2)
    yield decode_case(make, model, f"B={batch} L={length}", [length] * batch)
    yield decode_case(make, model, f"B=1 L={8 * length}", [8 * length])
    yield sample_case(make, "temperature", batch, model.vocab, filters=False)
    yield sample_case(make, "top-k top-p min-p", batch, model.vocab, filters=True)
    yield logprob_case(make, batch, model.vocab)

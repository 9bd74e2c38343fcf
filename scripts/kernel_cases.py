"""One call of each launcher at the sizes of a model: what the compile report and the GPU check run.

A `Case` knows how to call a launcher, what it should return (its own reference in float32), and
how many bytes or operations the best kernel would need.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.nn.attention.bias import causal_lower_right

from minisgl.kernels import (
    activation,
    adjust_logits,
    cascade_attention,
    decode_attention,
    embedding,
    extend_attention,
    kv_store,
    linear,
    logprob,
    rms_norm,
    rotary,
    sample,
    top_tokens,
    vocab_mask,
)
from scripts.kernel_inputs import Blocks, Case, Maker, Model, Tensors


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
    kv_dtype: torch.dtype | None = None,
) -> Case:
    """Prefill: `extend[b]` new tokens of each request over `prefix[b]` cached ones.

    `kv_dtype`: of the pool, at least as exact as q's, so that new keys lose nothing in it.
    """
    tokens, H, KV, D = sum(extend), model.heads, model.kv_heads, model.head_dim
    fused = make.normal(tokens, H + 2 * KV, D)
    q, kv = fused[:, :H], fused[:, H:].unflatten(1, (2, KV))
    pool = make.normal(pool_slots or sum(prefix) + 16, 2, KV, D, dtype=kv_dtype)
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
    kv_dtype: torch.dtype | None = None,
) -> Case:
    """Decode: one query of each request over its `lengths[b]` slots; length 0 is a padding row.

    `columns`: width of the table of slots; 0: the longest request.  `kv_dtype`: of the pool.
    """
    H, KV, D = model.heads, model.kv_heads, model.head_dim
    pool_slots = pool_slots or sum(lengths) + 16
    q = make.normal(len(lengths), H + 2 * KV, D)[:, :H]
    pool = make.normal(pool_slots, 2, KV, D, dtype=kv_dtype)
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


def cascade_case(
    make: Maker,
    model: Model,
    name: str,
    *,
    prefix: int,
    branch: int,
    tail: int,
    groups: list[int],
    pool_slots: int = 0,
    columns: int = 0,
) -> Case:
    """Decode of a tree: `prefix` tokens of all, `branch` of each group, `tail` of each request.

    `groups`: how many requests each branch has.  The reference is plain decode.
    """
    H, KV, D, B = model.heads, model.kv_heads, model.head_dim, sum(groups)
    lengths = [prefix + branch + tail] * B
    q = make.normal(B, H + 2 * KV, D)[:, :H]
    pool = make.normal(pool_slots or sum(lengths) + 16, 2, KV, D)
    table, rows = _request_table(make, lengths, pool, columns)
    firsts = [sum(groups[:i]) for i in range(len(groups))]  # of each group, in the batch
    for first, size in zip(firsts, groups, strict=True):
        table[B - first - size + 1 : B - first + 1, :prefix] = table[B, :prefix].clone()
        own = table[B - first, prefix : prefix + branch].clone()
        table[B - first - size + 1 : B - first + 1, prefix : prefix + branch] = own
    runs = [B, *(B - first for first in firsts)]
    segments = cascade_attention.Segments(
        rows=make.constant(runs, torch.int32),
        starts=make.constant([0] + [prefix] * len(groups), torch.int32),
        stops=make.constant([prefix] + [prefix + branch] * len(groups), torch.int32),
        members=make.constant([*range(B), *range(B)], torch.int32),
        cu_members=make.constant([0, B, *(B + f for f in firsts[1:]), 2 * B], torch.int32),
        depths=make.constant([0] + [1] * len(groups), torch.int32),
        tails=make.constant([prefix + branch] * B, torch.int32),
        num_depths=2,
        max_members=B,
    )
    seq_lens = make.constant(lengths, torch.int32)
    scale = D**-0.5

    def run(blocks: Blocks | None = None) -> torch.Tensor:
        return cascade_attention.cascade_attention(
            q, pool, table, rows, seq_lens, segments, scale, blocks=blocks
        )

    def reference() -> Tensors:
        used = table.long().unique()
        place = torch.zeros(len(pool), dtype=torch.int32, device=make.device)
        place[used] = torch.arange(used.numel(), dtype=torch.int32, device=make.device)
        return (
            decode_attention.decode_attention_ref(
                q.float(), pool[used].float(), place[table.long()], rows, seq_lens, scale
            ),
        )

    different = prefix + len(groups) * branch + B * tail
    return Case(
        "cascade_attention",
        f"cascade_attention {name}",
        run=run,
        result=lambda: (run(),),
        reference=reference,
        bytes=2 * different * KV * D * q.element_size(),
        flops=4 * sum(lengths) * H * D,
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


def logprob_case(
    make: Maker, batch: int, vocab: int, *, tokens: int = 1, spread: float = 1.0
) -> Case:
    """logits [B, V], ids [B, N] -> log-probabilities [B, N]."""
    logits, ids = make.normal(batch, vocab) * spread, make.integers(vocab, batch, tokens)
    return Case(
        "logprob",
        f"logprob B={batch} N={tokens}",
        run=lambda: logprob.logprob(logits, ids),
        result=lambda: (logprob.logprob(logits, ids),),
        reference=lambda: (logprob.logprob_ref(logits.float(), ids),),
        bytes=_size(logits),
    )


def top_tokens_case(make: Maker, batch: int, vocab: int, k: int = 20) -> Case:
    """logits [B, V] -> the ids [B, k] of the largest."""
    logits = make.normal(batch, vocab)
    return Case(
        "top_tokens",
        f"top_tokens B={batch} k={k}",
        run=lambda: top_tokens.top_tokens(logits, k),
        result=lambda: (top_tokens.top_tokens(logits, k),),
        reference=lambda: (top_tokens.top_tokens_ref(logits.float(), k),),
        bytes=_size(logits),
        exact=True,
    )


def adjust_logits_case(make: Maker, batch: int, vocab: int, entries: int) -> Case:
    """`entries` tokens of each row of logits [B, V] (fp32, as the engine has them), in place."""
    logits = make.normal(batch, vocab, dtype=torch.float32)
    rows = make.constant([b for b in range(batch) for _ in range(entries)], torch.int64)
    ids = torch.cat([make.slots(vocab, entries).long() for _ in range(batch)])
    changes = make.uniform(3, batch * entries) + 0.5

    def changed(apply: Callable[..., None]) -> Tensors:
        copy = logits.clone()
        apply(copy, rows, ids, changes)
        return (copy,)

    return Case(
        "adjust_logits",
        f"adjust_logits B={batch} N={entries}",
        run=lambda: adjust_logits.adjust_logits(logits, rows, ids, changes),
        result=lambda: changed(adjust_logits.adjust_logits),
        reference=lambda: changed(adjust_logits.adjust_logits_ref),
        bytes=_size(rows, ids, changes) + 2 * rows.numel() * logits.element_size(),
    )


def vocab_mask_case(make: Maker, batch: int, vocab: int) -> Case:
    """Half of the tokens of logits [B, V] (fp32) forbidden, in place; every fourth row is free."""
    logits = make.normal(batch, vocab, dtype=torch.float32)
    words = -(-vocab // 32)
    table = (make.integers(2**32, batch, words) - 2**31).int()
    rows = make.constant([-1 if b % 4 == 3 else b // 2 for b in range(batch)], torch.int64)
    masked = batch - batch // 4

    def masks(apply: Callable[..., torch.Tensor]) -> Tensors:
        copy = logits.clone()
        kept = apply(copy, table, rows)
        return kept, copy.view(torch.int32)  # as integers: every bit counts

    return Case(
        "vocab_mask",
        f"vocab_mask B={batch}",
        run=lambda: vocab_mask.vocab_mask(logits, table, rows),
        result=lambda: masks(vocab_mask.vocab_mask),
        reference=lambda: masks(vocab_mask.vocab_mask_ref),
        bytes=masked * vocab * logits.element_size() * 3 // 2 + masked * words * 4,
    )

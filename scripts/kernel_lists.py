"""Which cases are run: a model's own shapes, the edges of integers, and shapes worth timing.

Each list is built one case at a time, so that only one case's inputs are in memory.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from scripts.kernel_cases import (
    add_rms_norm_case,
    adjust_logits_case,
    cascade_case,
    decode_case,
    embedding_case,
    extend_case,
    kv_store_case,
    linear_case,
    logprob_case,
    rms_norm_case,
    rotary_case,
    sample_case,
    silu_and_mul_case,
    top_tokens_case,
    vocab_mask_case,
)
from scripts.kernel_inputs import MODELS, TINY, TINY_MIXTRAL, Case, Maker, Model
from scripts.moe_cases import moe_case, route_case
from scripts.vision_cases import (
    add_layer_norm_case,
    gelu_case,
    layer_norm_case,
    pool_grid_case,
    tower_cases,
)


def model_cases(
    make: Maker, model: Model, *, prompt: int = 512, requests: int = 4, batch: int = 16
) -> Iterator[Case]:
    """Every kernel of one model: a prefill of `requests` prompts and a decode step of `batch`.

    Of a vision tower: a pass of as many tiles as one image may have.
    """
    if not model.vocab:
        yield from tower_cases(make, model)
        return
    prefill = prompt * requests
    for tokens in (prefill, batch):
        yield rms_norm_case(make, model, tokens)
        yield add_rms_norm_case(make, model, tokens)
        yield rotary_case(make, model, tokens)
        if not model.experts:
            yield silu_and_mul_case(make, model, tokens)
        yield embedding_case(make, model, tokens)
        yield kv_store_case(make, model, tokens, pool_slots=2 * prefill)
        yield linear_case(make, "qkv", tokens, model.qkv, model.hidden, bias=True)
        yield linear_case(make, "o", tokens, model.hidden, model.heads * model.head_dim)
        yield from mlp_cases(make, model, tokens)
    yield linear_case(make, "lm_head", batch, model.vocab, model.hidden)
    extend = [prompt] * requests
    yield extend_case(make, model, "no prefix", extend, [0] * requests)
    prefix = [prompt + 13 * i for i in range(requests)]
    yield extend_case(make, model, "prefix", [n - i for i, n in enumerate(extend)], prefix)
    yield extend_case(make, model, "window", extend, prefix, window=max(2, prompt // 2))
    lengths = [0, *(prompt * 2 + 7 * i for i in range(1, batch))]
    yield decode_case(make, model, "plain", lengths)
    yield decode_case(make, model, "window", lengths, window=max(2, prompt // 2))
    tree = {"prefix": 2 * prompt + 3, "branch": prompt // 2 + 1, "tail": 7}
    yield cascade_case(make, model, "many rows", **tree, groups=[batch - 1, 1])
    yield cascade_case(make, model, "few rows", **tree, groups=[1, 1])
    yield sample_case(make, "temperature", batch, model.vocab, filters=False)
    yield sample_case(make, "top-k top-p min-p", batch, model.vocab, filters=True)
    yield logprob_case(make, batch, model.vocab)
    yield logprob_case(make, batch, model.vocab, tokens=21)
    yield top_tokens_case(make, batch, model.vocab)
    yield adjust_logits_case(make, batch, model.vocab, prompt // 2)
    yield vocab_mask_case(make, batch, model.vocab)


def mlp_cases(make: Maker, model: Model, tokens: int) -> Iterator[Case]:
    """The products of a block's second half: of one gated MLP, or of a router and its experts."""
    if model.experts:
        yield route_case(make, model, tokens)
        yield moe_case(make, model, tokens)
    else:
        yield linear_case(make, "gate_up", tokens, 2 * model.intermediate, model.hidden)
        yield linear_case(make, "down", tokens, model.hidden, model.intermediate)


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
    for of_tower in (layer_norm_case, add_layer_norm_case, gelu_case):
        yield of_tower(make, small, tokens)
    yield pool_grid_case(make, small, tokens // 16, side=8)
    yield linear_case(make, "o", tokens, small.hidden, small.hidden)
    mixtral = MODELS["mixtral-8x7b"] if make.device != "cpu" else TINY_MIXTRAL
    yield route_case(make, mixtral, tokens)
    yield moe_case(make, mixtral, tokens * 9 // 8)  # h has more than 2**31 elements
    yield moe_case(make, mixtral, tokens // 16, one_expert=True)
    yield moe_case(make, TINY_MIXTRAL, tokens)  # experts that are no power of two
    wide = MODELS["llama-2-7b"] if make.device != "cpu" else TINY
    slots = pool_elements // (2 * wide.kv_heads * wide.head_dim)
    yield kv_store_case(make, wide, min(tokens, slots) // 2, pool_slots=slots)
    lengths = [0, 1, 17, slots // 16, slots // 8]
    yield decode_case(make, wide, "pool past 2**31 elements", lengths, pool_slots=slots)
    extend, prefix = [1, 33, 70], [slots // 8, 0, slots // 16]
    yield extend_case(make, wide, "pool past 2**31 elements", extend, prefix, pool_slots=slots)
    yield extend_case(make, small, "many tokens", [1, tokens // 8, 0, 3], [5, 0, 7, 0])
    yield decode_case(make, small, "only padding rows", [0, 0])
    half = torch.float16
    yield decode_case(make, small, "float16 pool", [0, 300, 17], kv_dtype=half)
    yield extend_case(make, small, "float16 pool", [33, 1], [17, 70], kv_dtype=half)
    tree = {"prefix": slots // 16, "branch": slots // 64, "tail": slots // 64}
    far = "pool past 2**31 elements"
    yield cascade_case(make, wide, far, **tree, groups=[3, 2], pool_slots=slots)
    yield sample_case(make, "large vocabulary", 64, vocab, filters=True)
    yield sample_case(make, "logits of 1e4", 64, vocab, filters=False, spread=1e4)
    yield logprob_case(make, 64, vocab, spread=1e4)
    yield logprob_case(make, logits // vocab, vocab, tokens=5)
    yield top_tokens_case(make, 64, vocab)
    yield top_tokens_case(make, logits // vocab, vocab, k=1)
    yield adjust_logits_case(make, 64, vocab, vocab // 64)
    yield vocab_mask_case(make, logits // vocab, vocab)


def speed_cases(
    make: Maker, model: Model, *, tokens: int = 8192, length: int = 4096, batch: int = 32
) -> Iterator[Case]:
    """Large enough that a kernel's time is its work, and the small shapes of one decode step."""
    if not model.vocab:
        yield from tower_cases(make, model, images=max(1, tokens // 577))
        return
    yield rms_norm_case(make, model, tokens)
    yield add_rms_norm_case(make, model, tokens)
    yield rotary_case(make, model, tokens)
    if not model.experts:
        yield silu_and_mul_case(make, model, tokens)
    yield embedding_case(make, model, tokens)
    yield kv_store_case(make, model, tokens, pool_slots=2 * tokens)
    for n in (batch // 2, tokens // 2):
        yield linear_case(make, "qkv", n, model.qkv, model.hidden)
        yield from mlp_cases(make, model, n)
    yield linear_case(make, "lm_head", batch // 2, model.vocab, model.hidden)
    yield extend_case(make, model, f"{tokens} tokens", [tokens], [0])
    yield extend_case(make, model, "prefix", [tokens // 8] * 2, [tokens // 2] * 2)
    yield decode_case(make, model, f"B={batch} L={length}", [length] * batch)
    yield decode_case(make, model, f"B=1 L={8 * length}", [8 * length])
    tree = {"prefix": length // 2, "branch": length // 4, "tail": length // 16}
    yield cascade_case(make, model, f"B={batch}", **tree, groups=[batch // 4] * 4)
    yield cascade_case(
        make, model, f"B={2 * batch}, one level", prefix=2 * length, branch=1, tail=length // 16,
        groups=[2 * batch],
    )  # fmt: skip
    yield sample_case(make, "temperature", batch, model.vocab, filters=False)
    yield sample_case(make, "top-k top-p min-p", batch, model.vocab, filters=True)
    yield logprob_case(make, batch, model.vocab)
    yield top_tokens_case(make, batch, model.vocab)
    yield vocab_mask_case(make, batch, model.vocab)

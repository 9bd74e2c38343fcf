"""Rotary position embedding (RoFormer, arXiv 2104.09864): plain or stretched, as tables.

Pair i of a head turns by the angle position * f_i, with f_i = theta^(-2i / D).  A model trained on
short contexts reads longer ones once the slow pairs turn slower still; the schemes differ in which
pairs, and how much slower:

    linear   f / s for all pairs                          (position interpolation, arXiv 2306.15595)
    dynamic  a larger theta, by the context's length      (NTK-aware)
    llama3   slow pairs f / s, fast ones f, a ramp between them by wavelength          (Llama 3.1)
    yarn     the same by number of turns, and attention sharpened a little     (arXiv 2309.00071)

The numbers are those of transformers' `modeling_rope_utils`, which the tests compare them with.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from minisgl.models.config import RopeConfig


def inv_freq(rope: RopeConfig, head_dim: int, max_len: int) -> tuple[torch.Tensor, float]:
    """The angle per position of each pair, [D/2] float32 in radians, and a factor on cos and sin.

    `max_len` is the longest context that will be served; only `dynamic` looks at it.  transformers
    raises theta as a sequence grows, so its cached keys were turned by other frequencies than its
    new queries.  Here theta is chosen once, for `max_len`: every cached key stays valid for every
    request, and as long as `max_len` is within the config's own context, the numbers are the same.
    """
    if rope.type == "dynamic":
        length = max(max_len, rope.max_position)
        stretch = rope.factor * length / rope.max_position - (rope.factor - 1)
        theta = rope.theta * stretch ** (head_dim / (head_dim - 2))
        return _plain(replace(rope, theta=theta), head_dim), 1.0
    freq = _plain(rope, head_dim)
    if rope.type == "linear":
        return freq / rope.factor, 1.0
    if rope.type == "llama3":
        return _llama3(rope, freq), 1.0
    if rope.type == "yarn":
        return _yarn(rope, freq, head_dim), _yarn_attention_factor(rope)
    return freq, 1.0


def rope_table(rope: RopeConfig, head_dim: int, max_len: int) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and sin for positions 0 .. max_len - 1, [P, D] float32 each, for the `rotary_` kernel.

    Each holds its D/2 numbers twice, and the sign of "rotate half" is folded into sin:
    cos = (c | c), sin = (-s | s), so that a rotation is x * cos + swap_halves(x) * sin.
    """
    freq, scaling = inv_freq(rope, head_dim, max_len)
    positions = torch.arange(max_len, dtype=torch.float32)
    angles = positions[:, None] * freq  # [P, D/2]
    c, s = angles.cos() * scaling, angles.sin() * scaling
    return torch.cat((c, c), dim=1), torch.cat((-s, s), dim=1)


def _plain(rope: RopeConfig, head_dim: int) -> torch.Tensor:
    """theta^(-2i / D) for i = 0 .. D/2 - 1, [D/2]: from one radian a position down to 1/theta."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    return 1.0 / rope.theta**exponents


def _llama3(rope: RopeConfig, freq: torch.Tensor) -> torch.Tensor:
    """`freq` for pairs that turn often in the trained context, freq / factor for the others."""
    turns = rope.original_max_position * freq / (2 * math.pi)  # within the trained context
    low, high = rope.low_freq_factor, rope.high_freq_factor
    keep = ((turns - low) / (high - low)).clamp(0, 1)
    return (1 - keep) * freq / rope.factor + keep * freq


def _yarn(rope: RopeConfig, freq: torch.Tensor, head_dim: int) -> torch.Tensor:
    """Pairs of more than beta_fast turns keep `freq`, of fewer than beta_slow get freq / factor."""

    def pair_with_turns(turns: float) -> float:
        """The (fractional) index of the pair which turns so often in the trained context."""
        wavelength = rope.original_max_position / turns
        return head_dim * math.log(wavelength / (2 * math.pi)) / (2 * math.log(rope.theta))

    first, last = pair_with_turns(rope.beta_fast), pair_with_turns(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, head_dim - 1)
    if first == last:
        last += 0.001  # a step instead of a ramp
    pairs = torch.arange(head_dim // 2, dtype=torch.float32)
    keep = 1 - ((pairs - first) / (last - first)).clamp(0, 1)
    return (1 - keep) * freq / rope.factor + keep * freq


def _yarn_attention_factor(rope: RopeConfig) -> float:
    """YaRN's sharper attention (section 3.4); on cos and sin, so that scores get its square."""

    def sharpen(weight: float) -> float:
        return 0.1 * weight * math.log(rope.factor) + 1.0 if rope.factor > 1 else 1.0

    if rope.attention_factor is not None:
        return rope.attention_factor
    if rope.mscale and rope.mscale_all_dim:
        return sharpen(rope.mscale) / sharpen(rope.mscale_all_dim)
    return sharpen(1.0)

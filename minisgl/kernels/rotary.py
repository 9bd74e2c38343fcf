"""Rotary position embedding."""

import torch


def rotary_ref(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    x32 = x.float()
    swapped = x32.roll(x.shape[-1] // 2, -1)
    x.copy_(torch.addcmul(x32 * cos.unsqueeze(1), swapped, sin.unsqueeze(1)))


def rotary_(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> None:
    """Rotate x [T, H, D] in place by cos, sin [T, D] fp32 (cos = (c | c), sin = (-s | s))."""
    rotary_ref(x, cos, sin)

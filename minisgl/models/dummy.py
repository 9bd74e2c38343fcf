"""Random weights in place of a checkpoint's: a model of any shape that computes what it would.

    load_format="dummy": a config and a tokenizer are enough, and no file of weights is read

Speed, memory and traffic are the real model's; the answers are noise.  A tensor depends on nothing
but its name and its shape, so that a model is the same one on every number of ranks: each draws all
of a tensor, a few rows at a time where it is to lie, and keeps its part.
"""

from __future__ import annotations

import math
import zlib

import torch
from torch import nn

from minisgl.models.loader import WeightSlot
from minisgl.models.progress import ProgressBar

CHUNK = 1 << 24  # numbers to draw at a time


@torch.no_grad()
def draw_weights(model: nn.Module, whole: nn.Module, *, progress: bool | None = None) -> None:
    """Fill `model` with random numbers.

    A matrix [N, K] has a standard deviation of 1 / sqrt(K), so that activations neither vanish nor
    explode.  Vectors lie around what changes nothing: 1 for weights, 0 for biases.

    Args:
        whole: the same model unsplit, on the device "meta": its shapes are the checkpoint's.
        progress: see ProgressBar.
    """
    whole_slots: dict[str, WeightSlot] = whole.weight_slots()  # type: ignore[operator]
    shapes = {name: list(slot.dest.shape) for name, slot in whole_slots.items()}
    slots: dict[str, WeightSlot] = model.weight_slots()  # type: ignore[operator]
    total = sum(map(math.prod, shapes.values())) / 1e6
    with ProgressBar("drawing random weights", total, "million", show=progress) as bar:
        for name, slot in slots.items():
            _draw(name, shapes[name], slot)
            bar.advance(math.prod(shapes[name]) / 1e6)


def _draw(name: str, shape: list[int], slot: WeightSlot) -> None:
    """Draw the tensor `name` of `shape`, and keep what is within the slot's bounds."""
    generator = torch.Generator(slot.dest.device).manual_seed(zlib.crc32(name.encode()))
    inner = math.prod(shape[1:])
    mean, std = 0.0, inner**-0.5
    if len(shape) == 1:
        mean, std = 0.0 if name.endswith("bias") else 1.0, 0.1
    rows, *others = slot.bounds(shape)
    step = max(1, CHUNK // inner)
    for start in range(0, shape[0], step):
        stop = min(start + step, shape[0])
        drawn = torch.empty(
            [stop - start, *shape[1:]], dtype=torch.float32, device=slot.dest.device
        ).normal_(mean, std, generator=generator)
        first, last = max(start, rows.start), min(stop, rows.stop)
        if first < last:
            kept = drawn[(slice(first - start, last - start), *others)]
            slot.dest[first - rows.start : last - rows.start] = kept

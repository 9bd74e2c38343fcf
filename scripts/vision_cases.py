"""Calls of a vision tower's kernels at its sizes, as kernel_cases.py has them of a language model.

A `Model` with no vocabulary is a tower: `hidden`, `intermediate` and `heads` are its own.
"""

from __future__ import annotations

from collections.abc import Iterator

from minisgl.kernels import gelu, layer_norm, pool_grid
from scripts.kernel_cases import extend_case, linear_case
from scripts.kernel_inputs import Case, Maker, Model, Tensors


def layer_norm_case(make: Maker, model: Model, tokens: int) -> Case:
    """x [T, D] -> [T, D]."""
    x, w, b = (
        make.normal(tokens, model.hidden),
        make.normal(model.hidden),
        make.normal(model.hidden),
    )
    return Case(
        "layer_norm",
        f"layer_norm T={tokens}",
        run=lambda: layer_norm.layer_norm(x, w, b, 1e-5),
        result=lambda: (layer_norm.layer_norm(x, w, b, 1e-5),),
        reference=lambda: (layer_norm.layer_norm_ref(x.float(), w.float(), b.float(), 1e-5),),
        bytes=2 * x.numel() * x.element_size(),
    )


def add_layer_norm_case(make: Maker, model: Model, tokens: int) -> Case:
    """x, residual [T, D] -> normed, new residual."""
    x, residual = make.normal(tokens, model.hidden), make.normal(tokens, model.hidden)
    w, b = make.normal(model.hidden), make.normal(model.hidden)

    def reference() -> Tensors:
        summed = (x.float() + residual.float()).to(x.dtype).float()
        return layer_norm.layer_norm_ref(summed, w.float(), b.float(), 1e-5), summed

    return Case(
        "add_layer_norm",
        f"add_layer_norm T={tokens}",
        run=lambda: layer_norm.add_layer_norm(x, residual, w, b, 1e-5),
        result=lambda: layer_norm.add_layer_norm(x, residual, w, b, 1e-5),
        reference=reference,
        bytes=4 * x.numel() * x.element_size(),
    )


def gelu_case(make: Maker, model: Model, tokens: int, *, quick: bool = True) -> Case:
    """x [T, I] -> [T, I]."""
    x = make.normal(tokens, model.intermediate)
    return Case(
        "gelu",
        f"gelu {'quick' if quick else 'exact'} T={tokens}",
        run=lambda: gelu.gelu(x, quick=quick),
        result=lambda: (gelu.gelu(x, quick=quick),),
        reference=lambda: (gelu.gelu_ref(x.float(), quick=quick),),
        bytes=2 * x.numel() * x.element_size(),
    )


def pool_grid_case(
    make: Maker, model: Model, frames: int, side: int, mode: pool_grid.Mode = "average"
) -> Case:
    """The features of frames without their class tokens, [F, side², D] -> [F, (side / 2)², D]."""
    x = make.normal(frames, 1 + side**2, model.hidden)[:, 1:]
    return Case(
        "pool_grid",
        f"pool_grid {mode} F={frames}",
        run=lambda: pool_grid.pool_grid(x, side, 2, mode),
        result=lambda: (pool_grid.pool_grid(x, side, 2, mode),),
        reference=lambda: (pool_grid.pool_grid_ref(x.float(), side, 2, mode),),
        bytes=x.numel() * x.element_size() * 5 // 4,
    )


def tower_cases(make: Maker, tower: Model, *, images: int = 5, side: int = 24) -> Iterator[Case]:
    """Every kernel of a tower on `images` tiles, and of the pooling of as many frames."""
    length = 1 + side**2
    tokens = images * length
    patches, pixels = images * side**2, 592  # 3 · 14², rounded up to 16
    yield linear_case(make, "patches", patches, tower.hidden, pixels)
    yield layer_norm_case(make, tower, tokens)
    yield add_layer_norm_case(make, tower, tokens)
    yield linear_case(make, "qkv", tokens, tower.qkv, tower.hidden, bias=True)
    name = f"{images} images"
    yield extend_case(make, tower, name, [length] * images, [0] * images, causal=False)
    yield linear_case(make, "out", tokens, tower.hidden, tower.hidden, bias=True)
    yield linear_case(make, "up", tokens, tower.intermediate, tower.hidden, bias=True)
    yield gelu_case(make, tower, tokens)
    yield gelu_case(make, tower, patches, quick=False)
    yield linear_case(make, "down", tokens, tower.hidden, tower.intermediate, bias=True)
    yield pool_grid_case(make, tower, images, side)
    yield pool_grid_case(make, tower, images, side, "max")

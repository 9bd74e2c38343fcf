"""The large models of the figures that need them: real shapes, or scaled; random weights.

A figure holds one of its engines at a time, since the real shapes leave no room for two.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from minisgl.engine.hardware import free_memory
from minisgl.models.dummy import draw_weights
from minisgl.models.hub import resolve_model
from minisgl.models.loader import WeightSlot
from minisgl.models.registry import MODELS, load_config
from scripts.bench.figures import Options
from scripts.bench.shapes import SHAPES, Shape, write

ROOM = 0.85  # of a memory, for weights; the rest is for keys, values and activations


@dataclass(frozen=True)
class Model:
    """Something to make engines of.

    name: for a reader.
    settings: of an engine.
    is_random: its answers are noise.
    """

    name: str
    path: Path
    device: torch.device
    settings: dict[str, Any]
    is_random: bool

    @property
    def is_dummy(self) -> bool:
        """Whether its weights are in no file."""
        return "load_format" in self.settings

    def with_files(self) -> Model:
        """The same, now that its weights are in files."""
        others = {name: value for name, value in self.settings.items() if name != "load_format"}
        return replace(self, settings=others)


def prepare(options: Options, shape: str, scale: int, directory: Path, ranks: int = 1) -> Model:
    """`--model`, or `shape` in its real size if the options say so, or else divided by `scale`.

    Real sizes compute in bfloat16, and so does any model on a GPU but a scaled one: that computes
    in float32, as everything on a CPU, so that answers can be compared.

    Args:
        directory: where the config and the tokenizer of a random model go.
        ranks: to split it over; more, if a real shape needs more.

    Raises:
        ValueError: the real shape doesn't fit into this machine; with the numbers.
    """
    device = device_of(options)
    settings: dict[str, Any] = {"device": device.type, "tp_size": ranks}
    settings["dtype"] = "float32" if device.type == "cpu" else "bfloat16"
    if options.model is not None:
        path = resolve_model(options.model)
        return Model(path.name, path, device, settings, is_random=False)
    sized = SHAPES[shape]
    if options.real_shapes:
        settings["dtype"] = "bfloat16"
        settings["tp_size"] = max(ranks, ranks_for(sized, device))
    else:
        sized = sized.scaled(scale)
        settings["dtype"] = "float32"
    settings["load_format"] = "dummy"
    name = f"{sized.name}: {sized.weights / 1e6:,.0f} million random weights"
    return Model(name, write(directory / shape, sized), device, settings, is_random=True)


def save_weights(model: Model) -> Model:
    """The same model of text with its weights in a file, where other systems find them."""
    config = load_config(model.path)
    net = MODELS[config.architecture](config)
    draw_weights(net, net)
    slots: dict[str, WeightSlot] = net.weight_slots()  # type: ignore[operator]
    tensors = {name: slot.dest.clone() for name, slot in slots.items()}
    save_file(tensors, model.path / "model.safetensors", metadata={"format": "pt"})
    return model.with_files()


def device_of(options: Options) -> torch.device:
    """Where an engine will run."""
    has_gpu = options.device != "cpu" and torch.cuda.is_available()
    return torch.device("cuda" if has_gpu else "cpu")


def ranks_for(shape: Shape, device: torch.device) -> int:
    """Over how many devices the weights have to be split, in bfloat16."""
    count = torch.cuda.device_count() if device.type == "cuda" else 1
    needed, free = 2 * shape.weights, free_memory(device)
    for size in (1, 2, 4, 8):
        if size <= count and needed / size < ROOM * free:
            return size
    raise ValueError(
        f"{shape.name} has {needed / 2**30:.0f} GiB of weights; here is {count} x "
        f"{free / 2**30:.0f} GiB of memory: leave out --real-shapes"
    )


@contextmanager
def given_back() -> Iterator[None]:
    """What is dropped within the block has given its memory back after it."""
    try:
        yield
    finally:
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

"""Safetensors into a model: every tensor to its place, or an error that names what is wrong.

The model says where each tensor of the checkpoint goes (`weight_slots`); the loader knows no
architecture.  All names and shapes are checked before the first byte is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from safetensors import SafetensorError, safe_open

from minisgl.models.config import read_json
from minisgl.models.progress import ProgressBar

_DTYPES = {"F32": 4, "F16": 2, "BF16": 2}  # safetensors' name -> bytes
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


class WeightSlot(NamedTuple):
    """Where one tensor of a checkpoint goes: this rank's shard of it fills `dest`.

    The tensor is cut along `dim` into `size` shards of equal length (the last may be shorter) and
    `rank` is ours; with `dim` None the whole tensor is.
    """

    dest: torch.Tensor
    dim: int | None
    rank: int
    size: int

    def bounds(self, shape: list[int]) -> tuple[slice, ...]:
        """The part of a tensor of `shape` that is ours, in half-open intervals.

        >>> WeightSlot(torch.empty(0), 0, 1, 4).bounds([10, 3])
        (slice(3, 6, None), slice(0, 3, None))
        """
        cut = [slice(0, n) for n in shape]
        if self.dim is not None and self.dim < len(shape):
            length = -(-shape[self.dim] // self.size)
            start = min(self.rank * length, shape[self.dim])
            cut[self.dim] = slice(start, min(start + length, shape[self.dim]))
        return tuple(cut)


class HasWeightSlots(Protocol):
    """A model that says where the tensors of a Hugging Face checkpoint go.

    Where checkpoints come in several layouts it has a second method,
    `weight_parts(name, shape) -> list[WeightPart]`: what a stored tensor is in the layout of
    `weight_slots`.
    """

    def weight_slots(self) -> dict[str, WeightSlot]:
        """Hub tensor name -> its place in this model."""
        ...


class WeightPart(NamedTuple):
    """A tensor that lies in a stored one: all of it, or `rows` of one matrix of a stack.

    `name` is what `weight_slots` calls it.
    """

    name: str
    matrix: int | None = None
    rows: slice | None = None

    def shape(self, whole: list[int]) -> list[int]:
        """Our shape, where the stored tensor has the shape `whole`.

        >>> WeightPart("up", 2, slice(6, 12)).shape([3, 12, 4])
        [6, 4]
        """
        shape = whole if self.matrix is None else whole[1:]
        return shape if self.rows is None else [self.rows.stop - self.rows.start, *shape[1:]]


class _Stored(NamedTuple):
    """A tensor in a file, known from the file's header, under the name it has there."""

    file: Path
    name: str
    part: WeightPart
    shape: list[int]
    dtype: str

    @property
    def megabytes(self) -> float:
        return torch.Size(self.shape).numel() * _DTYPES.get(self.dtype, 4) / 1e6

    def read(self, reader: safe_open, bounds: tuple[slice, ...]) -> torch.Tensor:
        """What lies within `bounds` of this tensor."""
        cut: tuple[slice | int, ...] = bounds
        if self.part.rows is not None:
            first = self.part.rows.start
            cut = (slice(first + bounds[0].start, first + bounds[0].stop), *bounds[1:])
        if self.part.matrix is not None:
            cut = (self.part.matrix, *cut)
        view: torch.Tensor = reader.get_slice(self.name)[cut]  # type: ignore[no-untyped-call]
        return view


@torch.no_grad()
def load_weights(
    model: HasWeightSlots | torch.nn.Module, path: str | Path, *, progress: bool | None = None
) -> None:
    """Fill `model` from the safetensors in directory `path`, cast to the dtype of each parameter.

    A checkpoint of a tied model may hold the head, the embedding or both; both must then be equal.
    `progress`: see ProgressBar.

    Raises:
        ValueError: files missing or damaged; tensors missing, unexpected or misshapen; a dtype
            other than float32, float16, bfloat16; NaN or infinite weights; values beyond float16's
            range where that is the model's dtype.
    """
    path = Path(path)
    slots: dict[str, WeightSlot] = model.weight_slots()  # type: ignore[operator]
    parts = getattr(model, "weight_parts", lambda name, shape: [WeightPart(name)])
    stored = _stored_tensors(path, parts)
    aliases = _untie(slots, stored)
    _check(slots, stored, path)

    names_by_file: dict[Path, list[str]] = {}
    for name in slots:
        names_by_file.setdefault(stored[name].file, []).append(name)
    total = sum(stored[name].megabytes for name in slots)
    with ProgressBar("loading weights", total, "MB", show=progress) as bar:
        for file, names in names_by_file.items():
            with _open(file) as reader:
                for name in names:
                    slot = slots[name]
                    view = stored[name].read(reader, slot.bounds(stored[name].shape))
                    slot.dest.copy_(view)
                    _check_values(name, file, view, slot.dest)
                    bar.advance(stored[name].megabytes)
    for alias in aliases:
        _check_tied(alias, slots[_EMBEDDING], stored[alias], path)


def weight_files(path: Path) -> list[Path]:
    """The safetensors files that make up the checkpoint in `path`.

    Raises:
        ValueError: there are none, or the index names files that are not there.
    """
    index = path / "model.safetensors.index.json"
    if index.is_file():
        try:
            files = sorted({path / file for file in read_json(index)["weight_map"].values()})
        except (KeyError, AttributeError) as error:
            raise ValueError(f"{index} has no weight_map") from error
        if missing := [file.name for file in files if not file.is_file()]:
            raise ValueError(f"{path} lacks {_listed(missing)}, which {index.name} names")
        return files
    if (single := path / "model.safetensors").is_file():
        return [single]
    found = sorted(path.glob("*.safetensors"))
    if len(found) == 1:
        return found
    if found:
        raise ValueError(
            f"{path} holds {len(found)} safetensors files and no {index.name} to say which belong "
            "to the model"
        )
    others = sorted(f.name for f in path.glob("*") if f.suffix in (".bin", ".pt", ".pth", ".gguf"))
    raise ValueError(
        f"{path} holds no .safetensors file"
        + (f", only {_listed(others)}; convert it to safetensors" if others else "")
    )


def tensor_names(path: Path) -> set[str]:
    """The names of all tensors of the checkpoint in `path`, from the headers alone.

    Raises:
        ValueError: as `weight_files`, or a damaged file.
    """
    names: set[str] = set()
    for file in weight_files(path):
        with _open(file) as reader:
            names.update(reader.keys())
    return names


def _open(file: Path) -> safe_open:
    try:
        return safe_open(file, framework="pt")
    except (SafetensorError, OSError) as error:
        raise ValueError(
            f"{file} is not a complete safetensors file ({error}); fetch it again"
        ) from error


def _stored_tensors(
    path: Path, parts: Callable[[str, list[int]], list[WeightPart]]
) -> dict[str, _Stored]:
    """Every tensor of the checkpoint, by the model's name for it, from the headers alone."""
    stored: dict[str, _Stored] = {}
    for file in weight_files(path):
        with _open(file) as reader:
            for name in reader.keys():  # noqa: SIM118  (not a dict)
                view = reader.get_slice(name)
                shape, dtype = list(view.get_shape()), view.get_dtype()
                for part in parts(name, shape):
                    other = stored.get(part.name)
                    if other is not None and other.name != name:
                        raise ValueError(f"{path} holds {part.name} twice: {other.name} and {name}")
                    stored[part.name] = _Stored(file, name, part, part.shape(shape), dtype)
    return stored


def _untie(slots: dict[str, WeightSlot], stored: dict[str, _Stored]) -> list[str]:
    """For a tied model, ask for one of embedding and head; returns second copies, to compare."""
    tied = _EMBEDDING in slots and (
        _HEAD not in slots or slots[_HEAD].dest.data_ptr() == slots[_EMBEDDING].dest.data_ptr()
    )
    if not tied or _HEAD not in stored:
        if tied:
            slots.pop(_HEAD, None)
        return []
    slots.pop(_HEAD, None)
    if _EMBEDDING not in stored:
        slots[_HEAD] = slots.pop(_EMBEDDING)
        return []
    return [_HEAD]


def _check(slots: dict[str, WeightSlot], stored: dict[str, _Stored], path: Path) -> None:
    """Raise unless `stored` is just what `slots` asks for; every fault is in the one message."""
    faults = []
    if missing := [name for name in slots if name not in stored]:
        faults.append(f"missing: {_listed(missing)}")
    tied = _HEAD not in slots or _EMBEDDING not in slots
    known = {*slots, *((_HEAD, _EMBEDDING) if tied else ())}
    unexpected = [
        name for name in stored if name not in known and not name.endswith("rotary_emb.inv_freq")
    ]
    if unexpected:
        faults.append(f"unexpected: {_listed(unexpected)}")
    for name, slot in slots.items():
        if name not in stored:
            continue
        shape, dtype = stored[name].shape, stored[name].dtype
        if dtype not in _DTYPES:
            faults.append(f"{name} is {dtype}; supported are {', '.join(_DTYPES)}")
        ours = [cut.stop - cut.start for cut in slot.bounds(shape)]
        if ours != list(slot.dest.shape):
            shard = "" if slot.dim is None or slot.size == 1 else f" (shard {ours})"
            faults.append(f"{name} is {shape}{shard}, the model needs {list(slot.dest.shape)}")
    if faults:
        raise ValueError(
            f"the weights in {path} don't fit its config.json:\n  " + "\n  ".join(faults[:20])
        )


def _check_values(name: str, file: Path, source: torch.Tensor, dest: torch.Tensor) -> None:
    """Raise for NaN and infinity, be they stored or made by the cast to `dest`'s dtype.

    `dest` is looked at, which is often half the bytes; `source` only to say what happened.
    """
    if not dest.numel() or _finite(dest):
        return
    if not _finite(source):
        raise ValueError(f"{name} in {file} holds NaN or infinite values; the file is damaged")
    raise ValueError(
        f"{name} in {file} holds {float(source.abs().max()):.4g}, and {dest.dtype} ends at "
        f"{torch.finfo(dest.dtype).max:.4g}: use bfloat16"
    )


def _finite(x: torch.Tensor) -> bool:
    """Whether all of `x` are finite numbers, in one pass that allocates nothing."""
    low, high = torch.aminmax(x)  # subtle: both are NaN if any element is
    return bool(low.isfinite() & high.isfinite())


def _check_tied(name: str, slot: WeightSlot, stored: _Stored, path: Path) -> None:
    """Raise unless a tied model's second copy equals the embedding already loaded."""
    with _open(stored.file) as reader:
        copy = stored.read(reader, slot.bounds(stored.shape))
    if not torch.equal(copy.to(slot.dest), slot.dest):
        raise ValueError(
            f"{path}: config.json says tie_word_embeddings, but {name} differs from {_EMBEDDING}"
        )


def _listed(names: Iterable[str], limit: int = 8) -> str:
    """The first few of `names`, and how many more there are.

    >>> _listed(["a", "b", "c"], limit=2)
    'a, b and 1 more'
    """
    names = list(names)
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")

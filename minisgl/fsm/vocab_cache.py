"""What is made of a vocabulary's tokens, kept on the disk for the next start."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
import zlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path

import numpy as np

from minisgl.fsm.token_arrays import TokenArrays, token_arrays

FORMAT = 1  # to be raised when `TokenArrays` changes, its fields or what they hold


def cached(tokens: Sequence[bytes], directory: Path) -> TokenArrays:
    """The arrays of a vocabulary, from a file in `directory` if there is a good one, else to it.

    The file is named after what it was made from, so it is never out of date.  Where it can't be
    written, on a full or a read-only disk, there is none.
    """
    file = directory / f"vocab-{_key(tokens)}"
    arrays = _read(file)
    if arrays is None:
        arrays = token_arrays(tokens)
        with suppress(OSError):
            _write(file, arrays)
    return arrays


def _key(tokens: Sequence[bytes]) -> str:
    digest = hashlib.sha256(f"{FORMAT} {len(tokens)}".encode())
    digest.update(np.array([len(data) for data in tokens], np.int64).tobytes())
    digest.update(b"".join(tokens))
    return digest.hexdigest()[:32]


def _read(file: Path) -> TokenArrays | None:
    """What `_write` wrote; None if there is no such file, or not all of it."""
    try:
        data = memoryview(file.read_bytes())
    except OSError:
        return None
    if len(data) < 4 or zlib.crc32(data[4:]) != int.from_bytes(data[:4], "little"):
        return None
    with np.load(io.BytesIO(data[4:]), allow_pickle=False) as stored:
        return TokenArrays(**{field.name: stored[field.name] for field in fields(TokenArrays)})


def _write(file: Path, arrays: TokenArrays) -> None:
    """All or nothing: under another name first, so that nobody reads half a file."""
    buffer = io.BytesIO()
    np.savez(buffer, **{field.name: getattr(arrays, field.name) for field in fields(arrays)})
    file.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=file.parent, prefix=file.name)
    try:
        with os.fdopen(descriptor, "wb") as out:
            out.write(zlib.crc32(buffer.getbuffer()).to_bytes(4, "little"))
            out.write(buffer.getbuffer())
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise

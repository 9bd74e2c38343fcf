"""The .gguf file that llama.cpp reads, of the same weights as our engine's directory."""

from __future__ import annotations

import hashlib
from pathlib import Path

from minisgl.models.hub import cache_dir, default_gguf


def gguf_file(model: str | Path | None, dtype: str) -> Path:
    """`model` with all its matrices in `dtype`, written into the cache on first use.

    "auto" is float16, which llama.cpp multiplies fast on processors with or without bfloat16.

    Raises:
        ValueError: the model is neither a .gguf file nor the default one.
    """
    source = default_gguf() if model in (None, "default") else Path(model).expanduser()
    if source.suffix.lower() != ".gguf" or not source.is_file():
        raise ValueError(f"model {str(model)!r}: llama.cpp needs a .gguf file, or 'default'")
    from scripts.bench.gguf_as import write_as  # only here: it needs the package gguf

    stat = source.stat()
    key = hashlib.sha256(f"{source.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}".encode())
    dtype = "float16" if dtype == "auto" else dtype
    out = cache_dir() / "gguf" / f"{source.stem}-{key.hexdigest()[:12]}-{dtype}.gguf"
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        half = out.with_suffix(".part")
        write_as(dtype, source, half)
        half.rename(out)
    return out

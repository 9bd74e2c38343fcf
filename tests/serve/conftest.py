"""One engine and one server for the tests that leave them as they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from minisgl import Engine
from tests.serve.common import Running, serving


@pytest.fixture(scope="session")
def engine(tiny_model_dir: Path) -> Iterator[Engine]:
    with Engine(str(tiny_model_dir), dtype="float32", kv_tokens=4096) as engine:
        yield engine


@pytest.fixture(scope="session")
def server(engine: Engine) -> Iterator[Running]:
    with serving(engine, served_names=("tiny", "also-tiny")) as running:
        yield running


@pytest.fixture(autouse=True)
def nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test of the common server leaves no request behind."""
    yield
    if "server" in request.fixturenames:
        server: Running = request.getfixturevalue("server")
        assert server.idle()

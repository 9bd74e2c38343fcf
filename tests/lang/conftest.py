"""Every test of the language leaves no thread of a program behind."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lang.fake import no_thread_stays


@pytest.fixture(autouse=True)
def ends_what_it_started() -> Iterator[None]:
    """A leak is the fault of the test that leaks, not of one that counts threads later."""
    with no_thread_stays(10):
        yield

"""Models that programs run on; each kind in a file of its own."""

from __future__ import annotations

import threading
from typing import Any

from minisgl.lang.backends.base import Backend
from minisgl.lang.config import global_config

_lock = threading.Lock()


def as_backend(value: Any) -> Backend:
    """The backend that is meant.

    Args:
        value: a `Backend`, an `Engine`, or None for `global_config.default_backend`; if there is
            none either, the embedded model is loaded, once, and stays the default.

    Raises:
        ValueError: nothing that a program can run on.
    """
    if value is None:
        value = global_config.default_backend
    if isinstance(value, Backend):
        return value
    from minisgl.lang.backends.engine import EngineBackend, Runtime  # which imports torch

    if value is not None:
        return EngineBackend(value)
    with _lock:
        if global_config.default_backend is None:
            global_config.default_backend = Runtime()
    return as_backend(None)

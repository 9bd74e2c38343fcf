"""`global_config`: what holds for all programs of the process."""

from __future__ import annotations

from typing import Any


class GlobalConfig:
    """Switches; an unknown name is an AttributeError."""

    __slots__ = (
        "default_backend",
        "enable_fork_hint",
        "enable_parallel_decoding",
        "enable_precache_with_tracing",
    )

    def __init__(self) -> None:
        self.default_backend: Any = None
        """What programs run on if they name no backend; None: the embedded model, on first use."""

        self.enable_fork_hint = True
        """A fork sends what its branches share to the backend, before any of them needs it."""

        self.enable_parallel_decoding = True
        """False: a program waits for each primitive before the next, so that nothing of it runs in
        parallel (the paper's figure 8c, "No Frontend Parallelism")."""

        self.enable_precache_with_tracing = True
        """A batch sends the constant beginning of its program before the programs run."""


global_config = GlobalConfig()

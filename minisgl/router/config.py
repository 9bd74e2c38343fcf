"""`RouterConfig`: what the router is started with."""

from __future__ import annotations

from dataclasses import dataclass

from minisgl.router.policy import POLICIES

_AT_LEAST = {"workers": 1, "ray_cpus": 1, "max_body_mib": 1, "restarts": 0}


@dataclass(frozen=True)
class RouterConfig:
    """Settings of the router.

    Raises:
        ValueError: for a value that is not allowed, with the value and what is allowed.
    """

    workers: int | None = None
    """How many to start, as processes of this host or, with `ray`, on any host of a cluster; None:
    2, unless there are some to be used."""

    worker: tuple[str, ...] = ()
    """URLs of servers that run already, started with --report-evictions, to use those instead."""

    ray: str | None = None
    """Have Ray start the workers: in the cluster at this address (HOST:PORT), of which this host is
    a node, in the one that this host belongs to ("auto"), or in one of its own ("local")."""

    ray_cpus: int | None = None
    """CPUs of each worker that Ray starts, and the threads it computes with; None: `tp_size`."""

    policy: str = "cache-aware"
    """Where requests go: "cache-aware", "round-robin", "least-loaded" or "random"."""

    affinity: float = 2.0
    """How much a cached token counts against one that waits to be computed (cache-aware)."""

    host: str = "127.0.0.1"
    """The address to listen at; 0.0.0.0 is every network that the machine is in."""

    port: int = 30000
    """0: any that is free."""

    api_key: str | None = None
    """Requests must bear it, and so do ours to workers; None: whoever reaches the port may ask."""

    max_body_mib: int = 64
    """Longest body of a request."""

    cors_origins: tuple[str, ...] = ()
    """Web pages of these origins may ask from a browser; ("*",): of all."""

    poll_seconds: float = 0.5
    """How often workers are asked whether they are there, and what they forgot."""

    restarts: int = 3
    """How often a worker of ours is started again that ends without having answered anything."""

    drain_seconds: float = 30.0
    """How long answers may go on after the router was told to stop."""

    def __post_init__(self) -> None:
        if self.policy not in POLICIES:
            raise ValueError(f"policy={self.policy!r}: choose one of {', '.join(POLICIES)}")
        for name, least in _AT_LEAST.items():
            given = getattr(self, name)
            if given is not None and given < least:
                raise ValueError(f"{name}={given}: give a whole number of at least {least}")
        self._check_places()
        for name in ("affinity", "drain_seconds"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name}={getattr(self, name)}: give a number of at least 0")
        if not self.poll_seconds > 0:
            raise ValueError(f"poll_seconds={self.poll_seconds}: give a number above 0")
        if not 0 <= self.port < 65536:
            raise ValueError(f"port={self.port}: give a number from 0 to 65535")

    def _check_places(self) -> None:
        for name in ("workers", "ray"):
            given = getattr(self, name)
            if given is not None and self.worker:
                raise ValueError(f"{name}={given!r} and URLs of {len(self.worker)}: give one")
        if self.ray is not None and (not self.ray or "://" in self.ray):
            raise ValueError(f"ray={self.ray!r}: give HOST:PORT, 'auto' or 'local'")
        if self.ray is None and self.ray_cpus is not None:
            raise ValueError(f"ray_cpus={self.ray_cpus}: only with ray")
        for url in self.worker:
            if not url.startswith(("http://", "https://")):
                raise ValueError(f"worker={url!r}: give a URL, like http://10.0.0.7:30000")

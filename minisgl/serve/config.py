"""`ServeConfig`: what the server is started with, besides the engine's own settings."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ServeConfig:
    """Settings of the server.

    Raises:
        ValueError: for a value that is not allowed, with the value and what is allowed.
    """

    host: str = "127.0.0.1"
    """The address to listen at; 0.0.0.0 is every network that the machine is in."""

    port: int = 30000
    """0: any that is free."""

    served_names: tuple[str, ...] = ()
    """Names that clients may call the model by; the first is the one that answers bear.
    "default" always works; ():  the model's own name."""

    served_path: str | None = None
    """What /get_model_info says, from which SGLang's clients guess a chat template; None: the
    model's own path."""

    api_key: str | None = None
    """Requests must bear it; None: whoever reaches the port may ask."""

    max_body_mib: int = 64
    """Longest body of a request; images come in it."""

    max_requests: int = 1024
    """Most requests to answer at the same time; more are told to come back (503)."""

    max_answers: int = 4096
    """Most answers of one request: its prompts times n."""

    drain_seconds: float = 30.0
    """How long answers may go on after the server was told to stop."""

    cors_origins: tuple[str, ...] = ()
    """Web pages of these origins may ask from a browser; ("*",): of all."""

    image_files: bool = False
    """Whether an image may be named by a path on the server's own disk."""

    image_hosts: tuple[str, ...] = ()
    """Hosts to fetch images from: "example.org", or "*.example.org"; (): none."""

    report_evictions: bool = False
    """Whether to tell, at /router/evictions, what the radix cache forgets: token ids of prompts."""

    def __post_init__(self) -> None:
        if not 0 <= self.port < 65536:
            raise ValueError(f"port={self.port}: give a number from 0 to 65535")
        for name in ("max_body_mib", "max_requests", "max_answers"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: give a number of at least 1")
        if not self.drain_seconds >= 0:
            raise ValueError(f"drain_seconds={self.drain_seconds}: give a number of at least 0")
        if self.api_key is not None and not (self.api_key and self.api_key.isascii()):
            raise ValueError("api_key: give ASCII characters, at least one, or None")

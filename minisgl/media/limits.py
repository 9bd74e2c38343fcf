"""`Limits`: how much, and from where, `load` may read."""

from __future__ import annotations

from dataclasses import dataclass

import PIL.Image

MEGA = 2**20


@dataclass(frozen=True)
class Limits:
    """The defaults suit a person at their own machine; a server that reads for strangers sets
    `allow_files=False`, and `allow_http=False` or `allowed_hosts`.

    Args:
        max_pixels: of one picture, width times height.  Its header is asked, before any pixel.
        max_video_pixels: of all frames of a video together.
        max_bytes: of an encoded picture or video that is held in memory: bytes, base64, downloads
            and picture files.  (A video in a file is read by its decoder piece by piece.)
        allow_files: whether a string may name a file.
        allow_http: whether http and https URLs are fetched.
        allowed_hosts: the hosts to fetch from, and redirect to: "example.org", or "*.example.org"
            for all hosts below it.  None: all.
        public_only: refuse addresses that are not on the public internet (the machine itself, its
            network, a cloud's metadata service).  None: just where `allowed_hosts` is set.
        timeout: seconds for a whole download.

    Raises:
        ValueError: a limit that can't be one.
    """

    max_pixels: int = 64 * MEGA
    max_video_pixels: int = 1024 * MEGA
    max_bytes: int = 128 * MEGA
    allow_files: bool = True
    allow_http: bool = True
    allowed_hosts: tuple[str, ...] | None = None
    public_only: bool | None = None
    timeout: float = 20.0

    def __post_init__(self) -> None:
        for name in ("max_pixels", "max_video_pixels", "max_bytes", "timeout"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)!r}: give a number above 0")
        bound = PIL.Image.MAX_IMAGE_PIXELS  # Pillow warns above it, and refuses above twice as many
        if bound is not None and self.max_pixels > bound:
            raise ValueError(
                f"max_pixels={self.max_pixels}: Pillow's own limit is {bound}; "
                "set PIL.Image.MAX_IMAGE_PIXELS to raise it"
            )
        if isinstance(self.allowed_hosts, str):
            raise ValueError(f"allowed_hosts={self.allowed_hosts!r}: give a tuple of host names")

    @property
    def needs_public_address(self) -> bool:
        """Whether private addresses are refused."""
        return self.allowed_hosts is not None if self.public_only is None else self.public_only

    def allows_host(self, host: str) -> bool:
        """Whether to fetch from `host`.

        >>> limits = Limits(allowed_hosts=("example.org", "*.example.com"))
        >>> [limits.allows_host(h) for h in ("Example.org", "a.example.org", "a.example.com")]
        [True, False, True]
        """
        if self.allowed_hosts is None:
            return True
        host = host.lower().rstrip(".")
        return any(
            host.endswith(allowed[1:].lower())
            if allowed.startswith("*.")
            else host == allowed.lower()
            for allowed in self.allowed_hosts
        )

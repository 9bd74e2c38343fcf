"""A progress bar on stderr, in forty lines; silent where nobody looks."""

from __future__ import annotations

import sys
import time
from types import TracebackType


class ProgressBar:
    """`with ProgressBar("loading", total=n, unit="MB") as bar: ...; bar.advance(k)`.

    `show`: True draws always, False never, None only if stderr is a terminal.
    """

    WIDTH = 30
    INTERVAL_S = 0.1

    def __init__(
        self, label: str, total: float, unit: str = "", *, show: bool | None = None
    ) -> None:
        self.label = label
        self.total = total
        self.unit = unit
        self.show = sys.stderr.isatty() if show is None else show
        self.done = 0.0
        self._started = time.monotonic()
        self._drawn = 0.0

    def __enter__(self) -> ProgressBar:
        self._draw()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._draw()
        if self.show:
            sys.stderr.write("\n")
            sys.stderr.flush()

    def advance(self, amount: float) -> None:
        """So much more is done; redraws at most ten times a second."""
        self.done += amount
        if time.monotonic() - self._drawn >= self.INTERVAL_S:
            self._draw()

    def _draw(self) -> None:
        if self.show:
            sys.stderr.write("\r" + self.line())
            sys.stderr.flush()
        self._drawn = time.monotonic()

    def line(self) -> str:
        """The bar as text.

        >>> bar = ProgressBar("loading", total=4, unit="MB", show=False)
        >>> bar.advance(1)
        >>> bar.line().split(" MB")[0]
        'loading [#######.......................]  25% 1/4'
        """
        share = min(1.0, self.done / self.total) if self.total else 1.0
        bar = ("#" * int(share * self.WIDTH)).ljust(self.WIDTH, ".")
        seconds = time.monotonic() - self._started
        counts = f"{self.done:.0f}/{self.total:.0f} {self.unit}".rstrip()
        return f"{self.label} [{bar}] {share:4.0%} {counts} {seconds:.1f}s"

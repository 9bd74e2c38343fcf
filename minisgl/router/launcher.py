"""Where workers are: at a URL that was given, or in a process that we start, and start again.

A process of ours holds the other end of its standard input, and ends when we do, whatever ends us.
It says its URL on stderr, on a line of its own, once it listens.  ray_workers.py has them started
on other hosts.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

PATIENCE = 10.0  # seconds in which a worker that was told to has ended


class GaveUp(Exception):
    """The worker ended once too often."""


class Source(ABC):
    """Where one worker is, from the router's side."""

    @abstractmethod
    async def find(self) -> str:
        """Its URL, once it listens.

        Raises:
            OSError: it is not there now.
            GaveUp: and won't be.
        """

    @abstractmethod
    def proved(self) -> None:
        """It answered a request."""

    @abstractmethod
    async def close(self) -> None:
        """The router has done with it."""


class Given(Source):
    """A worker that somebody else runs, and that goes on when we end."""

    def __init__(self, url: str) -> None:
        self._url = url.rstrip("/")

    async def find(self) -> str:
        """Its URL."""
        return self._url

    def proved(self) -> None:
        """It answered."""

    async def close(self) -> None:
        """It goes on."""


class Restarted(Source):
    """A worker that we run: who looks for it and does not find it starts it.

    Args:
        number: what it is called in notices.
        restarts: how often it is started again without having answered anything in between.
    """

    def __init__(self, number: int, restarts: int) -> None:
        self._number, self._restarts = number, restarts
        self._url = ""
        self._starts = 0  # since it last answered

    async def find(self) -> str:
        """Its URL, once it listens; it is started if it does not run.

        Raises:
            OSError: it ended instead.
            GaveUp: and was started again often enough.
        """
        if self._url and await self._is_running():
            return self._url
        await self.close()
        self._url = ""
        if self._starts > self._restarts:
            raise GaveUp(f"worker {self._number} ended {self._starts} times without an answer")
        self._starts += 1
        self._url = await self._start()
        return self._url

    def proved(self) -> None:
        """It answered."""
        self._starts = 1

    @abstractmethod
    async def _is_running(self) -> bool: ...

    @abstractmethod
    async def _start(self) -> str:
        """Its URL.  OSError: it ended instead."""


class Started(Restarted):
    """A process of this host.

    Args:
        number: what its lines on our stderr begin with.
        command: the program; `--port 0` is up to the caller.
        restarts: see `Restarted`.
        env: added to our environment.
    """

    def __init__(
        self,
        number: int,
        command: Sequence[str],
        restarts: int,
        env: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(number, restarts)
        self._command = list(command)
        self._env = {**os.environ, **(env or {})}
        self._process: asyncio.subprocess.Process | None = None
        self._pump: asyncio.Task[None] | None = None

    @property
    def pid(self) -> int | None:
        """Of the process, if there is one."""
        return self._process.pid if self._process else None

    async def _is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def _start(self) -> str:
        self._process = process = await asyncio.create_subprocess_exec(
            *self._command,
            stdin=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=self._env,
            start_new_session=True,  # Ctrl-C is for us, who will end it
        )
        stderr = process.stderr
        assert stderr is not None
        while line := await _line(stderr):
            if line.startswith(b"http://"):
                self._pump = asyncio.create_task(self._show_all(stderr))
                return line.decode().strip()
            self._show(line)
        raise OSError(f"worker {self._number} ended with exit code {await process.wait()}")

    async def close(self) -> None:
        """End it, and wait for that."""
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            try:
                await asyncio.wait_for(process.wait(), PATIENCE)
            except asyncio.TimeoutError:
                process.kill()
                await process.wait()
        if self._pump is not None:
            await self._pump  # its stderr has ended, too
            self._pump = None

    async def _show_all(self, stderr: asyncio.StreamReader) -> None:
        while line := await _line(stderr):
            self._show(line)

    def _show(self, line: bytes) -> None:
        sys.stderr.write(f"[{self._number}] {line.decode(errors='replace')}")
        sys.stderr.flush()


async def _line(stderr: asyncio.StreamReader) -> bytes:
    """The next line, if it is of reasonable length; b"": there is none."""
    while True:
        with contextlib.suppress(ValueError):  # too long, and thrown away
            return await stderr.readline()


def gpus_of(visible: Sequence[str], workers: int, tp_size: int) -> list[str]:
    """What CUDA_VISIBLE_DEVICES is for each worker.

    >>> gpus_of(["0", "1", "2", "3"], workers=2, tp_size=2)
    ['0,1', '2,3']

    Raises:
        ValueError: there are too few of them, with the numbers.
    """
    if workers * tp_size > len(visible):
        raise ValueError(
            f"workers={workers} times tp_size={tp_size} is {workers * tp_size} GPUs, and there are "
            f"{len(visible)}"
        )
    return [",".join(visible[i * tp_size : (i + 1) * tp_size]) for i in range(workers)]

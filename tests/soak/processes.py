"""Programs under test as processes of their own, and what of the machine they hold.

Counted in /proc, so on Linux only.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.serve.common import LONG

KEY = "of the soak"
COUNTS = Path("/proc/self/fd").exists()


@dataclass
class Held:
    """What a process holds.

    memory: resident, in bytes.
    """

    files: int
    threads: int
    memory: int


@dataclass
class Process:
    """Any process, by its number."""

    pid: int

    def held(self) -> Held:
        lines = self._place("status").read_text().splitlines()
        told = dict(line.split(":", 1) for line in lines)
        files = len(list(self._place("fd").iterdir()))
        return Held(files, int(told["Threads"]), 1024 * int(told["VmRSS"].split()[0]))

    def children(self) -> list[Process]:
        """Those it has started."""
        found = []
        for place in Path("/proc").glob("[0-9]*/stat"):
            try:
                parent = place.read_text().rpartition(")")[2].split()[1]
            except (FileNotFoundError, ProcessLookupError):  # it has ended meanwhile
                continue
            if int(parent) == self.pid:
                found.append(Process(int(place.parent.name)))
        return found

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)

    def _place(self, name: str) -> Path:
        return Path("/proc", str(self.pid), name)


@dataclass
class Program:
    """A program that listens at `url`."""

    process: Process
    url: str

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    def get(self, path: str, url: str | None = None) -> Any:
        """What it answers there, which is JSON."""
        answer = httpx.get(
            (url or self.url) + path, headers={"X-API-Key": KEY}, timeout=LONG, verify=False
        )
        assert answer.status_code == 200, answer.text
        return answer.json()


@contextmanager
def running(module: str, *options: str) -> Iterator[Program]:
    """`python -m MODULE`, which has to end well when it is told to."""
    process = subprocess.Popen(
        [sys.executable, "-m", module, "--port", "0", "--no-access-log", *options],
        env={**os.environ, "MINISGL_API_KEY": KEY},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    said: list[str] = []
    reader = threading.Thread(target=said.extend, args=(process.stderr,))  # line by line
    try:
        for line in process.stderr:  # as long as it takes
            said.append(line)
            if line.startswith("http://"):
                break
        else:
            raise AssertionError("".join(said))
        reader.start()
        yield Program(Process(process.pid), line.strip())
        process.send_signal(signal.SIGTERM)
        assert process.wait(LONG) == 0, "".join(said)
    finally:
        process.kill()
        process.wait()
        if reader.ident is not None:
            reader.join()
        process.stderr.close()

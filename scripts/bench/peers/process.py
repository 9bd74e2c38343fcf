"""`Process`: the caller's end of a peer's process; a line of JSON there, a line of JSON back."""

from __future__ import annotations

import contextlib
import json
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
LAST_WORDS = 2000  # characters of what a process printed before it ended
PATIENCE = 30.0  # seconds to end in, when told to


class PeerError(RuntimeError):
    """What went wrong in a peer's process, or that it has ended."""


class Process:
    """`PYTHON -m scripts.bench.peers.child ARGUMENTS`, from its first word on.

    Attributes:
        hello: what it said when it was ready.

    Raises:
        PeerError: it ended before it was ready.
    """

    def __init__(self, python: str, arguments: Sequence[str]) -> None:
        self.name = arguments[0]
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  # closed by `close`
        try:
            self._process = subprocess.Popen(
                [python, "-m", "scripts.bench.peers.child", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._said,
                text=True,
                encoding="utf-8",
                cwd=ROOT,
            )
        except OSError as error:
            self._said.close()
            raise PeerError(f"{self.name}: can't start {python} ({error})") from error
        self._answers, self._requests = self._process.stdout, self._process.stdin
        assert self._answers is not None and self._requests is not None
        try:
            self.hello: dict[str, Any] = self._read()
        except BaseException:
            self.close(patience=0)
            raise

    def ask(self, **request: Any) -> Any:
        """The answer to one request.

        Raises:
            PeerError: it could not do it; in its words.
        """
        try:
            print(json.dumps(request), file=self._requests, flush=True)
        except OSError:  # nobody reads any more: say why
            raise self._ended() from None
        reply = self._read()
        if "error" in reply:
            raise PeerError(f"{self.name}: {reply['error']}")
        return reply["answer"]

    def close(self, patience: float = PATIENCE) -> None:
        """The end of its input is its own end; after `patience` seconds it is ended."""
        with contextlib.suppress(OSError):  # it may have ended before it read all
            self._requests.close()
        try:
            self._process.wait(patience)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._answers.close()
        self._said.close()

    def _read(self) -> dict[str, Any]:
        line = self._answers.readline()
        if not line:
            raise self._ended()
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _ended(self) -> PeerError:
        code = self._process.wait()
        self._said.seek(0)
        words = self._said.read().decode("utf-8", errors="replace").strip()[-LAST_WORDS:]
        return PeerError(f"the process of {self.name} ended with {code}; it said: {words}")

"""The GPU check's child processes: a limit on their time, and NVIDIA's sanitizer around them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from scripts.gpu_measure import Log

ROOT = Path(__file__).resolve().parents[1]


def run_within(
    limit: float,
    command: list[str],
    environment: dict[str, str] | None = None,
    *,
    quiet: bool = False,
) -> tuple[int, str]:
    """Exit code of a command, and its output if `quiet` keeps it from being shown.

    After `limit` seconds it is ended together with its children, which would go on using the GPU,
    and TimeoutExpired is raised.
    """
    with subprocess.Popen(
        command,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE if quiet else None,
        stderr=subprocess.STDOUT if quiet else None,
        text=True,
        start_new_session=True,  # one group to end
    ) as process:
        try:
            output, _ = process.communicate(timeout=limit)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            raise
        return process.returncode, output or ""


def sanitizer(log: Log) -> None:
    """NVIDIA's compute-sanitizer over every kernel at tiny sizes, where it is installed."""
    tool = shutil.which("compute-sanitizer")
    if tool is None:
        log.attempt("sanitizer", "compute-sanitizer", lambda: {"skipped": "not installed"})
        return

    def measure(*under: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as out:
            command = [*under, sys.executable, "-m", "scripts.gpu_check"]
            command += ["--phase", "tiny", "--out", out]
            environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
            code, output = run_within(45, command, environment, quiet=True)
        return {"ok": code == 0, "tail": output[-400:]}

    # The first run compiles, so that the tools need not watch the compiler.
    log.attempt("sanitizer", "no tool", measure)
    for check in ("memcheck", "racecheck"):
        options = [tool, "--tool", check, "--error-exitcode", "9"]
        log.attempt("sanitizer", check, lambda o=options: measure(*o))

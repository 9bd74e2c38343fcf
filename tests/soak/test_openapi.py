"""Schemathesis asks the server everything that its own OpenAPI description allows, and what it does
not: no answer is a server error, and each is one that the description tells of.

It runs as a program, from whatever environment has it: `pip install schemathesis`, and if that is
another one, SCHEMATHESIS=PATH.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.soak.processes import KEY, running

PROGRAM = os.environ.get("SCHEMATHESIS") or shutil.which("schemathesis")
# Not among them: that all data which fits the schema is accepted.  A schema can't say that best_of
# goes with n, or that a prompt has tokens; our 400 says it in words.
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
    "negative_data_rejection",
)


@pytest.mark.slow
@pytest.mark.skipif(PROGRAM is None, reason="schemathesis is not installed")
def test_the_server_is_what_its_description_says(tiny_model_dir: Path, tmp_path: Path) -> None:
    assert PROGRAM is not None
    options = ("--dtype=float32", "--kv-tokens=2000", "--context-length=128")
    with running("minisgl.serve", f"--model={tiny_model_dir}", *options) as server:
        done = subprocess.run(
            [
                PROGRAM, "run", f"{server.url}/openapi.json",
                f"--header=X-API-Key: {KEY}",
                f"--checks={','.join(CHECKS)}",
                "--generation-deterministic", "--no-color",
            ],
            capture_output=True,
            text=True,
            cwd=tmp_path,  # where it notes what failed
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        server.get("/health")  # and it still answers

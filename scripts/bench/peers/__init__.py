"""Other systems as backends of the language: the same program runs on each of them.

    peer = open_peer("transformers", model)
    answer.run_batch(questions, backend=peer, temperature=0)
    peer.close()

A peer runs in a process of its own (child.py), with the Python of an environment that has it, since
the systems' requirements clash; README.md says how to install each.  A system is one file here, and
knows nothing of minisgl: it gets texts and gives texts.  `PeerBackend` sends what programs ask for
the way a careful user's loop would: all that wait, together, whenever the peer is free.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scripts.bench.peers.backend import PeerBackend

SYSTEMS = {  # name -> module of this package
    "transformers": "transformers",
    "outlines": "outlines",
    "guidance": "guidance",
    "llama.cpp": "llama_cpp",
    "vllm": "vllm",
}


def threads() -> int:
    """How many of the processor a system is to use where it asks: as many as torch would."""
    return int(os.environ.get("OMP_NUM_THREADS") or os.cpu_count() or 1)


def open_peer(
    name: str,
    model: str | Path | None = None,
    python: str = sys.executable,
    dtype: str = "auto",
    device: str = "auto",
) -> PeerBackend:
    """A peer that has its model loaded.  Close it, or use it as a context manager.

    Args:
        name: one of `SYSTEMS`.
        model: as for `Engine`: a directory, a hub id, a .gguf file, or None for the default model.
            llama.cpp and guidance need a .gguf file; of the default model they get one.
        python: of an environment that has the system.
        dtype: "float32", "bfloat16", "float16", or "auto", which is the system's best choice here.
        device: "cpu", "cuda", or "auto".

    Raises:
        ValueError: no such system, or it can't read the model.
        PeerError: its process ended before it was ready; with what it said.
    """
    # Only here: a peer's process imports this package too, and has no minisgl.
    from scripts.bench.peers.backend import PeerBackend

    return PeerBackend(name, model, python, dtype, device)

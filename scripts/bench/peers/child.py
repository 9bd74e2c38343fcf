"""A peer's own process: reads waves of requests, answers each wave with a line.

    PYTHON -m scripts.bench.peers.child NAME MODEL [--dtype DTYPE] [--device DEVICE]

    stdin                                            stdout
                                                     {"version": ..., "features": [...]}
    {"kind": "generate", "wave": [request, ...]}     {"answer": [answer, ...]} or {"error": words}

    kind      request                                        answer
    generate  prompt, max_tokens, stop, ignore_eos, regex    text, prompt_tokens, completion_tokens,
                                                             finish_reason ("stop" or "length")
    score     prompt, choices, unconditional                 inside, alone: tokens of each choice,
                                                             each [log-probability, id, text]
    choose    prompt, choices                                the index of one
    flush     (none)                                         whether nothing is remembered any more

A text may go on after a stop string: the caller cuts it.  All else that is printed goes to stderr.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import sys
import traceback
from typing import Any, Protocol

from scripts.bench.peers import SYSTEMS

Wave = list[dict[str, Any]]


class System(Protocol):
    """What each module of a system has under this name; all decoding is greedy.

    features: of "regex", "score", "choose", what it can do besides generating.
    """

    features: tuple[str, ...]

    def __init__(self, model: str, dtype: str, device: str) -> None: ...

    def generate(self, wave: Wave) -> Wave:
        """Go on from each prompt."""

    def score(self, wave: Wave) -> Wave:
        """How likely the choices are after each prompt."""

    def choose(self, wave: Wave) -> list[int]:
        """The system's own way to take one of some choices."""

    def flush(self) -> bool:
        """Forget what is kept from one wave to the next."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=SYSTEMS)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="auto")
    args = parser.parse_args()
    # Libraries print where they like, so stdout becomes theirs and the answers keep the pipe.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    module = importlib.import_module(f"scripts.bench.peers.{SYSTEMS[args.name]}")
    system: System = module.System(args.model, args.dtype, args.device)

    def tell(reply: dict[str, Any]) -> None:
        print(json.dumps(reply), file=answers, flush=True)

    tell({"version": module.version(), "features": system.features})
    for line in sys.stdin:
        request = json.loads(line)
        try:
            tell({"answer": getattr(system, request.pop("kind"))(**request)})
        except Exception as error:  # whatever it is, who asked shall see it
            traceback.print_exc()
            tell({"error": f"{type(error).__name__}: {error}"})


if __name__ == "__main__":
    main()

"""What the examples share: their command line, and how they read data."""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import minisgl.lang as sgl


def options(doc: str, argv: Sequence[str] | None, *, max_tokens: int) -> argparse.Namespace:
    """The command line of an example; with --model, that model becomes the default backend."""
    p = argparse.ArgumentParser(description=doc.splitlines()[0])
    p.add_argument("--model", help="a directory, a hub id, or a .gguf file (default: SmolLM2-135M)")
    p.add_argument("--data", type=Path, help="real data instead of the made-up sample")
    p.add_argument("--limit", type=int, default=4, help="items of the data (default: %(default)s)")
    p.add_argument(
        "--max-tokens", type=int, default=max_tokens, help="of an answer (default: %(default)s)"
    )
    args = p.parse_args(argv)
    if args.limit < 1:
        p.error(f"--limit {args.limit}: give a number of at least 1")
    if args.model is not None:
        sgl.set_default_backend(sgl.Runtime(args.model))
    return args


def read_jsonl(path: Path, limit: int | None = None) -> list[Any]:
    """The JSON values of a file with one a line, at most `limit` of them."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line.strip()][:limit]


def last_number(text: str) -> str | None:
    """What an answer that thinks aloud comes to.

    >>> last_number("9 times 2 is 18, so she makes $1,018.")
    '1018'
    """
    found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return found[-1].replace(",", "") if found else None


def majority(values: Iterable[str | None]) -> str | None:
    """The value that occurs most, of equals the first; None if there is none.

    >>> majority(["7", "18", None, "18"])
    '18'
    """
    votes = Counter(value for value in values if value is not None)
    return votes.most_common(1)[0][0] if votes else None


def show(title: str, text: str) -> None:
    """Print an answer under a line of its own."""
    print(f"\n--- {title}\n{text.strip()}")


def cached(state: sgl.ProgramState, name: str) -> str:
    """How much of the prompt of the variable `name` was computed before."""
    meta = state.get_meta_info(name)
    return f"{meta['cached_tokens']} of {meta['prompt_tokens']} prompt tokens cached"

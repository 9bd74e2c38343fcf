"""Talk with a model in the terminal: `python -m minisgl.chat`.

Every turn sends the whole conversation again (chat_turns.py); `/stats` and `/tree` show the radix
cache at work, which makes that cheap, and `/help` lists the other commands (chat_commands.py).

Answers go to stdout and everything else to stderr, so that

    git diff | python -m minisgl.chat --prompt "Sum this up:" - > summary.txt

writes the answer and nothing but the answer.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import sys
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

from minisgl.chat_commands import checked, talk
from minisgl.chat_turns import Chat
from minisgl.config import DEVICES, DTYPES
from minisgl.sampling import SamplingParams


@contextlib.contextmanager
def line_editing(history: Path) -> Iterator[None]:
    """Arrow keys, and a history that outlives the program, where Python has readline."""
    try:
        readline: Any = import_module("readline")
    except ImportError:  # Windows, whose console edits lines by itself
        yield
        return
    with contextlib.suppress(OSError):  # there is none yet
        readline.read_history_file(history)
    readline.set_history_length(1000)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a disk we can't write to is no reason to fail
            history.parent.mkdir(parents=True, exist_ok=True)
            readline.write_history_file(history)


# ---------------------------------------------------------------------- the command line


def parser() -> argparse.ArgumentParser:
    """The options of `python -m minisgl.chat`."""
    p = argparse.ArgumentParser(prog="python -m minisgl.chat", description=__doc__.split("\n")[0])
    p.add_argument("--model", help="a directory, a hub id, or a .gguf file (default: SmolLM2-135M)")
    p.add_argument("--prompt", help="answer this and leave")
    p.add_argument(
        "stdin",
        nargs="?",
        choices=["-"],
        metavar="-",
        help="read the prompt, or its rest",
    )
    p.add_argument("--system", help="the system message")
    p.add_argument("--max-tokens", type=int, help="most tokens of an answer (default: no limit)")
    p.add_argument(
        "--temperature", type=float, default=0.0, help="0: greedy (default: %(default)s)"
    )
    p.add_argument("--top-p", type=float, default=0.9, help="default: %(default)s")
    p.add_argument("--seed", type=int, help="the same seed gives the same answers")
    p.add_argument("--regex", metavar="PATTERN", help="answers match this regular expression")
    p.add_argument("--json-schema", metavar="FILE", help="answers are JSON, valid by this schema")
    p.add_argument("--device", choices=DEVICES, default="auto")
    p.add_argument("--dtype", choices=DTYPES, default="auto")
    p.add_argument(
        "--tp", type=int, default=1, metavar="N", help="split the layers over N GPUs (default: 1)"
    )
    p.add_argument("--trace", metavar="FILE", help="write a trace of every step, for Perfetto")
    p.add_argument("--verbose", action="store_true", help="say what each answer took")
    return p


def question(args: argparse.Namespace, stdin: TextIO) -> str | None:
    """The one question to answer, from --prompt and stdin; None: talk."""
    given = [] if args.prompt in (None, "-") else [args.prompt]
    if args.stdin or args.prompt == "-" or (not given and not stdin.isatty()):
        given.append(stdin.read().rstrip("\n"))
    if not given:
        return None
    text = "\n\n".join(part for part in given if part.strip())
    if not text:
        raise ValueError("the prompt is empty")
    return text


def main(argv: Sequence[str] | None = None) -> int:
    """Run the program; the exit status."""
    options = parser()
    args = options.parse_args(argv)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that lacks a character shows "?"
    try:
        schema = args.json_schema and Path(args.json_schema).read_text(encoding="utf-8")
        params = SamplingParams(
            max_tokens=args.max_tokens,
            temperature=args.temperature,
            top_p=args.top_p,
            seed=args.seed,
            regex=args.regex,
            json_schema=schema,
        )
        checked(params)
        asked = question(args, sys.stdin)
    except (ValueError, OSError) as error:
        options.error(str(error))
    try:
        return run(args, params, asked)
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (ValueError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1


def run(args: argparse.Namespace, params: SamplingParams, asked: str | None) -> int:
    """Load the model, then answer `asked`, or talk if it is None; the exit status."""
    from minisgl.engine.engine import Engine  # here, so that --help does not wait for torch
    from minisgl.models.hub import cache_dir

    bars = sys.stderr.isatty()
    settings = {
        "device": args.device,
        "dtype": args.dtype,
        "tp_size": args.tp,
        "trace": args.trace,
    }
    with Engine(args.model, progress=bars, **settings) as engine:
        chat = Chat(engine, params, system=args.system, verbose=args.verbose)
        if asked is not None:
            return 130 if chat.answer(asked) is None else 0
        print("/help lists the commands, Ctrl-D leaves.", file=sys.stderr)
        with line_editing(cache_dir() / "chat_history"):
            talk(chat)
        return 0


if __name__ == "__main__":
    sys.exit(main())

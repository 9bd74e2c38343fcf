"""The paper's figures and tables, measured on this machine.

    python -m scripts.bench 8c               # one figure; several, or `all`
    python -m scripts.bench all --quick      # about two minutes each on two cores
    python -m scripts.bench --list
    python -m scripts.bench 5 --data DIR --peer transformers --peer llama.cpp=PYTHON

Prints a table, and writes build/bench/NAME.json with its charts and pictures.  A peer is another
system that runs the same programs; PYTHON is that of an environment which has it, by default this.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from scripts.bench.figures import FIGURES, Options, find
from scripts.bench.results import Result, command_line, machine

RESULTS = Path("build/bench")


def parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, Options]:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("figures", nargs="*", metavar="FIGURE", help=f"all, {', '.join(FIGURES)}")
    parser.add_argument("--list", action="store_true", help="say what there is")
    parser.add_argument("--quick", action="store_true", help="about two minutes each")
    parser.add_argument("--model", help="a directory, a hub id, or a .gguf file")
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    parser.add_argument("--data", type=Path, help="a directory of the workloads' real data")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME[=PYTHON]")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--out", type=Path, default=RESULTS, help="default: %(default)s")
    args = parser.parse_args(argv)
    if args.figures == ["all"]:
        args.figures = list(FIGURES)
    peers = tuple((name, python or sys.executable) for name, _, python in (
        peer.partition("=") for peer in args.peer
    ))  # fmt: skip
    options = Options(args.quick, args.model, args.device, args.data, peers, args.rounds)
    return args, options


def measure(name: str, options: Options, command: str) -> Result:
    """One figure's result, with how and where it came about."""
    figure = find(name)
    result = figure.run(options)
    result.title, result.command, result.machine = figure.TITLE, command, machine()
    return result


def main(argv: Sequence[str] | None = None) -> None:
    args, options = parse(argv)
    if args.list or not args.figures:
        for name in FIGURES:
            print(f"{name:>10}  {find(name).TITLE}")
        return
    rest = [a for a in (sys.argv[1:] if argv is None else argv) if a not in args.figures]
    for name in args.figures:
        result = measure(name, options, command_line("scripts.bench", [name, *rest]))
        result.save(args.out / f"{name}.json")
        print(result.show())


if __name__ == "__main__":
    main()

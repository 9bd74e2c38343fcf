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
import traceback
from collections.abc import Sequence
from pathlib import Path

from scripts.bench import charts
from scripts.bench.figures import FIGURES, Options, find, title
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
    parser.add_argument(
        "--real-shapes", action="store_true", help="7, 12, table2: models as large as the paper's"
    )
    parser.add_argument("--out", type=Path, default=RESULTS, help="default: %(default)s")
    args = parser.parse_args(argv)
    if "all" in args.figures:
        args.figures = list(FIGURES)
    if unknown := [name for name in args.figures if name not in FIGURES]:
        parser.error(f"no figure {unknown[0]!r}; there are all, {', '.join(FIGURES)}")
    peers = tuple((name, python or sys.executable) for name, _, python in (
        peer.partition("=") for peer in args.peer
    ))  # fmt: skip
    try:
        options = Options(
            args.quick,
            args.model,
            args.device,
            args.data,
            peers,
            args.rounds,
            args.real_shapes,
        )
    except ValueError as error:
        parser.error(str(error))
    return args, options


def measure(name: str, options: Options) -> Result:
    """One figure's result, with how and where it came about."""
    figure = find(name)
    result = figure.run(options)
    result.title, result.machine = figure.TITLE, machine()
    result.command = command_line("scripts.bench", [name, *options.arguments()])
    return result


def write(result: Result, name: str, out: Path) -> list[Path]:
    """The result's files in `out`; without matplotlib, all but the charts, and a line says so."""
    files = [out / f"{name}.json"]
    result.save(files[0])
    for picture, svg in result.pictures.items():
        files.append(out / f"{name}-{picture}.svg")
        files[-1].write_text(svg, encoding="utf-8")
    try:
        for number, chart in enumerate(result.charts, 1):
            files += charts.write(chart, out / f"{name}-{number}")
    except ImportError as error:
        print(f"{len(result.charts)} charts not drawn: {error} (pip install 'minisgl[bench]')")
    return files


def main(argv: Sequence[str] | None = None) -> None:
    args, options = parse(argv)
    if args.list or not args.figures:
        for name in FIGURES:
            print(f"{name:>10}  {title(name)}")
        return
    failed = []
    for name in args.figures:
        try:
            result = measure(name, options)
            print(result.show())
            print("wrote", *write(result, name, args.out), end="\n\n", flush=True)
        except Exception:  # the other figures can still be measured
            traceback.print_exc()
            failed.append(name)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()

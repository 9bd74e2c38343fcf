"""Makes docs/benchmarks.md from results: nobody copies a number by hand.

    python -m scripts.bench.document                 # takes what build/bench has that is newer
    python -m scripts.bench.document DIR 8c 11       # of DIR, these two
    python -m scripts.bench.document --check         # fails if a page is not what its results make

The page's prose is written by hand.  A result's place is a heading and two lines:

    <!-- result 8c -->
    <!-- end -->

What stands between them is made from docs/results/8c.json alone: the command, the machine, tables,
notes and pictures.  To add a result: write its heading and the two lines, and run this.
"""

from __future__ import annotations

import argparse
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from scripts.bench import charts
from scripts.bench.common import ROOT
from scripts.bench.results import Result

BEGIN = "<!-- result "
BLOCK = re.compile(rf"{BEGIN}(?P<name>\S+) -->\n(?:(?!{BEGIN}).)*?<!-- end -->", re.DOTALL)


@dataclass(frozen=True)
class Document:
    """A page, and the two directories that its blocks are made from and point to."""

    page: Path
    results: Path
    pictures: Path

    def take(self, source: Path, name: str) -> None:
        """Copy a result, and draw what belongs to it."""
        result = Result.load(source / f"{name}.json")
        if (self.results / f"{name}.json").exists():
            for old in pictures(name, Result.load(self.results / f"{name}.json")):
                (self.pictures / f"{old}.svg").unlink(missing_ok=True)
        self.results.mkdir(parents=True, exist_ok=True)
        self.pictures.mkdir(parents=True, exist_ok=True)
        for number, chart in enumerate(result.charts, 1):
            charts.write(chart, self.pictures / f"{name}-{number}", ("svg",))
        for picture, svg in result.pictures.items():
            (self.pictures / f"{name}-{picture}.svg").write_text(svg, encoding="utf-8")
        shutil.copyfile(source / f"{name}.json", self.results / f"{name}.json")

    def places(self) -> list[str]:
        """The results that the page has a place for, in its order."""
        return [block["name"] for block in BLOCK.finditer(self.text())]

    def text(self) -> str:
        """The page as it is."""
        return self.page.read_text(encoding="utf-8")

    def made(self) -> str:
        """The page as its results make it."""
        if len(self.places()) != self.text().count(BEGIN):
            raise ValueError(f"{self.page.name}: a result's place without its <!-- end -->")
        return BLOCK.sub(lambda block: self.block(block["name"]), self.text())

    def block(self, name: str) -> str:
        """From its first line to its last."""
        file = self.results / f"{name}.json"
        if not file.exists():
            raise FileNotFoundError(
                f"{self.page.name} has a place for {name!r}; there is no {file}"
            )
        result = Result.load(file)
        parts = [f"`{result.command}`: {result.where()}"]
        for table in result.tables:
            if table.is_detail:
                summary = f"<details><summary>{table.title}</summary>"
                parts += [summary, table.markdown(), "</details>"]
            else:
                parts += [f"*{table.title}*"] if table.title else []
                parts.append(table.markdown())
        parts += ["\n".join(f"- {note}" for note in result.notes)] if result.notes else []
        folder = self.pictures.relative_to(self.page.parent).as_posix()
        parts += [f"![{t}]({folder}/{stem}.svg)" for stem, t in pictures(name, result).items()]
        body = "\n\n".join(parts)
        return f"<!-- result {name} -->\n{body}\n<!-- end -->"


def pictures(name: str, result: Result) -> dict[str, str]:
    """The stem of each picture's file, and its title.

    >>> pictures("3", Result(title="The tree", pictures={"steps": "<svg/>"}))
    {'3-steps': 'The tree: steps'}
    """
    found = {f"{name}-{i}": chart.title for i, chart in enumerate(result.charts, 1)}
    return found | {f"{name}-{each}": f"{result.title}: {each}" for each in result.pictures}


BENCHMARKS = Document(
    ROOT / "docs" / "benchmarks.md", ROOT / "docs" / "results", ROOT / "docs" / "pictures" / "bench"
)


def news(document: Document, source: Path) -> list[str]:
    """The results in `source` that differ from those that the document has."""
    found = []
    for file in sorted(source.glob("*.json")):
        known = document.results / file.name
        if not known.exists() or known.read_bytes() != file.read_bytes():
            found.append(file.stem)
    return found


def main(argv: Sequence[str] | None = None, document: Document = BENCHMARKS) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m scripts.bench.document",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", nargs="?", type=Path, default=Path("build/bench"), metavar="DIR")
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all that are new")
    parser.add_argument("--check", action="store_true", help="take nothing, write nothing")
    args = parser.parse_args(argv)
    if args.check:
        if document.made() != document.text():
            raise SystemExit(
                f"{document.page} is not what its results make: run this without --check"
            )
        return
    if missing := [name for name in args.names if not (args.source / f"{name}.json").exists()]:
        parser.error(f"{args.source} has no {missing[0]}.json")
    taken = []
    for name in args.names or news(document, args.source):
        if name in document.places():
            document.take(args.source, name)
            taken.append(name)
        else:
            print(f"{name}: no place in {document.page.name}; it needs a heading and two lines")
    document.page.write_text(document.made(), encoding="utf-8")
    print(f"{document.page.name}: {', '.join(taken) or 'nothing new'}")


if __name__ == "__main__":
    main()

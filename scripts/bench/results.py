"""What a benchmark leaves behind: tables, charts and pictures, as JSON that documents are made of.

    build/bench/NAME.json               a `Result`: every measured value, how and where
    build/bench/NAME-1.svg and .png     its charts
    build/bench/NAME-PICTURE.svg        its pictures

`python -m scripts.bench` writes them, `python -m scripts.bench.document` reads them.
"""

from __future__ import annotations

import json
import os
import platform
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

Cell = str | int | float | None
VERSIONS = ("torch", "triton", "transformers")  # of packages that a figure depends on


@dataclass
class Table:
    """Rows under column names; a float is shown with `digits` decimals, None as a dash.

    is_detail: folded on the page.
    """

    columns: list[str]
    rows: list[list[Cell]]
    title: str = ""
    digits: int = 2
    is_detail: bool = False

    @classmethod
    def of(
        cls,
        rows: Sequence[Mapping[str, Cell]],
        title: str = "",
        digits: int = 2,
        *,
        is_detail: bool = False,
    ) -> Table:
        """From one dict a row, all with the same keys."""
        columns = list(rows[0])
        cells = [[row[c] for c in columns] for row in rows]
        return cls(columns, cells, title, digits, is_detail)

    def markdown(self) -> str:
        """As a Markdown table.

        >>> print(Table(["way", "s"], [["ours", 1.0], ["theirs", None]]).markdown())
        | way | s |
        |---|---|
        | ours | 1.00 |
        | theirs | - |
        """
        lines = [self.columns, ["---"] * len(self.columns)]
        lines += [[self._show(cell) for cell in row] for row in self.rows]
        head, rule, *rest = ("| " + " | ".join(line) + " |" for line in lines)
        return "\n".join([head, rule.replace(" ", ""), *rest])

    def _show(self, cell: Cell) -> str:
        if cell is None:
            return "-"
        if isinstance(cell, bool):
            return "yes" if cell else "no"
        if isinstance(cell, float):
            return f"{cell:,.{self.digits}f}"
        if isinstance(cell, int):
            return f"{cell:,}"
        return cell.replace("|", "\\|")


@dataclass
class Chart:
    """Numbers to draw: a group of bars, or a line, for each series over the same `x`.

    kind: "bars" or "lines".
    x: what stands under the axis.
    series: a value for each of `x`, None where there is none.
    is_log: whether the y axis is logarithmic.
    """

    kind: str
    title: str
    x_label: str
    y_label: str
    x: list[str | float]
    series: dict[str, list[float | None]]
    is_log: bool = False

    def __post_init__(self) -> None:
        if self.kind not in ("bars", "lines"):
            raise ValueError(f"a chart of {self.kind!r}: bars or lines")


@dataclass
class Result:
    """All of one figure.

    notes: sentences with numbers in them that the run itself made ("30 of 30 answers equal").
    pictures: SVG drawn from live objects, by name.
    raw: whatever else was measured, for another analysis; JSON values.
    """

    tables: list[Table] = field(default_factory=list)
    charts: list[Chart] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pictures: dict[str, str] = field(default_factory=dict)
    raw: dict[str, Any] = field(default_factory=dict)
    title: str = ""
    command: str = ""  # that printed it, without the interpreter's path
    machine: dict[str, str] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """As JSON."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n", "utf-8")

    @classmethod
    def load(cls, path: Path) -> Result:
        """What `save` wrote."""
        values = json.loads(path.read_text(encoding="utf-8"))
        values["tables"] = [Table(**table) for table in values["tables"]]
        values["charts"] = [Chart(**chart) for chart in values["charts"]]
        return cls(**values)

    def show(self) -> str:
        """For a terminal: the title, every table, every note."""
        parts = [f"{self.title}\n{self.where()}"]
        for table in self.tables:
            is_new = table.title not in ("", self.title)
            parts.append((f"{table.title}\n\n" if is_new else "") + table.markdown())
        parts += ["\n".join(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n\n".join(parts) + "\n"

    def where(self) -> str:
        """The machine and what ran on it, in a line."""
        return ", ".join(f"{key} {value}" for key, value in self.machine.items())


def machine() -> dict[str, str]:
    """Enough of the machine, and of what is installed, to read a figure by."""
    import torch

    from minisgl import __version__

    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = (
            line for line in cpuinfo.read_text().splitlines() if line.startswith("model name")
        )
        cpu = next(models, f": {cpu}").split(":")[1].strip()
    found = {
        "cpu": cpu,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": str(torch.get_num_threads()),
        "python": platform.python_version(),
        "minisgl": __version__,  # its own word: a clone may not be installed
    }
    if torch.cuda.is_available():
        found["gpu"] = torch.cuda.get_device_name()
    for package in VERSIONS:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return {**found, "date": time.strftime("%Y-%m-%d")}


def command_line(
    module: str, arguments: Sequence[str], environ: Mapping[str, str] = os.environ
) -> str:
    """What a reader types to run it again.

    >>> command_line("scripts.bench", ["8c", "--rounds", "3"], {"OMP_NUM_THREADS": "1"})
    'OMP_NUM_THREADS=1 python -m scripts.bench 8c --rounds 3'
    """
    threads = environ.get("OMP_NUM_THREADS")
    command = shlex.join(["python", "-m", module, *map(own_name, arguments)])
    return f"OMP_NUM_THREADS={threads} {command}" if threads else command


def own_name(argument: str) -> str:
    """An argument without the places of this machine: a reader has files of their own.

    >>> own_name("/opt/llama/bin/python"), own_name("../data"), own_name("build/f16.gguf")
    ('PYTHON', 'DATA', 'build/f16.gguf')
    """
    path = Path(argument)
    is_elsewhere = path.is_absolute() or path.parts[:1] == ("..",)
    return path.stem.upper() if is_elsewhere else argument

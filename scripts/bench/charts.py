"""Draws a result's charts with matplotlib (bench extra), all in one style.

The colours are Okabe and Ito's, which colour-blind readers can tell apart; lines have markers as
well, bars stand in the legend's order, and every bar says its value.  The same numbers make the
same SVG, byte for byte.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from scripts.bench.results import Chart

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#6f6f6f", "#000000")
MARKERS = "osD^vPX*"
STYLE = {
    "font.family": "sans-serif",
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "grid.color": "#e5e5e5",
    "legend.frameon": False,
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "minisgl",  # the names inside an SVG do not change from run to run
}
HEIGHT, DPI = 3.2, 160  # inches, pixels an inch


def write(chart: Chart, stem: Path, kinds: tuple[str, ...] = ("svg", "png")) -> list[Path]:
    """Draw `chart` into `stem`.svg and .png; ImportError without matplotlib."""
    import matplotlib
    from matplotlib.figure import Figure

    files = [stem.with_name(f"{stem.name}.{kind}") for kind in kinds]
    stem.parent.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(_width(chart), HEIGHT), layout="constrained")
        _draw(figure.add_subplot(), chart)
        for file in files:
            is_svg = file.suffix == ".svg"
            figure.savefig(file, dpi=DPI, metadata={"Date": None} if is_svg else None)
    return files


def _width(chart: Chart) -> float:
    """Inches: bars need room for what stands above them."""
    wanted = 0.26 * _bars_and_gaps(chart) + 1.0 if chart.kind == "bars" else 0.0
    return min(max(6.0, wanted), 14.0)


def _bars_and_gaps(chart: Chart) -> int:
    return len(chart.x) * (len(chart.series) + 1)


def _draw(axes: Axes, chart: Chart) -> None:
    {"bars": _bars, "lines": _lines}[chart.kind](axes, chart)
    if chart.is_log:
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter(lambda value, _: number(value))
    else:
        room = 1.12 if chart.kind == "bars" else 1.0  # for the words above the tallest
        axes.set_ylim(0, axes.get_ylim()[1] * room)
    axes.set_xlabel(chart.x_label)
    axes.set_ylabel(chart.y_label)
    rows = 0
    if len(chart.series) > 1:  # between title and axes
        longest = max(map(len, chart.series)) + 6
        columns = min(len(chart.series), max(1, int(15 * _width(chart)) // longest))
        rows = -(-len(chart.series) // columns)
        axes.legend(
            loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, borderpad=0,
            handlelength=1.4, columnspacing=1.2, labelspacing=0.3,
        )  # fmt: skip
    axes.set_title(chart.title, pad=8 + 14 * rows)


def _bars(axes: Axes, chart: Chart) -> None:
    """A group for each x, a bar in it for each series."""
    count = len(chart.series)
    width = 0.8 / count
    is_narrow = _width(chart) / _bars_and_gaps(chart) < 0.24
    for i, (name, values) in enumerate(chart.series.items()):
        places = [x + (i - (count - 1) / 2) * width for x in range(len(chart.x))]
        there = [(x, y) for x, y in zip(places, values, strict=True) if y is not None]
        drawn = axes.bar(
            [x for x, _ in there], [y for _, y in there], 0.92 * width,
            label=name, color=COLOURS[i % len(COLOURS)],
        )  # fmt: skip
        axes.bar_label(
            drawn, [number(y) for _, y in there], padding=2,
            fontsize=6 if is_narrow else 7, rotation=90 if is_narrow else 0,
        )  # fmt: skip
    names = [str(x) for x in chart.x]
    is_crowded = max(map(len, names)) * len(names) > 14 * _width(chart)
    turned = {"rotation": 25, "ha": "right", "rotation_mode": "anchor"} if is_crowded else {}
    axes.set_xticks(range(len(names)), names, **turned)
    axes.margins(x=0.02)


def _lines(axes: Axes, chart: Chart) -> None:
    """A line for each series, over numbers or over names."""
    for i, (name, values) in enumerate(chart.series.items()):
        points = [(x, y) for x, y in zip(chart.x, values, strict=True) if y is not None]
        axes.plot(
            [x for x, _ in points], [y for _, y in points],
            label=name, color=COLOURS[i % len(COLOURS)], marker=MARKERS[i % len(MARKERS)],
            markersize=4, linewidth=1.6,
        )  # fmt: skip


def number(value: float) -> str:
    """What stands above a bar: three digits that count.

    >>> number(0.15), number(6.4321), number(64.321), number(6432.1)
    ('0.15', '6.43', '64.3', '6,432')
    """
    if value == 0:
        return "0"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"

"""The little SVG that the pictures need: numbers in, text out, no dependency."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

INK, FAINT, PAPER = "#24292f", "#8c959f", "#ffffff"
FONT = "ui-sans-serif, 'DejaVu Sans', Helvetica, Arial, sans-serif"


def document(width: float, height: float, parts: list[str], title: str) -> str:
    """A whole file, on white paper: a page's dark mode does not reach into a picture."""
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" '
        f'width="{width:g}" height="{height:g}" font-family="{FONT}" font-size="11">'
    )
    paper = rect(0, 0, width, height, PAPER)
    return "\n".join([head, f"<title>{escape(title)}</title>", paper, *parts, "</svg>", ""])


def rect(
    x: float,
    y: float,
    width: float,
    height: float,
    fill: str,
    *,
    stroke: str = "none",
    radius: float = 0,
    dashed: bool = False,
) -> str:
    """
    >>> rect(0, 0.5, 10, 20, "#fff")
    '<rect x="0" y="0.5" width="10" height="20" rx="0" fill="#fff" stroke="none"/>'
    """
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" '
        f'fill="{fill}" stroke="{stroke}"{dash}/>'
    )


def text(
    x: float,
    y: float,
    words: str,
    *,
    fill: str = INK,
    anchor: str = "start",
    size: float = 11,
    bold: bool = False,
) -> str:
    """`words` stand on the line `y`, and begin, centre or end ("start", "middle", "end") at `x`.

    >>> text(1, 2, "a < b")
    '<text x="1" y="2" fill="#24292f" text-anchor="start" font-size="11">a &lt; b</text>'
    """
    weight = ' font-weight="bold"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" fill="{fill}" text-anchor="{anchor}" '
        f'font-size="{size:g}"{weight}>{escape(words)}</text>'
    )


def path(d: str, stroke: str = FAINT) -> str:
    """An open line: `d` as in SVG, "M x y V y H x"."""
    return f'<path d="{d}" fill="none" stroke="{stroke}"/>'


def group(name: str, parts: list[str], title: str = "") -> str:
    """Parts under one class name; `title` shows under the mouse."""
    tip = [f"<title>{escape(title)}</title>"] if title else []
    return "\n".join([f'<g class="{name}">', *tip, *parts, "</g>"])


def legend(x: float, y: float, entries: Iterable[tuple[str, str, str]]) -> list[str]:
    """What colours mean, on one line from `x` on: a box of (fill, stroke), and words beside it."""
    parts = []
    for fill, stroke, words in entries:
        parts.append(rect(x, y - 10, 14, 12, fill, stroke=stroke, radius=2))
        parts.append(text(x + 20, y, words))
        x += 42 + 6.2 * len(words)
    return parts


def printable(words: str, most: int) -> str:
    """At most `most` characters of any text, as characters that XML may hold.

    >>> printable("a\\nb\\x00", 10), printable("abcdef", 4)
    ('a\\\\nb\\\\x00', 'abc…')
    """
    shown = repr(words)[1:-1]
    return shown if len(shown) <= most else shown[: most - 1] + "…"

"""An automaton as a picture: SVG, drawn here, or Graphviz's language, for larger ones."""

from __future__ import annotations

from html import escape

from minisgl.fsm.dfa import Dfa, label_text

_COLUMN, _ROW, _RADIUS = 130, 80, 18  # in pixels


def graphviz(dfa: Dfa) -> str:
    """The automaton in the language of `dot`."""
    lines = [
        "digraph {",
        "  rankdir=LR; node [shape=circle]; start [shape=point];",
        "  start -> 0;",
    ]
    lines += [
        f"  {state} [shape=doublecircle];" for state, ends in enumerate(dfa.accepting) if ends
    ]  # fmt: skip
    for state, edges in enumerate(dfa.edges):
        for label, target in edges:
            text = label_text(label).replace("\\", "\\\\").replace('"', '\\"')
            lines.append(f'  {state} -> {target} [label="{text}"];')
    return "\n".join([*lines, "}"])


def svg(dfa: Dfa) -> str:
    """The automaton as SVG: a column for each number of steps from the start, in light and dark."""
    place = _places(dfa)
    width = max(x for x, _ in place) + _COLUMN
    height = max(y for _, y in place) + _ROW
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        'font-family="monospace" font-size="12" fill="none" stroke="#888" text-anchor="middle">',
        '<defs><marker id="tip" orient="auto" markerWidth="8" markerHeight="8" refX="7" refY="4">'
        '<path d="M0,1 L7,4 L0,7" fill="#888"/></marker></defs>',
    ]
    for state, edges in enumerate(dfa.edges):
        for label, target in edges:
            parts.append(_edge(place[state], place[target], label_text(label)))
    for state, (x, y) in enumerate(place):
        parts.append(f'<circle cx="{x}" cy="{y}" r="{_RADIUS}" fill="#fff"/>')
        if dfa.accepting[state]:
            parts.append(f'<circle cx="{x}" cy="{y}" r="{_RADIUS - 4}"/>')
        parts.append(f'<text x="{x}" y="{y + 4}" fill="#222" stroke="none">{state}</text>')
    return "\n".join([*parts, "</svg>"])


def _places(dfa: Dfa) -> list[tuple[int, int]]:
    """Of each state its centre: across by the steps from the start, down in order of arrival."""
    depth = {0: 0}
    order = [0]
    for state in order:
        for _, target in dfa.edges[state]:
            if target not in depth:
                depth[target] = depth[state] + 1
                order.append(target)
    rows: dict[int, int] = {}
    place = [(0, 0)] * len(dfa.edges)
    for state in order:
        row = rows[depth[state]] = rows.get(depth[state], -1) + 1
        place[state] = (_COLUMN // 2 + _COLUMN * depth[state], _ROW + _ROW * row)
    return place


def _edge(start: tuple[int, int], end: tuple[int, int], text: str) -> str:
    (x1, y1), (x2, y2) = start, end
    words = text if len(text) <= 24 else text[:23] + "…"
    if start == end:  # a loop above the state
        top, far = y1 - _RADIUS, y1 - 55
        path = f"M{x1 - 8},{top} C{x1 - 30},{far} {x1 + 30},{far} {x1 + 8},{top}"
        at = (x1, y1 - 46)
    elif x2 > x1:
        bend = 0 if x2 - x1 == _COLUMN else -30 * (x2 - x1) // _COLUMN  # over those between
        middle = ((x1 + x2) // 2, (y1 + y2) // 2 + bend)
        path = f"M{x1 + _RADIUS},{y1} Q{middle[0]},{middle[1]} {x2 - _RADIUS},{y2}"
        at = (middle[0], middle[1] - bend // 2 - 6)
    elif x2 == x1:  # down on the right, up on the left, round the states between
        sign = 1 if y2 > y1 else -1
        side, bend = sign * _RADIUS, 30 * (y2 - y1) // _ROW
        path = f"M{x1},{y1 + side} Q{x1 + bend},{(y1 + y2) // 2} {x2},{y2 - side}"
        at = (x1 + bend // 2 + sign * (8 + 4 * len(words)), (y1 + y2) // 2 + 4)
    else:  # back, below the states
        low = max(y1, y2) + 36
        path = f"M{x1},{y1 + _RADIUS} Q{(x1 + x2) // 2},{low + 20} {x2},{y2 + _RADIUS}"
        at = ((x1 + x2) // 2, low)
    label = f'<text x="{at[0]}" y="{at[1]}" fill="#06c" stroke="none">{escape(words)}</text>'
    return f'<path d="{path}" marker-end="url(#tip)"/>{label}'

"""Draw a pattern's automaton twice: character by character, and with forced text as one edge.

    python -m scripts.show.automata docs/pictures/automata.svg
    python -m scripts.show.automata picture.svg "(yes|no|maybe)"

The paper's figures 4 and 10, for any regex of moderate size.  Above, each edge is one character of
a class.  Below, a chain of states with one way on is a single edge: what jump-forward writes
without asking the model.  Double circles: the text may end there.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from minisgl import svg
from minisgl.fsm import compile_regex, picture
from minisgl.fsm.dfa import compressed, minimised, whole

PATTERN = r'\{"age": [0-9]{1,2}\}'
HEAD = 40


def draw(pattern: str) -> str:
    """Both automata as one SVG file.

    Raises:
        ValueError: no such pattern, or its automaton is too large.
    """
    plain = minimised(whole(compile_regex(pattern).chars))
    small = compressed(plain)
    parts, width, height = [], 0, 0
    for what, dfa in (("one character an edge", plain), ("forced text as one edge", small)):
        drawn = picture.svg(dfa)
        size = re.search(r'viewBox="0 0 (\d+) (\d+)"', drawn)
        assert size is not None
        # subtle: without a height, it would be centred in all that the whole picture has
        drawn = drawn.replace(size[0], f'{size[0]} height="{size[2]}"', 1)
        parts.append(svg.text(12, height + 24, f"{len(dfa.edges)} states: {what}", bold=True))
        parts.append(f'<g class="automaton" transform="translate(0,{height + HEAD})">{drawn}</g>')
        width, height = max(width, int(size[1])), height + HEAD + int(size[2])
    return svg.document(width, height, parts, title=pattern)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="the SVG to write")
    parser.add_argument("regex", nargs="?", default=PATTERN)
    args = parser.parse_args(argv)
    try:
        args.file.write_text(draw(args.regex), encoding="utf-8")
    except ValueError as error:
        parser.error(str(error))
    print(f"written: {args.file}")


if __name__ == "__main__":
    main()

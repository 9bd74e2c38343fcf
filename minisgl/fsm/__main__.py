"""python -m minisgl.fsm 'REGEX': its automata, printed or drawn, and what text they force.

python -m minisgl.fsm '\\{"age": [0-9]+\\}'
python -m minisgl.fsm --svg picture.svg '(yes|no|maybe)'
python -m minisgl.fsm '(yes|no|maybe)' no
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from minisgl.fsm import ByteAutomaton, Guide, VocabIndex, compile_json_schema, compile_regex
from minisgl.fsm.dfa import compressed, minimised, whole
from minisgl.fsm.picture import graphviz, svg


def main(argv: list[str] | None = None) -> None:
    """Read the command line and print."""
    parser = argparse.ArgumentParser(
        prog="python -m minisgl.fsm", description="The automata of a regex or a JSON schema."
    )
    parser.add_argument("pattern", help="a regex; with --json-schema the file of a schema")
    parser.add_argument("text", nargs="?", help="show how it is read, a character at a time")
    parser.add_argument("--json-schema", action="store_true", help="the pattern is a schema's file")
    parser.add_argument("--svg", metavar="FILE", help="draw the compressed automaton")
    parser.add_argument("--dot", action="store_true", help="print it in Graphviz's language")
    args = parser.parse_args(argv)
    try:
        automaton = (
            compile_json_schema(Path(args.pattern).read_text(encoding="utf-8"))
            if args.json_schema
            else compile_regex(args.pattern)
        )
        if args.text is not None:
            _print(_walk(automaton, args.text))
            return
        plain = minimised(whole(automaton.chars))
    except (ValueError, OSError) as error:
        sys.exit(str(error))
    small = compressed(plain)
    if args.svg:
        Path(args.svg).write_text(svg(small), encoding="utf-8")
    elif args.dot:
        _print(graphviz(small))
    else:
        _print(
            f"{len(plain.edges)} states; {len(small.edges)} with forced text as one edge\n{small}"
        )


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


def _walk(automaton: ByteAutomaton, text: str) -> str:
    """How a text is read: after each character what is forced, and whether it may end."""
    guide = Guide(automaton, VocabIndex([*(bytes([b]) for b in range(256)), b""], stop_ids=[256]))
    lines = []
    for char in ["", *text]:
        if char:
            guide.advance_text(char.encode())
        forced = guide.jump().decode()
        ways = len(guide.masks.vocab.ids(guide.allowed())) - guide.is_accepting()
        lines.append(
            f"{char!r:8} then {f'always {forced!r}' if forced else f'{ways} bytes may follow'}"
            + (", or the end" if guide.is_accepting() else "")
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()

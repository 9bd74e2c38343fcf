"""Code motion: how much longer the constant beginning of a prompt gets (the paper's appendix D).

    python -m scripts.bench.code_motion                    the rules
    python -m scripts.bench.code_motion --model            the embedded model proposes, too
    python -m scripts.bench.code_motion --openai gpt-4o    a model behind an API (OPENAI_API_KEY)

Twenty prompts (`prompt_templates.py`): five are shown to the model as examples, fifteen are the
test.  An order is right if it is the one set by hand, and accepted if `check` finds nothing wrong;
one that is not accepted leaves the prompt as it is.  The gain counts tokens of the default model
that every run of a prompt begins with.  The paper: GPT-4, 12 of 15 right, 60 tokens more.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from string import Formatter
from types import MappingProxyType
from typing import Any

import minisgl.lang as sgl
from minisgl.lang import graph as g
from minisgl.lang import ir
from minisgl.lang.passes.code_motion import (
    Piece,
    by_model,
    by_rules,
    check,
    prompt,
    reordered,
    shareable,
)
from minisgl.lang.values import Argument, Constant
from minisgl.models.hub import resolve_model
from minisgl.tokenizer import Tokenizer
from scripts.bench.common import report
from scripts.bench.prompt_templates import TEMPLATES, Template
from scripts.bench.results import Table

SHOWN = 5  # to the model


def graph_of(template: Template) -> g.Graph:
    """The program that says the prompt and asks."""
    ops: list[Any] = []
    for text, name, _, _ in Formatter().parse(template.text):
        ops += [ir.Text(text)] if text else []
        ops += [g.Say(Argument(name))] if name else []
    ops.append(ir.Gen("answer", MappingProxyType({"max_tokens": 64})))
    nodes = tuple(g.Node(i, 0, op) for i, op in enumerate(ops))
    names = [op.value.name for op in ops if isinstance(op, g.Say)]
    return g.Graph(template.name, dict.fromkeys(names), g.Block(nodes), Constant(None))


def study(
    templates: Sequence[Template],
    propose: Callable[[Sequence[Piece]], Sequence[int]],
    tokens: Callable[[str], int],
) -> list[dict[str, Any]]:
    """A row for each prompt."""
    rows = []
    for template in templates:
        graph = graph_of(template)
        start, pieces = prompt(graph)
        order = propose(pieces)
        accepted = check(pieces, order) is None
        after = reordered(graph, start, pieces, order) if accepted else graph
        rows.append(
            {
                "prompt": template.name,
                "order": " ".join(map(str, order)),
                "right": tuple(order) == template.right,
                "accepted": accepted,
                "tokens before": tokens(shareable(graph)),
                "tokens after": tokens(shareable(after)),
            }
        )
    return rows


def summary(who: str, rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What came of it."""
    gains = [row["tokens after"] - row["tokens before"] for row in rows if row["right"]]
    return {
        "who": who,
        "prompts": len(rows),
        "accepted": sum(row["accepted"] for row in rows),
        "right": sum(row["right"] for row in rows),
        "another, accepted": sum(row["accepted"] and not row["right"] for row in rows),
        "tokens more, where right": statistics.mean(gains) if gains else 0.0,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", nargs="?", const="", help="alone: the embedded model")
    parser.add_argument("--openai", metavar="NAME", help="a model behind OpenAI's API")
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()

    tokenizer = Tokenizer(resolve_model(None))

    def tokens(text: str) -> int:
        return len(tokenizer.encode(text, add_special_tokens=False))

    shown, asked = TEMPLATES[:SHOWN], TEMPLATES[SHOWN:]
    examples = [
        ([piece.text for piece in prompt(graph_of(each))[1]], list(each.right)) for each in shown
    ]
    orders = {"the rules": study(asked, by_rules, tokens)}
    if args.model is not None:
        with sgl.Runtime(args.model or None) as runtime:
            by_it = study(asked, lambda pieces: by_model(pieces, runtime, examples), tokens)
        orders["the embedded model" if args.model == "" else runtime.name] = by_it
    if args.openai is not None:
        backend = sgl.OpenAI(args.openai)
        by_it = study(asked, lambda pieces: by_model(pieces, backend, examples), tokens)
        orders[args.openai] = by_it
    report(
        Table.of([summary(who, rows) for who, rows in orders.items()], "Code motion"),
        *(Table.of(rows, f"Orders by {who}", is_detail=True) for who, rows in orders.items()),
        out=args.json,
    )


if __name__ == "__main__":
    main()

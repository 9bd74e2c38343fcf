"""What API speculation saves: three fields of each page, in the paper's few-shot way (section 3).

    python -m scripts.bench.api_speculation
    python -m scripts.bench.api_speculation --data wiki_docs.jsonl
    python -m scripts.bench.api_speculation --data wiki_docs.jsonl --misses 0.25

A completion model behind a real socket, by OpenAI's own client: its words are made up here, and its
tokens counted as an API counts them.  It has read the examples, so it goes on in their form; a
share of `--misses` of its answers has another word for the second field, and all must still come
out right.  The paper reports about a third of the input tokens.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

import minisgl.lang as sgl
from scripts.bench.common import report
from scripts.bench.results import Table
from scripts.examples.common import read_jsonl
from tests.lang.fake_api import Asked, FakeApi

MODEL = "made-up"
PRICES = {MODEL: sgl.Price(prompt=1.5, completion=2.0)}  # of gpt-3.5-turbo-instruct
FIELDS = ("Subject", "Year", "First words")
PAGES = [
    {
        "title": "Brenn",
        "document": "Brenn is a town on the coast. " * 30 + "Its tower was built in 1904.",
    },
    {
        "title": "Tal",
        "document": "Tal is an island of three hundred people. " * 30
        + "In 1850 it had nine hundred.",
    },
    {
        "title": "Honey of Tal",
        "document": "The honey of Tal is dark. " * 40
        + "It has been sold at the harbour since 1921.",
    },
]
SHOTS = [
    (
        "Lund",
        "Lund has a market since 1130. It lies on a hill, and a wall of stone stands around it.",
    ),
    ("Ora", "The river Ora was bridged in 1702. Two towns lie on it, and a mill between them."),
]


def answer(title: str, page: str) -> list[str]:
    """The fields, as the made-up model finds them."""
    year = re.search(r"\b1\d{3}\b|\b20\d\d\b", page)
    return [title, year[0] if year else "none", " ".join(page.split()[:5])]


def fields(title: str, page: str) -> str:
    """As they stand below a page."""
    lines = zip(FIELDS, answer(title, page), strict=True)
    return "".join(f"{field}: {value}\n" for field, value in lines)


EXAMPLES = "".join(f"Page: {page}\n{fields(title, page)}\n" for title, page in SHOTS)


def extract(s: sgl.ProgramState, page: str) -> None:
    s += "Fields of pages.\n\n" + EXAMPLES + f"Page: {page}\n"
    s += "Subject:" + sgl.gen("subject", stop="\n")
    s += "\nYear:" + sgl.gen("year", stop="\n")
    s += "\nFirst words:" + sgl.gen("first", stop="\n") + "\n"


class Model:
    """Goes on with the fields of the last page in its prompt."""

    def __init__(self, pages: Sequence[dict[str, str]], misses: float) -> None:
        self.titles = {page["document"]: page["title"] for page in pages}
        every = round(1 / misses) if misses else 0
        self.others = {page["document"] for i, page in enumerate(pages) if every and i % every == 0}

    def __call__(self, asked: Asked) -> str:
        page, subject, begun = asked.text.rpartition("Page: ")[2].partition("\nSubject:")
        begun = subject[1:] + begun  # the fields that stand in the prompt
        right = fields(self.titles[page], page)
        own = right.replace("Year:", "Date:") if page in self.others else right
        words = own if own.startswith(begun) else right
        assert words.startswith(begun), begun
        return words[len(begun) :] + "\nPage: ..."


def run(pages: Sequence[dict[str, str]], tokens: int | None, misses: float) -> sgl.Usage:
    """What all pages take; raises if a field comes out wrong."""
    program = sgl.function(num_api_spec_tokens=tokens)(extract)
    with FakeApi(Model(pages, misses)) as api:
        backend = sgl.OpenAI(MODEL, is_chat=False, base_url=api.url + "/v1")
        states = program.run_batch(
            [(page["document"],) for page in pages], backend=backend, temperature=0, max_tokens=24
        )
        assert len(api.asked) == sum(state.usage().spent.calls for state in states)
    for page, state in zip(pages, states, strict=True):
        found = [state[name].strip() for name in ("subject", "year", "first")]
        if found != answer(page["title"], page["document"]):
            raise SystemExit(f"{page['title']}: {found}")
    return sum((state.usage() for state in states), sgl.Usage())


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help='lines of JSON with "title" and "document"')
    parser.add_argument("--tokens", type=int, default=64, help="num_api_spec_tokens")
    parser.add_argument(
        "--misses", type=float, default=0.0, help="share of answers in another form"
    )
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args(argv)
    if not 0 <= args.misses <= 1:
        parser.error("--misses: give a share from 0 to 1")
    pages = read_jsonl(args.data) if args.data else PAGES

    without = run(pages, None, args.misses)
    with_it = run(pages, args.tokens, args.misses)
    rows = [
        {
            "way": way,
            "calls per page": usage.spent.calls / len(pages),
            "prompt tokens": usage.spent.prompt_tokens / len(pages),
            "completion tokens": usage.spent.completion_tokens / len(pages),
            "dollars per 1000 pages": usage.cost(PRICES) / len(pages) * 1000,
        }
        for way, usage in (("gen by gen", without), ("speculation", with_it))
    ]
    ratios = {name: rows[1][name] / rows[0][name] for name in rows[0] if name != "way"}
    table = Table.of([*rows, {"way": "ratio", **ratios}], f"{len(pages)} pages")
    report(table, out=args.json)
    return ratios


if __name__ == "__main__":
    main()

"""JSON decoding: what a page of Wikipedia is about, in five fields, by a regular expression.

What the pattern forces, names of fields and the like, is computed without sampling (jump-forward).
Programs share the task only.  Data: `wiki/wiki_docs.jsonl`.
"""

from __future__ import annotations

from pathlib import Path

import minisgl.lang as sgl
from scripts.bench.workloads.base import Job, Size, Workload, file_of, share
from scripts.bench.workloads.samples import TOWNS, paragraphs
from scripts.examples.common import read_jsonl

TOKENS = 256  # more than the longest text of the pattern has
LONGEST = 4 * 3000  # characters of a page: 3,000 tokens are the paper's bound
TASK = """Read a page of an encyclopedia, and say in JSON what it is about: its name, what kind of
thing that is, in which country, in which year it began, and whether it still exists.

"""
FACTS = (
    r'\{\n  "name": "[\w ]{1,24}",\n'
    r'  "kind": "(person|place|event|thing|idea)",\n'
    r'  "country": "[\w ]{1,16}",\n'
    r'  "year": [12][0-9]{3},\n'
    r'  "still_exists": (true|false)\n\}'
)


@sgl.function
def json_decoding(s, page: str):
    s += TASK + "Page: " + page + "\n\nJSON:\n"
    s += sgl.gen("facts", regex=FACTS, max_tokens=TOKENS)


def jobs(data: Path | None, count: int, scale: float) -> list[Job]:
    if data is None:
        pages = ["\n".join(paragraphs(town)) for town in TOWNS]
    else:
        pages = [page["document"] for page in read_jsonl(file_of(data, "wiki/wiki_docs.jsonl"))]
    longest = share(LONGEST, scale)
    return [Job(json_decoding, {"page": page[:longest]}) for page in pages[:count]]


WORKLOAD = Workload(
    "json_decoding",
    "JSON decoding",
    lambda scale: f"5 fields by a regex, pages of {share(LONGEST, scale):,} characters at most",
    jobs,
    lambda state: [state["facts"]],
    paper=Size(10, 10),
    cpu=Size(10, 4, 0.15),
    quick=Size(4, 1, 0.05),
)

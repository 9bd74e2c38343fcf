"""Read the facts out of a text, as JSON that always parses.

A schema says which facts, and the engine allows only tokens that lead to JSON which is valid by
it; what can come in one way only, quotes and names of fields, is written without asking the model.

    python -m scripts.examples.json_extraction [--data wiki_docs.jsonl]
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import minisgl.lang as sgl
from scripts.examples.common import cached, options, read_jsonl

FACTS = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 30},
        "kind": {"enum": ["person", "place", "event", "thing", "idea"]},
        "year": {"type": "integer", "minimum": 0, "maximum": 2100},
        "keywords": {
            "type": "array",
            "items": {"type": "string", "minLength": 1, "maxLength": 20},
            "minItems": 1,
            "maxItems": 3,
        },
    },
    "required": ["name", "kind", "year", "keywords"],
    "additionalProperties": False,
}
DOCUMENTS = [
    "The bridge of Ostra was opened in 1932. It carries the road and the railway over the Lim.",
    "Anna Vell (born 1811) was a clockmaker. Her clocks were known for their silent movement.",
]
LONGEST = 6000  # characters of a document


@sgl.function
def extract(s, document: str):
    s += sgl.system("You read texts and note facts as JSON.")
    s += sgl.user("Text: " + document + "\n\nWhat is it about?")
    s += sgl.assistant(sgl.gen("facts", json_schema=FACTS, json_space=1))
    return json.loads(s["facts"])


def main(argv: Sequence[str] | None = None) -> list[sgl.ProgramState]:
    args = options(__doc__, argv, max_tokens=256)  # every answer by the schema is shorter
    documents = DOCUMENTS
    if args.data:
        documents = [page["document"][:LONGEST] for page in read_jsonl(args.data, args.limit)]
    jobs = [{"document": document} for document in documents]
    states = extract.run_batch(jobs, temperature=0, max_tokens=args.max_tokens)
    for state, document in zip(states, documents, strict=True):
        print(f"\n{document[:80]}\n{state.ret_value} ({cached(state, 'facts')})")
    return states


if __name__ == "__main__":
    main()

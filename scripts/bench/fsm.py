"""Constrained decoding: time to the first mask, and of each mask, on random walks.

    python -m scripts.bench.fsm [--model DIR] [--steps 300]

Ours, over the model's vocabulary, on one core of a quiet machine.  "cold" is from the pattern's
text to its first mask, nothing of this pattern known (tables of Unicode, and slices by a set of
characters, are, as in a server that has run for a while), the best of five; "mask" and "advance"
are per token along a random walk of allowed tokens, which begins cold.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path

import numpy as np

from minisgl.fsm import Automaton, ByteAutomaton, Guide, VocabIndex, parse, parse_schema
from minisgl.fsm.masks import masks_of

IP = r"((25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)\.){3}(25[0-5]|2[0-4][0-9]|[01]?[0-9][0-9]?)"
TEXT = r"[\w\d\s]{1,16}"
HARRY_POTTER = (
    r"\{\n"
    rf'    "name": "{TEXT}",\n'
    r'    "house": "(Gryffindor|Slytherin|Ravenclaw|Hufflepuff)",\n'
    r'    "blood status": "(Pure-blood|Half-blood|Muggle-born)",\n'
    r'    "occupation": "(student|teacher|auror|ministry of magic|death eater'
    r'|order of the phoenix)",\n'
    r'    "wand": \{\n'
    rf'        "wood": "{TEXT}",\n'
    rf'        "core": "{TEXT}",\n'
    r'        "length": [0-9]{1,2}\.[0-9]{0,2}\n'
    r"    \},\n"
    r'    "alive": "(Alive|Deceased)",\n'
    rf'    "patronus": "{TEXT}",\n'
    rf'    "bogart": "{TEXT}"\n'
    r"\}"
)


def words(count: int) -> list[str]:
    """Made-up words, the same in every run."""
    rnd = random.Random(7)
    found: set[str] = set()
    while len(found) < count:
        syllables = (
            rnd.choice("bcdfghklmnprstvz") + rnd.choice("aeiou") for _ in range(rnd.randint(2, 4))
        )
        found.add("".join(syllables) + rnd.choice(["", "n", "r", "st"]))
    return sorted(found)


PATTERNS = {
    "number": r"[0-9]{1,3}\.[0-9]",
    "ip": IP,
    "date": r"[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])",
    "email": r"[a-zA-Z0-9._%+-]+@[a-zA-Z0-9.-]+\.[a-zA-Z]{2,10}",
    "harry potter": HARRY_POTTER,
    "choice": r"(yes|no|maybe)",
    ".{0,500}": r".{0,500}",
    "chinese": r"[一-龥]{1,20}",
    r"[\p{L}]+": r"[\p{L}]+",
    "500 words": "(" + "|".join(words(500)) + ")",
    "(a|b){50,200}": r"(a|b){50,200}",
    "json string": r'"([^"\\\x00-\x1f]|\\["\\/bfnrt]|\\u[0-9a-fA-F]{4})*"',
    ".{0,100000}": r".{0,100000}",
}

BOOK: dict[str, object] = {
    "id": {"type": "integer"},
    "sku": {"type": "string", "maxLength": 12},
    "title": {"type": "string"},
    "status": {"enum": ["draft", "active", "archived", "deleted"]},
    "kind": {"enum": ["book", "film", "game", "music"]},
    "price": {"type": "number"},
    "in_stock": {"type": "boolean"},
    "note": {"type": ["string", "null"]},
    "color": {"enum": ["red", "green", "blue"]},
    "rank": {"type": "integer"},
    "tags": {"type": "array", "items": {"type": "string"}, "minItems": 1, "maxItems": 4},
    "grid": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 3},
        "maxItems": 3,
    },
    "owner": {
        "type": "object",
        "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}$"},
    "level": {"enum": [1, 2, 3]},
    "flag": {"type": "boolean"},
    "city": {"type": "string"},
    "lat": {"type": "number"},
    "lon": {"type": "number"},
    "due": {"type": "string", "format": "date"},
}
SCHEMA = {
    "type": "object",
    "properties": BOOK,
    "required": list(BOOK),
    "additionalProperties": False,
}
PATTERNS["json, 20 fields"] = json.dumps(SCHEMA)


def compile_fresh(pattern: str) -> ByteAutomaton:
    """The automaton, made anew."""
    tree = parse_schema(pattern) if pattern.startswith('{"type"') else parse(pattern)
    return ByteAutomaton(Automaton(tree))


def load_vocab(model: str | None) -> VocabIndex:
    from minisgl.models.hub import resolve_model
    from minisgl.tokenizer import Tokenizer

    tokenizer = Tokenizer(Path(model) if model else resolve_model(None))
    pieces = [tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)]
    start = time.perf_counter()
    vocab = VocabIndex(pieces, tokenizer.eos_token_ids, tokenizer.special_ids)
    print(f"{vocab.vocab_size} tokens, tree in {(time.perf_counter() - start) * 1e3:.0f} ms")
    return vocab


def cold(pattern: str, vocab: VocabIndex) -> float:
    """Seconds from the text to the first mask."""
    best = float("inf")
    for _ in range(5):
        masks_of.cache_clear()
        start = time.perf_counter()
        Guide(compile_fresh(pattern), vocab).allowed()
        best = min(best, time.perf_counter() - start)
    return best


def walk(pattern: str, vocab: VocabIndex, steps: int) -> tuple[list[float], list[float], int]:
    """Seconds of each mask and of each advance, and how many masks were made."""
    rnd = random.Random(pattern)
    automaton = compile_fresh(pattern)
    guide = Guide(automaton, vocab)
    masks, advances = [], []
    seen = set()
    for _ in range(steps):
        start = time.perf_counter()
        guide.row  # noqa: B018
        masks.append(time.perf_counter() - start)
        seen.add(guide.state)
        allowed = [i for i in vocab.ids(guide.allowed()) if i not in vocab.stop_ids]
        if not allowed:
            guide = Guide(automaton, vocab)
            continue
        token = rnd.choice(allowed)
        start = time.perf_counter()
        guide.advance(token)
        advances.append(time.perf_counter() - start)
    return masks, advances, len(seen)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model")
    parser.add_argument("--steps", type=int, default=300)
    args = parser.parse_args()
    vocab = load_vocab(args.model)
    head = f"{'pattern':16} {'cold ms':>8} {'mask p50':>9} {'p99 us':>8} {'advance p50 us':>15}"
    print(head + f" {'states seen':>12} {'rows':>6}")
    colds = []
    for name, pattern in PATTERNS.items():
        colds.append(cold(pattern, vocab))
        masks, advances, states = walk(pattern, vocab, args.steps)
        p50, p99 = np.percentile(masks, [50, 99]) * 1e6
        print(
            f"{name:16} {colds[-1] * 1e3:8.2f} {p50:9.2f} {p99:8.0f}"
            f" {statistics.median(advances) * 1e6:15.2f} {states:12} {vocab.num_rows:6}",
            flush=True,
        )
    print(f"geometric mean of cold: {statistics.geometric_mean(colds) * 1e3:.2f} ms")
    rows = [random.Random(1).randrange(vocab.num_rows) for _ in range(256)]
    times = []
    for _ in range(50):
        start = time.perf_counter()
        vocab.gather(rows)
        times.append(time.perf_counter() - start)
    print(f"a batch of 256 rows: {statistics.median(times) * 1e6:.0f} us")


if __name__ == "__main__":
    main()

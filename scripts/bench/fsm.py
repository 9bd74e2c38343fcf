"""Constrained decoding beside its peers: time to the first mask, and of each mask on random walks.

    python -m scripts.bench.fsm [--model DIR] [--tokens 4500] [--peers llguidance xgrammar ...]

Over the model's vocabulary, on one core of a quiet machine.  "cold" is from the pattern's text to
its first mask, nothing of this pattern known (tables of Unicode, and slices by a set of
characters, are, as in a server that has run for a while), the best of five; of what takes more
than a second, one.  It and the last figure but one are the processor's time, of which other
processes take none.  "mask" is per token along the same random walks for all, each library's first
mask of a state among them: ours is the number of a row in the table (`Guide.row`), the peers fill
a buffer.  What a batch of rows costs to copy is the last line.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from minisgl.fsm import Automaton, ByteAutomaton, Guide, VocabIndex, parse, parse_schema
from minisgl.fsm.masks import masks_of
from scripts.bench.common import report, seconds
from scripts.bench.fsm_peers import PEERS, Matcher, Peer, installed
from scripts.bench.results import Table

OURS = "ours"
MEASURES = ("first mask, ms", "mask p50, µs", "mask p99, µs", "step, µs")

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


UNCOUNTED = (".{0,100000}",)  # beyond the thirteen: not in the geometric mean nor the full index


def is_schema(pattern: str) -> bool:
    return pattern.startswith('{"type"')


class Ours:
    """Behind the peers' interface."""

    def __init__(self, vocab: VocabIndex) -> None:
        self._vocab = vocab

    def compiled(self, pattern: str, *, is_schema: bool) -> Callable[[], OurMatcher]:
        tree = parse_schema(pattern) if is_schema else parse(pattern)
        automaton = ByteAutomaton(Automaton(tree))
        return lambda: OurMatcher(Guide(automaton, self._vocab))


class OurMatcher:
    def __init__(self, guide: Guide) -> None:
        self.guide = guide

    def mask(self) -> None:
        self.guide.row  # noqa: B018

    def advance(self, token: int) -> bool:
        self.guide.advance(token)
        return True


def cold(peer: Peer, pattern: str) -> float:
    """Seconds of the processor from the text to the first mask."""
    best = float("inf")
    for _ in range(5):
        masks_of.cache_clear()
        start = time.process_time()
        peer.compiled(pattern, is_schema=is_schema(pattern))().mask()
        best = min(best, time.process_time() - start)
        if best > 1:
            break
    return best


def walks(pattern: str, vocab: VocabIndex, tokens: int) -> list[list[int]]:
    """Up to a hundred texts that a model with no preference writes, as tokens."""
    rnd = random.Random(pattern)
    tree = parse_schema(pattern) if is_schema(pattern) else parse(pattern)
    automaton = ByteAutomaton(Automaton(tree))
    found: list[list[int]] = []
    while len(found) < 100 and sum(map(len, found)) < tokens:
        guide = Guide(automaton, vocab)
        walk: list[int] = []
        while len(walk) < 300:
            allowed = [i for i in vocab.ids(guide.allowed()) if i not in vocab.stop_ids]
            if not allowed or (guide.is_accepting() and rnd.random() < 0.05):
                break
            walk.append(rnd.choice(allowed))
            guide.advance(walk[-1])
        found.append(walk)
    return found


def along(
    start: Callable[[], Matcher], walks: Sequence[Sequence[int]]
) -> tuple[list[float], list[float], int]:
    """Seconds of each mask and of each step, and how many tokens were refused."""
    masks: list[float] = []
    steps: list[float] = []
    refused = 0
    for walk in walks:
        matcher = start()
        for token in walk:
            before = time.perf_counter()
            matcher.mask()
            between = time.perf_counter()
            accepted = matcher.advance(token)
            steps.append(time.perf_counter() - between)
            masks.append(between - before)
            if not accepted:
                refused += 1
                break
    return masks, steps, refused


def measure(peer: Peer, pattern: str, drawn: Sequence[Sequence[int]]) -> list[float] | str:
    """A value for each of `MEASURES`; or why the library refuses the pattern."""
    try:
        first_mask = cold(peer, pattern)
        masks_of.cache_clear()
        start = peer.compiled(pattern, is_schema=is_schema(pattern))
        masks, steps, refused = along(start, drawn)
    except (ValueError, RuntimeError) as error:
        return str(error).splitlines()[0][:80]
    if refused:
        return f"{refused} legal walks refused"
    p50, p99 = np.percentile(masks, [50, 99]) * 1e6
    return [1e3 * first_mask, p50, p99, 1e6 * statistics.median(steps)]


def table(found: dict[str, dict[str, list[float] | str]], names: Sequence[str]) -> Table:
    """A line for each pattern; of each measure ours, then the peers'."""
    columns, rows = ["pattern"], []
    for each in MEASURES:
        columns += [each if name == OURS else name for name in names]
    for pattern, by in found.items():
        values = [[None] * len(MEASURES) if isinstance(by[n], str) else by[n] for n in names]
        name = f"`{pattern}`" if PATTERNS[pattern] == pattern else pattern
        rows.append([name, *(cell for measure in zip(*values, strict=True) for cell in measure)])
    return Table(columns, rows, "Constrained decoding: to the first mask, and of each mask")


def index_times(pieces: Sequence[bytes], stop_ids: Sequence[int]) -> str:
    """What a vocabulary's index costs, made anew and read from the disk; the best of five."""
    with tempfile.TemporaryDirectory() as directory:
        cache = Path(directory)
        VocabIndex(pieces, stop_ids, cache=cache)
        built = min(seconds(lambda: VocabIndex(pieces, stop_ids)) for _ in range(5))
        read = min(seconds(lambda: VocabIndex(pieces, stop_ids, cache=cache)) for _ in range(5))
    return f"index built in {built * 1e3:.0f} ms, read in {read * 1e3:.0f} ms"


def full_index(vocab: VocabIndex) -> tuple[float, int]:
    """Seconds of the processor for the rows of all states of the thirteen; how many states."""
    states = 0
    start = time.process_time()
    for name, pattern in PATTERNS.items():
        if name not in UNCOUNTED:
            masks_of.cache_clear()
            masks = Ours(vocab).compiled(pattern, is_schema=is_schema(pattern))().guide.masks
            for state in masks.automaton.all_states():
                masks.row(state)
                states += 1
    return time.process_time() - start, states


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model")
    parser.add_argument("--tokens", type=int, default=4500, help="of all walks of a pattern")
    parser.add_argument("--patterns", nargs="*", choices=PATTERNS, default=list(PATTERNS))
    parser.add_argument("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    from minisgl.models.hub import resolve_model
    from minisgl.tokenizer import Tokenizer

    directory = Path(args.model) if args.model else resolve_model(None)
    tokenizer = Tokenizer(directory)
    special = {*tokenizer.special_ids, *tokenizer.eos_token_ids}
    pieces = [
        b"" if i in special else tokenizer.token_bytes(i) for i in range(tokenizer.vocab_size)
    ]
    stop_ids = list(tokenizer.eos_token_ids)
    vocab = VocabIndex(pieces, stop_ids)
    contestants: dict[str, Peer] = {OURS: Ours(vocab)}
    contestants |= installed(args.peers, directory, pieces, stop_ids)
    notes = [f"{vocab.vocab_size} tokens, {index_times(pieces, stop_ids)}"]
    found: dict[str, dict[str, list[float] | str]] = {}
    for title in args.patterns:
        drawn = walks(PATTERNS[title], vocab, args.tokens)
        found[title] = {
            name: measure(peer, PATTERNS[title], drawn) for name, peer in contestants.items()
        }
    for name in contestants:
        notes += [f"{name}, {title}: {by[name]}" for title, by in found.items()
                  if isinstance(by[name], str)]  # fmt: skip
        first = [by[name][0] for title, by in found.items()
                 if title not in UNCOUNTED and not isinstance(by[name], str)]  # fmt: skip
        if first:
            mean = statistics.geometric_mean(first)
            notes.append(f"geometric mean to the first mask, {len(first)} patterns: "
                         f"{name} {mean:.2f} ms")  # fmt: skip
    took, states = full_index(vocab)
    notes.append(f"all {states} states of the thirteen: {took:.2f} s, {vocab.num_rows} rows")
    rows = [random.Random(1).randrange(vocab.num_rows) for _ in range(256)]
    copies = [seconds(lambda: vocab.gather(rows)) for _ in range(50)]
    notes.append(f"a batch of 256 rows: {statistics.median(copies) * 1e6:.0f} µs")
    report(table(found, list(contestants)), out=args.json, notes=notes)


if __name__ == "__main__":
    main()

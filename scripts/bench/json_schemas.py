"""How much of JSON Schema is right: every group of a directory of the JSON-Schema-Test-Suite.

    pip download --no-deps --no-binary :all: jsonschema   # its source holds the suite
    python -m scripts.bench.json_schemas jsonschema-4.26.0/json/tests/draft* [--show wrong]

`format` is enforced here, which the suite leaves open: its format.json, where nothing is, is left
out, and `.../optional/format` is a directory to give as well.

A group is a schema with instances that are valid by it and instances that aren't.  It is *right*
if each valid instance is one that a guided model can write, and no invalid one is; *refused* if
compiling names what can't be enforced; else *wrong*.  An instance is taken in the form in which a
model would write it: the properties in the schema's order, 1.0 as 1.
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from minisgl.fsm import ByteAutomaton, compile_json_schema
from minisgl.fsm.schema_keywords import NothingValidError
from scripts.bench.common import report
from scripts.bench.results import Table

OLD = {f"draft{n}": f"http://json-schema.org/draft-0{n}/schema#" for n in (3, 4, 6, 7)}
VERDICTS = ("right", "refused", "wrong")


def names_in(schema: Any) -> Iterator[str]:
    """The names of properties, in the order in which a schema gives them."""
    if isinstance(schema, dict):
        for keyword, value in schema.items():
            if keyword == "properties" and isinstance(value, dict):
                yield from value
            if keyword == "required":
                yield from strings_in(value)
            elif keyword in ("dependentRequired", "dependencies") and isinstance(value, dict):
                for name, needed in value.items():
                    yield name
                    yield from strings_in(needed) if isinstance(needed, list) else names_in(needed)
            elif keyword in ("const", "enum"):
                yield from names_of(value)
            else:
                yield from names_in(value)
    elif isinstance(schema, list):
        for item in schema:
            yield from names_in(item)


def strings_in(value: Any) -> Iterator[str]:
    """All strings, names of properties aside."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value if isinstance(value, list) else value.values():
            yield from strings_in(item)


def names_of(value: Any) -> Iterator[str]:
    """The names of properties in a value."""
    if isinstance(value, list | dict):
        yield from value if isinstance(value, dict) else ()
        for item in value if isinstance(value, list) else value.values():
            yield from names_of(item)


def canonical(value: Any, place: dict[str, int]) -> Any:
    """The value as a guided model would write it."""
    match value:
        case dict():
            names = sorted(value, key=lambda name: place.get(name, len(place)))
            return {name: canonical(value[name], place) for name in names}
        case list():
            return [canonical(item, place) for item in value]
        case float():
            return int(value) if value.is_integer() else value
    return value


def accepts(automaton: ByteAutomaton, value: Any, place: dict[str, int]) -> bool:
    """Whether one of the usual ways to write the value is allowed."""
    forms = [
        json.dumps(form, ensure_ascii=ascii_only)
        for form in (canonical(value, place), value)
        for ascii_only in (True, False)
    ]
    return any(
        automaton.accepts(automaton.walk(automaton.start, form.encode()))
        for form in forms
        if not re.search(r"[\ud800-\udfff]", form)
    )


def judge(schema: Any, tests: list[dict[str, Any]]) -> tuple[str, str]:
    """The verdict, and what was refused or wrong."""
    try:
        automaton = compile_json_schema(schema)
    except ValueError as error:
        is_empty = isinstance(error, NothingValidError) or "no text matches" in str(error)
        if is_empty and not any(test["valid"] for test in tests):
            return "right", ""
        return "refused", re.sub(r"^JSON schema(, at \S+)?: ", "", str(error))
    names = list(dict.fromkeys(names_in(schema)))
    place = {name: i for i, name in enumerate(names)}
    for test in tests:
        if accepts(automaton, test["data"], place) != test["valid"]:
            form = json.dumps(test["data"])
            return "wrong", f"{form[:100]} is {'valid' if test['valid'] else 'invalid'}"
    return "right", ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("directories", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--show", choices=VERDICTS, action="append", default=[])
    parser.add_argument("--json", type=Path, default=None)
    args = parser.parse_args()
    totals, by_keyword = [], []
    reasons: Counter[str] = Counter()
    for directory in args.directories:
        counts = judge_all(directory, args.show, reasons)
        if not counts:
            parser.error(f"no .json files in {directory}")
        name = directory.as_posix().rpartition("tests/")[2]
        totals.append({"directory": name} | of_verdicts(sum(counts.values(), Counter())))
        by_keyword += [
            {"directory": name, "keyword": keyword} | of_verdicts(count)
            for keyword, count in counts.items()
        ]
    report(
        Table.of(totals, "Groups of the JSON-Schema-Test-Suite"),
        *([Table.of(by_keyword, "By keyword", is_detail=True)] if len(totals) == 1 else []),
        out=args.json,
        notes=[f"refused {times} times: {reason}" for reason, times in reasons.most_common(10)],
    )


def of_verdicts(count: Counter[str]) -> dict[str, Any]:
    """A column for each verdict."""
    return {verdict: count[verdict] for verdict in VERDICTS}


def judge_all(
    directory: Path, show: Sequence[str], reasons: Counter[str]
) -> dict[str, Counter[str]]:
    """How many groups of each file got which verdict; adds to `reasons` of refusals."""
    counts: dict[str, Counter[str]] = {}
    dialect = OLD.get(next((part for part in directory.parts if part in OLD), ""))
    for file in sorted(f for f in directory.glob("*.json") if f.name != "format.json"):
        count = counts.setdefault(file.stem, Counter())
        for group in json.loads(file.read_text(encoding="utf-8")):
            schema = group["schema"]
            if dialect and isinstance(schema, dict):
                schema = {"$schema": dialect, **schema}
            verdict, why = judge(schema, group["tests"])
            count[verdict] += 1
            if verdict == "refused":
                reasons[why[:60]] += 1
            if verdict in show:
                print(f"{verdict}: {file.stem}: {group['description']}: {why}")
                print("   ", json.dumps(group["schema"])[:300])
    return counts


if __name__ == "__main__":
    main()

"""Objects of a JSON schema: the properties that it names, in its order, and then any others."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import product
from typing import Any, Protocol

from minisgl.fsm.automaton import Automaton
from minisgl.fsm.json_strings import counts, pattern_node
from minisgl.fsm.json_text import (
    ANY_CONTENT,
    NOTHING,
    Layout,
    all_of,
    choice,
    content_other_than,
    sequence,
    string_literal,
    written_in_string,
)
from minisgl.fsm.merge_schemas import both_of
from minisgl.fsm.nodes import Choice, Look, Node, Repeat
from minisgl.fsm.schema_keywords import fail, nothing_valid

MAX_PATTERNS = 4  # of `patternProperties`: each two ways for a name
MAX_COUNTED = 100_000  # properties named, times how many are counted


class Compile(Protocol):
    """Gives the node of a schema."""

    def __call__(self, schema: Any, path: str) -> Node:  # noqa: D102
        ...


def object_node(schema: Mapping[str, Any], path: str, layout: Layout, compile: Compile) -> Node:
    """The objects that a schema's keywords allow."""
    names = _Names(schema, path, compile)
    low, high = counts(schema, "minProperties", "maxProperties", path)
    required = set(names.required)
    if high is not None and len(required) > high:
        nothing_valid(path, f"{len(required)} properties are required, and {high} allowed")
    pairs: list[tuple[Node, bool]] = []
    for name in names.known:
        value = compile(names.asked_of(name), f"{path}/properties/{name}")
        if name in required and value is NOTHING:
            nothing_valid(path, f"{name!r} is required, but no such property is allowed")
        pairs.append((layout.pair(string_literal(name), value), name in required))
    others = [
        layout.pair(key, compile(asked, f"{path}/{keyword}"))
        for key, asked, keyword in names.others()
    ]
    other = choice(others)
    if others and low > 1 + len(required):
        fail(path, f"'minProperties' {low}: properties without a name could be one twice")
    most = max(1, low, high or 0)  # what is counted: beyond that, more makes no difference
    if len(pairs) * min(most, len(pairs)) > MAX_COUNTED:
        fail(path, f"'minProperties' and 'maxProperties' of {len(pairs)} properties are too many")
    return layout.listed("{", _counted(pairs, other, layout, low, high, most), "}")


def _counted(
    pairs: list[tuple[Node, bool]],
    other: Node,
    layout: Layout,
    low: int,
    high: int | None,
    most: int,
) -> Node:
    """Properties in order, each perhaps left out, and others: `low` to `high` of them in all.

    Built from the end: `after[n]` is what may follow where n stand already.
    """
    after: list[Node] = []
    for n in range(min(len(pairs), most) + 1):
        left = None if high is None else high - n
        if left is not None and left < 0:
            after.append(NOTHING)
        elif n == 0:
            after.append(layout.repeated(other, low, left))
        else:
            after.append(Repeat(sequence(layout.comma(), other), max(low - n, 0), left))
    for i, (pair, is_required) in reversed(list(enumerate(pairs))):
        before: list[Node] = []
        for n in range(min(i, most) + 1):
            fits = high is None or n < high
            written = sequence(pair, after[min(n + 1, len(after) - 1)]) if fits else NOTHING
            here = sequence(layout.comma(), written) if n else written
            before.append(here if is_required else Choice((here, after[n])))
        after = before
    return after[0]


class _Names:
    """The names that an object's properties may have, and what is asked of each one's value."""

    def __init__(self, schema: Mapping[str, Any], path: str, compile: Compile) -> None:
        self._properties = _mapping(schema, "properties", path)
        self.required = schema.get("required", [])
        if not isinstance(self.required, list | tuple):
            fail(path, f"'required' is a list of names, not {self.required!r}")
        self.known = list(dict.fromkeys([*self._properties, *self.required]))
        self._extra = schema.get("additionalProperties", True)
        patterns = _mapping(schema, "patternProperties", path)
        if len(patterns) > MAX_PATTERNS:
            fail(path, f"{len(patterns)} 'patternProperties'; at most {MAX_PATTERNS} can be")
        self._patterns = {pattern: pattern_node(pattern, path) for pattern in patterns}
        self._asked_by_pattern = patterns
        self._allowed = schema.get("propertyNames", True)  # a schema of names
        self._compile_name = partial(compile, path=f"{path}/propertyNames")

    def asked_of(self, name: str) -> Any:
        """The schema of a property's value; False if it may not be there."""
        if self._compile_name(both_of(self._allowed, {"enum": [name]})) is NOTHING:
            return False
        asked = [self._properties[name]] if name in self._properties else []
        for pattern, node in self._patterns.items():
            if _matches(node, name):
                asked.append(self._asked_by_pattern[pattern])
        return _all(asked) if asked else self._extra

    def others(self) -> list[tuple[Node, Any, str]]:
        """Names that aren't known, as keys, with the schema of their values; by the patterns."""
        found = []
        for hits in product((True, False), repeat=len(self._patterns)):
            asked = [a for a, hit in zip(self._asked_by_pattern.values(), hits, strict=True) if hit]
            value = _all(asked) if asked else self._extra
            if value is False:
                continue
            contents: list[Node] = [content_other_than(self.known)] if self.known else []
            looks = []
            for node, hit in zip(self._patterns.values(), hits, strict=True):
                written = written_in_string(node)
                if hit:
                    contents.append(written)
                else:
                    looks.append(written)
            key = all_of(contents or [ANY_CONTENT], none_of=looks)
            if self._allowed is not True:
                allowed = self._compile_name(both_of(self._allowed, {"type": "string"}))
                key = sequence(Look(allowed, behind=False, negative=False), key)
            found.append((key, value, "patternProperties" if asked else "additionalProperties"))
        return found


def _mapping(schema: Mapping[str, Any], keyword: str, path: str) -> Mapping[str, Any]:
    value = schema.get(keyword, {})
    if not isinstance(value, Mapping):
        fail(path, f"{keyword!r} is an object, not {value!r}")
    return value


def _all(schemas: list[Any]) -> Any:
    whole: Any = True
    for schema in schemas:
        whole = both_of(whole, schema)
    return whole


def _matches(node: Node, name: str) -> bool:
    try:
        return Automaton(node).matches(name)
    except ValueError:  # no text at all matches
        return False

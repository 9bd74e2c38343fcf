"""A JSON schema, compiled to nodes: the JSON texts that are valid by it.

A model that is guided by it writes the properties in the order in which the schema names them, and
others, where the schema allows others, after them.  What a schema asks that can't be enforced is
refused by its name and place; keywords that ask nothing (title, description, default, ...) and
those that JSON Schema doesn't know are passed over, as its specification has it.

    schema_refs.py -> schema_logic.py, merge_schemas.py -> here -> json_strings.py, json_numbers.py,
    json_objects.py, json_arrays.py -> json_text.py -> nodes.py
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from minisgl.fsm.automaton import Automaton, NoTextError
from minisgl.fsm.json_arrays import array_node
from minisgl.fsm.json_numbers import number_node
from minisgl.fsm.json_objects import object_node
from minisgl.fsm.json_strings import string_node
from minisgl.fsm.json_text import NOTHING, Layout, any_value, choice, text
from minisgl.fsm.merge_schemas import both_of, identity, kind_of
from minisgl.fsm.node_facts import can_match
from minisgl.fsm.nodes import Choice, Node, Rule
from minisgl.fsm.schema_keywords import (
    ASKING,
    NOT_IN,
    OF_TYPE,
    TYPES,
    NothingValidError,
    SchemaError,
    fail,
    listed,
    nothing_valid,
)
from minisgl.fsm.schema_logic import Logic
from minisgl.fsm.schema_refs import local_refs

MAX_DEPTH = 60  # schemas within schemas


def parse_schema(schema: Any, *, max_space: int = 32) -> Node:
    """The tree of a schema.

    Args:
        schema: a dict or a boolean, JSON text of one, a dataclass, or a pydantic model.
        max_space: how many characters of white space may stand where JSON allows any; 0: none.

    Raises:
        SchemaError: a ValueError with the place of what is wrong or can't be enforced.
    """
    if not 0 <= max_space <= 1000:
        raise ValueError(f"max_space is {max_space}; it may be 0 to 1000")
    return _Compiler(local_refs(as_schema(schema)), Layout(max_space)).schema_node()


def as_schema(schema: Any) -> Any:
    """The schema that a text, a pydantic model or a dataclass stands for."""
    if isinstance(schema, str):
        try:
            return json.loads(schema)
        except ValueError as error:
            raise SchemaError(f"the JSON schema is no JSON: {error}") from error
    if hasattr(schema, "model_json_schema"):
        return schema.model_json_schema()
    if dataclasses.is_dataclass(schema) and isinstance(schema, type):
        from minisgl.fsm.dataclass_schema import dataclass_schema

        return dataclass_schema(schema)
    if isinstance(schema, Mapping | bool):
        return schema
    raise SchemaError(
        f"a JSON schema is a dict, a boolean, JSON text, a dataclass or a pydantic model, "
        f"not {type(schema).__name__}"
    )


class _Compiler:
    """One schema's compilation: each referred part is a rule, made once."""

    def __init__(self, root: Any, layout: Layout) -> None:
        self._root = root
        self._layout = layout
        self._logic = Logic(self._resolve)
        self._rules: dict[str, Rule] = {}
        self._open: list[tuple[Rule, Any]] = []  # those without a body yet, with their schemas
        self._depth = 0
        self._contradictions: list[NothingValidError] = []  # parts that no value is valid by

    def schema_node(self) -> Node:
        if isinstance(self._root, Mapping):
            dialect = self._root.get("$schema", "json-schema.org/")
            if "json-schema.org/" not in str(dialect):
                fail("#", f"the dialect {dialect!r} isn't known; those of json-schema.org are")
        node = self._node(self._root, "#")
        while self._open:
            rule, schema = self._open.pop()
            rule.body = self._node(schema, rule.name)
        if self._contradictions and not can_match(node):
            raise self._contradictions[0]
        return node

    # ------------------------------------------------------------------ any schema

    def _node(self, schema: Any, path: str) -> Node:
        if schema is True:
            return any_value(self._layout)
        if schema is False:
            return NOTHING
        if isinstance(schema, Mapping) and set(schema) & ASKING == {"$ref"}:
            return self._reference(schema["$ref"], path)
        self._depth += 1
        if self._depth > MAX_DEPTH:
            fail(path, f"schemas are nested more than {MAX_DEPTH} deep; use $ref")
        node = self._or_nothing(
            lambda: self._normal_node(self._logic.normal(schema, path), path)
        )  # fmt: skip
        self._depth -= 1
        return node

    def _or_nothing(self, make: Callable[[], Node]) -> Node:
        """What `make` gives; where that is impossible, a node that matches nothing."""
        try:
            return make()
        except NothingValidError as error:
            self._contradictions.append(error)
            return NOTHING

    def _reference(self, name: Any, path: str) -> Node:
        rule = self._rules.get(name)
        if rule is None:
            rule = self._rules[name] = Rule(str(name))
            self._open.append((rule, self._resolve(name, path)))
        return rule

    def _resolve(self, name: Any, path: str) -> Any:
        """What a $ref within this schema points to (a JSON pointer)."""
        if not isinstance(name, str) or not (name == "#" or name.startswith("#/")):
            fail(path, f"$ref {name!r}: only parts of this schema, as '#/$defs/name', can be")
        found = self._root
        for part in name.split("/")[1:]:
            part = part.replace("~1", "/").replace("~0", "~")
            try:
                found = found[int(part) if isinstance(found, list) else part]
            except (KeyError, IndexError, TypeError, ValueError):
                fail(path, f"$ref {name!r} leads nowhere")
        return found

    def _normal_node(self, schema: Any, path: str) -> Node:
        """Of a schema that `Logic.normal` gave."""
        if isinstance(schema, bool):
            return self._node(schema, path)
        if "anyOf" in schema:
            base: Any = {k: v for k, v in schema.items() if k != "anyOf"} or True
            options = [
                self._node(both_of(base, option), f"{path}/anyOf/{i}")
                for i, option in enumerate(schema["anyOf"])
            ]
            return choice(options)
        if "enum" in schema:
            return self._listed(schema, path)
        kinds = _types(schema, path)
        return choice([self._or_nothing(partial(self._typed, k, schema, path)) for k in kinds])

    def _typed(self, kind: str, schema: Mapping[str, Any], path: str) -> Node:
        excluded = {identity(value) for value in schema.get(NOT_IN, [])}
        match kind:
            case "string":
                return string_node(schema, path)
            case "number" | "integer":
                return number_node(schema, path, whole=kind == "integer")
            case "boolean":
                left = [name for name in ("true", "false") if name not in excluded]
                return choice([text(name) for name in left])
            case "null":
                return NOTHING if "null" in excluded else text("null")
        for value in schema.get(NOT_IN, []):
            if kind_of(value) == kind:
                fail(path, f"'not' of {value!r} can't be enforced")
        make = object_node if kind == "object" else array_node
        return make(schema, path, self._layout, self._node)

    # ------------------------------------------------------------------ given values

    def _listed(self, schema: Mapping[str, Any], path: str) -> Node:
        """enum and const: those of the values that the other keywords allow."""
        values = schema["enum"]
        if not isinstance(values, list) or not values:
            fail(path, f"'enum' is a list of values, not {values!r}")
        kinds = _types(schema, path)
        excluded = {identity(value) for value in schema.get(NOT_IN, [])}
        rest = {k: v for k, v in schema.items() if k not in ("enum", NOT_IN)}
        fitting = [
            value
            for value in values
            if _is_of(value, kinds) and identity(value) not in excluded
            and self._allows(rest, value, path)
        ]  # fmt: skip
        if not fitting:
            nothing_valid(path, f"none of {values!r} is valid by what else is asked")
        return Choice(tuple(self._layout.literal(value) for value in fitting))

    def _allows(self, schema: Mapping[str, Any], value: Any, path: str) -> bool:
        """Whether what is asked of values of its type allows a given one."""
        kind = kind_of(value)
        asked = [keyword for keyword in OF_TYPE.get(kind, ()) if keyword in schema]
        if not asked:
            return True
        if kind in ("object", "array"):
            fail(path, f"{asked[0]!r} beside 'enum' or 'const' can't be enforced")
        try:
            written = json.dumps(json.loads(identity(value)), ensure_ascii=False)
            return Automaton(self._typed(kind, schema, path)).matches(written)
        except (NothingValidError, NoTextError):
            return False


def _types(schema: Mapping[str, Any], path: str) -> list[str]:
    kinds = listed(schema.get("type", [t for t in TYPES if t != "integer"]))
    for kind in kinds:
        if kind not in TYPES:
            fail(path, f"type {kind!r} is unknown; there are {', '.join(TYPES)}")
    if not kinds:
        fail(path, "'type' lists nothing")
    return [k for k in kinds if k != "integer" or "number" not in kinds]


def _is_of(value: Any, kinds: list[str]) -> bool:
    kind = kind_of(value)
    return kind in kinds or (kind == "number" and "integer" in kinds and value == int(value))

"""A JSON schema, compiled to nodes: the JSON texts that are valid by it.

A model that is guided by it writes the properties in the order in which the schema names them, and
others, where the schema allows others, after them.  What a schema asks that can't be enforced is
refused by its name and place; keywords that ask nothing (title, description, default, ...) and
those that JSON Schema doesn't know are passed over, as its specification has it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from typing import Any

from minisgl.fsm.json_scalars import SchemaError, counts, fail, number_node, string_node
from minisgl.fsm.json_text import (
    EMPTY,
    Layout,
    any_value,
    optional,
    sequence,
    string_literal,
    string_other_than,
    text,
)
from minisgl.fsm.merge_schemas import are_disjoint, merged
from minisgl.fsm.nodes import Chars, Choice, Node, Repeat, Rule

MAX_DEPTH = 60  # schemas within schemas
TYPES = ("string", "number", "integer", "boolean", "null", "object", "array")

# What asks something that no automaton of sensible size has.
REFUSED = (
    "not", "if", "then", "else", "contains", "minContains", "maxContains", "patternProperties",
    "propertyNames", "minProperties", "maxProperties", "dependencies", "dependentRequired",
    "dependentSchemas", "unevaluatedItems", "unevaluatedProperties", "$dynamicRef",
    "$recursiveRef", "contentEncoding", "contentMediaType",
)  # fmt: skip


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
    return _Compiler(as_schema(schema), Layout(max_space)).schema_node()


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
        self._rules: dict[str, Rule] = {}
        self._depth = 0

    def schema_node(self) -> Node:
        return self._node(self._root, "#")

    # ------------------------------------------------------------------ any schema

    def _node(self, schema: Any, path: str) -> Node:
        if schema is True:
            return any_value(self._layout)
        if schema is False:
            return Chars(())  # no text
        if not isinstance(schema, Mapping):
            fail(path, f"a schema is an object or a boolean, not {schema!r}")
        self._depth += 1
        if self._depth > MAX_DEPTH:
            fail(path, f"schemas are nested more than {MAX_DEPTH} deep; use $ref")
        node = self._object_schema(schema, path)
        self._depth -= 1
        return node

    def _object_schema(self, schema: Mapping[str, Any], path: str) -> Node:
        for keyword in REFUSED:
            if keyword in schema:
                fail(path, f"{keyword!r} can't be enforced")
        if "$ref" in schema:
            return self._reference(schema, path)
        for keyword in ("allOf", "anyOf", "oneOf"):
            if keyword in schema:
                return self._combined(schema, keyword, path)
        if "const" in schema:
            return self._listed([schema["const"]], schema, path)
        if "enum" in schema:
            return self._listed(schema["enum"], schema, path)
        return Choice(tuple(self._typed(kind, schema, path) for kind in self._types(schema, path)))

    def _types(self, schema: Mapping[str, Any], path: str) -> list[str]:
        kinds = schema.get("type", [t for t in TYPES if t != "integer"])
        kinds = [kinds] if isinstance(kinds, str) else list(kinds)
        for kind in kinds:
            if kind not in TYPES:
                fail(path, f"type {kind!r} is unknown; there are {', '.join(TYPES)}")
        if not kinds:
            fail(path, "'type' lists nothing")
        return [k for k in kinds if k != "integer" or "number" not in kinds]

    def _typed(self, kind: str, schema: Mapping[str, Any], path: str) -> Node:
        match kind:
            case "string":
                return string_node(schema, path)
            case "number" | "integer":
                return number_node(schema, path, whole=kind == "integer")
            case "boolean":
                return Choice((text("true"), text("false")))
            case "null":
                return text("null")
            case "object":
                return self._object(schema, path)
        return self._array(schema, path)

    def _listed(self, values: Any, schema: Mapping[str, Any], path: str) -> Node:
        """enum and const: those of the values that the other keywords allow."""
        if not isinstance(values, list) or not values:
            fail(path, f"'enum' is a list of values, not {values!r}")
        rest = set(schema) & _ASKING - {"type", "enum", "const"}
        if rest:
            fail(path, f"{sorted(rest)[0]!r} beside 'enum' or 'const' can't be enforced")
        if "const" in schema and "enum" in schema and schema["const"] not in schema["enum"]:
            fail(path, "'const' isn't among 'enum'")
        kinds = self._types(schema, path)
        fitting = [value for value in values if "type" not in schema or _is_of(value, kinds)]
        if not fitting:
            fail(path, f"none of {values!r} is of type {schema['type']!r}")
        return Choice(tuple(self._layout.literal(value) for value in fitting))

    # ------------------------------------------------------------------ references, combinations

    def _reference(self, schema: Mapping[str, Any], path: str) -> Node:
        name = schema["$ref"]
        rest = {k: v for k, v in schema.items() if k != "$ref" and k in _ASKING}
        if rest:
            target = self._resolve(name, path)
            return self._node(self._merge(target, rest, path), path)
        rule = self._rules.get(name)
        if rule is None:
            rule = self._rules[name] = Rule(str(name))
            depth, self._depth = self._depth, 0
            rule.body = self._node(self._resolve(name, path), str(name))
            self._depth = depth
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

    def _combined(self, schema: Mapping[str, Any], keyword: str, path: str) -> Node:
        options = schema[keyword]
        if not isinstance(options, list) or not options:
            fail(path, f"{keyword!r} is a list of schemas, not {options!r}")
        base = {k: v for k, v in schema.items() if k != keyword}
        options = [self._merge(base, self._followed(o, path), path) for o in options]
        if keyword == "allOf":
            whole: Any = base
            for option in options:
                whole = self._merge(whole, option, path)
            return self._node(whole, path)
        if keyword == "oneOf":
            for i, one in enumerate(options):
                for other in options[:i]:
                    if not are_disjoint(one, other):
                        fail(path, "'oneOf' whose options may hold at once can't be enforced")
        nodes = [self._node(option, f"{path}/{keyword}/{i}") for i, option in enumerate(options)]
        return Choice(tuple(nodes))

    def _followed(self, schema: Any, path: str) -> Any:
        """The schema that it refers to, if it does nothing else, as far as no rule is needed."""
        seen: set[str] = set()
        while isinstance(schema, Mapping) and set(schema) & _ASKING == {"$ref"}:
            name = str(schema["$ref"])
            if name in seen:
                fail(path, f"$ref {name!r} leads to itself")
            seen.add(name)
            schema = self._resolve(schema["$ref"], path)
        return schema

    def _merge(self, one: Any, other: Any, path: str) -> Any:
        try:
            return merged(one, other)
        except ValueError as error:
            fail(path, str(error))

    # ------------------------------------------------------------------ objects and arrays

    def _object(self, schema: Mapping[str, Any], path: str) -> Node:
        layout = self._layout
        properties = schema.get("properties", {})
        if not isinstance(properties, Mapping):
            fail(path, f"'properties' is an object, not {properties!r}")
        required = list(schema.get("required", []))
        extra = schema.get("additionalProperties", True)
        known = list(properties) + [name for name in required if name not in properties]
        pairs = []
        for name in known:
            at = f"{path}/properties/{name}"
            if name not in properties and extra is False:
                fail(path, f"{name!r} is required, but no such property is allowed")
            value = self._node(properties.get(name, extra), at)
            pairs.append((layout.pair(string_literal(name), value), name in required))
        # `later` and `first`: what follows when something already stands, and when nothing does.
        later: Node = EMPTY
        if extra is not False:
            value = self._node(extra, f"{path}/additionalProperties")
            pair = layout.pair(string_other_than(known), value)
            later = Repeat(sequence(layout.comma(), pair), 0, None)
            first = optional(sequence(pair, later))
        else:
            first = EMPTY
        for pair, is_required in reversed(pairs):
            here = sequence(pair, later)
            first = here if is_required else Choice((here, first))
            following = sequence(layout.comma(), pair)
            later = sequence(following if is_required else optional(following), later)
        return layout.listed("{", first, "}")

    def _array(self, schema: Mapping[str, Any], path: str) -> Node:
        layout = self._layout
        if schema.get("uniqueItems"):
            fail(path, "'uniqueItems' can't be enforced")
        low, high = counts(schema, "minItems", "maxItems", path)
        fixed, items = schema.get("prefixItems", []), schema.get("items", True)
        if isinstance(items, list):  # as JSON Schema had it until 2019
            fixed, items = items, schema.get("additionalItems", True)
        if items is False:
            high = len(fixed) if high is None else min(high, len(fixed))
        fixed = fixed if high is None else fixed[:high]
        if high is not None and high < low:
            fail(path, f"at least {low} and at most {high} items are asked for")
        nodes = [self._node(item, f"{path}/prefixItems/{i}") for i, item in enumerate(fixed)]
        more: Node = EMPTY
        first: Node = EMPTY
        if items is not False:
            item = self._node(items, f"{path}/items")
            after = sequence(layout.comma(), item)
            left = None if high is None else high - len(fixed)
            more = Repeat(after, max(low - len(fixed), 0), left)
            first = layout.repeated(item, low, high)
        for i, item in reversed(list(enumerate(nodes))):
            must = i < low
            here = sequence(item, more)
            first = here if must else optional(here)
            following = sequence(layout.comma(), here)
            more = following if must else optional(following)
        return layout.listed("[", first, "]")


# What a keyword asks for, as opposed to what it tells.
_ASKING = {
    "type", "enum", "const", "$ref", "allOf", "anyOf", "oneOf", "properties", "required",
    "additionalProperties", "items", "prefixItems", "additionalItems", "minItems", "maxItems",
    "uniqueItems", "minLength", "maxLength", "pattern", "format", "minimum", "maximum",
    "exclusiveMinimum", "exclusiveMaximum", "multipleOf", *REFUSED,
}  # fmt: skip


def _is_of(value: Any, kinds: list[str]) -> bool:
    match value:
        case bool():
            return "boolean" in kinds
        case None:
            return "null" in kinds
        case str():
            return "string" in kinds
        case int() | float():
            return "number" in kinds or ("integer" in kinds and value == int(value))
        case list():
            return "array" in kinds
    return "object" in kinds

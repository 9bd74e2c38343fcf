"""What a JSON schema asks by way of other schemas, rewritten until only `anyOf` is left of it.

    {"type": "number", "not": {"minimum": 3}}  ->  {"type": ["number"], "exclusiveMaximum": 3}

A `not` goes inward until it meets what can be asked the other way round.  Then `if` is one of two
cases, `oneOf` is each option with the others excluded, and so on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import combinations
from typing import Any

from minisgl.fsm.merge_schemas import are_disjoint, merged
from minisgl.fsm.schema_keywords import (
    ASKING,
    FRACTIONAL,
    LOGIC,
    NOT_IN,
    NOT_PATTERN,
    REFUSED,
    TYPES,
    fail,
    listed,
    nothing_valid,
)

MAX_EXPANDED = 30_000  # schemas that one is made of, each as often as it is referred to

# The bound that holds where this one doesn't.
_OPPOSITE = {
    "minimum": "exclusiveMaximum", "exclusiveMinimum": "maximum",
    "maximum": "exclusiveMinimum", "exclusiveMaximum": "minimum",
}  # fmt: skip
_COUNTED = {"Length": "string", "Items": "array", "Properties": "object"}


class Logic:
    """The rewriting of one schema's parts.

    Args:
        resolve: gives what a `$ref` at some path refers to.
    """

    def __init__(self, resolve: Callable[[Any, str], Any]) -> None:
        self._resolve = resolve
        self._rewrites = 0  # how often more than allOf and $ref were at work
        self._budget = MAX_EXPANDED

    def normal(self, schema: Any, path: str, seen: frozenset[str] = frozenset()) -> Any:
        """A schema that is valid for the same values: a boolean, or what is asked of each type.

        Besides at most one `anyOf`, whose options are any schemas.

        Args:
            schema: any.
            path: where it stands, for messages.
            seen: the references on the way here.
        """
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, Mapping):
            fail(path, f"a schema is an object or a boolean, not {schema!r}")
        self._budget -= 1
        if self._budget < 0:
            fail(path, f"references and conditions make more than {MAX_EXPANDED} schemas of this")
        whole: Any = self._checked({k: v for k, v in schema.items() if k in ASKING}, path)
        logic = {k: whole.pop(k) for k in ("$ref", *LOGIC) if k in whole}
        unevaluated = {k: whole.pop(k) for k in list(whole) if k.startswith("unevaluated")}
        rewrites = self._rewrites
        try:
            for part in self._parts(logic, whole, path, seen):
                whole = merged(whole, part)
        except ValueError as error:
            if type(error) is not ValueError:
                raise
            fail(path, str(error))
        if whole is False:
            nothing_valid(path, "no value is valid by all that is asked")
        if unevaluated:
            if self._rewrites > rewrites:
                fail(path, f"{next(iter(unevaluated))!r} beside conditions can't be enforced")
            whole = _with_unevaluated(whole, unevaluated, path)
        return whole

    def _checked(self, schema: dict[str, Any], path: str) -> dict[str, Any]:
        """In the forms of today, and nothing that is refused."""
        for keyword in (*REFUSED, "$dynamicRef"):
            if keyword in schema:
                fail(path, f"{keyword!r} can't be enforced")
        if "const" in schema:
            const = {"enum": [schema.pop("const")]}
            schema = merged(schema, const) or {"enum": []}
        if isinstance(schema.get("items"), list):  # as JSON Schema had it until 2019
            schema["prefixItems"] = schema.pop("items")
            if "additionalItems" in schema:
                schema["items"] = schema["additionalItems"]
        schema.pop("additionalItems", None)  # beside no list of items it says nothing
        return schema

    def _parts(
        self, logic: dict[str, Any], beside: Any, path: str, seen: frozenset[str]
    ) -> list[Any]:
        """Schemas in normal form that say together what the keywords say, `beside` others."""
        parts: list[Any] = []
        for keyword, value in logic.items():
            match keyword:
                case "$ref":
                    if value in seen:
                        fail(path, f"$ref {value!r} leads to itself")
                    found = self._resolve(value, path)
                    parts.append(self.normal(found, path, seen | {value}))
                case "allOf":
                    parts += [self.normal(o, path, seen) for o in _options(value, keyword, path)]
                case _:
                    self._rewrites += 1
                    for options in self._cases(keyword, value, logic, beside, path, seen):
                        if len(options) == 1:
                            parts.append(self.normal(options[0], path, seen))
                        else:
                            parts.append({"anyOf": options} if options else False)
        return parts

    def _cases(
        self,
        keyword: str,
        value: Any,
        logic: dict[str, Any],
        beside: Any,
        path: str,
        seen: frozenset[str],
    ) -> list[list[Any]]:
        """Lists of schemas: that one of each list holds is what a keyword says."""
        match keyword:
            case "anyOf":
                return [_options(value, keyword, path)]
            case "oneOf":
                return [self._exclusive(_options(value, keyword, path), beside, path, seen)]
            case "not":
                return [self._negated(value, path, seen)]
            case "if":
                met = {"allOf": [value, logic.get("then", True)]}
                unmet = {"allOf": [{"not": value}, logic.get("else", True)]}
                return [[met, unmet]] if "then" in logic or "else" in logic else []
            case "then" | "else":
                return []
        if not isinstance(value, Mapping):
            fail(path, f"{keyword!r} is an object, not {value!r}")
        cases = []
        for name, asked in value.items():  # what asks something if there is a property
            here = {"required": asked} if isinstance(asked, list) else asked
            cases.append([{"properties": {name: False}}, {"allOf": [{"required": [name]}, here]}])
        return cases

    def _exclusive(
        self, options: list[Any], beside: Any, path: str, seen: frozenset[str]
    ) -> list[Any]:
        """Of each option the values that aren't valid by another."""
        of_type = (
            {"type": beside["type"]} if isinstance(beside, Mapping) and "type" in beside else {}
        )
        followed = [self._followed(option, path, seen) for option in options]
        followed = [{**of_type, **o} if isinstance(o, Mapping) else o for o in followed]
        if all(are_disjoint(a, b) for a, b in combinations(followed, 2)):
            return options
        return [
            {"allOf": [option, *({"not": other} for other in options if other is not option)]}
            if options.count(option) == 1
            else False
            for option in options
        ]

    def _followed(self, schema: Any, path: str, seen: frozenset[str]) -> Any:
        """What a schema refers to, if it does nothing else."""
        while isinstance(schema, Mapping) and set(schema) & ASKING == {"$ref"}:
            if schema["$ref"] in seen:
                fail(path, f"$ref {schema['$ref']!r} leads to itself")
            seen |= {schema["$ref"]}
            schema = self._resolve(schema["$ref"], path)
        return schema

    # ------------------------------------------------------------------ not

    def _negated(self, schema: Any, path: str, seen: frozenset[str]) -> list[Any]:
        """Schemas of which one holds where this one doesn't."""
        schema = self._followed(schema, path, seen)
        if isinstance(schema, bool):
            return [not schema]
        if not isinstance(schema, Mapping):
            fail(path, f"a schema is an object or a boolean, not {schema!r}")
        asked = {k: v for k, v in schema.items() if k in ASKING}
        return [n for keyword, value in asked.items() for n in _not(keyword, value, asked, path)]


def _not(keyword: str, value: Any, schema: Mapping[str, Any], path: str) -> list[Any]:
    """Schemas of which one holds where this keyword of a schema doesn't."""
    match keyword:
        case "not":
            return [value]
        case "$ref":
            return [{"not": {"$ref": value}}]
        case "allOf":
            return [{"not": option} for option in _options(value, keyword, path)]
        case "anyOf":
            return [{"allOf": [{"not": o} for o in _options(value, keyword, path)]}]
        case "oneOf":  # none of them, or two
            none = {"allOf": [{"not": o} for o in _options(value, keyword, path)]}
            return [none, *({"allOf": pair} for pair in map(list, combinations(value, 2)))]
        case "if":
            return [
                {"allOf": [value, {"not": schema.get("then", True)}]},
                {"allOf": [{"not": value}, {"not": schema.get("else", True)}]},
            ]
        case "then" | "else":
            return []
        case "type":
            return _not_of_type(listed(value))
        case "const":
            return [{NOT_IN: [value]}]
        case "enum":
            return [{NOT_IN: listed(value)}]
        case "pattern":
            return [{"type": "string", NOT_PATTERN: [value]}]
        case "uniqueItems" if value is False:
            return []
    return _not_of_parts(keyword, value, schema, path)


def _not_of_type(kinds: list[str]) -> list[Any]:
    left = [k for k in TYPES if k not in kinds and k != "integer"]
    if "integer" in kinds and "number" in left:
        left.remove("number")
        return [{"type": left}, {"type": "number", FRACTIONAL: True}]
    return [{"type": left}]


def _not_of_parts(keyword: str, value: Any, schema: Mapping[str, Any], path: str) -> list[Any]:
    """The same, of what is asked of numbers, lengths, items and properties."""
    found: list[Any] | None = None
    least_or_most, counted = keyword[:3], keyword[3:]
    if keyword in _OPPOSITE and not isinstance(value, bool):
        return [{"type": "number", _OPPOSITE[keyword]: value}]
    if counted in _COUNTED and isinstance(value, int | float):
        if least_or_most == "max":
            return [{"type": _COUNTED[counted], f"min{counted}": value + 1}]
        return [{"type": _COUNTED[counted], f"max{counted}": value - 1}] if value > 0 else []
    match keyword, value:
        case "required", list():
            found = [{"type": "object", "properties": {name: False}} for name in value]
        case "properties", Mapping():
            found = [
                {"type": "object", "required": [name], "properties": {name: {"not": below}}}
                for name, below in value.items()
            ]
        case "prefixItems", list():
            found = [
                {"type": "array", "minItems": i + 1, "prefixItems": [True] * i + [{"not": item}]}
                for i, item in enumerate(value)
            ]
        case "items", bool() | Mapping() if "prefixItems" not in schema:
            found = [{"type": "array", "contains": {"not": value}}]
        case "contains", _ if "minContains" not in schema and "maxContains" not in schema:
            found = [{"type": "array", "items": {"not": value}}]
        case "additionalProperties", True:
            found = []
    if found is None:
        fail(path, f"'not' of {keyword!r} can't be enforced")
    return found


def _options(value: Any, keyword: str, path: str) -> list[Any]:
    if not isinstance(value, list) or not value:
        fail(path, f"{keyword!r} is a list of schemas, not {value!r}")
    return value


def _with_unevaluated(
    whole: dict[str, Any], unevaluated: dict[str, Any], path: str
) -> dict[str, Any]:
    """The same for properties and items that nothing else in the schema is about."""
    if "anyOf" in whole:
        fail(path, f"{next(iter(unevaluated))!r} beside conditions can't be enforced")
    whole = dict(whole)
    if "unevaluatedProperties" in unevaluated:
        whole.setdefault("additionalProperties", unevaluated["unevaluatedProperties"])
    if "unevaluatedItems" in unevaluated:
        if "contains" in whole:
            fail(path, "'unevaluatedItems' beside 'contains' can't be enforced")
        whole.setdefault("items", unevaluated["unevaluatedItems"])
    return whole

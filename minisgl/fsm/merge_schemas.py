"""Two JSON schemas as one that asks for both: for allOf, and for keywords beside $ref or anyOf."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_GREATER = ("minLength", "minItems", "minimum", "exclusiveMinimum")
_SMALLER = ("maxLength", "maxItems", "maximum", "exclusiveMaximum")
_SILENT = (
    "title", "description", "default", "examples", "$schema", "$id", "$comment", "$defs",
    "definitions", "deprecated", "readOnly", "writeOnly",
)  # fmt: skip


def merged(one: Any, other: Any) -> Any:
    """
    >>> merged({"type": ["string", "null"], "maxLength": 9}, {"type": "string", "maxLength": 5})
    {'type': ['string'], 'maxLength': 5}

    Raises:
        ValueError: two values of a keyword for which there is no single one that asks for both.
    """
    if one is False or other is False:
        return False
    if one is True or other is True:
        return other if one is True else one
    for schema in (one, other):
        if not isinstance(schema, Mapping):
            raise ValueError(f"a schema is an object or a boolean, not {schema!r}")
    result = dict(one)
    for keyword, value in other.items():
        if keyword in _SILENT or keyword not in one or one[keyword] == value:
            result.setdefault(keyword, value)
        else:
            result[keyword] = _both(keyword, one[keyword], value)
    _close(result, one, other)
    return result


def _both(keyword: str, one: Any, other: Any) -> Any:
    if keyword == "type":
        kinds = [k for k in _listed(one) if k in _listed(other)]
        if "integer" not in kinds and "integer" in (*_listed(one), *_listed(other)):
            others = _listed(other) if "integer" in _listed(one) else _listed(one)
            kinds += ["integer"] if "number" in others else []
        if not kinds:
            raise ValueError(f"no value is both of type {one!r} and of type {other!r}")
        return kinds
    if keyword in _GREATER:
        return max(one, other)
    if keyword in _SMALLER:
        return min(one, other)
    if keyword == "required":
        return [*one, *(name for name in other if name not in one)]
    if keyword == "enum":
        return [value for value in one if value in other]
    if keyword == "properties":
        shared = {name: merged(one[name], other[name]) for name in one if name in other}
        return {**one, **other, **shared}
    if keyword in ("items", "additionalProperties"):
        return merged(one, other)
    if keyword in ("anyOf", "allOf"):
        if keyword == "allOf":
            return [*one, *other]
        return [merged(a, b) for a in one for b in other]
    raise ValueError(f"{keyword!r} of {one!r} and of {other!r} at once can't be enforced")


def _close(result: dict[str, Any], one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """A property that only one names has to be one of the other's additional ones too."""
    for schema, twin in ((one, other), (other, one)):
        extra = schema.get("additionalProperties", True)
        if extra is True or "properties" not in result:
            continue
        properties = dict(result["properties"])
        for name in twin.get("properties", {}):
            if name not in schema.get("properties", {}):
                properties[name] = merged(properties[name], extra)
        result["properties"] = properties


def _listed(kinds: Any) -> list[str]:
    return [kinds] if isinstance(kinds, str) else list(kinds)


def are_disjoint(one: Any, other: Any) -> bool:
    """Whether it can be seen that no value is valid by both.

    >>> are_disjoint({"type": "string"}, {"type": ["null", "array"]})
    True
    >>> are_disjoint({"type": "number"}, {"type": "integer"})
    False
    """
    if not isinstance(one, Mapping) or not isinstance(other, Mapping):
        return one is False or other is False
    values, others = _values(one), _values(other)
    if values is not None and others is not None:
        return not values & others
    kinds, other_kinds = _kinds(one), _kinds(other)
    if kinds is not None and other_kinds is not None:
        if not kinds & other_kinds:
            return True
        if kinds == other_kinds == {"object"}:
            shared = set(one.get("required", [])) & set(other.get("required", []))
            return any(
                are_disjoint(one["properties"][name], other["properties"][name])
                for name in shared
                if name in one.get("properties", {}) and name in other.get("properties", {})
            )
    return False


def _values(schema: Mapping[str, Any]) -> set[str] | None:
    listed = [schema["const"]] if "const" in schema else schema.get("enum")
    return None if listed is None else {json.dumps(v, sort_keys=True) for v in listed}


def _kinds(schema: Mapping[str, Any]) -> set[str] | None:
    """The types that it allows, with whole numbers counted as numbers; None: any."""
    if "type" in schema:
        return {"number" if k == "integer" else k for k in _listed(schema["type"])}
    values = _values(schema)
    if values is None:
        return None
    names = {"str": "string", "bool": "boolean", "NoneType": "null", "list": "array"}
    kinds = {type(json.loads(value)).__name__ for value in values}
    return {names.get(k, "object" if k == "dict" else "number") for k in kinds}

"""Two JSON schemas as one that asks for both, and whether two exclude each other.

Both are as `schema_logic.normal` leaves them: what is asked of values of one type, and `anyOf`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from minisgl.fsm.schema_keywords import NOT_IN, NOT_PATTERN, TYPES, listed

MAX_COMBINATIONS = 1000

_GREATER = ("minLength", "minItems", "minimum", "exclusiveMinimum", "minProperties")
_SMALLER = ("maxLength", "maxItems", "maximum", "exclusiveMaximum", "maxProperties")
_JOINED = ("allOf", "required", NOT_IN, NOT_PATTERN)


def merged(one: Any, other: Any) -> Any:
    """
    >>> merged({"type": ["string", "null"], "maxLength": 9}, {"type": "string", "maxLength": 5})
    {'type': ['string'], 'maxLength': 5}
    >>> merged({"type": "string"}, {"type": "null"})
    False

    Raises:
        ValueError: two values of a keyword for which there is no single one that asks for both.
    """
    if one is False or other is False:
        return False
    if one is True or other is True:
        return other if one is True else one
    arrays = _arrays(one, other)
    result = {**one, **arrays}
    for keyword, value in other.items():
        if keyword in arrays:
            continue
        if keyword not in one or _is_same(one[keyword], value):
            result[keyword] = value
        else:
            result[keyword] = _both(keyword, one[keyword], value)
    for keyword in ("type", "enum"):
        if result.get(keyword) == []:
            return False
    return _closed(result, one, other)


def _both(keyword: str, one: Any, other: Any) -> Any:
    if keyword == "type":
        return _types(listed(one), listed(other))
    if keyword in _GREATER and _are_numbers(one, other):
        return max(one, other)
    if keyword in _SMALLER and _are_numbers(one, other):
        return min(one, other)
    if keyword in _JOINED:
        return [*one, *(value for value in other if value not in one)]
    if keyword in ("pattern", "format", "multipleOf"):
        return [*listed(one), *listed(other)]
    if keyword == "enum":
        return [value for value in one if identity(value) in map(identity, other)]
    if keyword in ("properties", "patternProperties"):
        shared = {name: both_of(one[name], other[name]) for name in one if name in other}
        return {**one, **other, **shared}
    if keyword in ("additionalProperties", "propertyNames"):
        return both_of(one, other)
    if keyword == "uniqueItems":
        return one or other
    if keyword == "anyOf":
        if len(one) * len(other) > MAX_COMBINATIONS:
            raise ValueError(f"more than {MAX_COMBINATIONS} combinations of options")
        return [both_of(a, b) for a in one for b in other]
    raise ValueError(f"{keyword!r} of {one!r} and of {other!r} at once can't be enforced")


def both_of(one: Any, other: Any) -> Any:
    """A schema that asks for both, which may be any."""
    if one is True or other is True or _is_same(one, other):
        return other if one is True else one
    return {"allOf": [one, other]}


def _types(kinds: list[str], others: list[str]) -> list[str]:
    """Those in both; a whole number is a number."""
    both = [k for k in TYPES if k in kinds and k in others]
    if "integer" not in both and "number" not in both and "integer" in (*kinds, *others):
        both += ["integer"] if "number" in (*kinds, *others) else []
    return both


def _arrays(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """`prefixItems` and `items` place by place: the former says what the latter is about."""
    if not any(
        keyword in schema for schema in (one, other) for keyword in ("items", "prefixItems")
    ):
        return {}
    fixed = [schema.get("prefixItems", []) for schema in (one, other)]
    more = [schema.get("items", True) for schema in (one, other)]
    places = [
        both_of(*(f[i] if i < len(f) else m for f, m in zip(fixed, more, strict=True)))
        for i in range(max(map(len, fixed)))
    ]
    arrays: dict[str, Any] = {"prefixItems": places} if places else {}
    return arrays | ({"items": both_of(*more)} if "items" in {*one, *other} else {})


def _closed(
    result: dict[str, Any], one: Mapping[str, Any], other: Mapping[str, Any]
) -> dict[str, Any]:
    """A property that only one names has to be one of the other's additional ones too."""
    for schema, twin in ((one, other), (other, one)):
        extra = schema.get("additionalProperties", True)
        if extra is True:
            continue
        if "patternProperties" in twin and twin["patternProperties"] != schema.get(
            "patternProperties"
        ):
            raise ValueError(
                "'patternProperties' of one and 'additionalProperties' of another can't be enforced"
            )
        properties = dict(result.get("properties", {}))
        for name, value in twin.get("properties", {}).items():
            if name not in schema.get("properties", {}):
                if "patternProperties" in schema:
                    raise ValueError(
                        "'patternProperties' of one and 'properties' of another can't be enforced"
                    )
                properties[name] = both_of(value, extra)
        result = {**result, "properties": properties} if properties else result
    return result


def _are_numbers(*values: Any) -> bool:
    return all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)


def _is_same(one: Any, other: Any) -> bool:
    return one == other and identity(one) == identity(other)  # subtle: True == 1


# ---------------------------------------------------------------------- values


def identity(value: Any) -> str:
    """Equal for equal JSON values, whatever the order of properties.

    >>> identity({"b": 1.0, "a": [True]}), identity(1) == identity(True)
    ('{"a": [true], "b": 1}', False)
    """
    return json.dumps(_plain(value), sort_keys=True)


def _plain(value: Any) -> Any:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list() | tuple():
            return [_plain(item) for item in value]
        case Mapping():
            return {str(name): _plain(item) for name, item in value.items()}
    return value


# ---------------------------------------------------------------------- options


def are_disjoint(one: Any, other: Any) -> bool:
    """Whether it can be seen that no value is valid by both.

    >>> are_disjoint({"type": "string"}, {"type": ["null", "array"]})
    True
    >>> are_disjoint({"type": "number"}, {"type": "integer"})
    False
    """
    if isinstance(one, bool) or isinstance(other, bool):
        return one is False or other is False
    values, others = _values(one), _values(other)
    if values is not None and others is not None:
        return not values & others
    kinds, other_kinds = _kinds(one), _kinds(other)
    if kinds is None or other_kinds is None:
        return False
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
    values = [schema["const"]] if "const" in schema else schema.get("enum")
    return None if values is None else {identity(value) for value in values}


def _kinds(schema: Mapping[str, Any]) -> set[str] | None:
    """The types that it allows, with whole numbers counted as numbers; None: any."""
    if "type" in schema:
        return {"number" if k == "integer" else k for k in listed(schema["type"])}
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    return None if values is None else {kind_of(value) for value in values}


def kind_of(value: Any) -> str:
    """The type of a JSON value; of all numbers "number"."""
    match value:
        case bool():
            return "boolean"
        case None:
            return "null"
        case str():
            return "string"
        case int() | float():
            return "number"
        case list() | tuple():
            return "array"
    return "object"

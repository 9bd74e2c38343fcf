"""The JSON schema of a dataclass, from the types of its fields."""

from __future__ import annotations

import dataclasses
import types
from enum import Enum
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


def dataclass_schema(cls: type) -> dict[str, Any]:
    """Every field is a property; those without a default are required, and there are no others.

    Raises:
        ValueError: a field is of a type that JSON has nothing for.
    """
    definitions: dict[str, Any] = {}
    return {**_of(cls, definitions), "$defs": definitions}


def _of(kind: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    if kind is Any:
        return {}
    origin, args = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return {"anyOf": [_of(arg, definitions) for arg in args]}
    if origin is Literal:
        return {"enum": list(args)}
    if kind is list or origin is list:
        return {"type": "array", "items": _of(args[0], definitions) if args else {}}
    if kind is dict or (origin is dict and args[0] is str):
        value = _of(args[1], definitions) if args else {}
        return {"type": "object", "additionalProperties": value}
    if origin is tuple and Ellipsis not in args:
        items = [_of(arg, definitions) for arg in args]
        return {"type": "array", "prefixItems": items, "items": False, "minItems": len(items)}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return {"enum": [member.value for member in kind]}
    if dataclasses.is_dataclass(kind) and isinstance(kind, type):
        return _of_dataclass(kind, definitions)
    raise ValueError(f"a field of type {kind!r} has no JSON schema")


def _of_dataclass(cls: type, definitions: dict[str, Any]) -> dict[str, Any]:
    reference = {"$ref": f"#/$defs/{cls.__qualname__}".replace("~", "~0")}
    if cls.__qualname__ in definitions:
        return reference
    schema: dict[str, Any] = {"type": "object", "additionalProperties": False}
    definitions[cls.__qualname__] = schema  # first, since a field may hold the class itself
    hints = get_type_hints(cls)
    fields = dataclasses.fields(cls)
    schema["properties"] = {f.name: _of(hints[f.name], definitions) for f in fields}
    schema["required"] = [
        f.name
        for f in fields
        if f.default is dataclasses.MISSING and f.default_factory is dataclasses.MISSING
    ]
    return reference

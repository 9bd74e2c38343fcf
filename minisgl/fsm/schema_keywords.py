"""What the keywords of JSON Schema are, and how a schema is refused."""

from __future__ import annotations

from typing import Any, NoReturn

TYPES = ("string", "number", "integer", "boolean", "null", "object", "array")

# What asks something that no automaton of sensible size has.
REFUSED = ("$recursiveRef", "contentEncoding", "contentMediaType", "contentSchema")

# What asks that other schemas hold, some of them, or none.
LOGIC = (
    "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentRequired",
    "dependentSchemas", "dependencies",
)  # fmt: skip

# What asks something of the values of one type only.
OF_TYPE = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    "object": (
        "properties", "required", "additionalProperties", "patternProperties", "propertyNames",
        "minProperties", "maxProperties", "unevaluatedProperties",
    ),
    "array": (
        "items", "prefixItems", "additionalItems", "minItems", "maxItems", "uniqueItems",
        "contains", "minContains", "maxContains", "unevaluatedItems",
    ),
}  # fmt: skip

# Our own, for what is left of a `not`.
NOT_IN = "(not in)"  # a list: the value is none of these
NOT_PATTERN = "(not pattern)"  # a list: the string matches none of these
FRACTIONAL = "(fractional)"  # True: the number isn't whole

# What a keyword asks for, as opposed to what it tells (title, description, default, ...).
ASKING = {
    "type", "enum", "const", "$ref", "$dynamicRef", NOT_IN, NOT_PATTERN, FRACTIONAL, *LOGIC,
    *REFUSED, *(keyword for keywords in OF_TYPE.values() for keyword in keywords),
}  # fmt: skip


class SchemaError(ValueError):
    """A schema that can't be enforced: says where, and what."""


class NothingValidError(SchemaError):
    """A part of a schema that no value is valid by; elsewhere in it others may be."""


def fail(path: str, what: str) -> NoReturn:
    """Refuse a schema, at a place in it."""
    raise SchemaError(f"JSON schema, at {path}: {what}")


def nothing_valid(path: str, what: str) -> NoReturn:
    """Tell that no value is valid by a part of a schema."""
    raise NothingValidError(f"JSON schema, at {path}: {what}")


def listed(value: Any) -> list[Any]:
    """
    >>> listed("string"), listed(["string", "null"])
    (['string'], ['string', 'null'])
    """
    return list(value) if isinstance(value, list | tuple) else [value]

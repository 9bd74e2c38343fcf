"""Every `$ref` of a JSON schema as a pointer from its root: `$id` and `$anchor` give other names.

    {"$id": "http://a/b", "$ref": "c#x", "$defs": {"y": {"$id": "c", "$anchor": "x"}}}

refers to `#/$defs/y`.  Nothing is fetched: what isn't in the schema itself stays as it is, and is
refused where it is used.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import unquote, urljoin

_HOLDS_ONE = {
    "additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items",
    "not", "propertyNames", "then", "unevaluatedItems", "unevaluatedProperties",
}  # fmt: skip
_HOLDS_LIST = {"allOf", "anyOf", "items", "oneOf", "prefixItems"}
_HOLDS_MAP = {
    "$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties",
}  # fmt: skip


def local_refs(root: Any) -> Any:
    """The schema with references into itself as pointers from its root."""
    return _Refs(root).rewritten()


class _Refs:
    """One schema's names."""

    def __init__(self, root: Any) -> None:
        self._root = root
        dialect = root.get("$schema") if isinstance(root, Mapping) else None
        self._is_old = bool(re.search("draft-0[3467]", str(dialect)))  # there it stands alone
        self._pointer = {"": "#"}  # of each URI: of a resource, or with an anchor
        self._dynamic: dict[str, int] = {}  # how often each $dynamicAnchor comes up
        self._find(root, "", "#")

    def _find(self, schema: Any, base: str, pointer: str) -> None:
        if not isinstance(schema, Mapping):
            return
        base = self._base(schema, base)
        if isinstance(schema.get("$id"), str):
            self._pointer.setdefault(base, pointer)
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(keyword), str):
                self._pointer.setdefault(f"{base}#{schema[keyword]}", pointer)
        if isinstance(schema.get("$dynamicAnchor"), str):
            name = schema["$dynamicAnchor"]
            self._dynamic[name] = self._dynamic.get(name, 0) + 1
        _map(schema, lambda below, place: self._find(below, base, f"{pointer}/{place}"))

    def rewritten(self) -> Any:
        return self._rewritten(self._root, "")

    def _rewritten(self, schema: Any, base: str) -> Any:
        if not isinstance(schema, Mapping):
            return schema
        base = self._base(schema, base)
        result = _map(schema, lambda below, _: self._rewritten(below, base))
        if isinstance(schema.get("$ref"), str):
            result["$ref"] = self._local(schema["$ref"], base)
            if self._is_old:
                return {"$ref": result["$ref"]}
        name = schema.get("$dynamicRef")
        # With one anchor of that name, or none, there is nothing dynamic about it.
        if isinstance(name, str) and self._dynamic.get(name.partition("#")[2], 0) <= 1:
            result["$ref"] = self._local(result.pop("$dynamicRef"), base)
        return result

    def _base(self, schema: Mapping[str, Any], base: str) -> str:
        name = schema.get("$id")
        if not isinstance(name, str) or (self._is_old and "$ref" in schema):
            return base
        return urljoin(base, name.removesuffix("#"))

    def _local(self, ref: str, base: str) -> str:
        uri, _, fragment = ref.partition("#")
        uri = urljoin(base, uri) if uri else base
        fragment = unquote(fragment)
        if f"{uri}#{fragment}" in self._pointer:
            return self._pointer[f"{uri}#{fragment}"]
        if uri in self._pointer and (not fragment or fragment.startswith("/")):
            return self._pointer[uri] + fragment
        return ref


def _map(schema: Mapping[str, Any], f: Callable[[Any, str], Any]) -> dict[str, Any]:
    """The schema with f(schema, where) of each schema right below it."""
    result = dict(schema)
    for keyword, value in schema.items():
        if keyword in _HOLDS_LIST and isinstance(value, list):
            result[keyword] = [f(below, f"{keyword}/{i}") for i, below in enumerate(value)]
        elif keyword in _HOLDS_MAP and isinstance(value, Mapping):
            result[keyword] = {
                name: f(below, f"{keyword}/{name.replace('~', '~0').replace('/', '~1')}")
                for name, below in value.items()
            }
        elif keyword in _HOLDS_ONE:
            result[keyword] = f(value, keyword)
    return result
